//! What a stage spends on batches, commands and bytes, from how busy it was with how many of them (papers.md A16).

use std::time::Duration;

use super::fit::Fit;
use super::terms::StageCost;

/// Learns from one interval after another. A stage is whatever can be busy: a thread, or the cores of a machine.
#[derive(Clone, Debug)]
pub struct Costs {
    fit: Fit<4>,
    cost: [f64; 4],
    /// How much slower than the guess all of it is together, smoothed.
    slower: Option<f64>,
}

/// A guess at costs, in milliseconds, for as long as nothing is measured: of a batch, a command, a byte, another step.
const COST_GUESS: [f64; 4] = [0.06, 0.004, 1e-6, 0.01];
/// Half-life of what is known of costs, in intervals.
const COST_HALF_LIFE: f64 = 60.0;
/// An interval that took so many times what it should have counts as one that took so much longer, and no more.
const OUTLIER: f64 = 3.0;
/// What an interval counts for in how much slower than the guess everything is.
const SLOWER_SMOOTHING: f64 = 0.1;

impl Default for Costs {
    fn default() -> Costs {
        Costs { fit: Fit::new(COST_HALF_LIFE), cost: COST_GUESS, slower: None }
    }
}

impl Costs {
    /// Takes an interval in: batches, commands, bytes and other steps, and how long the stage was busy in it.
    pub fn learn(&mut self, done: [f64; 4], busy: Duration) {
        let busy_ms = busy.as_secs_f64() * 1e3;
        let expected = |cost: [f64; 4]| done.iter().zip(cost).map(|(done, cost)| done * cost).sum::<f64>();
        let guessed = expected(COST_GUESS);
        if !guessed.is_finite() || guessed <= 0.0 || busy_ms <= 0.0 {
            return;
        }
        let slower = busy_ms / guessed;
        let slower = self.slower.map_or(slower, |known| {
            let (least, most) = (known / OUTLIER, known * OUTLIER);
            known + SLOWER_SMOOTHING * (slower.clamp(least, most) - known)
        });
        self.slower = Some(slower);
        // Divided by what it should have been, so that quiet intervals count as much as busy ones.
        // One in which others had the machine does not outweigh all that are known.
        let about = expected(self.cost).max(busy_ms / OUTLIER);
        self.fit.add(done.map(|done| done / about), busy_ms / about);
        // Intervals of a steady load are all alike: they tell the sum and no more, and the parts keep the proportions
        // of the guess. Had they to keep those found last, they would wander with the noise until one takes all.
        self.cost = self.fit.solve(COST_GUESS.map(|guess| guess * slower));
    }

    /// As far as it is known.
    pub fn stage(&self) -> StageCost {
        let [per_batch_ms, per_command_ms, per_byte_ms, _] = self.cost;
        StageCost { per_batch_ms, per_command_ms, per_byte_ms }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `intervals` of one second; `done` of an interval, and noise of up to a tenth.
    fn taught(cost: [f64; 4], intervals: u32, done: impl Fn(u32) -> [f64; 4]) -> Costs {
        let mut costs = Costs::default();
        for interval in 0..intervals {
            let done = done(interval);
            let busy_ms: f64 = done.iter().zip(cost).map(|(done, cost)| done * cost).sum();
            let noise = 0.9 + 0.2 * f64::from(interval * 7_919 % 101) / 100.0;
            costs.learn(done, Duration::from_secs_f64(busy_ms * noise / 1e3));
        }
        costs
    }

    #[test]
    fn a_steady_load_leaves_every_part_its_share_however_long_it_lasts() {
        // Twice as slow as guessed. Batches, commands, bytes and other steps grow and shrink together, but for noise:
        // seen on a cluster, where other steps were found to cost everything and batches nothing.
        let cost = COST_GUESS.map(|guess| 2.0 * guess);
        let jitter = |interval: u32, step: u32| 1.0 + 0.02 * f64::from(interval * step % 13) / 13.0;
        let done = |i: u32| {
            let batches = 600.0 * jitter(i, 5);
            [batches, 100.0 * batches * jitter(i, 3), 1_800.0 * batches * jitter(i, 7), 4.0 * batches * jitter(i, 11)]
        };
        let costs = taught(cost, 600, done);
        for (part, (found, cost)) in costs.cost.into_iter().zip(cost).enumerate() {
            assert!((0.5..2.0).contains(&(found / cost)), "part {part}: {:?}, not {cost:?}", costs.cost);
        }
    }

    #[test]
    fn an_interval_that_others_had_the_machine_in_is_one_of_many() {
        let mut costs = Costs::default();
        let done = [300.0, 30e3, 30e6, 50.0];
        let busy_ms: f64 = done.iter().zip(COST_GUESS).map(|(done, cost)| done * cost).sum();
        for interval in 0..60 {
            // Seen beside compilers: a few commands in an interval in which the cores were busy all the time.
            let (done, busy_ms) = if interval == 40 { ([2.0, 4.0, 4e3, 50.0], 400.0) } else { (done, busy_ms) };
            costs.learn(done, Duration::from_secs_f64(busy_ms / 1e3));
        }
        let expected: f64 = done.iter().zip(costs.cost).map(|(done, cost)| done * cost).sum();
        assert!((0.9..1.1).contains(&(expected / busy_ms)), "{:?}", costs.cost);
    }

    #[test]
    fn loads_of_several_shapes_tell_the_parts_apart() {
        // Batches cost five times the guess, commands half of it.
        let cost = [0.3, 0.002, 1e-6, 0.01];
        let shapes = [[900.0, 1_800.0, 36e3, 50.0], [200.0, 60e3, 1.2e6, 900.0], [400.0, 8e3, 8e6, 3e3]];
        let costs = taught(cost, 600, |interval| shapes[interval as usize % 3]);
        for part in 0..2 {
            let ratio = costs.cost[part] / cost[part];
            assert!((0.8..1.25).contains(&ratio), "part {part}: {:?}, not {cost:?}", costs.cost);
        }
    }
}
