//! Whether a connection to another node has gone silent. The kernel repeats what was lost ever more rarely, so that
//! after a cut of some seconds a connection stays useless for as long again, while a new one works at once. So each
//! connection is asked for an echo now and then, as long as there is something to say on it.

use std::time::{Duration, Instant};

/// Between two questions.
const EVERY: Duration = Duration::from_millis(150);

/// An echo that is not back by then is doubtful, if none took long before.
const PATIENCE: Duration = Duration::from_millis(150);

/// The longest patience.
const PATIENCE_MAX: Duration = Duration::from_secs(3);

/// What is to be thought of a connection. It outlives the connection: what it learned counts for the next one.
#[derive(Debug)]
pub struct Silence {
    /// When the echo was asked for that is not back, or when bytes were last seen to arrive since.
    asked: Option<Instant>,
    /// No question before.
    next: Option<Instant>,
    patience: Duration,
}

impl Default for Silence {
    fn default() -> Silence {
        Silence { asked: None, next: None, patience: PATIENCE }
    }
}

impl Silence {
    /// Something is said. Whether to ask for an echo with it.
    pub fn asks(&mut self, now: Instant) -> bool {
        let asks = self.asked.is_none() && self.next.is_none_or(|next| now >= next);
        if asks {
            (self.asked, self.next) = (Some(now), Some(now + EVERY));
        }
        asks
    }

    /// The echo is back. A slow one is waited for longer the next time.
    pub fn echoed(&mut self, now: Instant) {
        let Some(asked) = self.asked.take() else { return };
        let took = now.saturating_duration_since(asked);
        self.patience = (took * 2).max(self.patience * 7 / 8).clamp(PATIENCE, PATIENCE_MAX);
    }

    /// The other end takes bytes, slowly, and the echo may be behind them.
    pub fn progresses(&mut self, now: Instant) {
        self.asked = self.asked.map(|asked| asked.max(now));
    }

    /// Whether it is time to try another connection.
    pub fn doubts(&self, now: Instant) -> bool {
        let late = |asked| now.saturating_duration_since(asked) >= self.patience;
        !mutant!(silence_is_borne) && self.asked.is_some_and(late)
    }

    /// Another connection took this one's place. If that was of no use, the next time comes later.
    pub fn replaced(&mut self) {
        self.patience = PATIENCE_MAX.min(self.patience * 2);
    }

    /// The connection is over.
    pub fn forget(&mut self) {
        (self.asked, self.next) = (None, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn an_echo_that_does_not_come_back_is_doubtful() {
        let (now, mut silence) = (Instant::now(), Silence::default());
        assert!(!silence.doubts(now + 9_000 * MS), "nothing was asked");
        assert!(silence.asks(now), "with the first word");
        assert!(!silence.asks(now + 200 * MS), "one question at a time");
        assert!(!silence.doubts(now + 149 * MS));
        assert!(silence.doubts(now + 150 * MS));
        silence.echoed(now + 160 * MS);
        assert!(!silence.doubts(now + 900 * MS));
        assert!(silence.asks(now + 161 * MS));
        silence.echoed(now + 162 * MS);
        assert!(!silence.asks(now + 310 * MS), "not too often");
        assert!(silence.asks(now + 311 * MS));
        // That echo took 160 ms before: now 320 are waited for, a little less after the quick one.
        assert!(!silence.doubts(now + (311 + 279) * MS));
        assert!(silence.doubts(now + (311 + 280) * MS));
    }

    #[test]
    fn a_slow_link_that_takes_bytes_is_not_silent() {
        let (now, mut silence) = (Instant::now(), Silence::default());
        assert!(silence.asks(now));
        silence.progresses(now + 140 * MS);
        assert!(!silence.doubts(now + 289 * MS));
        assert!(silence.doubts(now + 290 * MS));
    }

    #[test]
    fn replacements_without_use_come_ever_later_and_echoes_bring_them_back() {
        let (mut now, mut silence) = (Instant::now(), Silence::default());
        let mut waits = Vec::new();
        for _ in 0..6 {
            assert!(silence.asks(now), "a new connection is asked at once");
            let wait = (1..).find(|wait| silence.doubts(now + *wait * MS)).expect("it ends");
            waits.push(wait);
            silence.replaced();
            silence.forget();
            now += wait * MS;
        }
        assert_eq!(waits, [150, 300, 600, 1_200, 2_400, 3_000]);
        for _ in 0..30 {
            now += EVERY;
            assert!(silence.asks(now));
            silence.echoed(now + MS);
        }
        assert!(silence.asks(now + EVERY) && silence.doubts(now + EVERY + PATIENCE));
    }
}
