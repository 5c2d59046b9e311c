//! The pulse: gets and writes in every partition, which measure what a fault costs and change nothing. They are rare
//! while nothing happens, and quick around a fault.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use coppice_client::{Client, Range};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::measure::{Kind, Measure, Recent};
use crate::cli::latency_probe::below;

/// While nothing happens. Each command wakes its group, whose leader then sends heartbeats for a while: at a beat a
/// second that takes more than all else that an idle demo does.
const CALM_BEAT: Duration = Duration::from_secs(2);
/// Around a fault: its beginning and its end are then known to a few milliseconds.
const FAST_BEAT: Duration = Duration::from_millis(4);
/// Partitions that have not answered by then are silent before the fault too.
const QUICKEN_PATIENCE: Duration = Duration::from_millis(500);

/// What every partition is asked, and what came of it.
#[derive(Debug)]
pub struct AvailabilityProbe {
    client: Client,
    shared: Rc<Shared>,
    /// The tasks that ask each partition.
    beats: BTreeMap<u32, Beats>,
    across: JoinHandle<()>,
}

/// What asks one partition.
#[derive(Debug)]
struct Beats {
    /// Where the partition begins.
    low: Vec<u8>,
    tasks: [JoinHandle<()>; 2],
}

impl Drop for Beats {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

#[derive(Debug)]
struct Shared {
    measure: RefCell<Measure>,
    /// A fault is about to strike, or is measured.
    fast: watch::Sender<bool>,
    /// A fault has struck: queries are asked until it is over.
    struck: Cell<bool>,
    /// Where two partitions meet, if there are two.
    boundary: RefCell<Option<Vec<u8>>>,
    began: Instant,
}

impl AvailabilityProbe {
    /// Begins to beat in `partitions`, each with a key of its range.
    #[must_use]
    pub fn start(client: &Client, partitions: &[(u32, Vec<u8>)]) -> Self {
        let shared = Rc::new(Shared {
            measure: RefCell::default(),
            fast: watch::Sender::new(false),
            struck: Cell::new(false),
            boundary: RefCell::default(),
            began: Instant::now(),
        });
        let across = crate::task::spawn(ask_across(client.clone(), shared.clone()));
        let mut pulse = Self { client: client.clone(), shared, beats: BTreeMap::new(), across };
        pulse.follow(partitions);
        pulse
    }

    /// Beats in these partitions from now on: those that were split off too, and not in those that were merged away.
    pub fn follow(&mut self, partitions: &[(u32, Vec<u8>)]) {
        self.beats.retain(|id, beats| partitions.iter().any(|(other, low)| other == id && *low == beats.low));
        for (id, low) in partitions {
            let (client, shared) = (&self.client, &self.shared);
            self.beats.entry(*id).or_insert_with(|| Beats {
                low: low.clone(),
                tasks: [Kind::Write, Kind::Read]
                    .map(|kind| crate::task::spawn(beat(client.clone(), shared.clone(), *id, kind, pulse_key(low)))),
            });
        }
        *self.shared.boundary.borrow_mut() =
            partitions.iter().map(|(_, low)| low).filter(|low| !low.is_empty()).min().cloned();
    }

    /// Beats fast until [`AvailabilityProbe::calm`], and waits until all of `partitions` have answered so: what a fault
    /// costs begins with the last answer before it.
    pub async fn quicken(&self, partitions: &[u32]) {
        let since = self.shared.began.elapsed();
        self.shared.fast.send_replace(true);
        while !self.shared.measure.borrow().answered_since(partitions, since)
            && self.shared.began.elapsed() < since + QUICKEN_PATIENCE
        {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// A fault strikes now: measures from here on.
    pub fn fault(&self) {
        self.shared.measure.borrow_mut().fault(self.shared.began.elapsed());
        self.shared.struck.set(true);
        self.shared.fast.send_replace(true);
    }

    /// Nothing is measured any longer.
    pub fn calm(&self) {
        self.shared.struck.set(false);
        self.shared.fast.send_replace(false);
    }

    /// Waits, at most `patience`, until all of `partitions` answer again, and queries too if they are to; then the
    /// pulse calms down.
    pub async fn recovered(&self, partitions: &[u32], queries: bool, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        let is_over =
            |measure: &Measure| measure.is_over(partitions) && (!queries || measure.query_silence().is_some());
        let recovered = loop {
            let recovered = is_over(&self.shared.measure.borrow());
            if recovered || Instant::now() >= deadline {
                break recovered;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        };
        self.calm();
        recovered
    }

    /// The longest silence of `partitions` around the last fault.
    #[must_use]
    pub fn silence(&self, partitions: &[u32], kind: Kind) -> Option<Duration> {
        self.shared.measure.borrow().silence(partitions, kind)
    }

    /// How long queries across partitions were not answered behind the last fault.
    #[must_use]
    pub fn query_silence(&self) -> Option<Duration> {
        self.shared.measure.borrow().query_silence()
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

impl Drop for AvailabilityProbe {
    fn drop(&mut self) {
        self.across.abort();
    }
}

/// A key that nobody else uses, in the partition that begins at `low`.
fn pulse_key(low: &[u8]) -> Vec<u8> {
    let mut key = low.to_vec();
    key.extend_from_slice(b"\0coppice demo pulse");
    key
}

async fn beat(client: Client, shared: Rc<Shared>, partition: u32, kind: Kind, key: Vec<u8>) {
    let mut fast = shared.fast.subscribe();
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
        let pause = if *fast.borrow_and_update() { FAST_BEAT } else { CALM_BEAT };
        // At least a moment, also after an answer that took longer than a beat.
        let rest = (asked + pause).saturating_sub(now).max(Duration::from_millis(1));
        // A calm pulse quickens at once.
        let _ = tokio::time::timeout(rest, fast.changed()).await;
    }
}

/// Reads across a boundary of two partitions while a fault is measured.
async fn ask_across(client: Client, shared: Rc<Shared>) {
    let mut fast = shared.fast.subscribe();
    // It ends with the pulse.
    while fast.changed().await.is_ok() {
        while shared.struck.get() {
            let boundary = shared.boundary.borrow().clone();
            let asked = shared.began.elapsed();
            if let Some(boundary) = boundary
                && is_answered(&client, &below(&boundary), &[&boundary[..], b"\0"].concat()).await
            {
                shared.measure.borrow_mut().query(asked, shared.began.elapsed());
            }
            tokio::time::sleep(FAST_BEAT).await;
        }
    }
}

async fn is_answered(client: &Client, low: &[u8], high: &[u8]) -> bool {
    // One pair is enough: the ticket is what is measured.
    let Ok(mut pairs) = client.range(Range::between(low, Some(high)).keys_only().limit(1)).await else { return false };
    loop {
        match pairs.next().await {
            Ok(Some(_)) => {}
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
}
