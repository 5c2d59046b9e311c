//! A repeated event is shown once per 10 s, with the number that was held back. Two events are the same if they come
//! from one place in the code and differ in numbers only. Time is an argument.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::line::Line;

/// How long an event is held back after it was shown.
const PERIOD: Duration = Duration::from_secs(10);

/// Events of one place that are remembered at a time. A place that makes more kinds of events than this (an address in
/// each, say) counts as one event until some are forgotten, and takes nothing from the others.
const KINDS_MAX: usize = 64;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Show it; so many of the same were held back since the last one.
    Show {
        held_back: u64,
    },
    HoldBack,
}

/// Place in the code, and all that is not a number.
type Kind = (usize, String);

#[derive(Debug, Default)]
pub(super) struct Limiter {
    seen: BTreeMap<Kind, Seen>,
    /// No period ends before this moment, so [`Limiter::due`] need not look.
    next_due: Option<Instant>,
}

#[derive(Debug)]
struct Seen {
    shown: Instant,
    held_back: u64,
    last: Option<Line>,
}

impl Limiter {
    /// What to do with an event from `place`, a number that stands for a place in the code.
    pub(super) fn verdict(&mut self, place: usize, line: &Line, now: Instant) -> Verdict {
        let mut kind = (place, line.identity());
        if !self.seen.contains_key(&kind) && self.kinds(place) >= KINDS_MAX {
            kind.1.clear();
        }
        let Some(seen) = self.seen.get_mut(&kind) else {
            self.seen.insert(kind, Seen { shown: now, held_back: 0, last: None });
            self.next_due.get_or_insert(now + PERIOD);
            return Verdict::Show { held_back: 0 };
        };
        if now.duration_since(seen.shown) >= PERIOD {
            let held_back = std::mem::take(&mut seen.held_back);
            seen.last = None;
            seen.shown = now;
            return Verdict::Show { held_back };
        }
        seen.held_back += 1;
        seen.last = Some(line.clone());
        Verdict::HoldBack
    }

    fn kinds(&self, place: usize) -> usize {
        self.seen.range((place, String::new())..).take_while(|((of, _), _)| *of == place).count()
    }

    /// Events that were held back and whose period is over: the last of each kind, and how many there were. Kinds that
    /// stayed silent for a period are forgotten.
    pub(super) fn due(&mut self, now: Instant) -> Vec<(Line, u64)> {
        if self.next_due.is_none_or(|next| now < next) {
            return Vec::new();
        }
        let mut due = Vec::new();
        self.seen.retain(|_, seen| {
            if now.duration_since(seen.shown) < PERIOD {
                return true;
            }
            let Some(last) = seen.last.take() else { return false };
            due.push((last, std::mem::take(&mut seen.held_back)));
            seen.shown = now;
            true
        });
        self.next_due = self.seen.values().map(|seen| seen.shown + PERIOD).min();
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHOW: Verdict = Verdict::Show { held_back: 0 };

    fn after(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn the_next_one_after_ten_seconds_carries_the_count() {
        let (mut limiter, start) = (Limiter::default(), Instant::now());
        let line = Line::example("cannot connect", "n2", 1);
        assert_eq!(limiter.verdict(1, &line, start), SHOW);
        for second in 1..10 {
            assert_eq!(limiter.verdict(1, &line, after(start, second)), Verdict::HoldBack);
        }
        assert_eq!(limiter.verdict(1, &line, after(start, 10)), Verdict::Show { held_back: 9 });
        assert!(limiter.due(after(start, 10)).is_empty());
    }

    #[test]
    fn the_count_comes_although_the_event_stopped() {
        let (mut limiter, start) = (Limiter::default(), Instant::now());
        for attempt in 0..5 {
            limiter.verdict(1, &Line::example("cannot connect", "n2", attempt), start);
        }
        assert!(limiter.due(after(start, 9)).is_empty());
        let due = limiter.due(after(start, 10));
        assert_eq!(due.len(), 1);
        assert_eq!(due[0].1, 4);
        assert!(due[0].0.text(4, false).ends_with("cannot connect node=n2 attempt=4 repeated=4\n"));
        assert!(limiter.due(after(start, 20)).is_empty());
        assert!(limiter.seen.is_empty(), "a silent kind is forgotten");
    }

    #[test]
    fn another_place_another_text_or_another_node_is_another_event() {
        let (mut limiter, start) = (Limiter::default(), Instant::now());
        assert_eq!(limiter.verdict(1, &Line::example("cannot connect", "n2", 1), start), SHOW);
        assert_eq!(limiter.verdict(2, &Line::example("cannot connect", "n2", 1), start), SHOW);
        assert_eq!(limiter.verdict(1, &Line::example("cut off", "n2", 1), start), SHOW);
        assert_eq!(limiter.verdict(1, &Line::example("cannot connect", "n3", 1), start), SHOW);
        assert_eq!(limiter.verdict(1, &Line::example("cannot connect", "n2", 2), start), Verdict::HoldBack);
    }

    #[test]
    fn a_storm_of_different_events_is_bounded_in_memory_and_lines() {
        let (mut limiter, start) = (Limiter::default(), Instant::now());
        let mut shown = 0;
        for host in 0..100_000 {
            let line = Line::example("refused", &format!("host{host}"), 1);
            shown += usize::from(limiter.verdict(1, &line, start) == SHOW);
        }
        assert_eq!(shown, KINDS_MAX + 1);
        assert_eq!(limiter.seen.len(), KINDS_MAX + 1);
        assert_eq!(limiter.verdict(2, &Line::example("another place", "n2", 1), start), SHOW);
    }
}
