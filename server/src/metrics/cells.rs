//! The cells that hot threads write: relaxed atomics found by index, never by name. No lock, no allocation, no hashing.
//! A reader sees each cell at some recent moment; sums over cells may mix moments.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// A counter or gauge.
#[derive(Debug, Default)]
pub(super) struct Cell(AtomicU64);

impl Cell {
    pub(super) fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    pub(super) fn set(&self, n: u64) {
        self.0.store(n, Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Room for the longest bucket list: 20 of seconds, one beyond for what is larger than all.
pub(super) const BUCKETS_MAX: usize = 21;

/// Buckets of a histogram: bounds `2^first ..= 2^last` in the histogram's own small unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Scale {
    first: u32,
    last: u32,
    /// The unit, for times; 0: it measures none.
    nanos: u64,
}

/// 32 us to 16.8 s, in microseconds: below the cheapest flush of a disk, above every timeout of a client.
pub(super) const SECONDS: Scale = Scale { first: 5, last: 24, nanos: 1_000 };
/// 78 us to 2.56 s: halves and doubles of the 10 ms that a step of a worker may take.
pub(super) const STEPS: Scale = Scale { first: 0, last: 15, nanos: 10_000_000 >> 7 };
/// 64 bytes to 2 MiB, the largest `batch_bytes_max`.
pub(super) const BYTES: Scale = Scale { first: 6, last: 21, nanos: 0 };
/// 1 to 65 536 commands or records.
pub(super) const COUNT: Scale = Scale { first: 0, last: 16, nanos: 0 };

impl Scale {
    const fn buckets(self) -> usize {
        (self.last - self.first + 1) as usize
    }

    /// Index of the smallest bound that is not below `n`; `buckets()` if there is none.
    fn index(self, n: u64) -> usize {
        // The number of bits of n - 1 is the exponent of the smallest power of 2 that is at least n.
        let exponent = u64::BITS - n.saturating_sub(1).leading_zeros();
        (exponent.clamp(self.first, self.last + 1) - self.first) as usize
    }
}

/// Counts of observations in power-of-2 buckets, and their sum.
#[derive(Debug)]
pub(super) struct Histogram {
    scale: Scale,
    counts: [Cell; BUCKETS_MAX],
    /// In nanoseconds for seconds, else in the unit itself.
    sum: Cell,
}

impl Histogram {
    pub(super) fn new(scale: Scale) -> Self {
        assert!(scale.buckets() < BUCKETS_MAX);
        Self { scale, counts: Default::default(), sum: Cell::default() }
    }

    pub(super) fn observe(&self, n: u64) {
        self.counts[self.scale.index(n)].add(1);
        self.sum.add(n);
    }

    pub(super) fn observe_time(&self, took: Duration) {
        let nanos = nanos(took);
        self.counts[self.scale.index(nanos.div_ceil(self.scale.nanos))].add(1);
        self.sum.add(nanos);
    }
}

/// Nanoseconds of a duration; 584 years at most.
pub(super) fn nanos(took: Duration) -> u64 {
    u64::try_from(took.as_nanos()).unwrap_or(u64::MAX)
}

/// Histograms of several workers added up, for rendering.
#[derive(Debug)]
pub(super) struct Total {
    scale: Scale,
    counts: [u64; BUCKETS_MAX],
    sum: u64,
}

impl Total {
    pub(super) fn of<'a>(histograms: impl IntoIterator<Item = &'a Histogram>) -> Option<Self> {
        let mut histograms = histograms.into_iter();
        let first = histograms.next()?;
        let mut total = Self { scale: first.scale, counts: [0; BUCKETS_MAX], sum: 0 };
        for histogram in std::iter::once(first).chain(histograms) {
            for (sum, cell) in total.counts.iter_mut().zip(&histogram.counts) {
                *sum += cell.get();
            }
            total.sum = total.sum.wrapping_add(histogram.sum.get());
        }
        Some(total)
    }

    /// The count is that of the buckets, so that a scrape never shows a bucket above the count.
    pub(super) fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Observations in each bucket.
    pub(super) fn counts(&self) -> [u64; BUCKETS_MAX] {
        self.counts
    }

    /// Sum in seconds or in the unit itself.
    pub(super) fn sum(&self) -> f64 {
        if self.scale.nanos > 0 { seconds(self.sum) } else { self.sum as f64 }
    }

    /// Upper bounds with the observations between this bound and the one before; the last bound is infinite.
    pub(super) fn buckets(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        let bounds = (self.scale.first..=self.scale.last).map(|exponent| {
            let bound = 1u64 << exponent;
            if self.scale.nanos > 0 { seconds(bound * self.scale.nanos) } else { bound as f64 }
        });
        bounds.chain([f64::INFINITY]).zip(self.counts)
    }
}

/// Seconds of a number of nanoseconds.
pub(super) fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket_of(scale: Scale, n: u64) -> f64 {
        let histogram = Histogram::new(scale);
        histogram.observe(n);
        let total = Total::of([&histogram]).expect("one histogram");
        total.buckets().find(|(_, count)| *count == 1).expect("one observation").0
    }

    #[test]
    fn a_value_lands_in_the_smallest_bucket_that_holds_it() {
        for (n, bound) in [(0, 1.0), (1, 1.0), (2, 2.0), (3, 4.0), (4, 4.0), (5, 8.0), (65_536, 65_536.0)] {
            assert_eq!(bucket_of(COUNT, n), bound, "{n}");
        }
        assert_eq!(bucket_of(COUNT, 65_537), f64::INFINITY);
        assert_eq!(bucket_of(COUNT, u64::MAX), f64::INFINITY);
        assert_eq!(bucket_of(BYTES, 0), 64.0);
        assert_eq!(bucket_of(BYTES, 2 << 20), 2_097_152.0);
    }

    #[test]
    fn seconds_run_from_32_us_to_over_16_s_in_powers_of_2() {
        let histogram = Histogram::new(SECONDS);
        for micros in [1, 32, 33, 16_777_216, 16_777_217] {
            histogram.observe_time(Duration::from_micros(micros));
        }
        let total = Total::of([&histogram]).expect("one histogram");
        let buckets: Vec<_> = total.buckets().collect();
        assert_eq!(buckets[0], (0.000_032, 2));
        assert_eq!(buckets[1], (0.000_064, 1));
        assert_eq!(buckets[19], (16.777_216, 1));
        assert_eq!(buckets[20], (f64::INFINITY, 1));
        assert_eq!(buckets.len(), 21);
        assert_eq!(total.count(), 5);
        assert!((total.sum() - 33.554_499).abs() < 1e-9);
    }

    #[test]
    fn steps_have_a_bound_at_10_ms() {
        let histogram = Histogram::new(STEPS);
        [1, 9_999, 10_000, 10_001].iter().for_each(|&micros| histogram.observe_time(Duration::from_micros(micros)));
        let total = Total::of([&histogram]).expect("one histogram");
        let up_to = |bound: f64| total.buckets().filter(|(of, _)| *of <= bound).map(|(_, count)| count).sum::<u64>();
        assert_eq!((up_to(0.005), up_to(0.01), total.buckets().count()), (1, 3, 17));
    }
}
