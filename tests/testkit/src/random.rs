//! Random numbers from a seed (splitmix64): the same on every machine and for ever.

/// A generator. Independent purposes take independent generators: [`Random::of`].
#[derive(Clone, Debug)]
pub struct Random(u64);

/// What can be drawn: whole numbers.
pub trait Number: Copy {
    /// As 64 bits.
    fn bits(self) -> u64;
    /// From a number that is below one of this type.
    fn of(bits: u64) -> Self;
}

macro_rules! numbers {
    ($($number:ty)*) => {
        $(impl Number for $number {
            fn bits(self) -> u64 {
                self as u64
            }

            fn of(bits: u64) -> Self {
                bits as $number
            }
        })*
    };
}

// `i32` is what a literal is that nothing else gives a type.
numbers!(u8 u16 u32 u64 usize i32);

impl Random {
    /// From a seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// From a seed and a purpose, so that one purpose's draws do not shift another's.
    pub fn of(seed: u64, purpose: u64) -> Random {
        let mut random = Random(seed ^ purpose.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        Random(random.next())
    }

    /// Any number.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 if that is 0.
    pub fn below<N: Number>(&mut self, bound: N) -> N {
        N::of(((u128::from(self.next()) * u128::from(bound.bits())) >> 64) as u64)
    }

    /// True in `per_mille` of 1,000 cases.
    pub fn chance<N: Number>(&mut self, per_mille: N) -> bool {
        self.below(1_000_u64) < per_mille.bits()
    }

    /// True in `percent` of 100 cases.
    pub fn percent<N: Number>(&mut self, percent: N) -> bool {
        self.below(100_u64) < percent.bits()
    }

    /// One of these; none of none.
    pub fn pick<T: Copy>(&mut self, all: &[T]) -> Option<T> {
        all.get(self.below(all.len())).copied()
    }
}
