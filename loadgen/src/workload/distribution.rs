//! Which keys are popular: uniform, zipfian, latest, after YCSB's generators (Cooper et al., 2010; the sampling is
//! Gray et al., *Quickly generating billion-record synthetic databases*, 1994).

use crate::random::Rng;

/// YCSB's skew.
pub const THETA: f64 = 0.99;

/// YCSB draws its scrambled zipfian from ten billion items, whatever the number of records, and folds the hash of the
/// item.
const SCRAMBLED_ITEMS: u64 = 10_000_000_000;

/// zeta(10^10, 0.99), as in YCSB's source; summing it would take a minute.
const SCRAMBLED_ZETA: f64 = 26.469_028_201_783_02;

/// Ranks 0.. with probability proportional to 1 / (rank + 1)^theta.
#[derive(Clone, Debug)]
pub struct Zipfian {
    items: u64,
    zeta: f64,
    eta: f64,
}

fn zeta_terms(from: u64, to: u64) -> f64 {
    // Smallest terms first: less is lost.
    (from + 1..=to).rev().map(|i| 1.0 / (i as f64).powf(THETA)).sum()
}

impl Zipfian {
    /// Over ranks `0..items`; O(items), about 20 ns each. `items` must not be 0.
    pub fn new(items: u64) -> Zipfian {
        Zipfian::with_zeta(items, zeta_terms(0, items))
    }

    fn with_zeta(items: u64, zeta: f64) -> Zipfian {
        let zeta2 = zeta_terms(0, 2);
        let eta = (1.0 - (2.0 / items as f64).powf(1.0 - THETA)) / (1.0 - zeta2 / zeta);
        Zipfian { items, zeta, eta }
    }

    /// More items, at the cost of the new ones only.
    pub fn grow(&mut self, items: u64) {
        if items > self.items {
            *self = Zipfian::with_zeta(items, self.zeta + zeta_terms(self.items, items));
        }
    }

    /// A rank below the number of items.
    pub fn draw(&self, rng: &mut Rng) -> u64 {
        let u = rng.unit();
        let uz = u * self.zeta;
        if uz < 1.0 || self.items == 1 {
            return 0;
        }
        if uz < 1.0 + 0.5f64.powf(THETA) || self.items == 2 {
            return 1;
        }
        let rank = self.items as f64 * (self.eta * u - self.eta + 1.0).powf(1.0 / (1.0 - THETA));
        (rank as u64).min(self.items - 1)
    }
}

/// FNV-1a over the eight bytes of a number, YCSB's hash.
fn fnv(mut value: u64) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for _ in 0..8 {
        hash = (hash ^ (value & 0xff)).wrapping_mul(0x0000_0100_0000_01b3);
        value >>= 8;
    }
    hash
}

/// How popularity is spread over the keys that exist.
#[derive(Clone, Debug)]
pub enum Popularity {
    /// Every key alike.
    Uniform,
    /// Zipfian, the popular ones scattered over the list of keys.
    Scrambled(Zipfian),
    /// Zipfian by age: the last inserted is the most popular.
    Latest(Zipfian),
}

impl Popularity {
    /// YCSB's `zipfian` request distribution.
    pub fn scrambled() -> Popularity {
        Popularity::Scrambled(Zipfian::with_zeta(SCRAMBLED_ITEMS, SCRAMBLED_ZETA))
    }

    /// YCSB's `latest`, over `items` keys at first.
    pub fn latest(items: u64) -> Popularity {
        Popularity::Latest(Zipfian::new(items.max(1)))
    }

    /// An index in `0..items`; `items` must not be 0 and, for `Latest`, may only grow.
    pub fn draw(&mut self, items: u64, rng: &mut Rng) -> u64 {
        match self {
            Popularity::Uniform => rng.below(items),
            Popularity::Scrambled(zipfian) => fnv(zipfian.draw(rng)) % items,
            Popularity::Latest(zipfian) => {
                zipfian.grow(items);
                items - 1 - zipfian.draw(rng).min(items - 1)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(mut popularity: Popularity, items: u64, draws: u32) -> Vec<u32> {
        let mut rng = Rng::new(11, 0);
        let mut counts = vec![0; items as usize];
        for _ in 0..draws {
            counts[popularity.draw(items, &mut rng) as usize] += 1;
        }
        counts
    }

    #[test]
    fn zipfian_ranks_have_the_probabilities_of_the_law() {
        let zipfian = Zipfian::new(1_000);
        let mut rng = Rng::new(5, 0);
        let mut seen = vec![0u32; 1_000];
        let draws = 1_000_000;
        for _ in 0..draws {
            seen[zipfian.draw(&mut rng) as usize] += 1;
        }
        // The first two ranks are exact in Gray's method; the ranks behind them are up to a tenth too likely, as
        // upstream's.
        for (rank, &count) in seen.iter().enumerate().take(2) {
            let expected = 1.0 / ((rank + 1) as f64).powf(THETA) / zipfian.zeta;
            let measured = f64::from(count) / f64::from(draws);
            assert!((measured / expected - 1.0).abs() < 0.02, "rank {rank}: {measured} for {expected}");
        }
        for (from, to) in [(2usize, 10usize), (10, 100), (100, 1_000)] {
            let expected = zeta_terms(from as u64, to as u64) / zipfian.zeta;
            let measured = seen[from..to].iter().sum::<u32>() as f64 / f64::from(draws);
            assert!((measured / expected - 1.0).abs() < 0.1, "{from}..{to}: {measured} for {expected}");
        }
    }

    #[test]
    fn growing_equals_starting_larger() {
        let mut grown = Zipfian::new(10);
        grown.grow(2_000);
        let (grown_draws, fresh) = (grown, Zipfian::new(2_000));
        let draw = |z: &Zipfian| (0..100).map(|i| z.draw(&mut Rng::new(i, 0))).collect::<Vec<_>>();
        assert_eq!(draw(&grown_draws), draw(&fresh));
    }

    #[test]
    fn uniform_is_even() {
        let counts = counts(Popularity::Uniform, 100, 100_000);
        assert!(counts.iter().all(|&count| (840..=1_160).contains(&count)), "{counts:?}");
    }

    #[test]
    fn scrambled_zipfian_has_few_hot_keys_and_they_are_not_neighbours() {
        let counts = counts(Popularity::scrambled(), 1_000, 200_000);
        let mut order: Vec<usize> = (0..1_000).collect();
        order.sort_by_key(|&i| std::cmp::Reverse(counts[i]));
        // Rank 0 of 10^10 items has 1/26.47 of all draws.
        let share = f64::from(counts[order[0]]) / 200_000.0;
        assert!((0.035..0.042).contains(&share), "{share}");
        assert!(order[0].abs_diff(order[1]) > 1 && order[0] > 1);
    }

    #[test]
    fn latest_prefers_what_was_inserted_last() {
        let counts = counts(Popularity::latest(1_000), 1_000, 100_000);
        assert!(counts[999] > 10_000 && counts[999] > counts[998] && counts[998] > counts[500]);
    }

    #[test]
    fn one_key_is_enough_for_each() {
        for mut popularity in [Popularity::Uniform, Popularity::scrambled(), Popularity::latest(1)] {
            assert!((0..100).all(|i| popularity.draw(1, &mut Rng::new(i, 0)) == 0));
        }
    }
}
