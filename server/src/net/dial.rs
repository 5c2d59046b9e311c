//! Connecting to a node until it answers.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use coppice_client::dial::dial;
use tokio::time::sleep;

/// Wait between an attempt that failed and the next one: short, because a node that restarts should be heard at once.
pub const WAITS: [Duration; 4] =
    [Duration::from_millis(5), Duration::from_millis(20), Duration::from_millis(50), Duration::from_millis(100)];

/// An answer to a greeting that takes longer is waited for beside another connection: what was sent into a cut is
/// repeated ever more rarely, and comes late when the network is whole again.
const GREETING_BESIDE: Duration = Duration::from_millis(500);

/// So many answers are waited for at most; for one more, the first is given up.
const GREETINGS_MAX: usize = 10;

/// Tries until an attempt succeeds.
pub async fn redial<S, F>(mut attempt: impl FnMut() -> F) -> S
where
    F: Future<Output = io::Result<S>>,
{
    let mut waits = WAITS.iter().chain(WAITS.last().into_iter().cycle());
    loop {
        match attempt().await {
            Ok(connected) => return connected,
            Err(error) => tracing::debug!(%error, "a peer cannot be reached"),
        }
        sleep(*waits.next().expect("without end")).await;
    }
}

/// Connects and greets until an answer comes, or nobody can be there.
pub async fn reach<S, T, F, G>(mut connect: impl FnMut() -> F, greet: impl Fn(S) -> G) -> io::Result<T>
where
    F: Future<Output = io::Result<S>>,
    G: Future<Output = io::Result<T>>,
{
    let mut greetings: VecDeque<Pin<Box<G>>> = VecDeque::new();
    loop {
        let connected = tokio::select! {
            biased;
            answered = first(&mut greetings) => return answered,
            connected = dial(&mut connect) => connected?,
        };
        if greetings.len() == GREETINGS_MAX {
            greetings.pop_front();
        }
        greetings.push_back(Box::pin(greet(connected)));
        tokio::select! {
            biased;
            answered = first(&mut greetings) => return answered,
            () = sleep(GREETING_BESIDE) => {}
        }
    }
}

/// Waits for the first of them to end; for ever if there is none.
async fn first<G: Future>(pending: &mut VecDeque<Pin<Box<G>>>) -> G::Output {
    poll_fn(|cx| {
        let ended = pending.iter_mut().find_map(|greeting| match greeting.as_mut().poll(cx) {
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

    use tokio::time::Instant;

    use super::*;

    #[test]
    fn refusals_come_at_once_and_are_followed_soon_by_another_attempt() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let (begun, made) = (Instant::now(), Cell::new(0));
        let attempt = || {
            let number = made.replace(made.get() + 1);
            async move { if number == 5 { Ok(number) } else { Err(io::ErrorKind::ConnectionRefused.into()) } }
        };
        let number = runtime.expect("a runtime").block_on(redial(attempt));
        let (took, waits) = (begun.elapsed(), WAITS.iter().chain(WAITS.last()).sum::<Duration>());
        assert!(number == 5 && took >= waits, "{number} after {took:?}");
    }

    /// The first answer never comes, as after a cut that ended while the greeting was under way.
    #[test]
    fn a_greeting_without_an_answer_holds_up_no_other() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let (begun, made) = (Instant::now(), Cell::new(0));
        let connect = || std::future::ready(Ok(made.replace(made.get() + 1)));
        let greet = |number: u32| async move {
            if number < 2 {
                std::future::pending::<()>().await;
            }
            Ok(number)
        };
        let answered = runtime.expect("a runtime").block_on(reach(connect, greet));
        assert_eq!(answered.expect("an answer"), 2);
        assert!(begun.elapsed() >= 2 * GREETING_BESIDE);
    }
}
