//! The tiers against brute force.

use super::super::diff::compare_all;

#[test]
fn the_tiers_agree_with_brute_force() {
    let tally = compare_all(0..2_000).unwrap_or_else(|found| panic!("seed {}: {}", found.seed, found.what));
    println!("{tally}");
    assert!(tally.illegal > 300 && tally.unanswered > 300 && tally.certified > 300, "{tally}");
}
