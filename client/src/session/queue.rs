//! What waits for one partition, and what is known of who serves it.

use std::collections::{BTreeMap, VecDeque};

use super::calls::{CallKey, Calls};
use super::sessions::SessionKey;
use crate::error::Reason;
use crate::time::Time;
use crate::wire::{NodeId, PartitionId};

/// What was in the way last, so that a call that fails at its deadline can say why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum LastError {
    /// Nothing, or only slowness.
    #[default]
    None,
    NoLeader,
    Unreachable,
    Busy,
    Full,
    NotInitialized,
}

impl LastError {
    pub fn reason(self) -> Reason {
        match self {
            LastError::None => Reason::TimedOut,
            LastError::NoLeader => Reason::NoLeader,
            LastError::Unreachable => Reason::Unreachable,
            LastError::Busy => Reason::Busy,
            LastError::Full => Reason::Full,
            LastError::NotInitialized => Reason::NotInitialized,
        }
    }
}

/// A replica that gets ranges which any may answer, and how many more of them.
#[derive(Clone, Debug)]
pub(super) struct ReplicaAffinity {
    pub node: NodeId,
    pub left: u32,
}

#[derive(Clone, Debug)]
pub(super) struct PartitionQueue {
    pub partition: PartitionId,
    /// The map still has the partition.
    pub alive: bool,
    /// Voters of the partition.
    pub replicas: Vec<NodeId>,
    /// Who is believed to lead.
    pub leader: Option<NodeId>,
    /// It answered, since it was last doubted: only then is more than one pack risked.
    pub confirmed: bool,
    /// Counts the changes of `leader`.
    pub epoch: u32,
    /// Which replica is tried next while the leader is not known.
    pub rotation: usize,
    /// Searches in a row without an answer.
    pub misses: u32,
    /// The session for new commands.
    pub session: Option<SessionKey>,
    pub opening: bool,
    /// Sessions in a row that were over before any pack was answered in them.
    pub barren: u32,
    /// Commands without a number.
    pub fresh: VecDeque<CallKey>,
    /// Commands to be repeated, by session and number.
    pub retry: BTreeMap<(SessionKey, u64), CallKey>,
    pub gets: VecDeque<CallKey>,
    pub ranges: VecDeque<CallKey>,
    /// Parts of collected ranges of which it is to be asked whether they have changed.
    pub validations: Vec<(CallKey, u32)>,
    /// Where the last range went that any replica may answer.
    pub affinity: Option<ReplicaAffinity>,
    pub packs_out: usize,
    pub reads_out: usize,
    /// Nothing is sent before; the default once it has passed.
    pub not_before: Time,
    /// Refusals in a row that ask for patience.
    pub busy: u32,
    /// When the last of them came.
    pub rested_at: Time,
    pub last_error: LastError,
    /// Stands in the session's list of queues to look at.
    pub listed: bool,
}

impl PartitionQueue {
    pub fn new(partition: PartitionId, rotation: usize) -> PartitionQueue {
        PartitionQueue {
            partition,
            alive: true,
            replicas: Vec::new(),
            leader: None,
            confirmed: false,
            epoch: 0,
            rotation,
            misses: 0,
            session: None,
            opening: false,
            barren: 0,
            fresh: VecDeque::new(),
            retry: BTreeMap::new(),
            gets: VecDeque::new(),
            ranges: VecDeque::new(),
            validations: Vec::new(),
            affinity: None,
            packs_out: 0,
            reads_out: 0,
            not_before: Time::default(),
            busy: 0,
            rested_at: Time::default(),
            last_error: LastError::None,
            listed: false,
        }
    }

    pub fn has_commands(&self) -> bool {
        !self.fresh.is_empty() || !self.retry.is_empty()
    }

    pub fn has_work(&self) -> bool {
        self.has_commands() || !self.gets.is_empty() || !self.ranges.is_empty() || !self.validations.is_empty()
    }

    /// Follows a leader, or nobody.
    pub fn follow(&mut self, leader: Option<NodeId>) {
        self.leader = leader;
        self.confirmed = false;
        self.epoch = self.epoch.wrapping_add(1);
    }

    /// The leader answered.
    pub fn answered(&mut self) {
        self.confirmed = true;
        self.misses = 0;
        self.busy = 0;
        self.last_error = LastError::None;
    }

    /// Puts back a command that is to be sent (again).
    pub fn queue_command(&mut self, key: CallKey, number: Option<(SessionKey, u64)>) {
        match number {
            Some(number) => {
                self.retry.insert(number, key);
            }
            None => self.fresh.push_back(key),
        }
    }

    /// All that waits, taken out.
    pub fn drain(&mut self) -> Vec<CallKey> {
        let retry = std::mem::take(&mut self.retry).into_values();
        retry.chain(self.fresh.drain(..)).chain(self.gets.drain(..)).chain(self.ranges.drain(..)).collect()
    }

    /// Forgets calls that are over, so that a queue which cannot send does not grow.
    pub fn forget_done(&mut self, calls: &Calls) {
        self.retry.retain(|_, key| calls.is_waiting(*key));
        for queue in [&mut self.fresh, &mut self.gets, &mut self.ranges] {
            queue.retain(|key| calls.is_waiting(*key));
        }
        self.validations.retain(|(key, _)| calls.is_waiting(*key));
    }
}
