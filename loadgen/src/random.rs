//! Random numbers that depend on nothing but the seed: a request is a function of (seed, client, number), whatever
//! thread or moment it is made in, so a run can be repeated.

/// SplitMix64 (Steele, Lea, Flood 2014): one addition and one mix per number, any seed is a good one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rng {
    state: u64,
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// A bijection of 64-bit numbers that leaves no visible relation between neighbours.
pub const fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

impl Rng {
    /// The generator of one purpose of one run.
    pub const fn new(seed: u64, purpose: u64) -> Rng {
        Rng { state: mix(seed.wrapping_add(GOLDEN)) ^ mix(purpose.wrapping_mul(GOLDEN)) }
    }

    /// The generator of one request: the `number`-th of `client`.
    pub const fn of_request(seed: u64, client: u32, number: u64) -> Rng {
        Rng::new(seed ^ mix(client as u64 + 1), number)
    }

    /// The next 64 random bits.
    pub const fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GOLDEN);
        mix(self.state)
    }

    /// A number in `0..bound`; the bias is below `bound / 2^64`. `bound` must not be 0.
    pub const fn below(&mut self, bound: u64) -> u64 {
        ((self.next() as u128 * bound as u128) >> 64) as u64
    }

    /// A number in `[0, 1)`, a multiple of 2^-53.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_depend_on_seed_client_and_number_only() {
        let draw = |seed, client, number| Rng::of_request(seed, client, number).next();
        assert_eq!(draw(1, 2, 3), draw(1, 2, 3));
        let different = [draw(1, 2, 3), draw(2, 2, 3), draw(1, 3, 3), draw(1, 2, 4), draw(1, 3, 2)];
        for (i, a) in different.iter().enumerate() {
            assert!(different[i + 1..].iter().all(|b| a != b));
        }
    }

    #[test]
    fn below_is_even_over_its_range() {
        let mut rng = Rng::new(7, 0);
        let mut counts = [0u32; 10];
        for _ in 0..100_000 {
            counts[rng.below(10) as usize] += 1;
        }
        // Sigma is 95: five of them.
        assert!(counts.iter().all(|&count| (9_525..=10_475).contains(&count)), "{counts:?}");
    }

    #[test]
    fn unit_stays_below_one() {
        let mut rng = Rng::new(1, 1);
        let sum: f64 = (0..10_000).map(|_| rng.unit()).inspect(|&x| assert!((0.0..1.0).contains(&x))).sum();
        assert!((4_850.0..5_150.0).contains(&sum), "{sum}");
    }
}
