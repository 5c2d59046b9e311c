//! Connecting to a node that may be cut off: the kernel repeats a lost request to connect after a second only, and who
//! waits for that is late by as much when the network is whole again. So another attempt begins beside one that hears
//! nothing.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use tokio::time::{Instant, sleep};

/// After so long without an answer another attempt is made beside the others.
pub const BESIDE: Duration = Duration::from_millis(100);

/// So many attempts are under way at most; for one more, the first is given up.
const ATTEMPTS: usize = 10;

/// Tries until one of the attempts ends, and returns how.
pub async fn dial<F: Future>(mut connect: impl FnMut() -> F) -> F::Output {
    let mut attempts: VecDeque<Pin<Box<F>>> = VecDeque::from([Box::pin(connect())]);
    let mut pause = pin!(sleep(BESIDE));
    poll_fn(|cx| {
        while pause.as_mut().poll(cx).is_ready() {
            pause.as_mut().reset(Instant::now() + BESIDE);
            if attempts.len() == ATTEMPTS {
                attempts.pop_front();
            }
            attempts.push_back(Box::pin(connect()));
        }
        let ended = attempts.iter_mut().find_map(|attempt| match attempt.as_mut().poll(cx) {
            Poll::Ready(ended) => Some(ended),
            Poll::Pending => None,
        });
        ended.map_or(Poll::Pending, Poll::Ready)
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// `after(attempt)`: after how many milliseconds an attempt ends. When the first ended, and which it was.
    fn ended(after: fn(u32) -> u64) -> (Duration, u32) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        runtime.expect("a runtime").block_on(async {
            let (begun, made) = (Instant::now(), Cell::new(0));
            let attempt = || {
                let number = made.replace(made.get() + 1);
                async move {
                    sleep(Duration::from_millis(after(number))).await;
                    number
                }
            };
            let number = dial(attempt).await;
            (begun.elapsed(), number)
        })
    }

    #[test]
    fn an_attempt_without_an_answer_holds_up_no_other() {
        // Lost; the network is whole again after 250 ms.
        let (took, number) = ended(|number| if number < 3 { 60_000 } else { 1 });
        assert!(number == 3 && took >= 3 * BESIDE, "{number} after {took:?}");
    }

    #[test]
    fn a_slow_answer_counts_although_others_were_asked_beside_it() {
        let (took, number) = ended(|_| 350);
        assert!(number == 0 && took >= 3 * BESIDE, "{number} after {took:?}");
    }

    #[test]
    fn attempts_without_an_answer_are_given_up() {
        let (_, number) = ended(|number| if number < ATTEMPTS as u32 + 2 { 60_000 } else { 0 });
        assert_eq!(number, ATTEMPTS as u32 + 2);
    }
}
