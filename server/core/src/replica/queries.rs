//! A replica's part in queries over several partitions: puts tickets into its log, gives its parts once they are
//! decided, tells the coordinator, and hears what is released (protocol.md 4).

use std::collections::VecDeque;
use std::time::Duration;

use coppice_client::wire::Position;
use coppice_ordering::multicast::{Place, Work};
use coppice_ordering::{ConfirmToken, Instance, PlacementAcknowledger, ReadToken, Ticket, Time};

use super::{Effect, QueryPart, Replica};
use crate::machine::entry;
use crate::machine::partition::{BoundaryChange, BoundaryStep, PlacedTicket};
use crate::request::Origin;

/// Parts that wait for their instance to be decided, each with a snapshot. Beyond, the oldest are not given: their
/// clients ask again.
const PARTS_MAX: usize = 65_536;

/// A `Placed` that was not answered is told again after this: as soon as the coordinator would send its `Place` again.
pub(super) const PLACED_INTERVAL: Duration = Duration::from_millis(50);

/// What a replica knows of queries, and owes to them.
pub(super) struct Queries {
    /// Tells the coordinator what is placed here.
    acknowledger: PlacementAcknowledger,
    /// Parts of queries at undecided instances, ascending.
    parts: VecDeque<(Instance, Box<QueryPart>)>,
    /// The newest instance of which other replicas give parts.
    others_respond: Instance,
    /// Up to here the followers were told what is decided because they give parts.
    announced: Instance,
    /// Confirmations that the coordinator waits for, ascending.
    confirms: VecDeque<(ReadToken, ConfirmToken)>,
    /// Buffer.
    placed: Vec<PlacedTicket>,
}

impl Queries {
    /// None, of a replica whose state is that of `decided`, and saw this ticket last.
    pub(super) fn new(decided: Instance, last_ticket: Option<Ticket>) -> Queries {
        Queries {
            acknowledger: PlacementAcknowledger::new(PLACED_INTERVAL, decided, last_ticket),
            parts: VecDeque::new(),
            others_respond: Instance::ZERO,
            announced: Instance::ZERO,
            confirms: VecDeque::new(),
            placed: Vec::new(),
        }
    }

    /// The last ticket of the decided log.
    pub(super) fn last_ticket(&self) -> Option<Ticket> {
        self.acknowledger.last_ticket()
    }

    /// Every ticket up to here is released, as far as is known.
    pub(super) fn watermark(&self) -> Option<Ticket> {
        self.acknowledger.watermark()
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.acknowledger.deadline()
    }

    pub(super) fn lead(&mut self) {
        self.acknowledger.lead();
    }

    pub(super) fn follow(&mut self) {
        self.acknowledger.follow();
        self.confirms.clear();
    }

    pub(super) fn decided(&mut self, upto: Instance) {
        self.acknowledger.decided(upto);
    }

    /// A snapshot is installed at `instance`, whose state saw this ticket last.
    pub(super) fn installed(&mut self, instance: Instance, last_ticket: Option<Ticket>) {
        self.acknowledger.installed(instance, last_ticket);
    }

    /// What was executed from `from` on is undone.
    pub(super) fn undo_from(&mut self, from: Instance) {
        self.acknowledger.undo_from(from);
        self.parts.truncate(self.parts.partition_point(|(instance, _)| *instance < from));
    }

    /// Tells the coordinator what its leadership was confirmed for.
    pub(super) fn confirm(&mut self, upto: ReadToken, effects: &mut Vec<Effect>) {
        while let Some((_, token)) = self.confirms.pop_front_if(|(read, _)| *read <= upto) {
            effects.push(Effect::Confirmed(token));
        }
    }

    /// A part waits until its instance is decided.
    fn keep(&mut self, instance: Instance, part: QueryPart) {
        if self.parts.len() >= PARTS_MAX {
            self.parts.pop_front();
        }
        self.parts.push_back((instance, Box::new(part)));
    }
}

impl Replica {
    /// The coordinator wants a ticket in the log.
    pub(super) fn on_place(&mut self, now: Time, place: &Place, effects: &mut Vec<Effect>) {
        // Sent again while it is in flight, it may be ordered twice: the second time it does not count.
        if self.leadership.is_own && self.queries.acknowledger.wants(place.ticket) {
            if is_join(place) {
                self.forget_counted(now);
            }
            self.submit(now, Origin::Nobody, entry::place(place), (1, 1), effects);
        }
    }

    /// Tells the coordinator what is placed here, and what it hears of nobody else. A follower that was chosen gives
    /// its part once it knows that the place is decided: it hears so now, not with the next batch or heartbeat, since a
    /// client waits for the part.
    pub(super) fn tell_placed(&mut self, now: Time, effects: &mut Vec<Effect>) {
        let Some(ticket) = self.queries.acknowledger.poll(now) else { return };
        effects.push(Effect::Placed { ticket });
        if self.leadership.is_own && self.queries.others_respond > self.queries.announced {
            self.queries.announced = self.executor.decided();
            self.paxos.announce(now, &mut self.ordered);
            self.drain(now, effects);
        }
    }

    /// Everything up to `ticket` is released or voided.
    pub(super) fn on_released(&mut self, now: Time, ticket: Ticket, effects: &mut Vec<Effect>) {
        let Some(watermark) = self.note_released(ticket) else { return };
        // One that follows tells its leader, and the others when it leads itself.
        if self.leadership.is_own || !mutant!(watermark_kept_to_itself) {
            self.paxos.set_released(now, watermark, &mut self.ordered);
            self.drain(now, effects);
        }
    }

    /// Opens the gate up to `ticket`, by what the coordinator says; returns the watermark.
    pub(super) fn note_released(&mut self, ticket: Ticket) -> Option<Ticket> {
        self.queries.acknowledger.released(ticket);
        let watermark = self.queries.watermark()?;
        self.outputs.released(watermark);
        Some(watermark)
    }

    /// The coordinator wants its leadership confirmed, with the reads of this turn.
    pub(super) fn on_confirm(&mut self, token: ConfirmToken) {
        if self.leadership.is_own {
            self.queries.confirms.push_back((self.reads.confirm_with_turn(), token));
        }
    }

    /// Who gives the parts that it is chosen for; whoever leads gives those of replicas that left. Nothing is proposed
    /// behind a new configuration before it is decided, so what is placed behind it is executed knowing it.
    pub(super) fn name_responders(&mut self) {
        let (configuration, _) = self.paxos.configuration();
        let members = configuration.voters.iter().chain(&configuration.learners);
        let responders = self.leadership.is_own.then(|| members.copied().collect());
        self.executor.set_responders(responders);
    }

    /// Keeps what the tickets that counted just now ask of this replica.
    pub(super) fn keep_parts(&mut self) {
        let mut all_placed = std::mem::take(&mut self.queries.placed);
        self.executor.take_placed(&mut all_placed);
        for placed in all_placed.drain(..) {
            self.queries.acknowledger.placed(placed.instance, placed.ticket);
            if placed.others_respond {
                self.queries.others_respond = placed.instance;
            }
            let position = Position { partition: self.group, instance: placed.instance.0, index: placed.index };
            for (partition_query, mut cursor) in placed.partition_queries {
                if mutant!(part_old)
                    && let Some(partition) = self.executor.decided_view().partition()
                {
                    cursor = partition
                        .cursor(&partition_query.low, partition_query.high.as_deref(), partition_query.scan.reverse)
                        .unwrap_or(cursor);
                }
                let part = QueryPart { ticket: placed.ticket, position, partition_query, cursor: Box::new(cursor) };
                self.queries.keep(placed.instance, part);
            }
        }
        self.queries.placed = all_placed;
    }

    /// Parts leave when their place is decided. They pass no gate: `Complete` makes them count (protocol.md 4, step 6).
    pub(super) fn send_parts(&mut self, upto: Instance, effects: &mut Vec<Effect>) {
        while let Some((_, mut part)) = self.queries.parts.pop_front_if(|(instance, _)| *instance <= upto) {
            if mutant!(part_at_last_executed)
                && let Some(partition) = self.executor.machine().partition()
            {
                let at_tip = {
                    let partition_query = &part.partition_query;
                    partition.cursor(
                        &partition_query.low,
                        partition_query.high.as_deref(),
                        partition_query.scan.reverse,
                    )
                };
                part.cursor = at_tip.map_or(part.cursor, Box::new);
            }
            effects.push(Effect::Part(part));
        }
    }
}

/// Whether a partition takes in its neighbour where the ticket stands.
fn is_join(place: &Place) -> bool {
    let Work::Change { payload, .. } = &place.work else { return false };
    let change = postcard::from_bytes::<BoundaryChange>(payload);
    change.is_ok_and(|change| matches!(change.step, BoundaryStep::Join { .. }))
}
