//! How long replies wait while a partition is cut: probes at both of its ends, beside the change. Each is a
//! compare-and-swap that cannot succeed: it is ordered and flushed like any write, and changes nothing.

use std::cell::Cell;
use std::time::{Duration, Instant};

use coppice_client::Client;
use coppice_client::map::Entry;

/// Between two questions at one end.
const BEAT: Duration = Duration::from_millis(4);

/// Behind the end of the change the last questions are waited for, so long at most.
const PATIENCE: Duration = Duration::from_secs(5);

/// Both ends have to answer once in so long, or nothing is measured.
const PATIENCE_BEFORE: Duration = Duration::from_secs(1);

/// Probes of one partition.
#[derive(Debug)]
pub struct Waits {
    client: Client,
    /// In the lowest and the highest part of its range.
    keys: [Vec<u8>; 2],
}

impl Waits {
    /// Probes of this partition.
    #[must_use]
    pub fn of(client: Client, entry: &Entry) -> Waits {
        let low = [&entry.low[..], b"\0coppice probe"].concat();
        let high = match entry.high.as_deref() {
            None => [&entry.low[..], &[0xff; 16]].concat(),
            Some(high) => below(high),
        };
        Waits { client, keys: [low, high] }
    }

    /// Waits for `change` beside the probes; how long the slowest reply took, if there was one at both ends. Where
    /// nobody answers before, nothing is measured, and the change is not held up.
    pub async fn beside<T>(&self, change: impl Future<Output = T>) -> (T, Option<Duration>) {
        // Connections are made before anything is measured.
        let [low, high] = &self.keys;
        let answered = async { tokio::join!(self.ask(low), self.ask(high)) };
        if !matches!(tokio::time::timeout(PATIENCE_BEFORE, answered).await, Ok((true, true))) {
            return (change.await, None);
        }
        let ended = Cell::new(None);
        let change = async {
            let outcome = change.await;
            ended.set(Some(Instant::now()));
            outcome
        };
        let (outcome, low, high) = tokio::join!(change, self.probe(low, &ended), self.probe(high, &ended));
        (outcome, low.zip(high).map(|(low, high)| low.max(high)))
    }

    /// The longest that a reply waited: of questions asked before the change ended, and of one behind it.
    async fn probe(&self, key: &[u8], ended: &Cell<Option<Instant>>) -> Option<Duration> {
        let mut longest = None;
        let mut asked = Instant::now();
        loop {
            let began = Instant::now();
            // What fails is asked again, and counts from when it was asked first.
            if self.ask(key).await {
                longest = longest.max(Some(asked.elapsed()));
                if ended.get().is_some_and(|ended| began >= ended) {
                    return longest;
                }
                tokio::time::sleep(BEAT).await;
                asked = Instant::now();
            } else if ended.get().is_some_and(|ended| ended.elapsed() > PATIENCE) {
                return None;
            } else {
                tokio::time::sleep(BEAT).await;
            }
        }
    }

    async fn ask(&self, key: &[u8]) -> bool {
        self.client.cas(key, "never", "never").await.is_ok()
    }
}

/// A key below `high`, and close to it.
pub(crate) fn below(high: &[u8]) -> Vec<u8> {
    let mut key = high.to_vec();
    if let Some(last @ 1..) = key.pop() {
        key.push(last - 1);
        key.extend([0xff; 8]);
    }
    key
}

#[cfg(test)]
mod tests {
    use super::below;

    #[test]
    fn a_key_below_a_boundary_is_one_of_the_partition_before() {
        for boundary in [&b"g"[..], b"\0\x40", b"\x40\0\0", b"a\0", b"\x01"] {
            assert!(*below(boundary) < *boundary, "{boundary:?}");
        }
        assert_eq!(below(b"g"), b"f\xff\xff\xff\xff\xff\xff\xff\xff");
    }
}
