//! Reads: executed where they arrive, answered when leadership was confirmed after that and what they saw is decided
//! (protocol.md 7). A replica that follows asks the leader how far it must have decided. A range that will be validated
//! is not confirmed: its validation is (the client's `double_collect`).

use std::collections::VecDeque;

use coppice_btree::OpResult;
use coppice_client::wire::reply::REPLY_BYTES_MAX;
use coppice_client::wire::{ValidateRequest, Version};
use coppice_ordering::{Instance, ReadToken, ReplicaId, Ticket, Time};

use super::{Effect, READS_MAX, Replica, refuse};
use crate::cost::Account;
use crate::ids::wire_replica;
use crate::machine::Machine;
use crate::machine::partition::{CHANGES_KEPT, Partition, Values};
use crate::request::{Bounds, Origin, Refusal, Reply, Request};

/// Changes that are looked at for one request, a quarter of a millisecond's work: those of sixty-four ranges that
/// nobody validated for as long as changes are remembered, or of thousands that were read a moment ago.
const VALIDATE_CHANGES_MAX: u64 = 64 * CHANGES_KEPT as u64;

/// A read that was executed and waits for its confirmation.
struct HeldRead {
    token: ReadToken,
    position: Instance,
    /// The last ticket that it saw: those placed since hold it no longer.
    ticket: Option<Ticket>,
    origin: Origin,
    request: Request,
    reply: Reply,
}

/// A follower's read that waits for a position.
pub(super) struct AskedRead {
    token: ReadToken,
    since: Time,
    /// Told by the leader; none yet.
    position: Option<Instance>,
    pub(super) origin: Origin,
    pub(super) request: Request,
}

/// Reads that wait: at a leader for its confirmation, at a follower for a position.
pub(super) struct Reads {
    /// Of what is read here, but for the changes so far.
    version: Version,
    /// By token, ascending.
    held: VecDeque<HeldRead>,
    /// By token, ascending.
    asked: VecDeque<AskedRead>,
    /// The tokens that the reads of this turn share, and whether there are any.
    held_token: ReadToken,
    asked_token: ReadToken,
    are_unconfirmed: bool,
    are_unasked: bool,
    /// A question for a position has stayed unanswered for too long, and stands.
    is_unheard: bool,
    /// Keys and ranges that were asked for.
    pub(super) count: u64,
}

impl Reads {
    /// None, at the replica `me`.
    pub(super) fn new(me: ReplicaId) -> Reads {
        Reads {
            version: Version { replica: wire_replica(me), ..Version::default() },
            held: VecDeque::new(),
            asked: VecDeque::new(),
            held_token: ReadToken(1),
            asked_token: ReadToken(1),
            are_unconfirmed: false,
            are_unasked: false,
            is_unheard: false,
            count: 0,
        }
    }

    /// The replica begins anew: what was read in an earlier life of it is not counted on.
    pub(super) fn begin_life(&mut self, incarnation: u64, now: Time) {
        self.version = Version { incarnation, began: now.0, ..self.version };
    }

    /// The token of this turn's reads that are to be confirmed, if there are any.
    pub(super) fn take_unconfirmed(&mut self) -> Option<ReadToken> {
        let token = self.held_token;
        let any = std::mem::take(&mut self.are_unconfirmed);
        any.then(|| std::mem::replace(&mut self.held_token, ReadToken(token.0 + 1)))
    }

    /// The token of this turn's reads for which the leader is to be asked, if there are any.
    pub(super) fn take_unasked(&mut self) -> Option<ReadToken> {
        let token = self.asked_token;
        let any = std::mem::take(&mut self.are_unasked);
        any.then(|| std::mem::replace(&mut self.asked_token, ReadToken(token.0 + 1)))
    }

    /// Something is confirmed together with the reads of this turn.
    pub(super) fn confirm_with_turn(&mut self) -> ReadToken {
        self.are_unconfirmed = true;
        self.held_token
    }

    /// The leader has told how far the reads up to this token must see.
    pub(super) fn told_position(&mut self, upto: ReadToken, instance: Instance) {
        self.is_unheard = false;
        let asked = self.asked.iter_mut().take_while(|read| read.token <= upto);
        asked.for_each(|read| read.position = read.position.or(Some(instance)));
    }

    /// Those that wait for a position.
    pub(super) fn take_asked(&mut self) -> VecDeque<AskedRead> {
        std::mem::take(&mut self.asked)
    }

    /// Takes out everybody who waits for a read.
    pub(super) fn take_origins(&mut self) -> Vec<Origin> {
        let held = self.held.drain(..).map(|read| read.origin);
        held.chain(self.asked.drain(..).map(|read| read.origin)).collect()
    }
}

impl Replica {
    pub(super) fn on_read(&mut self, origin: Origin, request: Request, effects: &mut Vec<Effect>) {
        let (stale, anywhere) = request.read_rules();
        self.reads.count += if let Request::Read(read, ..) = &request { read.len() as u64 } else { 1 };
        if self.reads.held.len() + self.reads.asked.len() >= READS_MAX {
            return refuse(effects, origin, Refusal::Busy("16,384 reads wait in one replica"));
        }
        if stale {
            return self.read_stale(origin, &request, effects);
        }
        if self.executor.awaits().is_some() || self.executor.decided() < self.paxos.decided_upto() {
            // What is decided behind the batch that waits may have been answered by a leader before this one.
            return refuse(effects, origin, Refusal::Busy("the replica executes what is decided"));
        }
        let leads = self.leadership.is_own;
        if request.is_first_reading() && (leads || anywhere) {
            // Whether it held when it was asked, its validation tells; what it tells of must be decided and released.
            let (reply, position, ticket) = self.execute_read(&request);
            self.outputs.hold(position, ticket, origin, reply, self.now);
        } else if leads {
            let (reply, position, ticket) = self.execute_read(&request);
            let token = self.reads.confirm_with_turn();
            self.reads.held.push_back(HeldRead { token, position, ticket, origin, request, reply });
        } else if anywhere && self.leadership.leader.is_some() && !self.reads.is_unheard {
            // Any replica serves reads: it asks the leader how far it must have decided (protocol.md 7).
            let (token, since) = (self.reads.asked_token, self.now);
            self.reads.asked.push_back(AskedRead { token, since, position: None, origin, request });
            self.reads.are_unasked = true;
        } else {
            refuse(effects, origin, self.leadership.refusal());
        }
    }

    pub(super) fn read_stale(&mut self, origin: Origin, request: &Request, effects: &mut Vec<Effect>) {
        let decided = self.executor.decided();
        let looks = matches!(request, Request::Read(read, ..) if read.looks);
        let undecided = mutant!(stale_from_last_executed) || looks && mutant!(look_undecided);
        let reply = if self.executor.last_executed() == decided || undecided {
            read_from(self.executor.machine(), decided, None, request)
        } else if let Request::Read(read, account, _) = request
            && !looks
            && let Some(found) = self.executor.get_all_decided(|| read.keys(), bytes_max(account))
        {
            values(decided, found, account)
        } else {
            let (state, instance) = self.executor.recent_view();
            read_from(state, instance, None, request)
        };
        effects.push(Effect::Reply { origin, reply });
    }

    /// Reads as last executed, or at the decided instance where nothing gets decided; tells where, and the last ticket
    /// there.
    pub(super) fn execute_read(&self, request: &Request) -> (Reply, Instance, Option<Ticket>) {
        let (state, position) = self.state_to_read();
        (read_from(state, position, Some(self.reads.version), request), position, self.ticket_before(position))
    }

    /// Whether this is a partition of the data; the directory executes no packs, and answers none.
    pub(super) fn has_keys(&self) -> bool {
        self.executor.machine().partition().is_some() || mutant!(directory_takes_packs)
    }

    fn state_to_read(&self) -> (&Machine, Instance) {
        let decided = self.executor.decided();
        match self.stalled_reads.state(decided) {
            Some(state) => (state, decided),
            None => (self.executor.machine(), self.executor.last_executed()),
        }
    }

    /// The last ticket that a read which is executed at `position` now may see.
    fn ticket_before(&self, position: Instance) -> Option<Ticket> {
        match self.stalled_reads.state(position) {
            Some(_) if mutant!(patient_skips_gate) => None,
            Some(state) => state.last_ticket(),
            None => self.executor.last_ticket().filter(|_| !mutant!(gate_skips_reads)),
        }
    }

    /// Reads that saw what was taken back are read again; their leadership was confirmed for the same moment.
    pub(super) fn redo_reads(&mut self, from: Instance, effects: &mut Vec<Effect>) {
        if mutant!(read_survives_undo) {
            return;
        }
        self.read_again_from(from, effects);
        self.outputs.refuse_reads_from(from, self.leadership.refusal(), effects);
    }

    /// Reads that saw `from` and wait for their confirmation are executed again.
    pub(super) fn read_again_from(&mut self, from: Instance, effects: &mut Vec<Effect>) {
        for at in 0..self.reads.held.len() {
            if self.reads.held[at].position >= from {
                let (reply, position, ticket) = self.execute_read(&self.reads.held[at].request);
                let read = &mut self.reads.held[at];
                (read.reply, read.position, read.ticket) = (reply, position, ticket);
            }
        }
        if self.reads_are_stalled() && mutant!(patient_unconfirmed) {
            effects
                .extend(self.reads.held.drain(..).map(|read| Effect::Reply { origin: read.origin, reply: read.reply }));
        }
    }

    /// A snapshot takes the place of what was executed ahead from here on, and may hold something else there.
    pub(super) fn redo_replaced_reads(&mut self, from: Instance, effects: &mut Vec<Effect>) {
        if !mutant!(read_survives_install) {
            self.redo_reads(from, effects);
        }
    }

    pub(super) fn on_confirmed(&mut self, upto: ReadToken, effects: &mut Vec<Effect>) {
        self.queries.confirm(upto, effects);
        while let Some(read) = self.reads.held.pop_front_if(|read| read.token <= upto) {
            let late = mutant!(gate_at_confirmation).then(|| self.ticket_before(read.position));
            self.outputs.hold(read.position, late.unwrap_or(read.ticket), read.origin, read.reply, self.now);
        }
    }

    pub(super) fn on_unconfirmed(&mut self, upto: ReadToken, effects: &mut Vec<Effect>) {
        while let Some(read) = self.reads.held.pop_front_if(|read| read.token <= upto) {
            refuse(effects, read.origin, self.leadership.refusal());
        }
    }

    /// When the oldest read that waits for a position, or for what is decided up to there, is given up.
    pub(super) fn asked_until(&self) -> Option<Time> {
        let oldest = self.reads.asked.front().filter(|_| !mutant!(asked_reads_wait))?;
        Some(oldest.since + self.paxos.settings().election_timeout)
    }

    /// Gives up reads that have waited for as long as a lost leader takes to be replaced: this replica hears its
    /// leader, perhaps, and is not heard. Whoever asked asks another one.
    pub(super) fn give_up_asked(&mut self, now: Time, effects: &mut Vec<Effect>) {
        while self.asked_until().is_some_and(|until| until <= now) {
            let Some(read) = self.reads.asked.pop_front() else { return };
            // The question stands, and is asked on; nobody else need wait for its answer.
            self.reads.is_unheard |= read.position.is_none();
            refuse(effects, read.origin, self.leadership.refusal());
        }
    }

    /// Serves the reads whose position is decided here, from what was last executed, as of that: the gate holds them
    /// until that is decided too.
    pub(super) fn serve_asked(&mut self) {
        let decided = self.executor.decided();
        let wait = !mutant!(follower_no_wait);
        let is_ready = |read: &mut AskedRead| read.position.is_some_and(|position| position <= decided || !wait);
        while let Some(read) = self.reads.asked.pop_front_if(is_ready) {
            let (reply, position, ticket) = self.execute_read(&read.request);
            let (position, ticket) = match read.position {
                Some(told) if mutant!(follower_gate_at_told) => (told, None),
                _ => (position, ticket),
            };
            self.outputs.hold(position, ticket, read.origin, reply, self.now);
        }
    }
}

/// Why a read is refused that leaves no room for its answer.
const NO_ROOM: &str = "answers fill limits.inflight_bytes of the connection, or limits.node_bytes";

/// Reads a state. `counted`: by whom its changes are counted.
fn read_from(machine: &Machine, instance: Instance, counted: Option<Version>, request: &Request) -> Reply {
    let wrong = Reply::Refused(Refusal::WrongPartition);
    let Some(partition) = machine.partition() else { return wrong };
    let version = counted.map(|version| Version { changes: partition.changes().count(), ..version });
    match request {
        Request::Read(_, account, _) if account.room() == 0 => Reply::Refused(Refusal::Busy(NO_ROOM)),
        Request::Read(read, account, _) if read.looks => match partition.look_all(read.keys()) {
            Some(looks) => {
                let charge = account.charge(looks.len() * size_of::<OpResult>());
                Reply::Looks { instance, looks, charge }
            }
            None => wrong,
        },
        Request::Read(read, account, _) => {
            values(instance, partition.get_all(read.keys(), bytes_max(account)), account)
        }
        Request::Range(range) => match partition.cursor(&range.low, range.high.as_deref(), range.scan.reverse) {
            Some(cursor) => {
                let version = version.filter(|_| range.versioned);
                Reply::Range { instance, cursor: Box::new(cursor), range: range.clone(), version }
            }
            None => wrong,
        },
        Request::CollectParts(ranges) => {
            let cursor =
                |range: &Bounds| partition.cursor(&range.low, range.high.as_deref(), range.reverse).map(Box::new);
            Reply::CollectedParts { instance, version, cursors: ranges.iter().map(cursor).collect() }
        }
        Request::Validate(asked, _) => match validate(partition, version, asked) {
            Some(unchanged) => Reply::Validated { instance, unchanged },
            None => wrong,
        },
        Request::Pack { .. } | Request::Open { .. } | Request::Directory(_) => unreachable!("not a read"),
    }
}

/// Bytes of values that a read may answer with now.
fn bytes_max(account: &Account) -> usize {
    account.room().min(REPLY_BYTES_MAX as u64) as usize
}

/// The answer to a read that found `values` at `instance`.
fn values(instance: Instance, found: Option<Values>, account: &Account) -> Reply {
    match found {
        // Nothing of it was executed: there is no room for any answer.
        Some(Values { values, .. }) if values.is_empty() => Reply::Refused(Refusal::Busy(NO_ROOM)),
        Some(Values { values, left_out, bytes }) => {
            Reply::Read { instance, values, left_out, charge: account.charge(bytes) }
        }
        None => Reply::Refused(Refusal::WrongPartition),
    }
}

/// Which of these ranges are what they were; none, if one of them is not inside the partition.
fn validate(partition: &Partition, now: Option<Version>, asked: &ValidateRequest) -> Option<Vec<bool>> {
    let mut left = VALIDATE_CHANGES_MAX;
    let unchanged = asked.ranges().map(|range| {
        let seen = range.version;
        // Counted elsewhere, or here before the replica began anew.
        let counted = now.is_some_and(|now| Version { changes: seen.changes, ..now } == seen);
        if !partition.may_read(range.low, range.high) {
            return None;
        }
        if !counted && !mutant!(validates_another_count) {
            return Some(false);
        }
        left = left.saturating_sub(partition.changes().count().saturating_sub(seen.changes));
        // Beyond what one request may cost, anything counts as changed.
        Some(left > 0 && partition.changes().are_none_in(seen.changes, range.low, range.high))
    });
    unchanged.collect()
}
