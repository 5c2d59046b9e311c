//! Parts of queries on their way to one client (ordering.md 4, step 4): most leave whole as soon as they come; what is
//! left of the others goes on as the client gives credit. It knows neither sockets nor tickets.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use coppice_client::wire::PartitionId;

use super::outbox::Outbox;
use crate::shard::ranges::RangeJob;

/// Parts of one connection at a time; each pins a snapshot.
const PARTS_MAX: usize = 4_096;

/// The client's number of the attempt, and whose part it is.
type Name = (u32, PartitionId);

/// All parts of one connection.
#[derive(Default)]
pub struct Parts {
    /// Nothing of them was sent yet; in the order in which they came.
    fresh: VecDeque<(Name, RangeJob)>,
    begun: BTreeMap<Name, RangeJob>,
}

impl Parts {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.fresh.is_empty() && self.begun.is_empty()
    }

    /// Whether there is something that may be sent.
    pub fn may_send(&self) -> bool {
        !self.fresh.is_empty() || self.begun.values().any(RangeJob::may_send)
    }

    /// Takes a part; beyond the bound it is dropped, and its client asks again.
    pub fn add(&mut self, name: Name, job: RangeJob) {
        if self.fresh.len() + self.begun.len() < PARTS_MAX {
            self.fresh.push_back((name, job));
        }
    }

    /// The client makes room for more of a part.
    pub fn add_credit(&mut self, name: Name, bytes: u32) {
        let fresh = self.fresh.iter_mut().find(|(of, _)| *of == name).map(|(_, job)| job);
        if let Some(job) = self.begun.get_mut(&name).or(fresh) {
            job.add_credit(bytes);
        }
    }

    /// The client wants nothing of this attempt any more.
    pub fn drop_query(&mut self, query: u32) {
        self.begun.retain(|(of, _), _| *of != query);
        self.fresh.retain(|((of, _), _)| *of != query);
    }

    /// Drops those whose snapshot was pinned for too long.
    pub fn expire(&mut self, pin: Duration) {
        self.begun.retain(|_, job| job.age() <= pin);
        self.fresh.retain(|(_, job)| job.age() <= pin);
    }

    /// Makes a chunk of each that has credit, until `bytes_max` wait in `outbox`; `true` if there is more to make.
    pub fn pump(&mut self, outbox: &mut Outbox, bytes_max: usize) -> bool {
        let Parts { fresh, begun } = self;
        let mut more = false;
        begun.retain(|(query, _), job| {
            if !job.may_send() {
                return true;
            }
            if outbox.bytes() >= bytes_max {
                more = true;
                return true;
            }
            let last = send(job, *query, outbox);
            more |= !last && job.may_send();
            !last
        });
        while outbox.bytes() < bytes_max
            && let Some((name, mut job)) = fresh.pop_front()
        {
            // One without credit waits for some among those that were begun.
            let last = job.may_send() && send(&mut job, name.0, outbox);
            if !last {
                more |= job.may_send();
                begun.insert(name, job);
            }
        }
        more || !fresh.is_empty()
    }
}

fn send(job: &mut RangeJob, query: u32, outbox: &mut Outbox) -> bool {
    let mut last = false;
    outbox.append(|out| last = job.send(query, out));
    last
}

#[cfg(test)]
mod tests {
    use coppice_btree::{Direction, KeyRange, Tree};
    use coppice_client::wire::{ClientId, Frame, FrameDecoder, Part, PartEnd, Position, ReplicaId, Ticket};

    use super::*;
    use crate::multicast::Share;

    /// More pairs than a chunk holds.
    const MANY: u64 = 20_000;

    /// A part of so many pairs.
    fn job(credit: u32, pairs: u64) -> RangeJob {
        let mut tree = Tree::new();
        (0..pairs).for_each(|n| drop(tree.put(&n.to_be_bytes(), b"8 bytes.")));
        let share = Share {
            client: ClientId(1),
            query: 1,
            replica: coppice_ordering::ReplicaId(1),
            low: Default::default(),
            high: None,
            reverse: false,
            keys_only: false,
            count_only: false,
            pairs_max: 0,
            bytes_max: 0,
            credit,
        };
        let position = Position { partition: PartitionId(1), instance: 5, index: 0 };
        let ticket = Ticket { round: 1, replica: ReplicaId(1), n: 7 };
        RangeJob::of_query(position, ticket, Box::new(tree.cursor(KeyRange::all(), Direction::Forward)), &share)
    }

    fn frames(outbox: &mut Outbox) -> Vec<Frame> {
        let mut decoder = FrameDecoder::default();
        outbox.take().iter().for_each(|piece| decoder.feed(piece));
        std::iter::from_fn(|| decoder.next_frame().expect("our own frames")).collect()
    }

    fn name(query: u32) -> Name {
        (query, PartitionId(1))
    }

    #[test]
    fn a_part_goes_on_as_far_as_its_credit_reaches() {
        let (mut parts, mut outbox) = (Parts::default(), Outbox::default());
        parts.add(name(9), job(1, MANY));
        assert!(parts.may_send());
        // The first chunk overdraws the credit of one byte.
        assert!(!parts.pump(&mut outbox, 1 << 30));
        let first = frames(&mut outbox);
        assert_eq!((first.len(), first[0].stream, parts.may_send()), (1, 9, false));
        parts.add_credit(name(8), 1 << 30);
        assert!(!parts.may_send(), "credit of another part");
        parts.add_credit(name(9), 1 << 30);
        while parts.pump(&mut outbox, 1 << 30) {}
        let rest = frames(&mut outbox);
        let end = Part::decode(&rest.last().expect("chunks").body).expect("a part").end;
        assert_eq!((end, parts.is_empty()), (Some(PartEnd::Complete), true));
    }

    #[test]
    fn what_finds_no_room_waits_its_turn_and_may_be_called_off() {
        let (mut parts, mut outbox) = (Parts::default(), Outbox::default());
        (1..=4).for_each(|query| parts.add(name(query), job(1, MANY)));
        assert!(parts.pump(&mut outbox, 1), "one chunk fills the room");
        assert!(parts.pump(&mut outbox, 1));
        assert_eq!(frames(&mut outbox).iter().map(|frame| frame.stream).collect::<Vec<_>>(), [1]);
        parts.drop_query(3);
        // Credit also reaches one of which nothing was sent.
        parts.add_credit(name(4), 1 << 30);
        assert!(parts.pump(&mut outbox, 1 << 30));
        let sent: Vec<u32> = frames(&mut outbox).iter().map(|frame| frame.stream).collect();
        assert_eq!(sent, [2, 4], "in the order in which they came");
        while parts.pump(&mut outbox, 1 << 30) {}
        assert!(frames(&mut outbox).len() == 1 && !parts.is_empty(), "1 and 2 wait for credit");
    }

    #[test]
    fn parts_beyond_the_bound_are_dropped() {
        let mut parts = Parts::default();
        (0..PARTS_MAX as u32 + 5).for_each(|query| parts.add(name(query), job(0, 1)));
        assert_eq!(parts.fresh.len(), PARTS_MAX);
        assert!(!parts.pump(&mut Outbox::default(), 1 << 30), "without credit nothing is sent");
        parts.expire(Duration::ZERO);
        assert!(parts.is_empty());
    }
}
