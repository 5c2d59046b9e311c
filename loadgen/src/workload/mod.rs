//! What clients do: mixes of requests over a fixed list of keys. A request is a function of (seed, client, number) and,
//! where a workload reads what it inserted, of the insertions before; nothing here knows time or network.

pub mod distribution;
pub mod keys;
pub mod mix;
pub mod request;
pub mod source;
pub mod ycsb;

use std::sync::Arc;

pub use keys::KeySpace;
pub use mix::{Mix, Size, Spread};
pub use request::{Key, Kind, Request, Update, Updates, Value, ValueForm};
pub use source::Source;

/// Everything that fixes the requests of a run, shared by its workers.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What is done, how often.
    pub mix: Mix,
    /// The list of keys over the partitions.
    pub keys: KeySpace,
    /// N: how many keys are, or are taken to be, in the store.
    pub entries: u64,
    /// How many keys of the list take part (papers: 2 N, of which N are there).
    pub universe: u64,
    /// What written values look like.
    pub value: ValueForm,
    /// The number of keys of the list that a range spans.
    pub range_keys: u64,
    /// Of ranges, this share spans two partitions.
    pub cross_percent: u8,
    /// All draws follow from it.
    pub seed: u64,
}

impl Plan {
    /// Keys of this plan that a bulk load puts there: the first N of the list.
    pub fn shared(self) -> Arc<Plan> {
        Arc::new(self)
    }
}
