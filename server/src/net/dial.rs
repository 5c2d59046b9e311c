//! Connecting to a node that may be cut off: the kernel repeats a lost request to connect after a second only, and who
//! waits for that is late by as much when the network is whole again. So a new attempt begins beside one that hears
//! nothing.

use std::future::Future;
use std::io;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

/// Wait between an attempt that failed and the next one: short, because a node that restarts should be heard at once.
pub const WAITS: [Duration; 4] =
    [Duration::from_millis(5), Duration::from_millis(20), Duration::from_millis(50), Duration::from_millis(100)];

/// After so long without an answer another attempt is made beside the others.
const BESIDE: Duration = Duration::from_millis(100);

/// How long one attempt may take; so at most ten are under way.
const ATTEMPT_MAX: Duration = Duration::from_secs(1);

/// Tries until an attempt succeeds. Must run in a local set.
pub async fn dial<S: 'static, F>(mut connect: impl FnMut() -> F) -> S
where
    F: Future<Output = io::Result<S>> + 'static,
{
    let mut attempts = JoinSet::new();
    let mut failures = 0;
    loop {
        attempts.spawn_local(timeout(ATTEMPT_MAX, connect()));
        let mut next = Instant::now() + BESIDE;
        loop {
            tokio::select! {
                Some(ended) = attempts.join_next() => match ended {
                    Ok(Ok(Ok(connected))) => return connected,
                    Ok(Ok(Err(error))) => {
                        tracing::debug!(%error, "a peer cannot be reached");
                        next = Instant::now() + WAITS[failures.min(WAITS.len() - 1)];
                        failures += 1;
                    }
                    // Without an answer, or ended with this runtime.
                    Ok(Err(_)) | Err(_) => {}
                },
                () = sleep_until(next) => break,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;

    /// `how(attempt)`: after how many milliseconds an attempt ends, and whether it connects. When one did, and which.
    fn connected(how: fn(u32) -> (u64, bool)) -> (Duration, u32) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        tokio::task::LocalSet::new().block_on(&runtime.expect("a runtime"), async {
            let (begun, made) = (Instant::now(), Rc::new(Cell::new(0)));
            let counted = Rc::clone(&made);
            let attempt = move || {
                let number = counted.get();
                counted.set(number + 1);
                async move {
                    let (after, connects) = how(number);
                    tokio::time::sleep(Duration::from_millis(after)).await;
                    if connects { Ok(number) } else { Err(io::ErrorKind::ConnectionRefused.into()) }
                }
            };
            let number = dial(attempt).await;
            (begun.elapsed(), number)
        })
    }

    #[test]
    fn an_attempt_without_an_answer_holds_up_no_other() {
        // Lost; the network is whole again after 250 ms.
        let (took, number) = connected(|number| if number < 3 { (60_000, false) } else { (1, true) });
        assert!(number == 3 && took >= 3 * BESIDE, "{number} after {took:?}");
    }

    #[test]
    fn a_slow_answer_counts_although_others_were_asked_beside_it() {
        let (took, number) = connected(|_| (350, true));
        assert!(number == 0 && took >= 3 * BESIDE, "{number} after {took:?}");
    }

    #[test]
    fn refusals_come_at_once_and_are_followed_soon_by_another_attempt() {
        let (took, number) = connected(|number| (0, number == 5));
        let waits: Duration = WAITS.iter().chain(WAITS.last()).sum();
        assert!(number == 5 && took >= waits, "{number} after {took:?}");
    }
}
