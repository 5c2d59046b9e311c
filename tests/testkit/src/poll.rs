//! Waiting for a condition with a bound, in place of sleeping for a time.

use std::time::{Duration, Instant};

/// How often a condition is looked at.
pub const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Looks until there is something, `limit` at most.
pub fn found_within<T>(limit: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let begun = Instant::now();
    loop {
        let found = look();
        if found.is_some() || begun.elapsed() >= limit {
            return found;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Polls until the condition holds, `limit` at most: whether it does.
pub fn holds_within(limit: Duration, mut holds: impl FnMut() -> bool) -> bool {
    found_within(limit, || holds().then_some(())).is_some()
}
