//! The loops against theory, in virtual time.

use std::sync::Arc;
use std::time::Duration;

use super::engine::{self, Orders};
use super::{Pace, Tally, Timeline};
use crate::target::simulated::{Service, SimulatedTarget};
use crate::target::{End, Nanos};
use crate::units::Think;
use crate::workload::{KeySpace, Mix, Plan, Source, ValueForm};

const MS: Nanos = 1_000_000;

fn run(target: &mut SimulatedTarget, workload: &str, pace: Pace, seconds: u64, trim: u64) -> Tally {
    let plan = Arc::new(Plan {
        mix: Mix::named(workload).unwrap(),
        keys: KeySpace::even(4),
        entries: 10_000,
        universe: 10_000,
        value: ValueForm::Bytes(8),
        range_keys: 100,
        cross_percent: 0,
        seed: 1,
    });
    let timeline = Timeline::new(Duration::from_secs(seconds), Duration::from_secs(trim)).unwrap();
    let orders = Orders { timeline, pace, workers: 1, first_client: 0, seed: 1, drain: 5_000 * MS, start: 0 };
    engine::run(target, &mut Source::new(plan, 0, 1), &orders, |_| {})
}

fn closed(clients: u32, think: (u64, u64)) -> Pace {
    let think = Think { low: Duration::from_millis(think.0), high: Duration::from_millis(think.1) };
    Pace::Closed { clients, think }
}

/// papers.md D17: N = X (R + Z) within 3 %, whether the clients or the servers are the bound.
#[test]
fn closed_loops_obey_littles_law() {
    for (clients, think, servers, service) in [
        (1, (0, 0), 1, Service::Fixed(MS)),
        (64, (0, 10), 2, Service::Even(MS / 10, 2 * MS)),
        (900, (0, 10), 4, Service::Even(MS / 10, MS)),
        (8, (5, 5), 8, Service::Fixed(3 * MS)),
    ] {
        let tally = run(&mut SimulatedTarget::new(servers, service), "mixed", closed(clients, think), 20, 2);
        let throughput = tally.ends().ok as f64 / 16.0;
        let response = tally.latency().mean() / 1e9;
        let pause = (think.0 + think.1) as f64 / 2e3;
        let n = throughput * (response + pause);
        assert!((n / f64::from(clients) - 1.0).abs() < 0.03, "{n} for {clients} clients");
    }
}

/// A closed loop would see one slow request per client in a stall; an open one charges it to all that were due.
#[test]
fn an_open_loop_charges_a_stall_to_every_request_that_it_delayed() {
    let target = || SimulatedTarget::new(1, Service::Fixed(MS / 100)).stalled(5_000 * MS, 6_000 * MS);
    let open = run(&mut target(), "put", Pace::Open { rate: 1_000.0, offset: 0, slots: 10_000 }, 10, 0);
    // Due in the stall's first half: 500 requests that wait longer than half a second.
    let slow = |tally: &Tally| tally.latency().count_between(500 * MS, 2_000 * MS);
    assert!((495..=510).contains(&slow(&open)), "{}", slow(&open));
    assert_eq!(open.ends().ok, 10_000);
    let closed = run(&mut target(), "put", closed(1, (1, 1)), 10, 0);
    assert_eq!(slow(&closed), 1);
}

/// With too few slots the requests wait for one, and their time runs all the same.
#[test]
fn waiting_for_a_slot_counts_as_latency() {
    let stalled = || SimulatedTarget::new(1, Service::Fixed(MS / 100)).stalled(5_000 * MS, 6_000 * MS);
    let few = run(&mut stalled(), "put", Pace::Open { rate: 1_000.0, offset: 0, slots: 4 }, 10, 0);
    let many = run(&mut stalled(), "put", Pace::Open { rate: 1_000.0, offset: 0, slots: 10_000 }, 10, 0);
    let (few, many) = (few.latency(), many.latency());
    for quantile in [0.5, 0.9, 0.95, 0.99, 1.0] {
        let (a, b) = (few.value_at_quantile(quantile) as f64, many.value_at_quantile(quantile) as f64);
        assert!((a - b).abs() < 0.02 * b + 1e6, "at {quantile}: {a} and {b}");
    }
}

#[test]
fn an_open_loop_above_capacity_says_what_it_never_sent() {
    // 100 per second are possible, 1 000 are due.
    let tally = run(
        &mut SimulatedTarget::new(1, Service::Fixed(10 * MS)),
        "put",
        Pace::Open { rate: 1_000.0, offset: 0, slots: 10 },
        10,
        1,
    );
    assert!(tally.unsent > 6_000, "{}", tally.unsent);
    // Every request of the window is charged, those never sent with the time that they had waited by the end.
    assert_eq!(tally.latency().len(), 8_000);
    assert!((4_400..=5_600).contains(&(tally.latency().value_at_quantile(0.5) / MS)));
    // What was answered within the window is the capacity.
    assert!((795..=805).contains(&tally.ends().ok), "{}", tally.ends().ok);
}

/// papers.md A10: figures with and without the head differ when a slow start is planted.
#[test]
fn a_slow_start_is_trimmed_away() {
    let slow_start = || SimulatedTarget::new(1, Service::Fixed(MS)).stalled(0, 1_500 * MS);
    let all = run(&mut slow_start(), "put", closed(4, (0, 0)), 20, 0);
    let trimmed = run(&mut slow_start(), "put", closed(4, (0, 0)), 20, 2);
    assert!(all.latency().max() > 1_400 * MS && all.trimmed == 4);
    assert!(trimmed.latency().max() < 5 * MS);
    assert!((trimmed.ends().ok as i64 - 16_000).abs() <= 1);
    // Head: 500 in its half second of work; tail: 2 000, and the 4 under way at the end.
    assert!((2_495..=2_510).contains(&trimmed.trimmed), "{}", trimmed.trimmed);
}

#[test]
fn ends_that_are_not_answers_are_counted_apart_and_have_no_latency() {
    let refused = |n: u64| match n % 10 {
        7 => Some(End::Busy),
        8 => Some(End::Failed),
        9 => Some(End::Unknown),
        _ => None,
    };
    let mut target = SimulatedTarget::new(4, Service::Fixed(MS)).refusing(refused);
    let tally = run(&mut target, "put", Pace::Open { rate: 1_000.0, offset: 0, slots: 100 }, 10, 0);
    let ends = tally.ends();
    assert_eq!((ends.busy, ends.failed, ends.unknown), (1_000, 1_000, 1_000));
    assert_eq!(ends.total(), 10_000);
    assert_eq!(tally.latency().len(), 7_000);
    assert!(tally.latency().min() >= MS - MS / 100);
}

#[test]
fn silence_ends_as_unknown_when_patience_does() {
    let mut target = SimulatedTarget::new(1, Service::Fixed(MS)).stalled(500 * MS, 3_600_000 * MS);
    let tally = run(&mut target, "put", closed(3, (0, 0)), 2, 0);
    assert_eq!(tally.ends().unknown, 3);
}

#[test]
fn a_read_modify_write_is_one_request_and_two_commands() {
    let tally = run(&mut SimulatedTarget::new(1, Service::Fixed(MS)), "ycsb-f", closed(1, (0, 0)), 10, 0);
    let (requests, commands) = (tally.ends().ok as f64, tally.commands() as f64);
    // Half of the requests take 2 ms, half 1 ms.
    assert!((commands / requests - 1.5).abs() < 0.02 && (commands - 10_000.0).abs() < 10.0, "{commands}/{requests}");
}

#[test]
fn tallies_of_workers_add_up() {
    let one = |clients| run(&mut SimulatedTarget::new(1, Service::Fixed(MS)), "mixed", closed(clients, (0, 0)), 4, 1);
    let (mut sum, other) = (one(1), one(4));
    let (a, b) = (sum.ends().total(), other.ends().total());
    sum.merge(&other);
    assert_eq!((sum.ends().total(), sum.latency().len()), (a + b, a + b));
}
