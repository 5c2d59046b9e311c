//! Connecting to a node until it answers.

use std::future::Future;
use std::io;
use std::time::Duration;

use coppice_client::dial::dial;
use tokio::time::sleep;

/// Wait between an attempt that failed and the next one: short, because a node that restarts should be heard at once.
pub const WAITS: [Duration; 4] =
    [Duration::from_millis(5), Duration::from_millis(20), Duration::from_millis(50), Duration::from_millis(100)];

/// Tries until an attempt succeeds.
pub async fn redial<S, F>(mut connect: impl FnMut() -> F) -> S
where
    F: Future<Output = io::Result<S>>,
{
    let mut waits = WAITS.iter().chain(WAITS.last().into_iter().cycle());
    loop {
        match dial(&mut connect).await {
            Ok(connected) => return connected,
            Err(error) => tracing::debug!(%error, "a peer cannot be reached"),
        }
        sleep(*waits.next().expect("without end")).await;
    }
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
        let (took, waits) = (begun.elapsed(), WAITS.iter().chain(WAITS.last()).sum());
        assert!(number == 5 && took >= waits, "{number} after {took:?}");
    }
}
