//! A replica's part in queries over several partitions: puts tickets into its log, gives its parts once they are
//! decided, tells the coordinator, and hears what is released (protocol.md 4).

use coppice_client::wire::Position;
use coppice_ordering::multicast::Place;
use coppice_ordering::{ConfirmToken, Instance, ReadToken, Ticket, Time};

use super::{Effect, QueryPart, Replica};
use crate::machine::entry;
use crate::request::Origin;

/// Parts that wait for their instance to be decided, each with a snapshot. Beyond, the oldest are not given: their
/// clients ask again.
const PARTS_MAX: usize = 65_536;

impl Replica {
    /// The coordinator wants a ticket in the log.
    pub(super) fn on_place(&mut self, now: Time, place: &Place, effects: &mut Vec<Effect>) {
        // Sent again while it is in flight, it may be ordered twice: the second time it does not count.
        if self.leading && self.acknowledger.wants(place.ticket) {
            self.submit(now, Origin::Nobody, entry::place(place), (1, 1), effects);
        }
    }

    /// Tells the coordinator what is placed here, and what it hears of nobody else. A follower that was chosen gives
    /// its part once it knows that the place is decided: it hears so now, not with the next batch or heartbeat, since a
    /// client waits for the part.
    pub(super) fn tell_placed(&mut self, now: Time, effects: &mut Vec<Effect>) {
        let Some(ticket) = self.acknowledger.poll(now) else { return };
        effects.push(Effect::Placed { ticket });
        if self.leading && self.others_respond > self.announced {
            self.announced = self.executor.decided();
            self.paxos.announce(now, &mut self.ordered);
            self.drain(now, effects);
        }
    }

    /// Everything up to `ticket` is released or voided.
    pub(super) fn on_released(&mut self, now: Time, ticket: Ticket, effects: &mut Vec<Effect>) {
        let Some(watermark) = self.note_released(ticket) else { return };
        // One that follows tells its leader, and the others when it leads itself.
        if self.leading || !mutant!(watermark_kept_to_itself) {
            self.paxos.set_released(now, watermark, &mut self.ordered);
            self.drain(now, effects);
        }
    }

    /// Opens the gate up to `ticket`, by what the coordinator says; returns the watermark.
    pub(super) fn note_released(&mut self, ticket: Ticket) -> Option<Ticket> {
        self.acknowledger.released(ticket);
        let watermark = self.acknowledger.watermark()?;
        self.gate.released(watermark);
        Some(watermark)
    }

    /// The coordinator wants its leadership confirmed, with the reads of this turn.
    pub(super) fn on_confirm(&mut self, token: ConfirmToken) {
        if self.leading {
            self.confirms.push_back((self.read_token, token));
            self.unconfirmed_reads = true;
        }
    }

    pub(super) fn confirm_coordinator(&mut self, upto: ReadToken, effects: &mut Vec<Effect>) {
        while let Some((_, token)) = self.confirms.pop_front_if(|(read, _)| *read <= upto) {
            effects.push(Effect::Confirmed(token));
        }
    }

    /// What was executed from `from` on is undone.
    pub(super) fn undo_parts(&mut self, from: Instance) {
        self.acknowledger.undo_from(from);
        self.parts.truncate(self.parts.partition_point(|(instance, _)| *instance < from));
    }

    /// Who gives the parts that it is chosen for; whoever leads gives those of replicas that left. Nothing is proposed
    /// behind a new configuration before it is decided, so what is placed behind it is executed knowing it.
    pub(super) fn name_responders(&mut self) {
        let (configuration, _) = self.paxos.configuration();
        let members = configuration.voters.iter().chain(&configuration.learners);
        let responders = self.leading.then(|| members.copied().collect());
        self.executor.set_responders(responders);
    }

    /// Keeps what the tickets that counted just now ask of this replica.
    pub(super) fn keep_parts(&mut self) {
        self.executor.take_placed(&mut self.placed);
        for placed in self.placed.drain(..) {
            self.acknowledger.placed(placed.instance, placed.ticket);
            if placed.others_respond {
                self.others_respond = placed.instance;
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
                if self.parts.len() >= PARTS_MAX {
                    self.parts.pop_front();
                }
                let part = QueryPart { ticket: placed.ticket, position, partition_query, cursor: Box::new(cursor) };
                self.parts.push_back((placed.instance, Box::new(part)));
            }
        }
    }

    /// Parts leave when their place is decided. They pass no gate: `Complete` makes them count (protocol.md 4, step 6).
    pub(super) fn send_parts(&mut self, upto: Instance, effects: &mut Vec<Effect>) {
        while let Some((_, mut part)) = self.parts.pop_front_if(|(instance, _)| *instance <= upto) {
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
