//! The three phases of a run. Safety: the drawn faults, until the operations are used up. Liveness: everything works
//! again, at least for a majority, and every operation must end within a bound. Audit: all nodes run, replicas become
//! equal, and the history is checked.

use std::time::Duration;

use coppice_client::wire::NodeId;
use coppice_core::handshake::standing;
use coppice_ordering::Instance;

use super::client::Client;
use super::events::Event;
use super::node::NextCrash;
use super::plan::fault::SAFETY_MAX;
use super::plan::{MS, Nanos};
use super::wide::round_trip;
use super::world::World;

/// Every operation ends so long after everything works again (hazards.md 4, liveness): 20 election timeouts, twice
/// the time of a ticket, and the client's longest patience with a node that died without a word.
const LIVENESS_TIMEOUTS: u32 = 20;
/// See [`LIVENESS_TIMEOUTS`].
const CLIENT_PATIENCE: Duration = Duration::from_secs(8);

/// Replicas are equal so long after all nodes run and nothing is asked any more.
const CONVERGENCE: Nanos = 20_000 * MS;
/// And so many rounds of messages and flushes later, where those are long.
const CONVERGENCE_ROUNDS: u64 = 400;

/// A replica that is still to be moved because its node goes, or that its group still lacks, takes so long.
const MOVE: Nanos = 2_000 * MS;

/// Steps of one run at most: beyond, something goes round in circles.
const STEPS_MAX: u64 = 3_000_000;

/// Events of one run at most: what steps no replica, a client's deadline for one, can go round in circles too. Of 300
/// seeds none had more than 160 000.
const EVENTS_MAX: u64 = 10_000_000;

/// Events at most that are ordered and have not happened: beyond, more is ordered than ever happens. Of 300 seeds none
/// had more than 4 400.
const ORDERED_MAX: usize = 200_000;

/// Keys that expire so soon are waited for, in milliseconds of their partitions' time.
const EXPIRES_SOON_MS: u64 = 2_000;

/// A key expires so long after its time at most: two entries of the log may lie so far apart.
const EXPIRY_LATE: Nanos = 3_000 * MS;

impl World {
    /// Runs it, through its three phases.
    pub fn run(&mut self) {
        for node in 0..self.nodes.len() {
            self.start(node);
        }
        for client in 0..self.clients.len() {
            self.schedule(self.now, Event::Think { client });
        }
        for number in 0..self.plan.faults.len() {
            let at = self.plan.faults[number].at + self.now;
            self.schedule(at, Event::Fault { number });
        }
        self.advance(SAFETY_MAX, |world| world.account.open() == 0 && world.clients.iter().all(Client::is_done));
        self.heal();
        let void = Duration::from_nanos(2 * self.plan.server.place_timeout);
        // An election, and what is behind it, takes flushes and round trips too, where those are long.
        let slow = Duration::from_nanos(self.plan.disk.flush_max + round_trip(&self.plan));
        let settled = (self.plan.settings.election_timeout + slow) * LIVENESS_TIMEOUTS + CLIENT_PATIENCE + void;
        let slowest = self.plan.clock_rates.iter().min().map_or(1_000, |rate| u64::from(*rate));
        let bound = settled.as_nanos() as Nanos * 1_000 / slowest;
        self.advance(self.now + bound, |world| world.account.open() == 0);
        if self.failure.is_none() && self.account.open() > 0 {
            let waiting = self.account.waiting();
            self.fail("liveness", format!("after {bound} ns without a fault these still wait: {waiting}"));
        }
        if self.plan.judged.audit {
            self.audit();
        }
    }

    fn audit(&mut self) {
        self.faults.stays_down = 0;
        for node in 0..self.nodes.len() {
            if !self.nodes[node].up && self.nodes[node].may_start() {
                self.start(node);
            }
        }
        for client in 0..self.clients.len().min(1) {
            self.read_everything(client);
        }
        // A move is many rounds, one after the other.
        let slow = CONVERGENCE_ROUNDS * (self.plan.disk.flush_max + round_trip(&self.plan));
        self.check_stops();
        let moves = self.unsettled().0 as Nanos * MOVE;
        self.advance(self.now + CONVERGENCE + slow + moves, |world| world.account.open() == 0 && world.is_even());
        if self.failure.is_none() && !self.is_even() {
            let uneven = self.uneven();
            self.fail("convergence", format!("replicas stay apart: {uneven}"));
        }
        self.expire_in_time();
        if self.failure.is_none()
            && let Err((check, what)) = self.account.judge(&self.oracle, self.plan.judged)
        {
            self.fail(check, what);
        }
    }

    /// While everything works, a key expires within a bound of its time, by the clock of a leader.
    fn expire_in_time(&mut self) {
        let due = self.oracle.ledger.due_within(EXPIRES_SOON_MS);
        if due.is_empty() {
            return;
        }
        self.coverage.note("audit: keys expire");
        let slowest = self.plan.clock_rates.iter().min().map_or(1_000, |rate| u64::from(*rate));
        let slow = CONVERGENCE_ROUNDS * (self.plan.disk.flush_max + round_trip(&self.plan));
        let bound = (EXPIRES_SOON_MS * MS + EXPIRY_LATE) * 1_000 / slowest + slow;
        self.advance(self.now + bound, |world| world.oracle.ledger.have_expired(&due));
        if self.failure.is_none() && !self.oracle.ledger.have_expired(&due) {
            self.fail("expiry", format!("of {} keys some do not expire within {bound} ns", due.len()));
        }
    }

    /// Lets things happen until `until`, or until `enough`.
    fn advance(&mut self, until: Nanos, enough: impl Fn(&World) -> bool) {
        while self.failure.is_none() && !enough(self) {
            let Some((at, event)) = self.agenda.pop(until) else { return };
            self.now = self.now.max(at);
            self.happen(event);
            self.bound();
        }
    }

    /// A run that goes round in circles, or orders ever more, ends.
    fn bound(&mut self) {
        let (happened, ordered) = (self.agenda.happened(), self.agenda.len());
        if self.trace.steps() > STEPS_MAX {
            self.fail("livelock", format!("more than {STEPS_MAX} steps"));
        } else if happened > EVENTS_MAX {
            self.fail("livelock", format!("more than {EVENTS_MAX} events, and {} steps", self.trace.steps()));
        } else if ordered > ORDERED_MAX {
            self.fail("growth", format!("{ordered} events are ordered, after {happened} that happened"));
        }
    }

    /// Everything works from now on; perhaps a minority stays down until the audit.
    fn heal(&mut self) {
        self.faults.healed = true;
        self.net.heal();
        self.faults.triggers.clear();
        self.end_copies();
        self.clients.iter_mut().for_each(Client::comes_back);
        if self.plan.minority_down {
            // A disk that was lost is as good as a node that stays down, and so is one with damage.
            let lost = usize::from(self.nodes.iter().any(|node| node.damage.is_any()));
            let minority = ((self.plan.voters_least() as usize - 1) / 2).saturating_sub(lost);
            for _ in 0..minority {
                self.coverage.note("liveness: a node stays down");
                self.faults.stays_down |= 1 << self.draws.world.below(self.nodes.len());
            }
        }
        for node in 0..self.nodes.len() {
            let now = self.now;
            let each = &mut self.nodes[node];
            // A pause goes on to its end: what waits for it keeps its order.
            (each.crash, each.flush_extra) = (NextCrash::default(), 0);
            each.store.set_room(None);
            each.store.spare();
            let boot = each.boot;
            match (self.nodes[node].up, self.faults.stays_down >> node & 1 == 1) {
                (true, true) => self.crash(node, 0),
                (false, false) if self.nodes[node].may_start() => self.schedule(now, Event::Start { node, boot }),
                _ => {}
            }
            self.arm(node);
        }
    }

    /// All replicas have decided all that any of them has.
    fn is_even(&self) -> bool {
        self.uneven().is_empty()
    }

    /// What keeps the run from its end: changes under way, replicas that lack something.
    fn uneven(&self) -> String {
        let mut uneven = self.oracle.under_way();
        for entry in self.map.groups() {
            let known = self.oracle.decided(entry.partition);
            for info in &entry.replicas {
                let node = info.node.0 as usize - 1;
                let host = self.nodes[node].group(entry.partition).filter(|host| host.me.0 == info.replica.0);
                let decided = host.map(|host| host.replica.executor().decided());
                if decided != Some(Instance(known)) {
                    uneven += &format!("{} on n{node}: {decided:?} of {known}; ", entry.partition);
                }
            }
        }
        let strangers = self.nodes.iter().enumerate().flat_map(|(node, each)| {
            let own = NodeId(node as u32 + 1);
            let stays = move |group| self.map.group(group).is_some_and(|entry| entry.replica_on(own).is_some());
            // A node that was removed while it was away is let in by nobody: it hears of nothing until it is stopped.
            let hears = !self.faults.copies.drawn || standing(own, &self.map).is_ok();
            each.groups()
                .map(|(group, _)| group)
                .filter(move |group| hears && !stays(*group))
                .map(move |group| format!("{group} still on n{node}; "))
        });
        uneven.extend(strangers);
        uneven += &self.unsettled().1;
        uneven
    }
}
