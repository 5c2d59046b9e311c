//! The threads of a run: connect all, start together, watch, gather.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use super::engine::{self, Orders};
use super::{Live, Tally};
use crate::target::{Nanos, Target};
use crate::workload::{Plan, Source};

/// Between "all are connected" and the first request: every worker has heard of the start by then.
const START_DELAY: Nanos = 20_000_000;

/// Room for what workers tell before a telling is dropped; each tells four times a second.
const MESSAGES_MAX: usize = 1_024;

/// What a run tells the one who watches it.
#[derive(Debug)]
pub enum Watch {
    /// All are connected; the run begins at this time of the epoch.
    Started(Nanos),
    /// How a worker is doing.
    Live(Live),
    /// So much time has passed since the start; told about twenty times a second.
    Tick(Nanos),
}

enum Message {
    Connected(Result<(), String>),
    Live(Live),
    Finished(Box<Tally>),
}

/// Runs `orders`, one worker each, on targets that `connect` makes (in the worker's thread; its first argument is the
/// number of the worker). Times are counted from `epoch`. The error is that of the first connection that failed.
pub fn run<T, C>(
    plan: &Arc<Plan>,
    orders: &[Orders],
    epoch: Instant,
    connect: C,
    mut watch: impl FnMut(Watch),
) -> Result<Tally, String>
where
    T: Target,
    C: Fn(usize) -> Result<T, String> + Sync,
{
    let (tell, hear) = sync_channel::<Message>(MESSAGES_MAX);
    std::thread::scope(|scope| {
        let mut starts = Vec::new();
        for (index, orders) in orders.iter().enumerate() {
            let (start, started) = sync_channel::<Nanos>(1);
            starts.push(start);
            let source = Source::new(plan.clone(), index as u64, orders.workers);
            let (tell, connect) = (tell.clone(), &connect);
            scope.spawn(move || worker(index, orders, source, connect, &tell, &started));
        }
        drop(tell);
        for _ in orders {
            match hear.recv() {
                Ok(Message::Connected(Ok(()))) => {}
                Ok(Message::Connected(Err(error))) => return Err(error),
                _ => return Err("a worker ended before it connected".into()),
            }
        }
        let start = epoch.elapsed().as_nanos() as Nanos + START_DELAY;
        watch(Watch::Started(start));
        for to in &starts {
            // A worker that is gone shows when its tally is missed.
            let _ = to.send(start);
        }
        gather(&hear, orders.len(), start, epoch, watch)
    })
}

fn worker<T: Target>(
    index: usize,
    orders: &Orders,
    mut source: Source,
    connect: &(impl Fn(usize) -> Result<T, String> + Sync),
    tell: &SyncSender<Message>,
    started: &Receiver<Nanos>,
) {
    let mut target = match connect(index) {
        Ok(target) => target,
        Err(error) => return drop(tell.send(Message::Connected(Err(error)))),
    };
    if tell.send(Message::Connected(Ok(()))).is_err() {
        return;
    }
    let Ok(start) = started.recv() else { return };
    let orders = Orders { start, ..orders.clone() };
    // A full channel loses a telling, never time: the watcher may be slow, the loop may not.
    let tally = engine::run(&mut target, &mut source, &orders, |live| drop(tell.try_send(Message::Live(live))));
    let _ = tell.send(Message::Finished(Box::new(tally)));
}

fn gather(
    hear: &Receiver<Message>,
    workers: usize,
    start: Nanos,
    epoch: Instant,
    mut watch: impl FnMut(Watch),
) -> Result<Tally, String> {
    let mut sum: Option<Tally> = None;
    let mut finished = 0;
    while finished < workers {
        match hear.recv_timeout(Duration::from_millis(50)) {
            Ok(Message::Live(live)) => watch(Watch::Live(live)),
            Ok(Message::Finished(tally)) => {
                finished += 1;
                match &mut sum {
                    Some(sum) => sum.merge(&tally),
                    None => sum = Some(*tally),
                }
            }
            Ok(Message::Connected(_)) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err("a worker ended without its tally".into()),
        }
        watch(Watch::Tick((epoch.elapsed().as_nanos() as Nanos).saturating_sub(start)));
    }
    sum.ok_or_else(|| "a run needs a worker".into())
}
