//! Slices of a run: a head that is dropped, the window that is measured, a tail that is dropped (papers.md A10, D14).

use std::time::Duration;

use crate::target::Nanos;

/// The most slices of a run; each holds a histogram per worker until it is reported.
const SLICES_MAX: u64 = 240;

/// The shortest slice: below it a slice holds too few requests for a percentile.
const SLICE_MIN: Nanos = 100_000_000;

/// Where a run begins, is measured, and ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeline {
    head: Nanos,
    window: Nanos,
    tail: Nanos,
    slice: Nanos,
}

fn nanos(time: Duration) -> Nanos {
    u64::try_from(time.as_nanos()).unwrap_or(Nanos::MAX)
}

impl Timeline {
    /// A run of `duration` of which `trim` is dropped at each end; a trim that leaves nothing is an error.
    pub fn new(duration: Duration, trim: Duration) -> Result<Timeline, String> {
        let (duration, trim) = (nanos(duration), nanos(trim));
        match duration.checked_sub(trim.saturating_mul(2)) {
            None | Some(0) => {
                Err("--trim drops the whole run at its two ends: shorten it, or lengthen --duration".into())
            }
            Some(window) => {
                let slice = (duration / SLICES_MAX).max(window / 100).max(SLICE_MIN).min(window);
                Ok(Timeline { head: trim, window, tail: trim, slice })
            }
        }
    }

    /// When no new request begins.
    pub fn end(&self) -> Nanos {
        self.head + self.window + self.tail
    }

    /// The measured window.
    pub fn window(&self) -> std::ops::Range<Nanos> {
        self.head..self.head + self.window
    }

    /// Its length.
    pub fn window_length(&self) -> Duration {
        Duration::from_nanos(self.window)
    }

    /// What is dropped at each end.
    pub fn trim(&self) -> Duration {
        Duration::from_nanos(self.head)
    }

    /// How many slices the window has; the last may be shorter.
    pub fn slices(&self) -> usize {
        self.window.div_ceil(self.slice) as usize
    }

    /// The slice of the window that a time falls into; `None` in head and tail.
    pub fn slice_of(&self, at: Nanos) -> Option<usize> {
        let inside = at.checked_sub(self.head).filter(|&inside| inside < self.window)?;
        Some((inside / self.slice) as usize)
    }

    /// When slice `index` begins and ends.
    pub fn bounds(&self, index: usize) -> (Nanos, Nanos) {
        let from = self.head + index as u64 * self.slice;
        (from, (from + self.slice).min(self.head + self.window))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_tile_the_window_and_nothing_else() {
        for (duration, trim) in [(20.0, 2.0), (60.0, 10.0), (1.0, 0.0), (0.05, 0.0), (7.3, 1.1), (600.0, 0.0)] {
            let timeline = Timeline::new(Duration::from_secs_f64(duration), Duration::from_secs_f64(trim)).unwrap();
            let window = timeline.window();
            assert_eq!(timeline.bounds(0).0, window.start);
            assert_eq!(timeline.bounds(timeline.slices() - 1).1, window.end);
            for i in 0..timeline.slices() {
                let (from, to) = timeline.bounds(i);
                assert!(from < to);
                assert_eq!((timeline.slice_of(from), timeline.slice_of(to - 1)), (Some(i), Some(i)));
            }
            assert_eq!(timeline.slice_of(window.end), None);
            assert_eq!(window.start.checked_sub(1).and_then(|at| timeline.slice_of(at)), None);
            assert!(timeline.slices() <= 240);
        }
    }

    #[test]
    fn a_trim_that_leaves_nothing_is_refused() {
        assert!(Timeline::new(Duration::from_secs(20), Duration::from_secs(10)).is_err());
    }
}
