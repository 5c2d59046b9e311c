//! Queries that wait for the next ticket, and how they share it (protocol.md 4, step 2).
//!
//! A query waits only for rounds that were out when it came, and all that wait together go together: under load a
//! ticket carries many queries. For rounds at other partitions than its own it waits no longer than a round usually
//! takes, so that a slow partition does not hold up those who do not read it.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::ids::{MapVersion, PartitionId, QueryId, Time};
use crate::multicast::step::{Query, SubQuery, Work};

/// A number of queries and their bytes, as the limits count them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Load {
    pub queries: usize,
    pub bytes: usize,
}

/// Queries over the same partitions that wait for the same ticket.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Pack {
    /// By which all of them were cut.
    pub map: MapVersion,
    /// They wait for rounds up to this ticket.
    pub after: u64,
    /// When the first of them came.
    pub since: Time,
    pub parts: BTreeMap<PartitionId, Vec<SubQuery>>,
    pub queries: Vec<QueryId>,
    pub bytes: usize,
}

/// All that wait, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Packs {
    packs: VecDeque<Pack>,
}

impl Packs {
    /// Takes a query. `after` is the newest ticket; a pack never grows beyond `bytes_max`.
    pub fn push(&mut self, query: Query, (after, since): (u64, Time), bytes_max: usize) {
        let bytes = len_bytes(&query);
        let fits = |pack: &&mut Pack| {
            pack.bytes + bytes <= bytes_max && pack.map == query.map && pack.parts.keys().eq(query.parts.keys())
        };
        let at = self.packs.iter_mut().find(fits);
        let Query { id, map, parts } = query;
        let parts = parts.into_iter().map(|(partition, bytes)| (partition, SubQuery { query: id, bytes }));
        match at {
            Some(pack) => {
                for (partition, sub) in parts {
                    pack.parts.entry(partition).or_default().push(sub);
                }
                pack.queries.push(id);
                pack.bytes += bytes;
            }
            None => {
                let parts = parts.map(|(partition, sub)| (partition, vec![sub])).collect();
                self.packs.push_back(Pack { map, after, since, parts, queries: vec![id], bytes });
            }
        }
    }

    /// Takes the oldest packs that are `ready`, for one ticket of at most `bytes_max`.
    pub fn take(&mut self, bytes_max: usize, ready: impl Fn(&Pack) -> bool) -> Option<Pack> {
        if !self.packs.iter().any(&ready) {
            return None;
        }
        let mut taken: Option<Pack> = None;
        for pack in std::mem::take(&mut self.packs) {
            let bytes = taken.as_ref().map_or(0, |taken| taken.bytes);
            let fits = taken.is_none() || bytes + pack.bytes <= bytes_max;
            if !fits || !ready(&pack) {
                self.packs.push_back(pack);
                continue;
            }
            match &mut taken {
                Some(taken) => {
                    for (partition, mut subs) in pack.parts {
                        taken.parts.entry(partition).or_default().append(&mut subs);
                    }
                    taken.queries.extend(pack.queries);
                    taken.bytes += pack.bytes;
                }
                None => taken = Some(pack),
            }
        }
        taken
    }

    /// Takes out those that are `over`.
    pub fn drop_if(&mut self, over: impl Fn(&Pack) -> bool) -> Vec<Pack> {
        let (dropped, kept) = std::mem::take(&mut self.packs).into_iter().partition(|pack| over(pack));
        self.packs = kept;
        Vec::from(dropped)
    }

    /// When the oldest came.
    pub fn since(&self) -> Option<Time> {
        Some(self.packs.front()?.since)
    }

    /// When the oldest of those came that have not waited for `patience` yet.
    pub fn since_after(&self, now: Time, patience: Duration) -> Option<Time> {
        self.packs.iter().map(|pack| pack.since).filter(|since| *since + patience > now).min()
    }

    /// How much waits.
    pub fn load(&self) -> Load {
        Load {
            queries: self.packs.iter().map(|pack| pack.queries.len()).sum(),
            bytes: self.packs.iter().map(|pack| pack.bytes).sum(),
        }
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.packs.is_empty()
    }
}

impl Pack {
    /// What each partition is to place.
    pub fn works(parts: BTreeMap<PartitionId, Vec<SubQuery>>) -> BTreeMap<PartitionId, Work> {
        parts.into_iter().map(|(partition, subs)| (partition, Work::Queries(subs))).collect()
    }
}

/// What a query counts for in the limits: its shares and what surrounds each.
pub(super) fn len_bytes(query: &Query) -> usize {
    const AROUND_BYTES: usize = 16;
    query.parts.values().map(|bytes| bytes.len() + AROUND_BYTES).sum()
}
