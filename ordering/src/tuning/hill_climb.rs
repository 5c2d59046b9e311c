//! What no model knows is found out by trying: a saturated group tries other batches and windows, one after another,
//! and keeps what brings more (papers.md A13). What turns out to bring less is taken back, whoever advised it.

/// Where a group is: bytes of a batch, and instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Point {
    pub batch_bytes: usize,
    pub window: u32,
}

impl Point {
    /// Bytes under way.
    fn volume(self) -> f64 {
        self.batch_bytes as f64 * f64::from(self.window)
    }
}

/// What a saturated group saw in an interval.
#[derive(Clone, Copy, Debug)]
pub(super) struct SaturatedInterval {
    /// Commands per millisecond, and the batches that they came in.
    pub rate: f64,
    pub batches: f64,
    /// Bytes of a batch and instances under way, on average.
    pub batch_bytes: f64,
    pub window: f64,
    /// No stage is busy, and the window is full: everything waits for the path, be it slow or long. Then less under way
    /// brings less or nothing. That more brings nothing is tried all the same: it costs nothing if that is true.
    pub on_the_way: bool,
    /// Bytes that have to be under way, whatever else there is, for as much as this to come through: each takes a round
    /// trip.
    pub holds: f64,
}

impl SaturatedInterval {
    /// Whether the way alone makes a setting worse than what is seen.
    fn starves(&self, point: Point) -> bool {
        point.volume() < HOPELESS * self.holds
    }
}

/// Doublings of batch and window. Large steps first: what is far off is to be left quickly.
const MOVES: [(i32, i32); 8] = [(2, 0), (0, 2), (0, -2), (1, -1), (-1, 1), (-2, 0), (0, 1), (0, -1)];
const LARGER: usize = 0;
const WIDER: usize = 1;
/// A setting is better if it brings so many times as much.
const BETTER: f64 = 1.04;
/// A narrower window is better with so much of it: batches that wait longer in front of the window are fuller, and what
/// is under way is copied and kept. What the kept setting brings is the best of some seconds, the trial a mean.
const NARROWER: f64 = 0.98;
/// By this factor an interval that brings less lowers what the kept setting is believed to bring, at most.
const FADES: f64 = 0.97;
/// What the model advises need not be better, if it lets more be under way. Nor may it be worse.
const AS_GOOD: f64 = 0.97;
/// So many batches under way are few.
const FEW: u32 = 2;
/// A kept setting that brings less than this share of what it did is held up by something else, a checkpoint or a disk
/// that stalls: what was tried just before may have met the same.
const STALLED: f64 = 0.85;
/// One that brings so many times as much is still getting under way.
const RISES: f64 = 1.15;
/// For so many intervals nothing is tried while either is so.
const WAITS: u32 = 4;
/// A kept setting that brings less than this share of what it did, for so many intervals, is in another world.
const FALLEN: (f64, u32) = (0.7, 4);
/// A setting with less of what the kept one brings is not looked at for long.
const HOPELESS: f64 = 0.8;
/// Intervals that a trial is measured for, at least and at most, after one in which what was under way is done; enough
/// are those with so many batches: of a few large ones one more or less is a lot.
const MEASURED: (u32, u32) = (2, 6);
const BATCHES: f64 = 24.0;
/// A trial that seems worth keeping is measured for so many before it is believed, unless it brings so many times as
/// much: where batches are many, an interval differs from the next by a tenth for reasons of the machine, and of eight
/// moves the luckiest would be kept.
const BELIEVED: (u32, f64) = (4, 1.2);
/// Intervals that a round of moves may take: what is tried costs, until it is given up.
const ROUND: u32 = 32;
/// Intervals without trials after a round; doubles up to the largest.
const REST: (u32, u32) = (120, 2_400);

#[derive(Clone, Copy, Debug)]
struct Trial {
    point: Point,
    /// Worth keeping with so many times what the kept setting brings.
    worth: f64,
    /// The move that it is; none: it was advised.
    by: Option<usize>,
    seen: u32,
    batches: f64,
    sum: f64,
}

/// The climb of one group.
#[derive(Clone, Debug)]
pub(super) struct HillClimb {
    kept: Point,
    /// Commands per millisecond with `kept`.
    brings: Option<f64>,
    trial: Option<Trial>,
    advised: Option<Point>,
    /// Advice that was tried: it is not tried again, nor anything within this factor of it.
    heard: Option<(Point, f64)>,
    /// Intervals that tell nothing, since the setting has just changed.
    unsettled: u32,
    next: usize,
    fruitless: usize,
    /// Intervals left of this round.
    left: u32,
    rest: u32,
    rest_next: u32,
    /// Intervals in a row in which the kept setting brought far less than before.
    poor: u32,
    /// Intervals, with none between them in which it did not, in which it brought another amount than before and so
    /// nothing was tried.
    waits: u32,
    /// The move that was given up just before, and the one that got a second chance last.
    given_up: Option<usize>,
    second: Option<usize>,
}

impl HillClimb {
    pub fn new(kept: Point) -> HillClimb {
        let (advised, heard, trial, brings) = (None, None, None, None);
        let (given_up, second) = (None, None);
        let (unsettled, next, fruitless, left, rest, rest_next, poor, waits) = (0, 0, 0, ROUND, 0, REST.0, 0, 0);
        HillClimb {
            kept,
            brings,
            trial,
            advised,
            heard,
            unsettled,
            next,
            fruitless,
            left,
            rest,
            rest_next,
            poor,
            waits,
            given_up,
            second,
        }
    }

    /// What is in force.
    pub fn point(&self) -> Point {
        self.trial.map_or(self.kept, |trial| trial.point)
    }

    /// The world is another one: what was found out holds no longer.
    pub fn forget(&mut self) {
        *self = HillClimb::new(self.point());
        self.unsettled = 1;
    }

    /// The model advises this from now on. Tried as soon as that can be told; `at_once`: nothing could be told.
    pub fn advise(&mut self, point: Point, at_once: bool) {
        if at_once && self.trial.is_none() {
            *self = HillClimb::new(point);
        } else {
            self.advised = Some(point);
        }
    }

    /// What was advised and not tried yet is not to be; whether there was something.
    pub fn unadvise(&mut self) -> bool {
        self.advised.take().is_some()
    }

    /// There is too little to do: nothing can be told, and nothing is tried. In a trial that may be the trial's fault,
    /// so what was kept is in force again.
    pub fn idle(&mut self) {
        if self.trial.take().is_none() {
            self.brings = None;
        }
        self.unsettled = 1;
    }

    /// The last interval was another one than it seems: it tells nothing, nor does the next one.
    pub fn disturbed(&mut self) {
        self.unsettled = 2;
    }

    /// What the kept setting brings, in commands per millisecond, as far as it is known.
    pub fn brings(&self) -> Option<f64> {
        self.brings
    }

    /// Whether something is tried out.
    pub fn tries(&self) -> bool {
        self.trial.is_some()
    }

    /// Takes an interval of a saturated group in. `within` makes a setting that can be.
    pub fn step(&mut self, seen: &SaturatedInterval, within: impl Fn(Point) -> Point) {
        self.left = self.left.saturating_sub(1);
        if self.unsettled > 0 {
            self.unsettled -= 1;
            return;
        }
        match self.trial {
            None => self.look(seen, within),
            Some(trial) => self.judge(trial, seen, within),
        }
    }

    /// With the kept setting in force: how much that brings, and what to try next.
    fn look(&mut self, seen: &SaturatedInterval, within: impl Fn(Point) -> Point) {
        let poor = self.brings.is_some_and(|brings| seen.rate < FALLEN.0 * brings);
        self.poor = if poor { self.poor + 1 } else { 0 };
        if self.poor >= FALLEN.1 {
            *self = HillClimb { brings: Some(seen.rate), advised: self.advised, ..HillClimb::new(self.kept) };
        }
        let rests = self.rest > 0;
        if rests {
            (self.rest, self.left) = (self.rest - 1, ROUND);
            if self.rest == 0 {
                // What was no good may be now; not while it rests, for trials cost.
                self.heard = None;
            }
        }
        if self.is_held_up(seen) {
            self.left = (self.left + 1).min(ROUND);
            return;
        }
        let part = (seen.batches / BATCHES).min(0.5);
        self.brings = Some(self.brings.map_or(seen.rate, |brings| match seen.rate - brings {
            more if more > 0.0 => brings + part * more,
            // A disk or a scheduler that stalls for a moment must not make the next trial look good.
            _ => seen.rate.max(FADES * brings),
        }));
        let near = |a: Point, b: Point, factor: f64| {
            let close = |a: f64, b: f64| a.max(b) <= factor * a.min(b);
            close(a.batch_bytes as f64, b.batch_bytes as f64) && close(f64::from(a.window), f64::from(b.window))
        };
        // Who lets less be under way takes a risk, and for nothing if everything waits for the path.
        let less = |point: Point| point.volume() < self.kept.volume();
        let later = |point: Point| seen.on_the_way && less(point) && !mutant!(tuner_empties_the_path);
        if let Some(point) = self.advised.map(&within)
            && !later(point)
            && self.advised.take().is_some()
            && !seen.starves(point)
            && !near(point, self.kept, 1.2)
            && self.heard.is_none_or(|(heard, factor)| !near(point, heard, factor))
        {
            let worth = if less(point) { 1.0 } else { AS_GOOD };
            return self.begin(point, worth, None);
        }
        if rests {
            return;
        }
        while self.fruitless < MOVES.len() && self.left > 0 {
            let by = self.next;
            if let Some(point) = self.moved(by, seen, &within) {
                return self.begin(point, self.worth(point), Some(by));
            }
            self.give_up();
        }
        (self.fruitless, self.rest, self.second) = (0, self.rest_next, None);
        self.rest_next = (2 * self.rest_next).min(REST.1);
    }

    /// Whether the kept setting brings another amount than it did, for a reason that may pass: then nothing can be
    /// compared with it. A move that was given up just before gets a second chance, but no third.
    fn is_held_up(&mut self, seen: &SaturatedInterval) -> bool {
        // Of a few large batches one more or less is a lot.
        let tells = seen.batches >= BATCHES;
        let stalled = tells && self.brings.is_some_and(|brings| seen.rate < STALLED * brings);
        let rises = tells && self.brings.is_none_or(|brings| seen.rate > RISES * brings);
        if let Some(by) = self.given_up.take().filter(|by| stalled && self.second != Some(*by)) {
            (self.next, self.second) = (by, Some(by));
            self.fruitless = self.fruitless.saturating_sub(1);
        }
        self.waits = if (stalled || rises) && self.waits < WAITS { self.waits + 1 } else { 0 };
        if self.waits > 0 && rises {
            self.brings = Some(seen.rate);
        }
        self.waits > 0
    }

    fn judge(&mut self, mut trial: Trial, seen: &SaturatedInterval, within: impl Fn(Point) -> Point) {
        let brings = self.brings.unwrap_or(0.0);
        trial.seen += 1;
        trial.batches += seen.batches;
        trial.sum += seen.rate;
        self.trial = Some(trial);
        let mean = trial.sum / f64::from(trial.seen);
        let few = trial.batches < BATCHES * f64::from(trial.seen);
        let sure = mean < trial.worth * brings || mean >= BELIEVED.1 * brings;
        let believed = few || sure || trial.seen >= BELIEVED.0;
        let measured = trial.seen >= MEASURED.0 && trial.batches >= BATCHES && believed;
        let enough = measured || trial.seen >= MEASURED.1;
        let several = trial.batches >= BATCHES || trial.seen >= MEASURED.0;
        let hopeless = several && mean < HOPELESS * brings;
        if !enough && !hopeless {
            return;
        }
        self.trial = None;
        if mean < trial.worth * brings && !mutant!(tuner_keeps_worse) {
            self.unsettled = 1;
            match trial.by {
                Some(by) => {
                    self.give_up();
                    self.given_up = Some(by);
                }
                None => self.heard = Some((trial.point, 4.0)),
            }
            return;
        }
        (self.kept, self.brings, self.fruitless, self.second) = (trial.point, Some(mean), 0, None);
        if trial.by.is_none() {
            self.heard = Some((trial.point, 1.2));
        }
        if let Some(by) = trial.by {
            // Larger and larger batches of which one or two are under way are a dead end: the more of what is offered
            // is in each of them, the less there is to put beside it. First more of them, then on.
            if by == LARGER
                && self.kept.window <= FEW
                && let Some(point) = self.moved(WIDER, seen, &within)
            {
                self.next = (LARGER + MOVES.len() - 1) % MOVES.len();
                return self.begin(point, self.worth(point), Some(WIDER));
            }
            // Once more the same way.
            if let Some(point) = self.moved(by, seen, within) {
                return self.begin(point, self.worth(point), Some(by));
            }
            self.give_up();
        }
    }

    /// How much a setting that is a move away has to bring.
    fn worth(&self, point: Point) -> f64 {
        let narrower = point.window < self.kept.window && point.batch_bytes == self.kept.batch_bytes;
        if narrower { NARROWER } else { BETTER }
    }

    fn begin(&mut self, point: Point, worth: f64, by: Option<usize>) {
        self.trial = Some(Trial { point, worth, by, seen: 0, batches: 0.0, sum: 0.0 });
        self.unsettled = 1;
    }

    fn give_up(&mut self) {
        self.next = (self.next + 1) % MOVES.len();
        self.fruitless += 1;
    }

    /// The kept setting, moved; none: that would change nothing.
    fn moved(&self, by: usize, seen: &SaturatedInterval, within: impl Fn(Point) -> Point) -> Option<Point> {
        let (batch, window) = MOVES[by];
        // Larger batches take a path longer, and a stage that is not busy does not need them.
        if seen.on_the_way && (window <= 0 || batch > 0) {
            return None;
        }
        let Point { batch_bytes, window: kept } = self.kept;
        // Down from what is seen: a setting that nothing reaches is changed by nothing until it is below that.
        let shift = |kept: f64, seen: f64, by: i32| {
            let from = if by < 0 { kept.min(seen) } else { kept };
            (from * 2_f64.powi(by)).max(1.0)
        };
        let point = Point {
            batch_bytes: shift(batch_bytes as f64, seen.batch_bytes, batch) as usize,
            window: shift(f64::from(kept), seen.window.ceil(), window) as u32,
        };
        let point = within(point);
        // A larger batch counts if batches fill, a smaller one if it cuts; the same with windows.
        let batches = match point.batch_bytes as f64 {
            bytes if bytes > batch_bytes as f64 => seen.batch_bytes >= 0.6 * batch_bytes as f64,
            bytes => bytes < batch_bytes as f64 && bytes < 1.2 * seen.batch_bytes,
        };
        let windows = match f64::from(point.window) {
            wider if wider > f64::from(kept) => seen.window >= 0.6 * f64::from(kept),
            narrower => narrower < f64::from(kept) && narrower < 1.2 * seen.window,
        };
        ((batches || windows) && !seen.starves(point)).then_some(point)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Point = Point { batch_bytes: 64 << 10, window: 8 };

    /// A busy group of full batches and a full window.
    fn busy(climb: &HillClimb, rate: f64) -> SaturatedInterval {
        let Point { batch_bytes, window } = climb.point();
        let (batch_bytes, window) = (batch_bytes as f64, f64::from(window));
        SaturatedInterval { rate, batches: 100.0, batch_bytes, window, on_the_way: false, holds: 0.0 }
    }

    /// Every setting that is tried in so many intervals.
    fn tried(
        climb: &mut HillClimb,
        intervals: usize,
        mut seen: impl FnMut(&HillClimb) -> SaturatedInterval,
    ) -> Vec<Point> {
        let mut tried = Vec::new();
        for _ in 0..intervals {
            let seen = seen(climb);
            climb.step(&seen, |point| point);
            if climb.tries() && tried.last() != Some(&climb.point()) {
                tried.push(climb.point());
            }
        }
        tried
    }

    fn worse_elsewhere(climb: &HillClimb) -> f64 {
        if climb.tries() { 5.0 } else { 10.0 }
    }

    #[test]
    fn nothing_is_tried_that_the_way_alone_makes_worse() {
        let holds = START.volume() / 1.5;
        let seen = |climb: &HillClimb| SaturatedInterval { holds, ..busy(climb, worse_elsewhere(climb)) };
        let mut climb = HillClimb::new(START);
        climb.advise(Point { batch_bytes: 16 << 10, window: 4 }, false);
        let some = tried(&mut climb, 100, seen);
        assert!(!some.is_empty() && some.iter().all(|point| point.volume() >= HOPELESS * holds), "{some:?}");
        let all = tried(&mut HillClimb::new(START), 100, |climb| SaturatedInterval { holds: 0.0, ..seen(climb) });
        assert!(all.iter().any(|point| point.volume() < HOPELESS * holds), "{all:?}");
    }

    #[test]
    fn what_waits_for_the_path_is_given_no_less_of_it_and_no_larger_batches() {
        let seen = |climb: &HillClimb| SaturatedInterval { on_the_way: true, ..busy(climb, worse_elsewhere(climb)) };
        let mut climb = HillClimb::new(START);
        climb.advise(Point { batch_bytes: 16 << 10, window: 4 }, false);
        let some = tried(&mut climb, 100, seen);
        let fits = |point: &Point| point.volume() >= START.volume() && point.batch_bytes <= START.batch_bytes;
        assert!(!some.is_empty() && some.iter().all(fits), "{some:?}");
        // Advice waits until a stage is busy.
        let then = tried(&mut climb, 4, |climb| SaturatedInterval { on_the_way: false, ..seen(climb) });
        assert_eq!(then.first(), Some(&Point { batch_bytes: 16 << 10, window: 4 }));
    }

    #[test]
    fn a_trial_that_brings_half_ends_after_two_intervals_however_few_batches_came() {
        let mut climb = HillClimb::new(START);
        let mut tried = 0;
        for _ in 0..60 {
            tried = if climb.tries() { tried + 1 } else { 0 };
            // One in which what was under way is done, and two that are measured.
            assert!(tried <= 3, "{climb:?}");
            let seen = SaturatedInterval { batches: 6.0, ..busy(&climb, worse_elsewhere(&climb)) };
            climb.step(&seen, |point| point);
        }
    }

    #[test]
    fn a_window_that_brings_nothing_is_given_up() {
        let mut climb = HillClimb::new(Point { window: 32, ..START });
        // A window of four is all that it takes; noise of two percent, and no two trials alike.
        let mut noise = (0..400_u32).map(|n| 1.0 + 0.02 * (f64::from(n * 7 % 11) / 5.0 - 1.0));
        for _ in 0..200 {
            let brings = if climb.point().window < 4 { 8.0 } else { 10.0 };
            let rate = brings * noise.next().expect("enough");
            climb.step(&busy(&climb, rate), |point| Point { window: point.window.min(32), batch_bytes: 64 << 10 });
        }
        assert!((4..=8).contains(&climb.kept.window), "{climb:?}");
    }

    #[test]
    fn nothing_is_tried_while_a_load_is_getting_under_way() {
        let mut climb = HillClimb::new(START);
        for rate in [2.0, 4.0, 6.0, 8.0] {
            climb.step(&busy(&climb, rate), |point| point);
            assert!(!climb.tries(), "{climb:?}");
        }
        assert!(!tried(&mut climb, 2, |climb| busy(climb, 8.0)).is_empty(), "{climb:?}");
        // Every setting brings the same: only less under way is kept.
        tried(&mut climb, 10, |climb| busy(climb, 8.0));
        assert!(climb.kept.batch_bytes == START.batch_bytes && climb.kept.window <= START.window, "{climb:?}");
    }

    #[test]
    fn what_never_settles_is_tried_all_the_same() {
        let mut climb = HillClimb::new(START);
        let mut rate = 1.0;
        let some = tried(&mut climb, 12, |_| {
            rate *= 1.2;
            busy(&HillClimb::new(START), rate)
        });
        assert!(!some.is_empty(), "{climb:?}");
    }

    #[test]
    fn few_batches_become_more_before_they_become_larger_again() {
        let mut climb = HillClimb::new(Point { window: 2, ..START });
        // Larger batches bring a tenth each time, a wider window a fifth.
        let brings = |climb: &HillClimb| {
            let Point { batch_bytes, window } = climb.point();
            10.0 + (batch_bytes as f64 / START.batch_bytes as f64).log2() / 2.0 + if window > 2 { 2.0 } else { 0.0 }
        };
        let tried = tried(&mut climb, 20, |climb| busy(climb, brings(climb)));
        let larger = Point { batch_bytes: 4 * START.batch_bytes, window: 2 };
        assert_eq!(tried[..2], [larger, Point { window: 8, ..larger }], "{tried:?}");
    }

    #[test]
    fn larger_batches_are_tried_again_where_no_more_of_them_bring_more() {
        let mut climb = HillClimb::new(Point { window: 2, ..START });
        let brings =
            |climb: &HillClimb| 10.0 + 0.8 * (climb.point().batch_bytes as f64 / START.batch_bytes as f64).log2();
        tried(&mut climb, 30, |climb| busy(climb, brings(climb)));
        assert!(climb.kept.batch_bytes >= 1 << 20, "{climb:?}");
    }

    /// Larger batches bring a tenth more, but for the intervals in which everything is held up.
    fn larger_are_better(climb: &HillClimb) -> f64 {
        if climb.point().batch_bytes > START.batch_bytes { 11.0 } else { 10.0 }
    }

    #[test]
    fn what_met_a_stall_is_tried_once_more() {
        let mut climb = HillClimb::new(START);
        let first = tried(&mut climb, 3, |climb| busy(climb, 10.0));
        tried(&mut climb, 5, |climb| busy(climb, 0.5 * larger_are_better(climb)));
        assert_eq!(climb.kept, START, "{climb:?}");
        let then = tried(&mut climb, 12, |climb| busy(climb, larger_are_better(climb)));
        assert_eq!(then.first(), first.first(), "{climb:?}");
        assert_eq!(climb.kept, then[0], "{climb:?}");
    }

    #[test]
    fn what_met_a_stall_and_brings_no_more_is_not_kept_for_it() {
        let mut climb = HillClimb::new(START);
        tried(&mut climb, 3, |climb| busy(climb, 10.0));
        tried(&mut climb, 5, |climb| busy(climb, 5.0));
        tried(&mut climb, 8, |climb| busy(climb, 10.0));
        assert_eq!(climb.kept.batch_bytes, START.batch_bytes, "{climb:?}");
    }

    #[test]
    fn what_met_a_stall_twice_is_not_tried_a_third_time() {
        let mut climb = HillClimb::new(START);
        let first = tried(&mut climb, 3, |climb| busy(climb, 10.0))[0];
        let mut times = 1;
        for _ in 0..24 {
            // Whatever is tried meets a stall, which lasts until the kept setting has been looked at.
            let before = climb.tries();
            let rate = if climb.tries() || climb.given_up.is_some() { 5.0 } else { 10.0 };
            climb.step(&busy(&climb, rate), |point| point);
            times += u32::from(climb.tries() && !before && climb.point() == first);
        }
        assert_eq!(times, 2, "{climb:?}");
    }

    #[test]
    fn who_brings_far_less_than_before_tries_again_at_once() {
        let mut climb = HillClimb::new(START);
        tried(&mut climb, 64, |climb| busy(climb, worse_elsewhere(climb)));
        assert!(tried(&mut climb, 20, |climb| busy(climb, 9.5)).is_empty(), "it rests: {climb:?}");
        assert!(!tried(&mut climb, 8, |climb| busy(climb, 0.5 * worse_elsewhere(climb))).is_empty(), "{climb:?}");
    }
}
