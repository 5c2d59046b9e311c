//! Whether a client takes what is written to it. It knows neither sockets nor clocks.

use std::time::Duration;

use coppice_ordering::Time;

/// Watches the bytes that a socket has taken.
#[derive(Debug, Default)]
pub struct Progress {
    /// So many were taken when it was last looked at, and for the first time then; none: nothing waited.
    stands: Option<(u64, Time)>,
}

impl Progress {
    /// `taken`: bytes that the socket has taken so far; `waits`: more are there for it. Whether it has taken nothing
    /// for `longest`, although there was something.
    pub fn stalled(&mut self, now: Time, taken: u64, waits: bool, longest: Duration) -> bool {
        let since = match self.stands {
            Some((before, since)) if waits && before == taken => since,
            _ => now,
        };
        self.stands = waits.then_some((taken, since));
        waits && now.since(since) >= longest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: Duration = Duration::from_secs(10);

    /// Forty readers that had stopped held what all scans of the node may take, for ever.
    #[test]
    fn only_a_reader_that_takes_nothing_has_stopped() {
        let mut progress = Progress::default();
        let mut at = |s: u64, taken, waits| progress.stalled(Time::from_millis(1_000 * s), taken, waits, LONGEST);
        assert!(!at(0, 0, false) && !at(100, 0, true), "it has only begun to wait");
        assert!(!at(109, 0, true) && at(110, 0, true));
        // A byte in time is enough, however slowly it goes on.
        assert!(!at(111, 1, true) && !at(120, 2, true) && !at(129, 3, true));
        assert!(!at(138, 3, true) && at(139, 3, true));
        assert!(!at(140, 3, false) && !at(150, 3, true), "what waits now has waited since then");
    }
}
