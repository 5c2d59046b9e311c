//! Costs are learned from measured times (papers.md A16).

use coppice_ordering::tuning::{Fit, InstanceCost, MessageCost, Sizes};

/// Numbers from 0 up to 1, the same in every run.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Ten percent up or down.
    fn scatter(&mut self) -> f64 {
        0.9 + 0.2 * self.next()
    }
}

const COST: [f64; 3] = [0.030, 0.002, 1e-6];

fn row(k: f64, bytes: f64) -> ([f64; 3], f64) {
    let y = COST[0] + COST[1] * k + COST[2] * k * bytes;
    ([1.0, k, k * bytes], y)
}

fn scaled((x, y): ([f64; 3], f64), by: f64) -> ([f64; 3], f64) {
    (x.map(|value| value / by), y / by)
}

fn near(found: [f64; 3], expected: [f64; 3], share: f64) -> bool {
    found.iter().zip(expected).all(|(found, expected)| (found / expected - 1.0).abs() <= share)
}

#[test]
fn planted_costs_are_found_within_five_percent_under_ten_percent_of_noise() {
    for seed in 0..20 {
        let (mut noise, mut fit) = (Noise(seed), Fit::<3>::new(1e9));
        for _ in 0..1_500 {
            let (k, bytes) = (1.0 + (300.0 * noise.next()).floor(), (noise.next() * 9.0).exp2() * 16.0);
            let (x, y) = row(k, bytes);
            let (x, y) = scaled((x, y * noise.scatter()), y);
            fit.add(x, y);
        }
        assert!(fit.spans());
        let found = fit.solve([0.1, 0.01, 1e-5]);
        assert!(near(found, COST, 0.05), "seed {seed}: {found:?}");
    }
}

#[test]
fn the_papers_message_costs_come_back_from_what_instances_cost() {
    // papers.md A16. Three numbers per instance tell b_rep, b_cli and the sum of what bytes cost; to tell a_cli from
    // a_rep it would take groups of several sizes.
    let (client, replica) = (
        MessageCost { per_byte_ms: 0.005 / 1_024.0, per_message_ms: 0.08 },
        MessageCost { per_byte_ms: 0.0035 / 1_024.0, per_message_ms: 0.22 },
    );
    let (mut noise, mut fit) = (Noise(7), Fit::<3>::new(1e9));
    for _ in 0..3_000 {
        let request = (noise.next() * 8.0).exp2() * 64.0;
        let sizes = Sizes { request, request_header: 16.0, batch_header: 4.0, answer: 8.0, vote: 8.0 };
        let k = 1.0 + (100.0 * noise.next()).floor();
        let y = InstanceCost::of_messages(client, replica, 0.0, 3, &sizes).of(k);
        let (x, y) = scaled(([1.0, k, k * (request + 16.0)], y * noise.scatter()), y);
        fit.add(x, y);
    }
    let found = fit.solve([1.0, 1.0, 1e-6]);
    let per_byte = client.per_byte_ms + 2.0 * replica.per_byte_ms;
    assert!(near(found, [2.0 * replica.per_message_ms, client.per_message_ms, per_byte], 0.05), "{found:?}");
}

#[test]
fn rows_that_do_not_span_leave_what_was_believed_and_say_so() {
    // Every batch is alike: only their sum can be known.
    let mut fit = Fit::<3>::new(100.0);
    for _ in 0..1_000 {
        let (x, y) = row(100.0, 64.0);
        let (x, y) = scaled((x, y), y);
        fit.add(x, y);
    }
    assert!(!fit.spans());
    // What was believed was twice too dear in every part: it is corrected, and its proportions stay.
    let found = fit.solve(COST.map(|cost| 2.0 * cost));
    let total = found[0] + 100.0 * found[1] + 6_400.0 * found[2];
    assert!((total / row(100.0, 64.0).1 - 1.0).abs() < 0.01, "{found:?}");
    assert!((found[1] / found[0] / (COST[1] / COST[0]) - 1.0).abs() < 0.9, "{found:?}");
    // Nothing measured is what was believed.
    assert_eq!(Fit::<3>::new(10.0).solve(COST), COST);
    assert!(!Fit::<3>::new(10.0).spans());
}

#[test]
fn what_is_old_fades_and_what_is_new_counts() {
    let mut fit = Fit::<3>::new(50.0);
    let mut noise = Noise(3);
    let mut feed = |fit: &mut Fit<3>, factor: f64| {
        for _ in 0..500 {
            let (x, y) = row(1.0 + (200.0 * noise.next()).floor(), 16.0 + 8_000.0 * noise.next());
            let (x, y) = scaled((x, y * factor), y * factor);
            fit.add(x, y);
        }
    };
    feed(&mut fit, 1.0);
    assert!(near(fit.solve(COST), COST, 0.01));
    // Everything takes three times as long now.
    feed(&mut fit, 3.0);
    let found = fit.solve(COST);
    assert!(near(found, COST.map(|cost| 3.0 * cost), 0.06), "{found:?}");
    assert!(fit.weight() < 80.0, "the past is bounded: {}", fit.weight());
}

#[test]
fn no_cost_is_ever_negative_and_senseless_rows_are_not_taken() {
    let mut fit = Fit::<2>::new(100.0);
    // Larger batches took less time: the slope would be negative.
    (1..50).for_each(|k| fit.add([1.0, f64::from(k)], 1.0 / f64::from(k)));
    let found = fit.solve([1.0, 1.0]);
    assert!(found.iter().all(|cost| *cost >= 0.0 && cost.is_finite()), "{found:?}");
    let before = fit.clone();
    for (x, y) in [([f64::NAN, 1.0], 1.0), ([1.0, f64::INFINITY], 1.0), ([1.0, 1.0], -1.0), ([-1.0, 1.0], 1.0)] {
        fit.add(x, y);
    }
    assert_eq!(fit, before);
}

#[test]
fn a_million_rows_lose_no_digits() {
    // Columns of very different size, hardly apart: what the squares of such numbers could not tell.
    let mut fit = Fit::<3>::new(1e12);
    let mut noise = Noise(1);
    for _ in 0..200_000 {
        let k = 1_000.0 + noise.next();
        let x = [1.0, k, 1e6 * noise.next()];
        fit.add(x, 5.0 + 2.0 * x[1] + 3e-6 * x[2]);
    }
    // The prior is what was believed, and right: it must not be needed for the sum, which the rows determine.
    let found = fit.solve([5.0, 2.0, 3e-6]);
    assert!(near(found, [5.0, 2.0, 3e-6], 1e-6), "{found:?}");
}
