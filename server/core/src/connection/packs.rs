//! Packs of one connection on their way to the partitions: no more work of it stands before a partition at a time than
//! one pack may have, so that others have their turn between two of its packs.

use std::collections::{BTreeMap, VecDeque};

use coppice_client::wire::{PACK_WORK_MAX, PartitionId};

/// A connection that waits for so much work of a partition hands on no more packs to it.
const WORK_MAX: u64 = PACK_WORK_MAX as u64 / 2;

/// A pack that is held, or handed on.
#[derive(Debug)]
pub(super) struct Pack<T> {
    /// For which partition.
    pub(super) group: PartitionId,
    /// What executing it costs there.
    pub(super) work: u32,
    /// What is to be handed on.
    pub(super) request: T,
}

/// Those of one connection. Each partition gets its packs in the order in which they came.
#[derive(Debug)]
pub(super) struct Packs<T> {
    /// Those that wait until others are answered, oldest first.
    held: VecDeque<Pack<T>>,
    /// Work that partitions have before them.
    work: BTreeMap<PartitionId, u64>,
}

impl<T> Default for Packs<T> {
    fn default() -> Packs<T> {
        Packs { held: VecDeque::new(), work: BTreeMap::new() }
    }
}

impl<T> Packs<T> {
    /// A pack has come; [`Packs::pop`] gives it out.
    pub(super) fn push(&mut self, pack: Pack<T>) {
        self.held.push_back(pack);
    }

    /// The oldest pack whose partition has room for it. In time linear in the number of those that are held.
    pub(super) fn pop(&mut self) -> Option<Pack<T>> {
        let has_room = |group| self.work.get(group).is_none_or(|work| *work < WORK_MAX);
        let next = self.held.iter().position(|pack| has_room(&pack.group) || mutant!(packs_at_once))?;
        let pack = self.held.remove(next)?;
        *self.work.entry(pack.group).or_default() += u64::from(pack.work);
        Some(pack)
    }

    /// One that was given out is answered.
    pub(super) fn answered(&mut self, group: PartitionId, work: u32) {
        if let Some(before) = self.work.get_mut(&group) {
            *before = before.saturating_sub(u64::from(work));
            if *before == 0 {
                self.work.remove(&group);
            }
        }
    }

    /// Whether some are held.
    pub(super) fn are_held(&self) -> bool {
        !self.held.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: PartitionId = PartitionId(1);
    const B: PartitionId = PartitionId(2);

    fn pack(request: u32, group: PartitionId, work: u32) -> Pack<u32> {
        Pack { group, work, request }
    }

    fn next(packs: &mut Packs<u32>) -> Vec<u32> {
        std::iter::from_fn(|| packs.pop()).map(|pack| pack.request).collect()
    }

    /// A client that sent four of the largest packs at once had all of them in front of what others sent.
    #[test]
    fn a_partition_has_one_large_pack_of_a_connection_before_it() {
        let mut packs = Packs::default();
        (1..=3).for_each(|request| packs.push(pack(request, A, PACK_WORK_MAX)));
        packs.push(pack(4, B, PACK_WORK_MAX));
        packs.push(pack(5, A, 8));
        assert_eq!(next(&mut packs), [1, 4], "a partition does not wait for another one");
        packs.answered(B, PACK_WORK_MAX);
        assert_eq!(next(&mut packs), [0_u32; 0]);
        packs.answered(A, PACK_WORK_MAX);
        assert_eq!(next(&mut packs), [2]);
        packs.answered(A, PACK_WORK_MAX);
        assert_eq!(next(&mut packs), [3], "none overtakes another one of its partition");
        packs.answered(A, PACK_WORK_MAX);
        assert_eq!(next(&mut packs), [5]);
        packs.answered(A, 8);
        assert!(!packs.are_held() && packs.work.is_empty(), "{packs:?}");
    }

    #[test]
    fn small_packs_go_on_at_once() {
        let mut packs = Packs::default();
        (1..=100).for_each(|request| packs.push(pack(request, A, 8)));
        assert_eq!(next(&mut packs).len(), 100);
    }

    #[cfg(feature = "mutants")]
    #[test]
    fn packs_at_once_are_caught() {
        let test = "connection::packs::tests::a_partition_has_one_large_pack_of_a_connection_before_it";
        planted::assert_caught("packs_at_once", test);
    }
}
