//! How busy the machine's cores are, all processes together. Where nodes or clients share cores, these are what
//! saturates, and no thread of a node is ever seen to be busy all the time.

/// Watches `/proc/stat`: whoever asks gets what passed since he asked last.
#[derive(Debug, Default)]
pub struct Cores {
    /// Busy and all, in ticks of all cores together.
    last: Option<(u64, u64)>,
}

impl Cores {
    /// The share of all cores' time that was neither idle nor spent `looking` for work, in cores' whole time, since the
    /// last call, 0 to 1. None: not known, as on systems without that file, or too little passed.
    pub fn busy(&mut self, looking: f64) -> Option<f64> {
        let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let busy = self.since(ticks(&stat))?;
        Some((busy - looking / cores(&stat).max(1) as f64).max(0.0))
    }

    fn since(&mut self, now: Option<(u64, u64)>) -> Option<f64> {
        let before = std::mem::replace(&mut self.last, now)?;
        let (busy, all) = (now?.0.checked_sub(before.0)?, now?.1.checked_sub(before.1)?);
        (all > 0).then(|| busy as f64 / all as f64)
    }
}

/// How many cores have a line of their own.
fn cores(stat: &str) -> usize {
    stat.lines().filter(|line| line.starts_with("cpu") && !line.starts_with("cpu ")).count()
}

/// Busy and all, from the line of all cores: user, nice, system, idle, waiting for disks, interrupts, stolen.
fn ticks(stat: &str) -> Option<(u64, u64)> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks = line.split_whitespace().take(8).map(str::parse).collect::<Result<Vec<u64>, _>>().ok()?;
    let &[_, _, _, idle, waiting, ..] = &ticks[..] else { return None };
    let all = ticks.iter().try_fold(0_u64, |sum, ticks| sum.checked_add(*ticks))?;
    Some((all.checked_sub(idle)?.checked_sub(waiting)?, all))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "cpu  100 20 30 700 50 0 90 10 0 0\ncpu0 1 2 3\n";

    #[test]
    fn busy_is_what_was_not_idle_since_last_time() {
        assert_eq!((ticks(STAT), cores(STAT)), (Some((250, 1_000)), 1));
        let mut cores = Cores::default();
        assert_eq!(cores.since(ticks(STAT)), None);
        assert_eq!(cores.since(Some((400, 1_200))), Some(0.75));
        assert_eq!(cores.since(Some((400, 1_200))), None, "nothing passed");
        assert_eq!(cores.since(Some((300, 1_300))), None, "it went back");
    }

    #[test]
    fn what_is_no_such_file_tells_nothing() {
        for text in ["", "cpu", "cpu 1 2", "cpu a b c d e f g h", "cpu  1 1 1 18446744073709551615 1 1 1 1"] {
            assert_eq!(ticks(text), None, "{text}");
        }
    }
}
