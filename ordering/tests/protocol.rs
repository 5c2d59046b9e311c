//! The protocol under random schedules.

mod cluster;

use cluster::fuzz::Fuzz;

/// `FUZZ_SEEDS=from..to` runs others; a failure names its seed.
fn seeds(default: std::ops::Range<u64>) -> std::ops::Range<u64> {
    let Ok(range) = std::env::var("FUZZ_SEEDS") else { return default };
    let (from, to) = range.split_once("..").expect("FUZZ_SEEDS=from..to");
    from.parse().expect("a number")..to.parse().expect("a number")
}

/// A share of the schedules of the test below.
#[test]
fn random_schedules_keep_agreement() {
    agree(seeds(0..200));
}

#[test]
#[ignore = "long: 1 300 random schedules"]
fn many_random_schedules_keep_agreement() {
    agree(seeds(200..1_500));
}

fn agree(seeds: std::ops::Range<u64>) {
    let (mut decided, mut steps) = (0, 0);
    let mut failed = Vec::new();
    for seed in seeds {
        let run = std::panic::catch_unwind(|| {
            let mut fuzz = Fuzz::new(seed);
            fuzz.run();
            (fuzz.cluster.truth.decided_upto.0, fuzz.steps)
        });
        match run {
            Ok((d, s)) => (decided, steps) = (decided + d, steps + s),
            Err(_) => failed.push(seed),
        }
        if failed.len() >= 10 {
            break;
        }
    }
    let replay = "FUZZ_SEEDS=N..N+1 FUZZ_TRACE=1 cargo test -p coppice-ordering --test protocol";
    assert!(failed.is_empty(), "seeds {failed:?} fail; replay: {replay}");
    println!("{steps} steps, {decided} instances decided");
}
