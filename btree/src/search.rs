//! Search in sorted arrays of integers, in two steps without branches that depend on the data.
//!
//! An array comes in blocks of eight: one cache line. The last key of each block but the last one stands in a sample.
//! The sample tells the block, the block tells the place: a cold node costs three lines (sample, block, what is found
//! there), whatever its width.

/// Keys per block: a cache line.
pub(crate) const BLOCK: usize = 8;
/// Slots of a sorted array.
pub(crate) const SLOTS: usize = 56;
/// The last keys of all blocks but the last one. With the owners' count and a length before it this fills a line.
pub(crate) type Sample = [u64; SLOTS / BLOCK - 1];
/// Ascending keys; unused slots hold `u64::MAX`.
pub(crate) type Slots = [u64; SLOTS];

/// The sample of an array without keys.
pub(crate) const SAMPLE_OF_NONE: Sample = [u64::MAX; SLOTS / BLOCK - 1];

/// The block that holds the first key not below `bound`, or the last block.
#[inline]
pub(crate) fn block_of(sample: &Sample, bound: u64) -> usize {
    sample.iter().map(|key| usize::from(*key < bound)).sum()
}

/// [`block_of`]. With `ALONE` it is told from the keys themselves: more lines, but all of them come in one go, the
/// block's too. That is for a key on its own, which waits for every line in turn; keys that go down together wait once,
/// and want few lines.
#[inline]
pub(crate) fn find_block<const ALONE: bool>(sample: &Sample, keys: &Slots, bound: u64) -> usize {
    if !ALONE {
        return block_of(sample, bound);
    }
    let (blocks, _) = keys.as_chunks::<BLOCK>();
    blocks[..blocks.len() - 1].iter().map(|block| usize::from(block[BLOCK - 1] < bound)).sum()
}

/// How many of the keys are below `bound`, whose block is known.
#[inline]
pub(crate) fn count_in_block(keys: &Slots, block: usize, bound: u64) -> usize {
    let (blocks, _) = keys.as_chunks::<BLOCK>();
    BLOCK * block + blocks[block].iter().map(|key| usize::from(*key < bound)).sum::<usize>()
}

/// How many of the keys are below `bound`. Unused slots never are.
#[inline]
pub(crate) fn count_below(sample: &Sample, keys: &Slots, bound: u64) -> usize {
    count_in_block(keys, block_of(sample, bound), bound)
}

/// Makes the sample fit again after keys in `from..to` changed.
#[inline]
pub(crate) fn take_sample(sample: &mut Sample, keys: &Slots, from: usize, to: usize) {
    for block in from / BLOCK..sample.len().min(to / BLOCK + 1) {
        sample[block] = keys[BLOCK * block + BLOCK - 1];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_at_every_length_and_bound() {
        for len in 0..=SLOTS {
            let keys: Slots = std::array::from_fn(|i| if i < len { 10 * i as u64 } else { u64::MAX });
            let mut sample = SAMPLE_OF_NONE;
            take_sample(&mut sample, &keys, 0, len);
            for bound in (0..640).chain([u64::MAX]) {
                let expected = keys[..len].iter().filter(|key| **key < bound).count();
                assert_eq!(count_below(&sample, &keys, bound), expected);
                let block = find_block::<true>(&sample, &keys, bound);
                assert_eq!(count_in_block(&keys, block, bound), expected);
            }
        }
    }
}
