//! The small worlds of the multicast that are searched whole.

use super::Bounds;
use super::collect::Collecting;
use super::world::KEYS;

/// All orders in which three overlapping queries of two partitions each are placed, with the writes of protocol.md 5:
/// x, then y, by one client, and w by another.
fn triangle() -> Bounds {
    Bounds {
        partitions: 3,
        queries: vec![(vec![(20, 40)], Some(0)), (vec![(10, 30)], Some(0)), (vec![(10, 20), (30, 40)], Some(0))],
        collects: Vec::new(),
        collecting: Collecting::AsItShould,
        writes: vec![vec![11, 31], vec![21]],
        seats: 1,
        leaders: 0,
        pipe: 1,
        timeouts: 0,
        split: None,
        eager: true,
    }
}

/// The same, with a change of the coordinator at any moment; the third query goes to the new one.
fn zombie() -> Bounds {
    let mut bounds = Bounds { seats: 2, ..triangle() };
    bounds.queries[2].1 = Some(1);
    bounds
}

/// Two partitions and two queries of both.
fn pair() -> Bounds {
    let both = || (vec![(10, 30)], Some(0));
    Bounds { partitions: 2, queries: vec![both(), both()], writes: vec![vec![11, 21]], ..triangle() }
}

/// Two partitions and every message in its own time, with a change of the coordinator.
fn lazy() -> Bounds {
    let mut bounds = Bounds { seats: 2, eager: false, ..pair() };
    bounds.queries[1].1 = Some(1);
    bounds
}

/// The triangle, and every message in its own time.
fn lazy_triangle() -> Bounds {
    Bounds { eager: false, ..triangle() }
}

/// A partition's leader changes and may lose any part of a pipe of two.
fn leaders() -> Bounds {
    Bounds { writes: vec![vec![11, 21], vec![22]], leaders: 1, pipe: 2, ..pair() }
}

/// `place_timeout` passes once, at any moment.
fn timeout() -> Bounds {
    let mut bounds = Bounds { timeouts: 1, ..triangle() };
    bounds.queries.truncate(2);
    bounds
}

/// P1 is split at any moment.
fn split() -> Bounds {
    Bounds { writes: vec![vec![16, 21], vec![11]], split: Some(15), ..pair() }
}

/// Two partitions, a query of both by a ticket and one that is read twice, and writes of each that one client orders.
fn twice() -> Bounds {
    let mut bounds = Bounds { collects: vec![vec![(10, 30)]], writes: vec![vec![11, 21], vec![12]], ..pair() };
    bounds.queries.truncate(1);
    bounds
}

/// Of the three queries of the triangle two by tickets, and the third read twice.
fn twice_of_three() -> Bounds {
    let mut bounds = Bounds { collects: vec![vec![(10, 20), (30, 40)]], ..triangle() };
    bounds.queries.truncate(2);
    bounds
}

/// Two that are read twice, and a write of each partition: they must not see them in different orders.
fn twice_by_two() -> Bounds {
    let both = || vec![(10, 30)];
    Bounds { collects: vec![both(), both()], queries: Vec::new(), writes: vec![vec![11], vec![21]], ..pair() }
}

/// One of each, while a partition's leader changes and may lose any part of a pipe of two.
fn twice_over_leaders() -> Bounds {
    Bounds { leaders: 1, pipe: 2, ..twice() }
}

/// Worlds of ranges that are read twice without something that it takes. Each search finds a violation.
pub const WEAK: &[(&str, Make)] = &[
    ("read once", || Bounds { collecting: Collecting::Once, ..twice() }),
    ("read twice part by part", || Bounds { collecting: Collecting::PartByPart, ..twice() }),
    ("read twice unconfirmed", || Bounds { collecting: Collecting::Unconfirmed, ..twice() }),
    ("read twice past the gate", || Bounds { collecting: Collecting::Ungated, ..twice_of_three() }),
];

/// Makes a world.
type Make = fn() -> Bounds;

/// Every world, by name.
pub const WORLDS: &[(&str, Make)] = &[
    ("triangle", triangle),
    ("zombie", zombie),
    ("lazy", lazy),
    ("lazy of three", lazy_triangle),
    ("leaders", leaders),
    ("timeout", timeout),
    ("split", split),
    ("read twice", twice),
    ("read twice by two", twice_by_two),
    ("read twice, of three", twice_of_three),
    ("read twice over leaders", twice_over_leaders),
];

/// The worlds of a shape: with a change of the coordinator and an abort; with a partition that changes its leader and
/// may lose any part of a pipe of two; with that and an abort. All of it at once has no end: places that count for
/// nothing may fill a log for ever.
pub fn worlds(partitions: u8, queries: usize, writes: u8) -> Vec<(&'static str, Bounds)> {
    let plain = || of(partitions, queries, writes);
    vec![
        ("two coordinators and an abort", Bounds { seats: 2, timeouts: 1, ..plain() }),
        ("a lost tail", Bounds { leaders: 1, pipe: 2, ..plain() }),
        ("a lost tail and an abort", Bounds { leaders: 1, pipe: 2, timeouts: 1, ..plain() }),
    ]
}

/// Partitions in a ring; queries of two neighbours each, asked of whichever coordinator is the newest; writes: the
/// first two by one client, one after the other, the others by a client each. As in protocol.md 5: a query of P2 and
/// P3, one of P1 and P2; x at P1, then y at the last partition, w at P2. What else may happen is the caller's to say.
fn of(partitions: u8, queries: usize, writes: u8) -> Bounds {
    let ring = usize::from(partitions);
    let low = |partition: usize| (partition % ring + 1) as u8 * KEYS;
    let query = |number: usize| {
        let first = 1 + ring - number % ring;
        (vec![(low(first), low(first) + KEYS), (low(first + 1), low(first + 1) + KEYS)], None)
    };
    let at = |number: u8| match number {
        0 => low(0),
        1 => low(ring - 1),
        other => low(usize::from(other) - 1),
    };
    let keys: Vec<u8> = (0..writes).map(|number| at(number) + 1 + number).collect();
    let (chain, single) = keys.split_at(keys.len().min(2));
    let writes = [chain.to_vec()].into_iter().chain(single.iter().map(|key| vec![*key]));
    Bounds {
        partitions,
        queries: (0..queries).map(query).collect(),
        writes: writes.filter(|keys| !keys.is_empty()).collect(),
        ..triangle()
    }
}
