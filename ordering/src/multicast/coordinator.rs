//! The coordinator: gives queries over several partitions and changes of the map their tickets, and releases them
//! (protocol.md 4, 5, 8).
//!
//! Nothing of it is durable or replicated: a new coordinator has a higher ballot and starts from nothing but the map
//! (protocol.md 4.2). It knows neither keys nor clients nor who leads a partition. `tickets` keeps what is sent and not
//! released, `packs` what waits to be sent.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::ids::{Ballot, ConfirmToken, MapVersion, PartitionId, QueryId, Ticket, Time};
use crate::multicast::packs::{Load, Pack, Packs, len_bytes};
use crate::multicast::repeats::Pace;
use crate::multicast::step::{Abort, Change, Effect, Input, Query, Refusal, Work};
use crate::multicast::tickets::{Issue, Purpose, Tickets};

/// Limits and intervals of the coordinator.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CoordinatorSettings {
    /// A query is released or voided at most so long after its ticket was sent (protocol.md 4.1); at least four
    /// measured rounds.
    pub place_timeout: Duration,
    /// A `Place` that is not answered is sent again after this; at least two measured rounds. Doubles up to
    /// `place_timeout`.
    pub place_resend: Duration,
    /// Queries under way. Full: `Busy`.
    pub queries_max: usize,
    /// Their shares, in bytes. Full: `Busy`.
    pub queries_bytes_max: usize,
    /// The shares of one ticket, in bytes: what must fit one message.
    pub ticket_bytes_max: usize,
    /// Tickets that are not released, or voided and not placed everywhere. Full: queries wait, and are aborted in time.
    pub tickets_max: usize,
}

impl Default for CoordinatorSettings {
    fn default() -> CoordinatorSettings {
        CoordinatorSettings {
            place_timeout: Duration::from_millis(150),
            place_resend: Duration::from_millis(50),
            // 100 000 queries a second for 150 ms would be more; a coordinator with that many is behind anyway.
            queries_max: 8_192,
            queries_bytes_max: 16 << 20,
            // A quarter of what a frame may hold.
            ticket_bytes_max: 1 << 20,
            tickets_max: 1_024,
        }
    }
}

/// The measured round counts up to this many times the set timeout.
const TIMEOUT_GROWTH_MAX: u32 = 16;

/// What a coordinator counts about itself since it started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct CoordinatorCounters {
    /// Tickets given to queries.
    pub rounds: u64,
    /// Queries that got a ticket.
    pub queries_cut: u64,
    pub queries_completed: u64,
    pub queries_aborted: u64,
    pub queries_refused: u64,
    /// Changes released.
    pub changes: u64,
}

/// Gives out tickets and releases them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Coordinator {
    settings: CoordinatorSettings,
    /// The latest time that was told; never goes back.
    now: Time,
    /// The highest ballot ever led in.
    ballot: Ballot,
    /// Tokens are never used twice, not even in two ballots.
    asked: ConfirmToken,
    leadership: Option<Leadership>,
    /// Smoothed time from sending a ticket to having it placed everywhere.
    round: Duration,
    counters: CoordinatorCounters,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Leadership {
    map: MapVersion,
    partitions: BTreeSet<PartitionId>,
    tickets: Tickets,
    packs: Packs,
    /// Queries under way, waiting and ticketed, and their bytes.
    load: Load,
}

impl Leadership {
    fn unload(&mut self, ended: Load) {
        self.load.queries -= ended.queries;
        self.load.bytes -= ended.bytes;
    }
}

impl Coordinator {
    /// A coordinator that does not lead yet.
    pub fn new(settings: CoordinatorSettings) -> Coordinator {
        Coordinator {
            settings,
            now: Time::ZERO,
            ballot: Ballot::ZERO,
            asked: ConfirmToken(0),
            leadership: None,
            round: Duration::ZERO,
            counters: CoordinatorCounters::default(),
        }
    }

    /// The only way in. No I/O, no clock, no randomness. If `now` goes back it counts as unchanged.
    pub fn step(&mut self, now: Time, input: Input, effects: &mut Vec<Effect>) {
        self.now = self.now.max(now);
        let first = effects.len();
        match input {
            Input::Tick => self.on_tick(effects),
            Input::Lead { ballot, map, partitions, changes } => {
                self.on_lead(ballot, (map, partitions), changes, effects);
            }
            Input::Resign => self.resign(effects),
            Input::Map { version, partitions } => self.on_map(version, partitions, effects),
            Input::Query(query) => self.on_query(query, effects),
            Input::Change(change) => self.on_change(change, effects),
            Input::Placed { partition, ticket } => self.on_placed(partition, ticket, effects),
            Input::Confirmed(token) => self.on_confirmed(token),
            Input::Resend(partition) => {
                if let Some(leadership) = &mut self.leadership {
                    leadership.tickets.resend(self.now, partition, effects);
                }
            }
        }
        self.advance(effects);
        effects[first..].iter().for_each(|effect| self.count(effect));
        if cfg!(any(debug_assertions, feature = "invariants")) {
            self.assert_invariants();
        }
    }

    /// When `step(.., Input::Tick, ..)` is next wanted. `None`: not before another input.
    pub fn deadline(&self) -> Option<Time> {
        let leadership = self.leadership.as_ref()?;
        let timeout = self.place_timeout();
        let waiting = leadership.packs.since().map(|since| since + timeout);
        let alone = leadership.packs.since_after(self.now, self.round).map(|since| since + self.round);
        [waiting, alone, leadership.tickets.void_at(timeout), leadership.tickets.resend_at()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Whether this coordinator leads, and in which ballot.
    pub fn leading(&self) -> Option<Ballot> {
        self.leadership.as_ref().map(|leadership| leadership.tickets.ballot)
    }

    /// Queries under way, and tickets that are kept.
    pub fn in_flight(&self) -> (usize, usize) {
        self.leadership.as_ref().map_or((0, 0), |leadership| (leadership.load.queries, leadership.tickets.len()))
    }

    /// Whether queries over this partition are aborted at once (protocol.md 4.1).
    pub fn is_late(&self, partition: PartitionId) -> bool {
        self.leadership.as_ref().is_some_and(|leadership| leadership.tickets.is_late(partition))
    }

    pub fn counters(&self) -> &CoordinatorCounters {
        &self.counters
    }

    /// Takes other limits and intervals from now on.
    pub fn set_settings(&mut self, settings: CoordinatorSettings) {
        self.settings = settings;
    }

    fn place_timeout(&self) -> Duration {
        let set = self.settings.place_timeout;
        set.max(4 * self.round).min(set.saturating_mul(TIMEOUT_GROWTH_MAX))
    }

    fn pace(&self) -> Pace {
        let longest = self.place_timeout();
        let first_max = self.settings.place_timeout.saturating_mul(TIMEOUT_GROWTH_MAX);
        Pace { first: self.settings.place_resend.max(2 * self.round).min(longest), longest, first_max }
    }

    fn on_lead(
        &mut self,
        ballot: Ballot,
        (map, partitions): (MapVersion, BTreeSet<PartitionId>),
        changes: Vec<Change>,
        effects: &mut Vec<Effect>,
    ) {
        if ballot <= self.ballot {
            return;
        }
        self.resign(effects);
        self.ballot = ballot;
        let tickets = Tickets::new(ballot, self.asked);
        self.leadership = Some(Leadership {
            map,
            partitions: BTreeSet::new(),
            tickets,
            packs: Packs::default(),
            load: Load::default(),
        });
        self.adopt(partitions, effects);
        for change in changes {
            self.on_change(change, effects);
        }
    }

    /// Nothing can be completed: no round begun from now on confirms this ballot.
    fn resign(&mut self, effects: &mut Vec<Effect>) {
        let Some(mut leadership) = self.leadership.take() else { return };
        self.asked = leadership.tickets.asked;
        let waiting = leadership.packs.drop_if(|_| true).into_iter().flat_map(|pack| pack.queries);
        let queries: Vec<QueryId> = leadership.tickets.into_queries().chain(waiting).collect();
        let why = Abort::Deposed;
        effects.extend(queries.into_iter().map(|query| Effect::Aborted { query, why }));
    }

    /// The partitions from now on. Each gets an empty ticket of its own first: its release frees what an earlier ballot
    /// left unreleased there (protocol.md 4.2).
    fn adopt(&mut self, partitions: BTreeSet<PartitionId>, effects: &mut Vec<Effect>) {
        let Some(leadership) = &mut self.leadership else { return };
        let added: Vec<PartitionId> =
            partitions.iter().copied().filter(|partition| !leadership.tickets.knows(*partition)).collect();
        leadership.partitions = partitions;
        for partition in added.into_iter().filter(|_| !mutant!(no_first_place)) {
            let works = BTreeMap::from([(partition, Work::Nothing)]);
            self.issue(Purpose::First, None, works, effects);
        }
    }

    /// Gives out a ticket without queries.
    fn issue(
        &mut self,
        purpose: Purpose,
        first: Option<PartitionId>,
        works: BTreeMap<PartitionId, Work>,
        effects: &mut Vec<Effect>,
    ) {
        self.issue_to(Issue { purpose, first, works, queries: Vec::new(), bytes: 0 }, effects);
    }

    fn issue_to(&mut self, issue: Issue, effects: &mut Vec<Effect>) -> Option<Ticket> {
        let (now, pace) = (self.now, self.pace());
        Some(self.leadership.as_mut()?.tickets.issue(now, issue, pace, effects))
    }

    fn on_map(&mut self, version: MapVersion, partitions: BTreeSet<PartitionId>, effects: &mut Vec<Effect>) {
        if self.leadership.as_ref().is_none_or(|leadership| version <= leadership.map) {
            return;
        }
        self.send_waiting(effects);
        if let Some(leadership) = &mut self.leadership {
            leadership.map = version;
        }
        self.adopt(partitions, effects);
        if let Some(leadership) = &mut self.leadership {
            let wanted = &leadership.partitions;
            leadership.tickets.forget(|partition| wanted.contains(&partition));
        }
    }

    fn on_query(&mut self, query: Query, effects: &mut Vec<Effect>) {
        let settings = &self.settings;
        let (id, bytes) = (query.id, len_bytes(&query));
        let refusal = match &self.leadership {
            None => Some(Refusal::NotLeading),
            Some(leadership) if query.map != leadership.map && !mutant!(cut_by_other_map) => {
                Some(Refusal::MapChanged { map: leadership.map })
            }
            Some(_) if query.parts.is_empty() => Some(Refusal::NoSuchPartition(None)),
            Some(leadership) => {
                let unknown = query.parts.keys().find(|partition| !leadership.partitions.contains(partition));
                let full = leadership.load.queries >= settings.queries_max
                    || leadership.load.bytes + bytes > settings.queries_bytes_max;
                let too_large = (bytes > settings.ticket_bytes_max).then_some(Refusal::TooLarge);
                let unknown = unknown.map(|partition| Refusal::NoSuchPartition(Some(*partition)));
                unknown.or(too_large).or(full.then_some(Refusal::Busy))
            }
        };
        if let Some(why) = refusal {
            effects.push(Effect::Refused { query: id, why });
            return;
        }
        let Some(leadership) = &mut self.leadership else { return };
        if let Some(partition) = query.parts.keys().find(|partition| leadership.tickets.is_late(**partition)) {
            effects.push(Effect::Aborted { query: id, why: Abort::Unplaced(*partition) });
            return;
        }
        leadership.load.queries += 1;
        leadership.load.bytes += bytes;
        leadership.packs.push(query, (leadership.tickets.last(), self.now), settings.ticket_bytes_max);
    }

    /// A change gets a ticket of its own, after all queries that were cut by the map before it (hazards.md MV1).
    fn on_change(&mut self, change: Change, effects: &mut Vec<Effect>) {
        if self.leadership.as_ref().is_none_or(|leadership| leadership.tickets.has_change(change.id)) {
            return;
        }
        if !mutant!(cut_by_other_map) {
            self.send_waiting(effects);
        }
        let Some(leadership) = &mut self.leadership else { return };
        leadership.map = leadership.map.max(change.map);
        leadership.partitions.extend(&change.partitions);
        let Change { id, partitions, first, payload, .. } = change;
        let work = Work::Change { id, payload };
        let works = partitions.into_iter().map(|partition| (partition, work.clone())).collect();
        self.issue(Purpose::Change(id), first, works, effects);
    }

    fn on_placed(&mut self, partition: PartitionId, ticket: Ticket, effects: &mut Vec<Effect>) {
        let (pace, timeout) = (self.pace(), self.place_timeout());
        let Some(leadership) = &mut self.leadership else { return };
        let ballot = leadership.tickets.ballot;
        if ticket.ballot == ballot {
            if let Some(took) = leadership.tickets.placed(self.now, (partition, ticket.n), pace, effects) {
                // A single slow round must not stretch everything by itself. A quarter of the weight goes to the
                // newest: a few rounds suffice to follow a change of load.
                let took = took.min(timeout);
                self.round = if self.round.is_zero() { took } else { (3 * self.round + took) / 4 };
            }
            if !mutant!(released_once) {
                leadership.tickets.tell(partition, true, effects);
            }
        } else if ticket.ballot < ballot && !mutant!(released_once) {
            leadership.tickets.tell(partition, true, effects);
            if !leadership.tickets.knows(partition) && !leadership.partitions.contains(&partition) {
                // The map has it no more. What earlier ballots left there can never complete: this ballot was elected.
                effects.push(Effect::Released { partition, watermark: Ticket { ballot, n: 0 } });
            }
        }
    }

    fn on_confirmed(&mut self, token: ConfirmToken) {
        let Some(leadership) = &mut self.leadership else { return };
        if token <= leadership.tickets.asked {
            leadership.tickets.confirmed = leadership.tickets.confirmed.max(token);
        }
    }

    fn on_tick(&mut self, effects: &mut Vec<Effect>) {
        let (now, timeout) = (self.now, self.place_timeout());
        let Some(leadership) = &mut self.leadership else { return };
        if !mutant!(no_void) {
            let ended = leadership.tickets.void_due(now, timeout, effects);
            leadership.unload(ended);
            let tickets = &leadership.tickets;
            let late = |pack: &Pack| pack.parts.keys().copied().find(|partition| tickets.is_late(*partition));
            let over = |pack: &Pack| pack.since + timeout <= now || late(pack).is_some();
            let mut ended = Load::default();
            for pack in leadership.packs.drop_if(over) {
                let why = late(&pack).map_or(Abort::Unreleased, Abort::Unplaced);
                ended.queries += pack.queries.len();
                ended.bytes += pack.bytes;
                effects.extend(pack.queries.into_iter().map(|query| Effect::Aborted { query, why }));
            }
            leadership.unload(ended);
        }
        let pace = self.pace();
        let Some(leadership) = &mut self.leadership else { return };
        leadership.tickets.resend_due(now, pace, effects);
    }

    /// What follows from the state as it is now. Every step ends here.
    fn advance(&mut self, effects: &mut Vec<Effect>) {
        if let Some(leadership) = &mut self.leadership {
            let ended = leadership.tickets.release(effects);
            leadership.unload(ended);
        }
        self.send_packs(false, effects);
    }

    /// Sends all that waits, now: what was cut by the present map goes before its change.
    fn send_waiting(&mut self, effects: &mut Vec<Effect>) {
        self.send_packs(true, effects);
    }

    fn send_packs(&mut self, all: bool, effects: &mut Vec<Effect>) {
        let (bytes_max, tickets_max) = (self.settings.ticket_bytes_max, self.settings.tickets_max);
        let (now, patience) = (self.now, self.round);
        while let Some(leadership) = &mut self.leadership {
            if leadership.packs.is_empty() || leadership.tickets.len() >= tickets_max && !all {
                return;
            }
            let tickets = &leadership.tickets;
            // A ticket costs the same for one query as for hundreds: whoever comes while a round is out anywhere waits
            // for it, to share the next. But rounds elsewhere hold nobody up for longer than one usually takes.
            let alone = |pack: &Pack| pack.since + patience <= now || !tickets.any_round_is_out(pack.after);
            let ready = |pack: &Pack| all || !tickets.round_is_out(pack.after, pack.parts.keys()) && alone(pack);
            let Some(pack) = leadership.packs.take(bytes_max, ready) else { return };
            let queries = pack.queries.clone();
            let works = Pack::works(pack.parts);
            let (queries_of, bytes) = (pack.queries, pack.bytes);
            let issue = Issue { purpose: Purpose::Round, first: None, works, queries: queries_of, bytes };
            let Some(ticket) = self.issue_to(issue, effects) else { return };
            self.counters.rounds += 1;
            effects.extend(queries.into_iter().map(|query| Effect::Cut { query, ticket }));
        }
    }

    fn count(&mut self, effect: &Effect) {
        match effect {
            Effect::Cut { .. } => self.counters.queries_cut += 1,
            Effect::Complete { .. } => self.counters.queries_completed += 1,
            Effect::Aborted { .. } => self.counters.queries_aborted += 1,
            Effect::Refused { .. } => self.counters.queries_refused += 1,
            Effect::Changed { .. } => self.counters.changes += 1,
            Effect::Place { .. } | Effect::Released { .. } | Effect::Confirm(_) => {}
        }
    }

    fn assert_invariants(&self) {
        let Some(leadership) = &self.leadership else { return };
        assert_eq!(leadership.tickets.ballot, self.ballot);
        assert!(leadership.tickets.confirmed <= leadership.tickets.asked, "confirmed what was not asked");
        let (waiting, ticketed) = (leadership.packs.load(), leadership.tickets.load());
        assert_eq!(leadership.load.queries, waiting.queries + ticketed.queries, "queries under way");
        assert_eq!(leadership.load.bytes, waiting.bytes + ticketed.bytes, "bytes under way");
        leadership.tickets.assert_invariants();
    }
}
