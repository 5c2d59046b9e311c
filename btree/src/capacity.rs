//! How wide nodes grow.

use crate::node::{FIXED_SLOTS, INNER_SLOTS};

/// The most pairs per leaf and children per inner node. Only tests want other than the default: narrow nodes make
/// trees of few keys split, merge and grow high.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Capacity {
    pairs: u16,
    children: u16,
}

impl Capacity {
    /// The widest nodes.
    pub const DEFAULT: Self = Self { pairs: FIXED_SLOTS as u16 - 1, children: INNER_SLOTS as u16 - 1 };

    /// Four pairs, four children.
    pub const TINY: Self = Self { pairs: 4, children: 4 };

    /// The same number for leaves and inner nodes, brought into the range from [`Capacity::TINY`] to
    /// [`Capacity::DEFAULT`].
    pub fn new(width: usize) -> Self {
        let within = |max: u16| width.clamp(4, max.into()) as u16;
        Self { pairs: within(Self::DEFAULT.pairs), children: within(Self::DEFAULT.children) }
    }

    pub(crate) fn pairs_max(self) -> usize {
        self.pairs.into()
    }

    pub(crate) fn children_max(self) -> usize {
        self.children.into()
    }

    /// A leaf with fewer pairs than this after a removal gets together with a neighbour. Far below half: a leaf that
    /// just split does not merge again at once.
    pub(crate) fn pairs_low(self) -> usize {
        usize::from(self.pairs).div_ceil(3)
    }

    /// The same for inner nodes, which must keep two children.
    pub(crate) fn children_low(self) -> usize {
        usize::from(self.children).div_ceil(3).max(2)
    }
}

impl Default for Capacity {
    fn default() -> Self {
        Self::DEFAULT
    }
}
