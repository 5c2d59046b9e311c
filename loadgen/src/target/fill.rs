//! Bulk loads: the first N keys of the list into an empty store, in key order, many at a time.

use super::{Done, End, Target};
use crate::workload::{Key, KeySpace, Request, Value, ValueForm};

/// Requests under way, for stores that have no bulk load.
const SLOTS: u32 = 1_024;

/// What a load did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FillResult {
    /// Keys that are there now.
    pub keys: u64,
    /// Of those, keys that were there before and kept their value.
    pub present: u64,
}

/// The value of the key with this place in the order of a load. No run writes it: its client number is the highest.
pub fn value(index: u64, bytes: u32) -> Value {
    Value { client: (1 << 24) - 1, number: index, form: ValueForm::Bytes(bytes) }
}

/// The keys of a load, partition by partition, each in ascending order.
pub fn keys(space: &KeySpace, entries: u64) -> impl Iterator<Item = Key> + '_ {
    (0..space.parts()).flat_map(move |part| space.sorted_in(part, entries))
}

/// Loads by single puts, as fast as the target takes them; `told` hears how many are done. The error is the first.
pub fn by_puts<T: Target>(
    target: &mut T,
    space: &KeySpace,
    entries: u64,
    value_bytes: u32,
    mut told: impl FnMut(u64),
) -> Result<FillResult, String> {
    let mut requests = keys(space, entries).enumerate();
    let mut free: Vec<u32> = (0..SLOTS).collect();
    let mut done: Vec<Done> = Vec::new();
    let mut filled = FillResult::default();
    loop {
        while let Some(slot) = free.pop() {
            let Some((index, key)) = requests.next() else {
                free.push(slot);
                break;
            };
            target.submit(slot, &Request::Put(key, value(index as u64, value_bytes)));
        }
        if free.len() == SLOTS as usize {
            return Ok(filled);
        }
        target.poll(target.now() + 1_000_000_000, &mut done);
        for done in done.drain(..) {
            if done.end != End::Ok {
                return Err(target.first_error().unwrap_or_else(|| "a put was not answered".to_owned()));
            }
            filled.keys += 1;
            free.push(done.slot);
        }
        told(filled.keys);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::simulated::{Service, SimulatedTarget};

    #[test]
    fn every_key_is_put_once_and_told() {
        let mut target = SimulatedTarget::new(4, Service::Fixed(1_000));
        let mut last = 0;
        let space = KeySpace::even(4);
        let filled = by_puts(&mut target, &space, 10_001, 8, |done| {
            assert!(done >= last);
            last = done;
        });
        assert_eq!((filled, last), (Ok(FillResult { keys: 10_001, present: 0 }), 10_001));
    }

    #[test]
    fn the_first_refusal_ends_a_load() {
        let mut target = SimulatedTarget::new(1, Service::Fixed(1)).refusing(|n| (n == 5_000).then_some(End::Busy));
        assert!(by_puts(&mut target, &KeySpace::even(1), 10_000, 8, |_| {}).is_err());
    }

    #[test]
    fn a_load_goes_through_each_partition_in_order() {
        let space = KeySpace::even(3);
        let all: Vec<Key> = keys(&space, 1_000).collect();
        assert!(all.windows(2).all(|w| w[0] < w[1]) && all.len() == 1_000);
    }
}
