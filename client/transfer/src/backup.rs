//! A backup: all pairs of a cluster at one moment, as a range over all partitions gives them, into a directory or
//! an object store.
//!
//! A reading that is interrupted begins again, at another moment: a backup is one moment, or none. What the earlier
//! reading has written, or an earlier backup, is not read and written again where it has not changed: the nodes compare
//! their pairs with the chunks that are there.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use coppice_btree::Digest;
use coppice_client::wire::Stretch;
use coppice_client::{Client, ComparedRange, Range, Read};
use tokio::sync::mpsc;

use crate::chunk::{Chunk, Cutter};
use crate::directory::ChunkStore;
use crate::error::{Error, Result};
use crate::load::is_passing;
use crate::manifest::{ChunkEntry, Header, Manifest};
use crate::storage::blocking;

/// How often all is read, at most.
const READINGS_MAX: u32 = 10;
/// Pause before it is read again.
const PAUSE: Duration = Duration::from_millis(500);
/// Longest pause behind a chunk: the reading must end before its snapshots expire.
const PACE_PAUSE_MAX: Duration = Duration::from_millis(100);
/// Shorter pauses are added up, since nodes use them: a node compares 32 chunks ahead of the reader, which takes it
/// some five milliseconds.
const PACE_PAUSE_MIN: Duration = Duration::from_millis(50);
/// Chunks that wait to be written: what the reader is ahead of the disk.
const CHUNKS_AHEAD: usize = 8;

/// What a backup is asked for.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where it goes.
    pub directory: PathBuf,
    /// Goes on with an interrupted one.
    pub resume: bool,
    /// An earlier backup, whose chunks are not read and written again.
    pub since: Option<PathBuf>,
    /// Percent of the time, from 1 to 100, in which it reads: the rest is for the others whom the cluster serves.
    pub pace: u32,
    /// Version of the program.
    pub program: String,
}

/// How far it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It goes on with so many chunks, of so many bytes.
    Held(usize, u64),
    /// Pairs so far, and their bytes, read or unchanged.
    Read(u64, u64),
    /// The reading was interrupted for this reason, and begins again at another moment.
    Again(String),
}

/// A backup that is whole.
#[derive(Clone, Debug)]
pub struct Done {
    /// What it is.
    pub manifest: Manifest,
    /// Bytes that were written for it in the last reading.
    pub written: u64,
    /// Bytes of chunks that were there.
    pub unchanged: u64,
    /// Bytes of keys and values that nodes have sent in the last reading.
    pub read: u64,
}

/// What one reading has come to.
struct Reading {
    store: ChunkStore,
    chunks: Vec<ChunkEntry>,
    written: u64,
    unchanged: u64,
}

impl Reading {
    fn take(&mut self, chunk: &Chunk) -> Result<()> {
        let (entry, new) = self.store.put(chunk)?;
        *(if new { &mut self.written } else { &mut self.unchanged }) += u64::from(chunk.summary().bytes);
        self.chunks.push(entry);
        Ok(())
    }
}

/// What a reading comes to, piece by piece in key order.
enum Piece {
    Chunk(Chunk),
    /// A chunk that is there already.
    Same(ChunkEntry),
}

/// What the range said of itself.
#[derive(Default)]
struct Moment {
    pairs: u64,
    bytes: u64,
    /// Bytes that came.
    read: u64,
    digest: Digest,
    ticket: Option<String>,
    positions: Vec<String>,
}

impl Moment {
    fn add(&mut self, piece: &Piece) {
        match piece {
            Piece::Chunk(chunk) => self.digest = self.digest.and(chunk.summary().digest),
            Piece::Same(entry) => {
                if let (Some(summary), Some(sum)) = (entry.summary(), entry.sum()) {
                    self.digest = self.digest.and(summary.digest);
                    (self.pairs, self.bytes) = (self.pairs + sum.pairs, self.bytes + sum.bytes);
                }
            }
        }
    }
}

/// Backs a cluster up.
///
/// # Errors
/// See [`Error`]. What was written stays, and a backup that resumes uses it.
pub async fn backup(client: &Client, plan: &Plan, mut told: impl FnMut(Progress)) -> Result<Done> {
    // Before anything is made on disk.
    let cluster = client.map().await?.cluster;
    let Plan { directory, since, resume, .. } = plan.clone();
    let store = blocking(move || {
        let mut store = ChunkStore::open(&directory, resume)?;
        since.map_or(Ok(()), |earlier| store.build_on(&earlier))?;
        Result::Ok(store)
    });
    let mut store = store.await?;
    let (chunks, bytes) = store.held();
    if chunks > 0 {
        told(Progress::Held(chunks, bytes));
    }
    for reading in 1.. {
        let (done, ended) = read(client, plan.pace, store, &mut told).await;
        let done = done?;
        match ended {
            Ok(moment) => {
                let Reading { store, chunks, written, unchanged } = done;
                let read = moment.read;
                let header = header(&plan.program, cluster.to_string(), moment);
                let manifest = blocking(move || store.finish(header, chunks)).await?;
                return Ok(Done { manifest, written, unchanged, read });
            }
            Err(Error::Client(error))
                if reading < READINGS_MAX && error.reason().is_some_and(|why| again(why, reading)) =>
            {
                told(Progress::Again(error.to_string()));
                store = done.store;
            }
            Err(error) => return Err(error),
        }
        tokio::time::sleep(PAUSE).await;
    }
    unreachable!("the readings are counted")
}

/// Whether a reading that ended so is worth another one: the first must at least have begun.
fn again(why: &coppice_client::error::Reason, reading: u32) -> bool {
    is_passing(why) && (reading > 1 || matches!(why, coppice_client::error::Reason::Interrupted { .. }))
}

fn header(program: &str, cluster: String, moment: Moment) -> Header {
    let (magic, format) = Manifest::magic();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let id = Digest::of_pair(cluster.as_bytes(), &now.as_nanos().to_le_bytes()).and(moment.digest);
    Header {
        magic,
        format,
        program: program.to_owned(),
        id: id.to_string(),
        cluster,
        finished: now.as_secs(),
        ticket: moment.ticket,
        positions: moment.positions,
        pairs: moment.pairs,
        bytes: moment.bytes,
        digest: moment.digest.to_string(),
        bases: Vec::new(),
        files: Vec::new(),
    }
}

/// Reads all pairs once. A thread of its own writes the chunks; it gives the store back, however the reading ended.
async fn read(
    client: &Client,
    pace: u32,
    store: ChunkStore,
    told: &mut impl FnMut(Progress),
) -> (Result<Reading>, Result<Moment>) {
    let (sender, mut receiver) = mpsc::channel::<Piece>(CHUNKS_AHEAD);
    let (stretches, there) = store.stretches();
    let writer = tokio::task::spawn_blocking(move || {
        let mut reading = Reading { store, chunks: Vec::new(), written: 0, unchanged: 0 };
        while let Some(piece) = receiver.blocking_recv() {
            match piece {
                Piece::Chunk(chunk) => reading.take(&chunk)?,
                Piece::Same(entry) => {
                    reading.unchanged += entry.summary().map_or(0, |summary| u64::from(summary.bytes));
                    reading.chunks.push(entry);
                }
            }
        }
        reading.store.flush()?;
        Ok(reading)
    });
    let ended = stream(client, pace, (stretches.into(), there), &sender, told).await;
    drop(sender);
    match writer.await {
        Ok(reading) => (reading, ended),
        Err(ended) => std::panic::resume_unwind(ended.into_panic()),
    }
}

async fn stream(
    client: &Client,
    pace: u32,
    (stretches, there): (Arc<[Stretch]>, Vec<ChunkEntry>),
    pieces: &mpsc::Sender<Piece>,
    told: &mut impl FnMut(Progress),
) -> Result<Moment> {
    let mut range = client.compare(Range::new(..), stretches).await?;
    let (mut cutter, mut moment) = (Cutter::default(), Moment::default());
    let (mut begun, mut pause) = (Instant::now(), Duration::ZERO);
    loop {
        let read = range.next().await?;
        let goes_on = read.is_some();
        let (chunk, same) = match read {
            Some(Read::Pair(key, value)) => {
                let bytes = (key.len() + value.len()) as u64;
                moment.pairs += 1;
                (moment.bytes, moment.read) = (moment.bytes + bytes, moment.read + bytes);
                (cutter.push(key, value), None)
            }
            // Chunks end where partitions do: a node compares what lies in one.
            Some(Read::Partition) | None => (cutter.finish(), None),
            Some(Read::Same(number)) => (cutter.finish(), Some(there[number].clone())),
        };
        for piece in chunk.map(Piece::Chunk).into_iter().chain(same.map(Piece::Same)) {
            moment.add(&piece);
            told(Progress::Read(moment.pairs, moment.bytes));
            if pieces.send(piece).await.is_err() {
                // The writer has failed, and says why.
                return Ok(moment);
            }
            pause += pace_pause(begun.elapsed(), pace);
            if pause >= PACE_PAUSE_MIN {
                tokio::time::sleep(std::mem::take(&mut pause)).await;
            }
            begun = Instant::now();
        }
        if !goes_on {
            told(Progress::Read(moment.pairs, moment.bytes));
            return Ok(Moment { ticket: ticket(&range), positions: positions(&range), ..moment });
        }
    }
}

/// The pause that a chunk costs which took so long. Where the cluster is busy chunks take longer, and the pause too.
fn pace_pause(busy: Duration, pace: u32) -> Duration {
    let pace = pace.clamp(1, 100);
    (busy * (100 - pace) / pace).min(PACE_PAUSE_MAX)
}

fn ticket(range: &ComparedRange) -> Option<String> {
    range.ticket().map(|ticket| ticket.to_string())
}

fn positions(range: &ComparedRange) -> Vec<String> {
    range.positions().iter().map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pace_is_a_share_of_the_time() {
        let busy = Duration::from_millis(10);
        assert_eq!(pace_pause(busy, 100), Duration::ZERO);
        assert_eq!(pace_pause(busy, 50), busy);
        assert_eq!(pace_pause(busy, 25), busy * 3);
        assert_eq!((pace_pause(busy, 0), pace_pause(busy, 1)), (PACE_PAUSE_MAX, PACE_PAUSE_MAX));
    }
}
