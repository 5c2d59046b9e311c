//! The state of one partition: its tree, its bounds, its sessions (protocol.md 1.6), and the execution of its log.
//!
//! Pure. Whatever a batch changes, one [`PartitionMark`] takes back. It does not know ballots, nor what is decided.

mod boundary;
mod changes;
mod command;
mod expiry;
mod mark;
mod overlay;
mod pack;
mod reading;
mod shifts;
#[cfg(test)]
mod tests;

use std::ops::Range;

pub use boundary::{AbsorbedState, AwaitedState, BoundaryChange, BoundaryStep, Fork, Seal};
use bytes::BytesMut;
pub use changes::{CHANGES_KEPT, Changes};
use coppice_btree::{Capacity, Cursor, KeyRange, Op, OpResult, SettleProgress, Tree, Undo};
use coppice_client::wire::entry::Open;
use coppice_client::wire::{Command, MapVersion, PartitionId, SessionId};
use coppice_ordering::multicast::{Place, Work};
use coppice_ordering::{Ballot, Batch, Chain, Instance, ReplicaId, Ticket};
pub use expiry::{DueKeys, Expiry};
pub use mark::PartitionMark;
pub use pack::BATCH_ANSWER_BYTES_MAX;
pub use reading::Values;

use super::{Answer, Outcome};
use crate::machine::entry::{Entry, Expire, Said};
use crate::multicast::PartitionQuery;
use crate::sessions::{SessionLimits, Sessions};

/// A partition's replicated state as last executed.
#[derive(Debug)]
pub struct Partition {
    partition: PartitionId,
    range: KeyRange,
    /// The map version at which the bounds last changed, or the partition was sealed.
    map_version: MapVersion,
    tree: Tree,
    expiry: Expiry,
    sessions: Sessions,
    session_limits: SessionLimits,
    chain: Chain,
    /// No command and no read is taken: a neighbour takes this partition in (protocol.md 8).
    sealed: Option<Seal>,
    /// What neighbours leave to this partition. Not replicated: it is the same wherever it is.
    absorbed_states: Vec<AbsorbedState>,
    undo: Undo,
    /// Not replicated: it only finds records of `undo`.
    overlay: overlay::Overlay,
    changes: Changes,
    scratch: Scratch,
    /// Not replicated: it only tells which sub-ranges of queries this replica answers.
    holder: Holder,
    /// Tickets that counted since they were last asked for.
    placed: Vec<PlacedTicket>,
}

/// Who holds a state.
#[derive(Clone, Debug, Default)]
struct Holder {
    me: Option<ReplicaId>,
    /// While that replica leads: the responders that answer themselves. It answers for all others.
    responders: Option<Box<[ReplicaId]>>,
}

/// A ticket that counted.
#[derive(Debug)]
pub struct PlacedTicket {
    /// Where it stands.
    pub instance: Instance,
    /// Index of its entry there.
    pub index: u32,
    pub ticket: Ticket,
    /// What this replica gives to its queries.
    pub partition_queries: Vec<(PartitionQuery, Cursor)>,
    /// Other replicas give some, too.
    pub others_respond: bool,
}

/// Buffers that live from batch to batch.
#[derive(Clone, Debug, Default)]
struct Scratch {
    numbers: Vec<u64>,
    indexes: Vec<u64>,
    /// Where in the answer the results stand that the session keeps.
    stored: Vec<Range<usize>>,
    reply: BytesMut,
    many: Vec<OpResult>,
    results_of_ops: Vec<OpResult>,
}

impl Partition {
    /// An empty partition.
    pub fn new(partition: PartitionId, range: KeyRange, map_version: MapVersion) -> Partition {
        Partition::restored(partition, range, map_version, Tree::new(), Sessions::default(), None)
    }

    /// A partition with the content of a snapshot.
    pub fn restored(
        partition: PartitionId,
        range: KeyRange,
        map_version: MapVersion,
        tree: Tree,
        sessions: Sessions,
        last_ticket: Option<Ticket>,
    ) -> Partition {
        Partition {
            partition,
            range,
            map_version,
            tree,
            expiry: Expiry::default(),
            sessions,
            session_limits: SessionLimits::default(),
            chain: Chain::new(last_ticket),
            sealed: None,
            absorbed_states: Vec::new(),
            undo: Undo::default(),
            overlay: overlay::Overlay::default(),
            changes: Changes::default(),
            scratch: Scratch::default(),
            holder: Holder::default(),
            placed: Vec::new(),
        }
    }

    /// Gives the tree, which must be empty, nodes of another width: for tests.
    ///
    /// # Panics
    /// If there are keys.
    pub fn set_capacity_per_node(&mut self, capacity: Capacity) {
        assert!(self.tree.is_empty(), "{} has keys already", self.partition);
        self.tree = Tree::with_capacity_per_node(capacity);
    }

    pub fn id(&self) -> PartitionId {
        self.partition
    }

    /// The keys that this partition owns.
    pub fn range(&self) -> &KeyRange {
        &self.range
    }

    /// The map version at which the bounds last changed.
    pub fn map_version(&self) -> MapVersion {
        self.map_version
    }

    /// The tree as last executed.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// When keys expire.
    pub fn expiry(&self) -> &Expiry {
        &self.expiry
    }

    /// The same, for who leads, or leads no more.
    pub fn expiry_mut(&mut self) -> &mut Expiry {
        &mut self.expiry
    }

    /// Gives it what a snapshot holds.
    pub fn set_expiry(&mut self, expiry: Expiry) {
        self.expiry = expiry;
    }

    /// See [`Tree::settle`]. Both trees, from the key that the one which is behind goes on from.
    pub fn settle(&mut self, from: &[u8], nodes: usize) -> SettleProgress {
        let (values, deadlines) = (self.tree.settle(from, nodes), self.expiry.settle(from, nodes));
        let next = match (values.next, deadlines.next) {
            (Some(value), Some(deadline)) => Some(value.min(deadline)),
            (value, deadline) => value.or(deadline),
        };
        SettleProgress { next, is_shared: values.is_shared || deadlines.is_shared }
    }

    /// What changed here lately.
    pub fn changes(&self) -> &Changes {
        &self.changes
    }

    /// Takes the place of another state of this partition, for those who named a moment of that.
    pub fn follow(&mut self, before: &Partition) {
        self.changes.follow(&before.changes);
    }

    /// Gives the tree away, and when its keys expire.
    pub fn into_trees(self) -> (Tree, Expiry) {
        (self.tree, self.expiry)
    }

    /// The sessions as last executed.
    pub fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    /// The last ticket placed here.
    pub fn last_ticket(&self) -> Option<Ticket> {
        self.chain.last_ticket()
    }

    /// Says which replica holds this state.
    pub fn set_me(&mut self, me: ReplicaId) {
        self.holder.me = Some(me);
    }

    /// The replicas that give parts by themselves, while the one that holds this state leads; else none.
    pub fn set_responders(&mut self, responders: Option<Box<[ReplicaId]>>) {
        self.holder.responders = responders;
    }

    /// Moves the tickets that counted since the last call to the end of `placed`.
    pub fn take_placed(&mut self, placed: &mut Vec<PlacedTicket>) {
        placed.append(&mut self.placed);
    }

    /// Gives the session table the bounds that a snapshot or the log holds.
    pub fn set_session_limits(&mut self, limits: SessionLimits) {
        self.session_limits = limits;
    }

    /// Bounds of the session table.
    pub fn session_limits(&self) -> SessionLimits {
        self.session_limits
    }

    /// Whether the partition is sealed, and takes no commands and no reads.
    fn is_closed(&self) -> bool {
        self.sealed.is_some() && !mutant!(merge_no_end)
    }

    /// Runs one batch.
    pub fn execute(&mut self, instance: Instance, batch: &Batch, answers: &mut Vec<Answer>) -> PartitionMark {
        let mut mark = PartitionMark {
            tree: self.undo.mark(),
            expiry: self.expiry.mark(),
            sessions: Vec::new(),
            limits: self.session_limits,
            chain: self.chain,
            range: self.range.clone(),
            map_version: self.map_version,
            changes: self.changes.count(),
            placed: self.placed.len(),
            moved: Vec::new(),
            forks: Vec::new(),
            seals: false,
            joins: Vec::new(),
            awaits: None,
            work: 0,
            written: 0,
        };
        if let Batch::Commands(commands) = batch {
            self.execute_commands(instance, commands, &mut mark, answers);
            self.changes.note(self.undo.keys_since(mark.tree));
        }
        mark
    }

    fn answer(&self, instance: Instance, index: u32, outcome: Outcome) -> Answer {
        Answer { instance, index, last_ticket: self.chain.last_ticket(), outcome }
    }

    /// Executes an entry that is no pack.
    fn execute_entry(
        &mut self,
        instance: Instance,
        index: u32,
        entry: &Entry<'_>,
        mark: &mut PartitionMark,
    ) -> Outcome {
        match entry {
            Entry::Open(_) if self.is_closed() => Outcome::Closed,
            Entry::Open(Open { client, .. }) => {
                let session = SessionId { partition: self.partition, instance: instance.0, index };
                let mut limits = self.session_limits;
                if mutant!(expire_by_clock) {
                    // As if each replica's clock ran at a pace of its own.
                    limits.expiry_instances += self.holder.me.map_or(0, |me| u64::from(me.0));
                }
                self.sessions.open(session, client.0, &limits, &mut mark.sessions);
                Outcome::Opened(session)
            }
            Entry::Place(place) => {
                self.place(instance, index, place, mark);
                Outcome::Nothing
            }
            // A sealed state changes no more: a neighbour takes it in as it is.
            Entry::Limits(limits) if !self.is_closed() => {
                self.session_limits = *limits;
                Outcome::Nothing
            }
            Entry::Expire(by, due) if !self.is_closed() => {
                self.expire(*by, due, mark);
                Outcome::Nothing
            }
            Entry::Limits(_) | Entry::Expire(..) | Entry::Pack { .. } | Entry::Directory(_) | Entry::Unknown => {
                Outcome::Nothing
            }
        }
    }

    /// It is so late, and these keys may be due.
    fn expire(&mut self, by: Ballot, due: &Expire, mark: &mut PartitionMark) {
        let skew = if mutant!(expiry_by_local_clock) { self.holder.me.map_or(0, |me| 40 * u64::from(me.0)) } else { 0 };
        self.expiry.advance(Said { by, time: due.time + skew });
        for key in &due.keys {
            if self.expiry.expire(key) {
                self.tree.execute(Op::Delete { key }, &mut self.undo);
            }
            mark.work += 1;
        }
    }

    /// A ticket is delivered: it counts, and its queries see the state as it is here, or nothing happens (protocol.md
    /// 4, step 3).
    fn place(&mut self, instance: Instance, index: u32, place: &Place, mark: &mut PartitionMark) {
        if !self.chain.place(place.ticket, place.prev) {
            return;
        }
        let (mut partition_queries, mut others_respond) = (Vec::new(), false);
        if let Work::Change { payload, .. } = &place.work
            && let Ok(change) = postcard::from_bytes(payload)
        {
            self.change(instance, &change, mark);
            if !mutant!(validates_over_boundaries) {
                self.changes.forget();
            }
        }
        if let Work::Queries(queries) = &place.work {
            for sub in queries {
                if !self.is_ours(&sub.bytes) {
                    others_respond = true;
                    continue;
                }
                let Ok(partition_query) = PartitionQuery::decode(&sub.bytes) else { continue };
                // Outside the bounds: cut by another map, which the order of tickets excludes. No part, no result.
                if let Some(cursor) =
                    self.part(&partition_query.low, partition_query.high.as_deref(), partition_query.scan.reverse)
                {
                    partition_queries.push((partition_query, cursor));
                }
            }
        }
        let ticket = place.ticket;
        self.placed.push(PlacedTicket { instance, index, ticket, partition_queries, others_respond });
        failpoint!("ticket.placed");
    }

    /// Whether this replica gives the part that these bytes ask for. The coordinator may have chosen one that has
    /// left the group, and knows nothing of the ticket: the leader stands in for it.
    fn is_ours(&self, partition_query: &[u8]) -> bool {
        let Some(responder) = PartitionQuery::responder_of(partition_query) else { return false };
        self.holder.me == Some(responder)
            || self
                .holder
                .responders
                .as_ref()
                .is_some_and(|responders| !responders.contains(&responder) && !mutant!(nobody_stands_in))
    }

    fn owns(&self, command: &Command<'_>) -> bool {
        mutant!(bounds_at_routing) || command.is_within(self.range.low.as_slice(), self.range.high.as_deref())
    }

    /// Takes back the newest batch.
    pub fn undo(&mut self, mark: &PartitionMark) {
        if !mutant!(overlay_survives_undo) {
            self.overlay.clear();
        }
        if mark.awaits.is_some() {
            // Nobody has taken them yet: they are those of this batch.
            self.placed.truncate(mark.placed);
        }
        self.undo_boundaries(mark);
        for record in mark.sessions.iter().rev() {
            if !mutant!(undo_no_session) {
                self.sessions.undo(record);
            }
            failpoint!("undo.session_record");
        }
        if !mutant!(undo_no_ticket) {
            self.chain = mark.chain;
        }
        if !mutant!(undo_no_limits) {
            self.session_limits = mark.limits;
        }
        self.range = mark.range.clone();
        self.map_version = mark.map_version;
    }

    /// A copy with everything: O(1) for the tree, linear in the sessions.
    pub fn copy(&self) -> Partition {
        Partition { sessions: self.sessions.clone(), ..self.view() }
    }

    /// A copy for reading only: O(1) for the tree and what is undecided, without the sessions. It counts its changes as
    /// the original does, and remembers none of them.
    pub fn view(&self) -> Partition {
        Partition {
            partition: self.partition,
            range: self.range.clone(),
            map_version: self.map_version,
            tree: self.tree.snapshot().into(),
            expiry: self.expiry.view(),
            sessions: Sessions::default(),
            session_limits: self.session_limits,
            chain: self.chain,
            sealed: self.sealed,
            absorbed_states: Vec::new(),
            undo: self.undo.clone(),
            overlay: overlay::Overlay::default(),
            changes: Changes::at(self.changes.count()),
            scratch: Scratch::default(),
            holder: Holder::default(),
            placed: Vec::new(),
        }
    }

    /// Takes the newest batch back in a copy made by [`Partition::view`].
    pub fn undo_view(&mut self, mark: &PartitionMark) {
        self.undo_boundaries(mark);
        self.session_limits = mark.limits;
        self.chain = mark.chain;
        self.range = mark.range.clone();
        self.map_version = mark.map_version;
        if !mutant!(decided_counts_as_last_executed) {
            self.changes = Changes::at(mark.changes);
        }
    }

    /// The oldest batch is decided: what could take it back is dropped.
    pub fn confirm(&mut self, mark: &PartitionMark, next: Option<&PartitionMark>) {
        let upto = next.map_or_else(|| self.undo.mark(), |next| next.tree);
        self.undo.forget_before(upto);
        self.expiry.forget_undo_before(next.map(|next| next.expiry));
        mark.sessions.iter().for_each(|record| self.sessions.confirm(record));
        self.confirm_boundaries(mark);
    }

    /// How many changes could be taken back.
    pub fn undo_len(&self) -> usize {
        self.undo.len() + self.expiry.undo_len()
    }

    /// Memory of the tree's undo records.
    pub fn undo_bytes(&self) -> u64 {
        self.undo.bytes() + self.expiry.undo_bytes()
    }

    /// Drops all undo.
    pub fn forget_undo(&mut self) {
        self.undo.forget_all();
        self.expiry.forget_undo_before(None);
    }

    /// A digest of everything replicated: tree, sessions and their limits, bounds, last ticket (hazards.md E6).
    pub fn digest(&self) -> u64 {
        let ticket = self.chain.last_ticket().map_or(0, |ticket| ticket.n ^ ticket.ballot.round.0.rotate_left(32));
        let high = self.range.high.as_ref().map_or(0, |high| crc32c::crc32c(high));
        let bounds = u64::from(crc32c::crc32c(&self.range.low)) << 32 | u64::from(high);
        let sealed = self.sealed.map_or(0, |seal| u64::from(seal.target.0) + 1);
        let bounds = bounds ^ sealed.rotate_left(16);
        let content = self.tree.digest().0 ^ self.sessions.digest().rotate_left(1);
        let content = content ^ self.expiry.digest().rotate_left(5);
        content ^ ticket.rotate_left(2) ^ bounds.rotate_left(3) ^ self.session_limits.digest().rotate_left(4)
    }
}
