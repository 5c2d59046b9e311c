//! Tickets free themselves while the directory has no majority, from the coordinator to the gate (protocol.md 4.4).

#[cfg(feature = "mutants")]
mod planted;

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use coppice_ordering::multicast::{Coordinator, CoordinatorSettings, Effect, Input, Place, Query};
use coppice_ordering::{Ballot, Chain, Escape, Gate, Instance, MapVersion, PartitionId, QueryId, Ticket, Time};

const P1: PartitionId = PartitionId(1);
const P2: PartitionId = PartitionId(2);
const DEADLINE: Duration = Duration::from_secs(5);
/// No client takes the result of any query later.
const LONGEST: Duration = Duration::from_secs(60);

fn at(seconds: u64) -> Time {
    Time::ZERO + Duration::from_secs(seconds)
}

fn settings(query_deadline: Option<Duration>) -> CoordinatorSettings {
    CoordinatorSettings { query_deadline, ..CoordinatorSettings::default() }
}

fn coordinator(query_deadline: Option<Duration>) -> Coordinator {
    let mut coordinator = Coordinator::new(settings(query_deadline));
    let partitions = [P1, P2].into();
    let lead = Input::Lead { ballot: Ballot::new(1, 0), map: MapVersion(1), partitions, changes: Vec::new() };
    coordinator.step(Time::ZERO, lead, &mut Vec::new());
    coordinator
}

/// A query over both partitions: what it is told of its deadline, and the places.
fn ask(coordinator: &mut Coordinator) -> (Option<Duration>, Vec<Place>) {
    let parts = BTreeMap::from([P1, P2].map(|partition| (partition, Bytes::from("share"))));
    let mut effects = Vec::new();
    let query = Query { id: QueryId(1), map: MapVersion(1), parts };
    coordinator.step(Time::ZERO, Input::Query(query), &mut effects);
    let cut = effects.iter().find_map(|effect| match effect {
        Effect::Cut { deadline, .. } => Some(*deadline),
        _ => None,
    });
    (cut.expect("a cut"), places(effects))
}

fn places(effects: Vec<Effect>) -> Vec<Place> {
    let place = |effect| match effect {
        Effect::Place { place, .. } => Some(place),
        _ => None,
    };
    effects.into_iter().filter_map(place).collect()
}

/// One replica of P1, which hears no more of any coordinator: the two tickets that it was sent are decided, and a reply
/// stands behind them.
struct Replica {
    gate: Gate<&'static str>,
    escape: Escape,
}

impl Replica {
    fn behind(places: &[Place], longest: Option<Duration>) -> Replica {
        let mut chain = Chain::default();
        let mut replica = Replica { gate: Gate::default(), escape: Escape::default() };
        replica.escape.set_longest(longest);
        for (place, instance) in places.iter().zip(1..) {
            assert!(chain.place(place.ticket, place.prev));
            replica.escape.placed(Instance(instance), place.ticket, place.deadline);
        }
        let last = Instance(places.len() as u64);
        replica.gate.hold(last, chain.last_ticket(), "x");
        replica.gate.decided(last);
        replica
    }

    fn at(&mut self, now: Time) -> Option<&'static str> {
        if let Some(ticket) = self.escape.poll(now, self.gate.decided_upto()) {
            self.gate.released(ticket);
        }
        self.gate.pop()
    }
}

fn first(ticket: Ticket) -> Place {
    Place { ticket, prev: None, deadline: Some(DEADLINE), work: Default::default() }
}

/// The first ticket of the ballot at P1, and the query's.
fn both(deadline: Option<Duration>) -> [Place; 2] {
    let mut coordinator = coordinator(deadline);
    let (told, places) = ask(&mut coordinator);
    assert_eq!((told, places[0].deadline), (deadline, deadline), "clients and replicas are told the same");
    let first = Place { deadline, ..first(places[0].prev.expect("the first ticket of the ballot")) };
    [first, places[0].clone()]
}

#[test]
fn a_gate_opens_after_twice_the_deadline() {
    let mut replica = Replica::behind(&both(Some(DEADLINE)), None);
    assert_eq!(replica.at(at(100)), None);
    assert_eq!(replica.at(at(109)), None, "a client whose clock is slow may still take the query's result");
    assert_eq!(replica.at(at(110)), Some("x"));
}

#[test]
fn a_gate_stays_closed_without_the_option() {
    let mut replica = Replica::behind(&both(None), None);
    assert_eq!((replica.at(at(0)), replica.at(at(1_000_000))), (None, None));
    assert_eq!(replica.escape.deadline(Instance(2)), None);
    // Switched on later: clients were told nothing, and take no result after the longest deadline.
    replica.escape.set_longest(Some(LONGEST));
    assert_eq!((replica.at(at(0)), replica.at(at(119)), replica.at(at(120))), (None, None, Some("x")));
}

#[test]
fn a_ticket_keeps_the_deadline_that_its_clients_were_told() {
    let mut coordinator = coordinator(Some(DEADLINE));
    let (_, sent) = ask(&mut coordinator);
    coordinator.set_settings(settings(Some(Duration::from_secs(1))));
    let mut effects = Vec::new();
    coordinator.step(at(0), Input::Resend(P1), &mut effects);
    let again = places(effects);
    let query = again.iter().find(|place| place.ticket == sent[0].ticket).expect("sent again");
    assert_eq!(query.deadline, Some(DEADLINE));
}

/// Which test fails with which planted bug (hazards.md 6).
#[cfg(feature = "mutants")]
const CAUGHT_BY: &[(&str, &str)] = &[("escape_early", "a_gate_opens_after_twice_the_deadline")];

#[cfg(feature = "mutants")]
#[test]
fn every_mutant_of_the_escape_is_caught() {
    let caught: Vec<&str> = CAUGHT_BY.iter().map(|(mutant, _)| *mutant).collect();
    assert_eq!(caught, coppice_ordering::mutants::ESCAPE);
    planted::assert_caught(CAUGHT_BY);
}
