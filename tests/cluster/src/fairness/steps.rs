//! How long workers of the nodes did nothing else, as their metrics tell.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// No step of a worker may take longer, milliseconds.
pub const STEP_MAX_MS: f64 = 10.0;

/// How long metrics may take to come.
const PATIENCE: Duration = Duration::from_secs(30);

/// Steps of all workers, by what they took at most.
#[derive(Clone, Debug, Default)]
pub struct Steps {
    /// By the processor of the worker; by the clock others are counted that ran in the middle of a step.
    pub worked: Histogram,
    /// By the clock.
    pub took: Histogram,
}

/// How many took at most so many microseconds.
#[derive(Clone, Debug, Default)]
pub struct Histogram(BTreeMap<u64, u64>);

/// The last bound of a histogram.
const BEYOND: u64 = u64::MAX;

impl Histogram {
    fn add(&mut self, text: &str, name: &str) {
        let lines = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix("_bucket{le=\""));
        for (bound, count) in lines.filter_map(|line| line.split_once("\"} ")) {
            let bound = bound.parse().map_or(BEYOND, |seconds: f64| (seconds.min(1e9) * 1e6).round() as u64);
            let bound = if bound >= 1_000_000_000_000_000 { BEYOND } else { bound };
            *self.0.entry(bound).or_default() += count.trim().parse::<u64>().unwrap_or(0);
        }
    }

    fn since(&self, before: &Histogram) -> Histogram {
        let count = |(bound, count): (&u64, &u64)| (*bound, count - before.0.get(bound).unwrap_or(&0));
        Histogram(self.0.iter().map(count).collect())
    }

    /// All of them.
    pub fn count(&self) -> u64 {
        self.0.values().max().copied().unwrap_or(0)
    }

    /// Those that took too long.
    pub fn above(&self) -> u64 {
        self.count() - self.0.get(&((STEP_MAX_MS * 1e3) as u64)).copied().unwrap_or(0)
    }

    /// The longest one took at most so many milliseconds.
    pub fn longest_ms(&self) -> f64 {
        let all = self.count();
        let bound = self.0.iter().find(|(_, count)| **count == all).map_or(0, |(bound, _)| *bound);
        if bound == BEYOND { f64::INFINITY } else { bound as f64 / 1e3 }
    }

    /// Those of both.
    pub fn join(&mut self, other: &Histogram) {
        other.0.iter().for_each(|(bound, count)| *self.0.entry(*bound).or_default() += count);
    }
}

impl Steps {
    /// Of the nodes with these admin ports, since they started.
    ///
    /// # Errors
    /// One does not tell.
    pub fn of(admins: &[SocketAddr]) -> Result<Steps, String> {
        let mut steps = Steps::default();
        for &admin in admins {
            let text = metrics(admin).map_err(|error| format!("the metrics at {admin}: {error}"))?;
            steps.took.add(&text, "coppice_worker_step_seconds");
            steps.worked.add(&text, "coppice_worker_step_cpu_seconds");
        }
        match steps.took.count() {
            0 => Err("the nodes tell nothing of the steps of their workers".into()),
            _ => Ok(steps),
        }
    }

    /// Those since then.
    pub fn since(&self, before: &Steps) -> Steps {
        Steps { worked: self.worked.since(&before.worked), took: self.took.since(&before.took) }
    }

    /// Takes others in.
    pub fn join(&mut self, other: &Steps) {
        self.worked.join(&other.worked);
        self.took.join(&other.took);
    }
}

fn metrics(admin: SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&admin, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_those_between_two_looks() {
        let of = |counts: [u64; 3]| {
            let mut histogram = Histogram::default();
            let bounds = ["0.005", "0.01", "+Inf"].iter().zip(counts);
            let text: String = bounds.map(|(le, count)| format!("x_bucket{{le=\"{le}\"}} {count}\n")).collect();
            histogram.add(&text, "x");
            histogram
        };
        let mut between = of([10, 11, 13]).since(&of([8, 9, 11]));
        assert_eq!((between.count(), between.above(), between.longest_ms()), (2, 0, 5.0));
        between.join(&of([0, 1, 2]));
        assert_eq!((between.count(), between.above(), between.longest_ms()), (4, 1, f64::INFINITY));
    }
}
