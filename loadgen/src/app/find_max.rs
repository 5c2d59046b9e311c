//! `--find-max`: the highest load at which a bound on latency holds. Doubles until it breaks, then halves in between.

/// The finest step: loads closer than 5 % are alike on any real machine.
const RESOLUTION: f64 = 1.05;

/// The most steps of a search.
const STEPS_MAX: usize = 24;

/// A search over loads from 1 to 10^9.
#[derive(Clone, Debug)]
pub struct Search {
    next: f64,
    /// The highest load known to be good.
    good: Option<f64>,
    /// The lowest load known to be bad.
    bad: Option<f64>,
    steps: usize,
}

impl Search {
    /// Begins at `load`.
    pub fn new(load: f64) -> Search {
        Search { next: load.clamp(1.0, 1e9), good: None, bad: None, steps: 0 }
    }

    /// The load to try; `None`: the search is over.
    pub fn load(&self) -> Option<f64> {
        let known = self.good.zip(self.bad).is_some_and(|(good, bad)| bad / good <= RESOLUTION || bad - good <= 1.0);
        let lowest = self.bad.is_some_and(|bad| bad <= 1.0);
        let highest = self.good.is_some_and(|good| good >= 1e9);
        (!known && !lowest && !highest && self.steps < STEPS_MAX).then_some(self.next)
    }

    /// Whether the bound held at the load just tried.
    pub fn tried(&mut self, held: bool) {
        let load = self.next;
        self.steps += 1;
        match held {
            true => self.good = Some(self.good.map_or(load, |good| good.max(load))),
            false => self.bad = Some(self.bad.map_or(load, |bad| bad.min(load))),
        }
        self.next = match (self.good, self.bad) {
            (Some(good), Some(bad)) => (good * bad).sqrt(),
            (Some(good), None) => (good * 2.0).min(1e9),
            (None, Some(bad)) => (bad / 2.0).max(1.0),
            (None, None) => load,
        }
        .round();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search(from: f64, limit: f64) -> (Option<f64>, usize) {
        let mut search = Search::new(from);
        while let Some(load) = search.load() {
            search.tried(load <= limit);
        }
        (search.good, search.steps)
    }

    #[test]
    fn the_limit_is_found_within_five_percent_from_anywhere() {
        for limit in [1.0, 3.0, 64.0, 900.0, 123_456.0] {
            for from in [1.0, 64.0, 10_000.0] {
                let (good, steps) = search(from, limit);
                let good = good.unwrap();
                assert!(good <= limit && (limit / good <= RESOLUTION || limit - good <= 1.0), "{from} {limit}: {good}");
                assert!(steps <= STEPS_MAX);
            }
        }
    }

    #[test]
    fn a_bound_that_never_holds_ends_at_the_lowest_load() {
        assert_eq!(search(64.0, 0.0).0, None);
    }
}
