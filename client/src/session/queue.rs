//! What waits for each partition, and what is known of who serves it.

use std::collections::{BTreeMap, VecDeque};
use std::ops::{Index, IndexMut};
use std::time::Duration;

use super::calls::{CallKey, Calls};
use super::sessions::SessionKey;
use crate::error::Reason;
use crate::time::Time;
use crate::wire::{NodeId, PartitionId};

/// What was in the way last, so that a call that fails at its deadline can say why.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum LastError {
    /// Nothing, or only slowness.
    #[default]
    None,
    NoLeader,
    Unreachable,
    /// Which bound is reached.
    Busy(String),
    Full(String),
    NotInitialized,
}

impl LastError {
    pub fn reason(self) -> Reason {
        match self {
            LastError::None => Reason::TimedOut,
            LastError::NoLeader => Reason::NoLeader,
            LastError::Unreachable => Reason::Unreachable,
            LastError::Busy(text) => Reason::Busy(text),
            LastError::Full(text) => Reason::Full(text),
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

/// The replicas of a partition: who leads, and who is asked while nobody knows.
#[derive(Clone, Debug, Default)]
pub(super) struct Replicas {
    /// The nodes of the voters.
    pub nodes: Vec<NodeId>,
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
    /// Where the last range went that any replica may answer.
    pub affinity: Option<ReplicaAffinity>,
}

impl Replicas {
    /// Follows a leader, or nobody.
    pub fn follow(&mut self, leader: Option<NodeId>) {
        self.leader = leader;
        self.confirmed = false;
        self.epoch = self.epoch.wrapping_add(1);
    }

    /// The partition moved to these nodes.
    pub fn move_to(&mut self, nodes: Vec<NodeId>) {
        self.nodes = nodes;
        if self.leader.is_some_and(|leader| !self.nodes.contains(&leader)) {
            self.follow(None);
        }
    }

    /// How many frames may be under way, of so many: while the leader is in doubt, one is enough to find out.
    pub fn window(&self, window: usize) -> usize {
        if self.confirmed { window.max(1) } else { 1 }
    }
}

/// The session that new commands of a partition are numbered in.
#[derive(Clone, Debug, Default)]
pub(super) struct CommandSession {
    pub key: Option<SessionKey>,
    /// Its opening was sent.
    pub opening: bool,
    /// Sessions in a row that were over before any pack was answered in them.
    pub barren: u32,
}

/// Calls that wait to be sent to a partition.
#[derive(Clone, Debug, Default)]
pub(super) struct WaitingCalls {
    /// Commands without a number.
    pub fresh: VecDeque<CallKey>,
    /// Commands to be repeated, by session and number.
    pub retry: BTreeMap<(SessionKey, u64), CallKey>,
    /// Gets and looks.
    pub gets: VecDeque<CallKey>,
    pub ranges: VecDeque<CallKey>,
    /// Parts of collected ranges of which it is to be asked whether they have changed.
    pub validations: Vec<(CallKey, u32)>,
}

impl WaitingCalls {
    pub fn has_commands(&self) -> bool {
        !self.fresh.is_empty() || !self.retry.is_empty()
    }

    pub fn is_empty(&self) -> bool {
        !self.has_commands() && self.gets.is_empty() && self.ranges.is_empty() && self.validations.is_empty()
    }

    /// Puts back a command that is to be sent (again).
    pub fn push_command(&mut self, key: CallKey, number: Option<(SessionKey, u64)>) {
        match number {
            Some(number) => {
                self.retry.insert(number, key);
            }
            None => self.fresh.push_back(key),
        }
    }

    /// All calls, taken out; validations stay.
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

/// How long a queue waits before it sends again.
#[derive(Clone, Debug, Default)]
pub(super) struct Backoff {
    /// Nothing is sent before; the default once it has passed.
    until: Time,
    /// Refusals in a row that ask for patience.
    refusals: u32,
    /// When the last of them came.
    since: Time,
}

impl Backoff {
    /// Whether nothing may be sent yet.
    pub fn holds(&self, now: Time) -> bool {
        self.until > now
    }

    /// When it ends, unless that was noticed.
    pub fn deadline(&self) -> Option<Time> {
        (self.until > Time::default()).then_some(self.until)
    }

    /// Notices that it ended; `false` if it did not, or there was none.
    pub fn end(&mut self, now: Time) -> bool {
        let ends = self.deadline().is_some_and(|until| until <= now);
        if ends {
            self.until = Time::default();
        }
        ends
    }

    /// Until then at least.
    pub fn extend(&mut self, until: Time) {
        self.until = self.until.max(until);
    }

    /// Until then.
    pub fn set(&mut self, until: Time) {
        self.until = until;
    }

    /// What was asked at `asked_at` was refused: waits for `pause` of the refusals in a row. What was asked before the
    /// last refusal came, and is refused too, is no further one.
    pub fn refused(&mut self, now: Time, asked_at: Time, at_least: Duration, pause: impl FnOnce(u32) -> Duration) {
        let mut rest = at_least;
        if asked_at >= self.since {
            rest = rest.max(pause(self.refusals));
            self.refusals = self.refusals.saturating_add(1);
            self.since = now;
        }
        self.extend(now + rest);
    }

    /// It answered.
    pub fn answered(&mut self) {
        self.refusals = 0;
    }
}

/// What waits for one partition.
#[derive(Clone, Debug)]
pub(super) struct PartitionQueue {
    pub partition: PartitionId,
    /// The map still has the partition.
    pub alive: bool,
    pub replicas: Replicas,
    pub session: CommandSession,
    pub waiting: WaitingCalls,
    /// Packs, and frames of gets, that wait for their answer.
    pub packs_out: usize,
    pub reads_out: usize,
    pub backoff: Backoff,
    pub last_error: LastError,
    /// Stands in [`Queues::listed`].
    listed: bool,
}

impl PartitionQueue {
    pub fn new(partition: PartitionId, rotation: usize) -> PartitionQueue {
        PartitionQueue {
            partition,
            alive: true,
            replicas: Replicas { rotation, ..Replicas::default() },
            session: CommandSession::default(),
            waiting: WaitingCalls::default(),
            packs_out: 0,
            reads_out: 0,
            backoff: Backoff::default(),
            last_error: LastError::None,
            listed: false,
        }
    }

    /// The leader answered.
    pub fn answered(&mut self) {
        self.replicas.confirmed = true;
        self.replicas.misses = 0;
        self.backoff.answered();
        self.last_error = LastError::None;
    }

    /// Whether it has something to send now.
    fn may_send(&self) -> bool {
        self.backoff.deadline().is_none() && !self.waiting.is_empty()
    }
}

/// The queues of all partitions that were ever met, by the place that requests name, and which of them are to be looked
/// at.
#[derive(Clone, Debug, Default)]
pub(super) struct Queues {
    all: Vec<PartitionQueue>,
    /// Looked at in the next dispatch.
    listed: Vec<usize>,
    /// With a range that waits for others on its connection to end.
    crowded: Vec<usize>,
}

impl Queues {
    pub fn push(&mut self, queue: PartitionQueue) -> usize {
        self.all.push(queue);
        self.all.len() - 1
    }

    pub fn get(&self, at: usize) -> Option<&PartitionQueue> {
        self.all.get(at)
    }

    pub fn get_mut(&mut self, at: usize) -> Option<&mut PartitionQueue> {
        self.all.get_mut(at)
    }

    pub fn iter(&self) -> impl Iterator<Item = &PartitionQueue> {
        self.all.iter()
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut PartitionQueue> {
        self.all.iter_mut()
    }

    /// The queue of a partition, whether or not the map still has it.
    pub fn of(&self, partition: PartitionId) -> Option<usize> {
        self.all.iter().position(|queue| queue.partition == partition)
    }

    /// The queue of a partition that the map has.
    pub fn alive(&self, partition: PartitionId) -> Option<usize> {
        self.of(partition).filter(|&at| self.all[at].alive)
    }

    /// Marks a queue to be looked at in the next dispatch.
    pub fn list(&mut self, at: usize) {
        if !std::mem::replace(&mut self.all[at].listed, true) {
            self.listed.push(at);
        }
    }

    /// Marks all that have something to send.
    pub fn list_all(&mut self) {
        for at in 0..self.all.len() {
            if !self.all[at].waiting.is_empty() {
                self.list(at);
            }
        }
    }

    /// The first range of a queue waits for others on its connection to end: it is looked at again in each dispatch.
    pub fn note_crowded(&mut self, at: usize) {
        self.crowded.push(at);
    }

    /// Marks queues whose backoff has ended, and crowded ones.
    pub fn list_due(&mut self, now: Time) {
        for at in 0..self.all.len() {
            if self.all[at].backoff.end(now) {
                self.list(at);
            }
        }
        for at in std::mem::take(&mut self.crowded) {
            self.list(at);
        }
    }

    /// The marked queues, unmarked; give the allocation back with [`Queues::put_back`].
    pub fn take_listed(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.listed)
    }

    /// Unmarks a queue that was taken out; whether it has something to send.
    pub fn unlist(&mut self, at: usize) -> bool {
        self.all[at].listed = false;
        self.all[at].may_send()
    }

    /// Keeps an allocation, and what was marked meanwhile.
    pub fn put_back(&mut self, mut empty: Vec<usize>) {
        empty.append(&mut self.listed);
        self.listed = empty;
    }

    /// When the first backoff ends behind which something waits.
    pub fn deadline(&self) -> Option<Time> {
        let waiting = self.all.iter().filter(|queue| !queue.waiting.is_empty());
        waiting.filter_map(|queue| queue.backoff.deadline()).min()
    }
}

impl Index<usize> for Queues {
    type Output = PartitionQueue;

    fn index(&self, at: usize) -> &PartitionQueue {
        &self.all[at]
    }
}

impl IndexMut<usize> for Queues {
    fn index_mut(&mut self, at: usize) -> &mut PartitionQueue {
        &mut self.all[at]
    }
}
