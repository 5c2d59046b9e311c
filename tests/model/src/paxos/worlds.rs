//! The small worlds of one group that are searched whole.

use super::{Bounds, Disks, News};

/// The worlds of a shape: first with all its instances; then one instance and more that may happen.
pub fn worlds(acceptors: u32, proposers: u32, instances: u64) -> Vec<(&'static str, Bounds)> {
    let all = Bounds {
        acceptors,
        proposers,
        instances,
        campaigns: 2,
        crashes: 0,
        eager: true,
        news: News::Heartbeats,
        disks: Disks::Kept,
    };
    let one = || Bounds { instances: 1, ..all.clone() };
    vec![
        ("news from any replica", Bounds { news: News::Anybody, ..one() }),
        ("a crash", Bounds { crashes: 1, ..one() }),
        ("a lost disk", Bounds { crashes: 1, disks: Disks::Lost, ..one() }),
        ("a lost disk under its old id", Bounds { crashes: 1, disks: Disks::Forgotten, eager: false, ..one() }),
        ("flushes in their own time", Bounds { eager: false, ..one() }),
        ("a third campaign", Bounds { campaigns: 3, ..one() }),
        ("all instances", Bounds { news: News::Proposals, ..all }),
    ]
}

/// Names of those that `cargo test` searches: seconds each.
pub const WORLDS_SMALL: [&str; 3] = ["flushes in their own time", "a crash", "a lost disk"];
