//! The tickets of one ballot: who has placed which, and which heads every queue (protocol.md 4, 4.1).
//!
//! A ticket stands in two lists of each of its partitions. The *queue* holds those that are neither released nor
//! voided; the *chain* is everything ever sent, of which only the part that is not placed is kept, to be sent again.
//! Voiding takes a ticket out of the queues, never out of the chains. This file knows no clients and no packing.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::ids::{Ballot, ChangeId, ConfirmToken, PartitionId, QueryId, Ticket, Time};
use crate::multicast::packs::Load;
use crate::multicast::repeats::{Pace, REPEATS_MAX, Repeats};
use crate::multicast::step::{Abort, Effect, Place, Work};

/// What a ticket is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Purpose {
    /// The first one of a ballot in a partition (protocol.md 4.2).
    First,
    /// Queries.
    Round,
    /// A change of the map: never voided (protocol.md 4.1).
    Change(ChangeId),
}

/// A ticket as it stands in one partition's lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct SentPlace {
    n: u64,
    /// The ticket before it in the partition's chain.
    prev: Option<u64>,
    /// When it was last sent.
    at: Time,
}

/// A ticket that is not released, or voided and not placed everywhere.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct OpenTicket {
    purpose: Purpose,
    /// The others are sent it when this one has placed it.
    first: Option<PartitionId>,
    sent_at: Time,
    /// Its partitions, and what each has still to place. `None`: placed.
    unplaced: BTreeMap<PartitionId, Option<Work>>,
    queries: Vec<QueryId>,
    /// What the queries count for in the limits.
    pub bytes: usize,
    voided: bool,
    /// Once it is placed everywhere: leadership must be confirmed by this token or a later one.
    confirmed_by: Option<ConfirmToken>,
}

impl OpenTicket {
    fn is_placed(&self) -> bool {
        self.unplaced.values().all(Option::is_none)
    }

    fn is_voidable(&self) -> bool {
        !self.voided && (!matches!(self.purpose, Purpose::Change(_)) || mutant!(split_voided))
    }
}

/// What is known of one partition in this ballot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Queue {
    /// Newest ticket sent, the `prev` of the next.
    last: Option<u64>,
    /// Neither released nor voided, ascending.
    queue: VecDeque<SentPlace>,
    /// Sent and not placed, voided ones included, ascending: a suffix of the chain.
    unplaced: VecDeque<SentPlace>,
    /// The newest ticket that timed out because this partition had not placed it, until it has.
    late: Option<u64>,
    /// The last watermark told.
    told: Option<u64>,
    repeats: Repeats,
}

impl Queue {
    /// The end of the prefix of the chain in which every ticket is released or voided.
    fn watermark(&self) -> Option<u64> {
        self.queue.front().map_or(self.last, |sent| sent.prev)
    }
}

/// How a ticket is to be issued.
pub(super) struct Issue {
    pub purpose: Purpose,
    pub first: Option<PartitionId>,
    pub works: BTreeMap<PartitionId, Work>,
    pub queries: Vec<QueryId>,
    pub bytes: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Tickets {
    pub ballot: Ballot,
    last: u64,
    open: BTreeMap<u64, OpenTicket>,
    queues: BTreeMap<PartitionId, Queue>,
    /// Placed everywhere, neither released nor voided.
    ready: BTreeSet<u64>,
    /// Not placed by their first partition: the others are sent neither them nor what is behind them.
    withheld: BTreeSet<u64>,
    /// The newest token asked for, and the newest that came back.
    pub asked: ConfirmToken,
    pub confirmed: ConfirmToken,
    /// The driver may have been too busy to ask.
    ask_again_at: Time,
}

impl Tickets {
    pub fn new(ballot: Ballot, asked: ConfirmToken) -> Tickets {
        Tickets {
            ballot,
            last: 0,
            open: BTreeMap::new(),
            queues: BTreeMap::new(),
            ready: BTreeSet::new(),
            withheld: BTreeSet::new(),
            asked,
            confirmed: asked,
            ask_again_at: Time::ZERO,
        }
    }

    pub fn ticket(&self, n: u64) -> Ticket {
        Ticket { ballot: self.ballot, n }
    }

    /// The newest ticket issued.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Tickets that are kept.
    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// Whether a change with this id is under way.
    pub fn has_change(&self, id: ChangeId) -> bool {
        self.open.values().any(|open| open.purpose == Purpose::Change(id))
    }

    /// Whether queries over `partition` would wait for one that has kept others waiting too long (protocol.md 4.1).
    pub fn is_late(&self, partition: PartitionId) -> bool {
        self.queues.get(&partition).is_some_and(|queue| queue.late.is_some())
    }

    /// Whether a round up to ticket `after` is still out at one of these partitions.
    pub fn round_is_out<'a>(&self, after: u64, partitions: impl Iterator<Item = &'a PartitionId>) -> bool {
        partitions.filter_map(|partition| self.queues.get(partition)).any(|queue| self.has_round(queue, after))
    }

    /// Whether a round up to ticket `after` is still out at any partition.
    pub fn any_round_is_out(&self, after: u64) -> bool {
        self.queues.values().any(|queue| self.has_round(queue, after))
    }

    fn has_round(&self, queue: &Queue, after: u64) -> bool {
        let is_round = |sent: &SentPlace| self.open.get(&sent.n).is_some_and(|open| open.purpose == Purpose::Round);
        queue.unplaced.iter().take_while(|sent| sent.n <= after).any(is_round)
    }

    /// Gives out the next ticket and sends it to all its partitions.
    pub fn issue(&mut self, now: Time, issue: Issue, pace: Pace, effects: &mut Vec<Effect>) -> Ticket {
        let Issue { purpose, first, works, queries, bytes } = issue;
        self.last += 1;
        let n = self.last;
        let first = first.filter(|first| works.contains_key(first) && !mutant!(join_sent_to_both));
        for (partition, work) in &works {
            let is_withheld =
                first.is_some_and(|first| first != *partition) || self.withheld_from(*partition).is_some();
            let queue = self.queues.entry(*partition).or_default();
            let sent = SentPlace { n, prev: queue.last, at: now };
            if queue.unplaced.is_empty() {
                queue.repeats.restart(now, pace);
            }
            queue.last = Some(n);
            queue.queue.push_back(sent);
            queue.unplaced.push_back(sent);
            let prev = sent.prev.map(|n| Ticket { ballot: self.ballot, n });
            let ticket = Ticket { ballot: self.ballot, n };
            let place = Place { ticket, prev, work: work.clone() };
            if !is_withheld {
                effects.push(Effect::Place { partition: *partition, place });
            }
        }
        self.withheld.extend(first.map(|_| n));
        let unplaced = works.into_iter().map(|(partition, work)| (partition, Some(work))).collect();
        let mut open =
            OpenTicket { purpose, first, sent_at: now, unplaced, queries, bytes, voided: false, confirmed_by: None };
        if mutant!(confirm_before_placed) {
            open.confirmed_by = Some(self.ask(now + pace.first, effects));
        }
        self.open.insert(n, open);
        self.ticket(n)
    }

    /// The oldest ticket of this partition that it is not sent yet. Few changes are under way at a time.
    fn withheld_from(&self, partition: PartitionId) -> Option<u64> {
        let of = |open: &OpenTicket| open.first != Some(partition) && open.unplaced.contains_key(&partition);
        self.withheld.iter().copied().find(|n| self.open.get(n).is_some_and(of))
    }

    fn ask(&mut self, again_at: Time, effects: &mut Vec<Effect>) -> ConfirmToken {
        self.asked = self.asked.next();
        self.ask_again_at = again_at;
        effects.push(Effect::Confirm(self.asked));
        self.asked
    }

    /// The partition has everything up to `n`. Returns how long the slowest of the tickets took that this completes and
    /// that were sent here once: how long others waited for a partition that was away is not the length of a round.
    pub fn placed(
        &mut self,
        now: Time,
        (partition, n): (PartitionId, u64),
        pace: Pace,
        effects: &mut Vec<Effect>,
    ) -> Option<Duration> {
        let queue = self.queues.get_mut(&partition)?;
        if n > self.last || queue.unplaced.front().is_none_or(|sent| sent.n > n) {
            return None;
        }
        queue.late = queue.late.filter(|late| *late > n);
        let (mut completed, mut freed) = (Vec::new(), BTreeSet::new());
        while let Some(sent) = queue.unplaced.pop_front_if(|sent| sent.n <= n) {
            let Some(open) = self.open.get_mut(&sent.n) else { continue };
            let took = (sent.at == open.sent_at).then(|| now - sent.at);
            queue.repeats.learn(sent.n, took, self.last, pace);
            open.unplaced.insert(partition, None);
            if open.first == Some(partition) && self.withheld.remove(&sent.n) {
                freed.extend(open.unplaced.keys().copied().filter(|other| *other != partition));
            }
            // A split is released when the child serves too (protocol.md 8, hazards.md MV6).
            let early = mutant!(split_released_early) && matches!(open.purpose, Purpose::Change(_));
            if open.is_placed() || early {
                completed.push(sent);
            }
        }
        queue.repeats.restart(now, pace);
        let again = queue.repeats.placed(n, queue.unplaced.len());
        let slowest = self.complete_placing((now, pace.first), completed, effects);
        // The turn of the next may have come just now: it does not wait for the next repetition.
        self.send_again(now, partition, again, effects);
        for other in freed {
            if let Some(queue) = self.queues.get_mut(&other) {
                queue.repeats.restart(now, pace);
            }
            self.send_again(now, other, REPEATS_MAX, effects);
        }
        slowest
    }

    fn complete_placing(
        &mut self,
        (now, resend): (Time, Duration),
        placed: Vec<SentPlace>,
        effects: &mut Vec<Effect>,
    ) -> Option<Duration> {
        let (mut slowest, mut unasked) = (None, Vec::new());
        for SentPlace { n, at, .. } in placed {
            let Some(open) = self.open.get_mut(&n) else { continue };
            // A change waits for more than its order: a child must be born.
            if !matches!(open.purpose, Purpose::Change(_)) && at == open.sent_at {
                slowest = slowest.max(Some(now - at));
            }
            if open.voided {
                // Too late, for good (hazards.md TK11).
                let open = self.open.remove(&n).filter(|_| mutant!(late_placed_completes));
                for query in open.into_iter().flat_map(|open| open.queries) {
                    effects.push(Effect::Complete { query, ticket: self.ticket(n) });
                }
                continue;
            }
            self.ready.insert(n);
            if open.confirmed_by.is_none() {
                unasked.push(n);
            }
        }
        if !unasked.is_empty() {
            // One confirmation serves all that became complete at once: it begins after the last `Placed` of each.
            let token = self.ask(now + resend, effects);
            for n in unasked {
                self.open.entry(n).and_modify(|open| open.confirmed_by = Some(token));
            }
        }
        slowest
    }

    /// Releases what may be released (protocol.md 4, release rule), oldest first: that makes heads of the next ones.
    pub fn release(&mut self, effects: &mut Vec<Effect>) -> Load {
        let mut ended = Load::default();
        let mut from = 0;
        while let Some(n) = self.ready.range(from..).next().copied() {
            from = n + 1;
            if !self.may_release(n) {
                continue;
            }
            let Some(open) = self.open.remove(&n) else { continue };
            self.ready.remove(&n);
            let ticket = self.ticket(n);
            for partition in open.unplaced.keys() {
                self.leave_queue(*partition, n, effects);
            }
            ended.queries += open.queries.len();
            ended.bytes += open.bytes;
            effects.extend(open.queries.into_iter().map(|query| Effect::Complete { query, ticket }));
            if let Purpose::Change(id) = open.purpose {
                effects.push(Effect::Changed { id, ticket });
            }
        }
        ended
    }

    fn may_release(&self, n: u64) -> bool {
        let Some(open) = self.open.get(&n) else { return false };
        let heads = |partition| {
            let queue: Option<&Queue> = self.queues.get(partition);
            queue.is_none_or(|queue| queue.queue.front().is_none_or(|head| head.n >= n))
        };
        let first_everywhere = open.unplaced.keys().all(heads) || mutant!(gate_two_partition);
        let confirmed = open.confirmed_by.is_some_and(|token| token <= self.confirmed);
        first_everywhere && (confirmed || mutant!(complete_unconfirmed))
    }

    /// A ticket leaves a partition's queue, which may move its watermark.
    fn leave_queue(&mut self, partition: PartitionId, n: u64, effects: &mut Vec<Effect>) {
        let Some(queue) = self.queues.get_mut(&partition) else { return };
        queue.queue.retain(|sent| sent.n != n);
        self.tell(partition, false, effects);
    }

    /// Tells the partition its watermark, if it grew, or `again`.
    pub fn tell(&mut self, partition: PartitionId, again: bool, effects: &mut Vec<Effect>) {
        let ballot = self.ballot;
        let Some(queue) = self.queues.get_mut(&partition) else { return };
        let watermark = queue.watermark();
        let grew = watermark > queue.told;
        queue.told = watermark.max(queue.told);
        if let Some(n) = queue.told.filter(|_| grew || again) {
            effects.push(Effect::Released { partition, watermark: Ticket { ballot, n } });
        }
    }

    /// Voids the tickets that are not released `timeout` after they were sent, and those behind a partition that is the
    /// cause: a dead partition costs the others one timeout, not one for each ticket (protocol.md 4.1).
    pub fn void_due(&mut self, now: Time, timeout: Duration, effects: &mut Vec<Effect>) -> Load {
        let mut ended = Load::default();
        let mut late = BTreeSet::new();
        let due = |open: &OpenTicket| open.is_voidable() && open.sent_at + timeout <= now;
        let due: Vec<u64> = self.open.iter().filter(|(_, open)| due(open)).map(|(n, _)| *n).collect();
        for n in due {
            let Some(open) = self.open.get(&n) else { continue };
            let culprits: Vec<PartitionId> =
                open.unplaced.iter().filter(|(_, work)| work.is_some()).map(|(partition, _)| *partition).collect();
            for partition in &culprits {
                if let Some(queue) = self.queues.get_mut(partition) {
                    queue.late = Some(n);
                }
            }
            let why = culprits.first().map_or(Abort::Unreleased, |partition| Abort::Unplaced(*partition));
            late.extend(culprits);
            self.void(n, why, &mut ended, effects);
        }
        for partition in late {
            let behind: Vec<u64> =
                self.queues.get(&partition).map_or(vec![], |queue| queue.unplaced.iter().map(|sent| sent.n).collect());
            for n in behind {
                self.void(n, Abort::Unplaced(partition), &mut ended, effects);
            }
        }
        ended
    }

    /// It leaves the queues and can never complete; in the chains it stays, with nothing to do.
    fn void(&mut self, n: u64, why: Abort, ended: &mut Load, effects: &mut Vec<Effect>) {
        let Some(open) = self.open.get_mut(&n).filter(|open| open.is_voidable()) else { return };
        open.voided = true;
        self.withheld.remove(&n);
        ended.queries += open.queries.len();
        ended.bytes += std::mem::take(&mut open.bytes);
        effects.extend(open.queries.iter().map(|query| Effect::Aborted { query: *query, why }));
        if !mutant!(late_placed_completes) {
            open.queries = Vec::new();
        }
        for work in open.unplaced.values_mut().flatten() {
            *work = Work::Nothing;
        }
        let partitions: Vec<PartitionId> = open.unplaced.keys().copied().collect();
        let placed = open.is_placed();
        self.ready.remove(&n);
        for partition in partitions {
            self.leave_queue(partition, n, effects);
            let Some(queue) = self.queues.get_mut(&partition) else { continue };
            if mutant!(void_unlinked) && queue.last == Some(n) {
                let voided = queue.unplaced.iter().find(|sent| sent.n == n);
                queue.last = voided.map_or(queue.last, |sent| sent.prev);
            }
            if mutant!(void_moves_watermark) {
                effects.push(Effect::Released { partition, watermark: Ticket { ballot: self.ballot, n } });
            }
        }
        if placed {
            self.open.remove(&n);
        }
    }

    /// When [`Tickets::void_due`] has something to do.
    pub fn void_at(&self, timeout: Duration) -> Option<Time> {
        // Ascending, as tickets are issued in the order of time.
        let first = self.open.values().find(|open| open.is_voidable())?;
        Some(first.sent_at + timeout)
    }

    /// Whether a ticket waits for nothing but its confirmation, or for its turn after that.
    fn is_unconfirmed(&self) -> bool {
        let by = |n: &u64| self.open.get(n).and_then(|open| open.confirmed_by);
        self.ready.iter().any(|n| by(n) > Some(self.confirmed))
    }

    /// Sends again, and asks again, what is due.
    pub fn resend_due(&mut self, now: Time, pace: Pace, effects: &mut Vec<Effect>) {
        if self.ask_again_at <= now && self.is_unconfirmed() {
            self.ask(now + pace.first, effects);
        }
        let due = |queue: &Queue| !queue.unplaced.is_empty() && queue.repeats.at <= now;
        let due: Vec<PartitionId> = self.queues.iter().filter(|(_, queue)| due(queue)).map(|(id, _)| *id).collect();
        for partition in due {
            let count = self.queues.get_mut(&partition).map_or(0, |queue| queue.repeats.by_time(now, pace));
            self.send_again(now, partition, count, effects);
        }
    }

    /// Sends everything again that this partition has not placed: its leader may never have seen it.
    pub fn resend(&mut self, now: Time, partition: PartitionId, effects: &mut Vec<Effect>) {
        self.send_again(now, partition, REPEATS_MAX, effects);
    }

    /// Sends the `count` oldest again of what this partition has not placed.
    fn send_again(&mut self, now: Time, partition: PartitionId, count: usize, effects: &mut Vec<Effect>) {
        let (ballot, withheld) = (self.ballot, self.withheld_from(partition));
        let Some(queue) = self.queues.get_mut(&partition) else { return };
        let may_go = |sent: &&mut SentPlace| withheld.is_none_or(|from| sent.n < from);
        for sent in queue.unplaced.iter_mut().take(count).take_while(may_go) {
            sent.at = now;
            queue.repeats.sent(sent.n);
            let open = self.open.get(&sent.n);
            // A ticket that was voided and unlinked by mistake has nothing left to say.
            let work = open.and_then(|open| open.unplaced.get(&partition)?.clone()).unwrap_or_default();
            let (ticket, prev) = (Ticket { ballot, n: sent.n }, sent.prev.map(|n| Ticket { ballot, n }));
            effects.push(Effect::Place { partition, place: Place { ticket, prev, work } });
        }
    }

    /// When [`Tickets::resend_due`] has something to do.
    pub fn resend_at(&self) -> Option<Time> {
        let waiting = self.queues.values().filter(|queue| !queue.unplaced.is_empty());
        let unconfirmed = self.is_unconfirmed().then_some(self.ask_again_at);
        waiting.map(|queue| queue.repeats.at).chain(unconfirmed).min()
    }

    /// Whether the partition ever had a ticket of this ballot.
    pub fn knows(&self, partition: PartitionId) -> bool {
        self.queues.contains_key(&partition)
    }

    /// Forgets the partitions that `keep` does not want, once nothing of them is open.
    pub fn forget(&mut self, keep: impl Fn(PartitionId) -> bool) {
        self.queues.retain(|id, queue| keep(*id) || !queue.queue.is_empty() || !queue.unplaced.is_empty());
    }

    /// The queries that have a ticket.
    pub fn load(&self) -> Load {
        let open = || self.open.values().filter(|open| !open.voided);
        Load { queries: open().map(|open| open.queries.len()).sum(), bytes: open().map(|open| open.bytes).sum() }
    }

    /// Every query that has a ticket.
    pub fn into_queries(self) -> impl Iterator<Item = QueryId> {
        self.open.into_values().filter(|open| !open.voided).flat_map(|open| open.queries)
    }

    pub fn assert_invariants(&self) {
        for (partition, queue) in &self.queues {
            for list in [&queue.queue, &queue.unplaced] {
                let pairs = list.iter().zip(list.iter().skip(1));
                assert!(pairs.clone().all(|(a, b)| a.n < b.n), "{partition}: {list:?} does not ascend");
                assert!(list.back().is_none_or(|sent| Some(sent.n) <= queue.last) || mutant!(void_unlinked));
            }
            for sent in &queue.queue {
                let open = self.open.get(&sent.n).expect("a queued ticket is open");
                assert!(!open.voided, "{partition}: voided ticket {} in the queue", sent.n);
            }
            let chained = queue.unplaced.iter().zip(queue.unplaced.iter().skip(1));
            let linked = chained.clone().all(|(a, b)| b.prev == Some(a.n));
            assert!(linked || mutant!(void_unlinked), "{partition}: a gap in {:?}", queue.unplaced);
            for sent in &queue.unplaced {
                let open = self.open.get(&sent.n);
                let waits = open.is_some_and(|open| open.unplaced.get(partition).is_some_and(Option::is_some));
                assert!(waits || mutant!(split_released_early), "{partition}: {} is not open", sent.n);
            }
            assert!(queue.told <= queue.watermark() || mutant!(void_unlinked), "{partition}: the watermark went back");
        }
        for n in &self.withheld {
            let open = self.open.get(n).expect("a withheld ticket is open");
            let waits = open.first.is_some_and(|first| open.unplaced.get(&first).is_some_and(Option::is_some));
            assert!(waits, "{n} is withheld, and its first partition has placed it");
        }
        for n in &self.ready {
            let open = self.open.get(n).expect("a ready ticket is open");
            assert!(!open.voided && (open.is_placed() || mutant!(split_released_early)), "{n} is not ready");
        }
    }
}
