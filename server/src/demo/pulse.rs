//! The pulse: 25 gets and 25 writes per partition and second, which measure what a fault costs and change nothing.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use coppice_client::Client;

use super::measure::{Kind, Measure, Recent};

/// 25 of each kind per partition and second.
const BEAT: Duration = Duration::from_millis(40);
/// While a fault is measured: its end is then known to a few milliseconds.
const FAST_BEAT: Duration = Duration::from_millis(4);

/// What every partition is asked, and what came of it.
#[derive(Debug)]
pub struct Pulse {
    shared: Rc<Shared>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    measure: RefCell<Measure>,
    fast: Cell<bool>,
    began: Instant,
}

impl Pulse {
    /// Begins to beat in `partitions`, each with a key of its range.
    #[must_use]
    pub fn start(client: &Client, partitions: &[(u32, Vec<u8>)]) -> Self {
        let shared = Rc::new(Shared { measure: RefCell::default(), fast: Cell::new(false), began: Instant::now() });
        let mut tasks = Vec::new();
        for (partition, low) in partitions {
            for kind in [Kind::Write, Kind::Read] {
                let key = pulse_key(low);
                tasks.push(tokio::task::spawn_local(beat(client.clone(), shared.clone(), *partition, kind, key)));
            }
        }
        Self { shared, tasks }
    }

    /// A fault strikes now: beats faster and measures from here on.
    pub fn fault(&self) {
        self.shared.measure.borrow_mut().fault(self.shared.began.elapsed());
        self.shared.fast.set(true);
    }

    /// Waits, at most `patience`, until all of `partitions` answer again; then the pulse calms down.
    pub async fn recovered(&self, partitions: &[u32], patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        while !self.shared.measure.borrow().is_over(partitions) {
            if Instant::now() >= deadline {
                self.shared.fast.set(false);
                return false;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        self.shared.fast.set(false);
        true
    }

    /// The longest silence of `partitions` around the last fault.
    #[must_use]
    pub fn silence(&self, partitions: &[u32], kind: Kind) -> Option<Duration> {
        self.shared.measure.borrow().silence(partitions, kind)
    }

    /// The longest wait of a single question around the last fault.
    #[must_use]
    pub fn wait(&self, partitions: &[u32], kind: Kind) -> Option<Duration> {
        self.shared.measure.borrow().wait(partitions, kind)
    }

    /// Rate and latency of the last seconds.
    #[must_use]
    pub fn recent(&self) -> Option<Recent> {
        self.shared.measure.borrow().recent(self.shared.began.elapsed())
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        self.tasks.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

/// A key that nobody else uses, in the partition that begins at `low`.
fn pulse_key(low: &[u8]) -> Vec<u8> {
    let mut key = low.to_vec();
    key.extend_from_slice(b"\0coppice demo pulse");
    key
}

async fn beat(client: Client, shared: Rc<Shared>, partition: u32, kind: Kind, key: Vec<u8>) {
    loop {
        let asked = shared.began.elapsed();
        let answered = match kind {
            // The key is never written, so it never has this value.
            Kind::Write => client.cas(&*key, "never", "never").await.is_ok(),
            Kind::Read => client.get(&*key).await.is_ok(),
        };
        let now = shared.began.elapsed();
        if answered {
            shared.measure.borrow_mut().answer(partition, kind, asked, now);
        }
        let pause = if shared.fast.get() { FAST_BEAT } else { BEAT };
        // At least a moment, also after an answer that took longer than a beat.
        let rest = (asked + pause).saturating_sub(now).max(Duration::from_millis(1));
        tokio::time::sleep(rest).await;
    }
}
