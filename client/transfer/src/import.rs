//! An import: the rows of a file into a cluster, in bulk loads. Where a key is there, or comes again, the later row
//! counts. It is not one moment.
//!
//! Rows are gathered in batches, which are sorted. Batches that share no keys are under way together, so a file in key
//! order never waits. A position beside the file says how many rows are loaded: an import that resumes passes over
//! them.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use coppice_client::{Client, ClusterId, Value};
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};

use crate::error::{Error, Refusal, Result, at, damaged};
use crate::load::{Loader, Pairs, Present};
use crate::rows::bin::BinRows;
use crate::rows::csv::CsvRows;
use crate::rows::etcd::EtcdRows;
use crate::rows::jsonl::JsonlRows;
use crate::rows::rdb::RdbRows;
use crate::rows::{Counted, RowError, Rows, TextOptions};

/// Rows in a batch, at most.
const BATCH_ROWS_MAX: usize = 1 << 18;
/// Bytes of keys and values in a batch, at most, beside its last row.
const BATCH_BYTES_MAX: usize = 8 << 20;
/// How often the position is written.
const POSITION_EVERY: Duration = Duration::from_secs(1);
/// Bytes at the beginning of a file by which it is known again.
const HEAD_BYTES: u64 = 64 << 10;
/// The format of positions.
const POSITION_FORMAT: u64 = 1;

/// The formats that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Format {
    /// Comma-separated values.
    Csv,
    /// JSON lines.
    Jsonl,
    /// A dump file of Redis.
    Rdb,
    /// A snapshot of etcd.
    Etcd,
    /// Coppice's own.
    Bin,
}

/// What an import is asked for. What is serialized says which rows it makes of a file.
#[derive(Clone, Debug, Serialize)]
pub struct Plan {
    /// The file; none: stdin.
    #[serde(skip)]
    pub file: Option<PathBuf>,
    /// Its format.
    pub format: Format,
    /// How text is written in it.
    pub options: TextOptions,
    /// Of a dump of Redis: which database.
    pub database: u64,
    /// Stands before each key.
    pub prefix: Vec<u8>,
    /// Goes on with an interrupted import of the file.
    #[serde(skip)]
    pub resume: bool,
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Rows.
    pub rows: u64,
    /// Rows that an earlier import has loaded.
    pub passed_over: u64,
    /// Bytes read.
    pub read: u64,
    /// Of so many bytes; none: of a stream, or of a snapshot of etcd, which is not read from its beginning to its end.
    pub size: Option<u64>,
}

/// An import that is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// Rows of the file.
    pub rows: u64,
    /// Of these, rows that an earlier import has loaded.
    pub passed_over: u64,
    /// What was left out.
    pub notes: Vec<String>,
    /// What was refused.
    pub refused: Option<String>,
}

/// Why an import ended; `position` is where it is kept, if it is.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct ImportError {
    /// Why.
    pub error: Error,
    /// Rows that are loaded.
    pub rows: u64,
    /// The file that says so.
    pub position: Option<PathBuf>,
}

/// How far an import has come, and which one: what is beside its file until it is done.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Position {
    format: u64,
    rows: u64,
    size: u64,
    head: u32,
    plan: u32,
}

/// Where the position of an import of this file is kept.
pub fn position_of(file: &Path) -> PathBuf {
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(".position");
    file.with_file_name(name)
}

impl Position {
    /// Of an import that begins: of this file, by this plan, into this cluster.
    fn begin(file: &Path, plan: &Plan, cluster: ClusterId) -> Result<Position> {
        let mut head = Vec::new();
        let mut input = File::open(file).map_err(at(file))?;
        let size = input.metadata().map_err(at(file))?.len();
        input.by_ref().take(HEAD_BYTES).read_to_end(&mut head).map_err(at(file))?;
        let plan = serde_json::to_vec(&(plan, cluster)).expect("plans hold no maps");
        Ok(Position {
            format: POSITION_FORMAT,
            rows: 0,
            size,
            head: crc32c::crc32c(&head),
            plan: crc32c::crc32c(&plan),
        })
    }

    /// What an earlier import has kept of this file.
    fn kept(&self, path: &Path) -> Result<Position> {
        let text = match fs::read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(Refusal::NoPosition(path.to_owned()).into());
            }
            Err(error) => return Err(at(path)(error)),
        };
        let kept: Position = serde_json::from_slice(&text).map_err(|error| damaged(path, None, error.to_string()))?;
        if kept != (Position { rows: kept.rows, ..*self }) {
            return Err(Refusal::OtherImport(path.to_owned()).into());
        }
        Ok(kept)
    }

    fn write(&self, path: &Path) -> Result<()> {
        let new = path.with_extension("position.new");
        fs::write(&new, serde_json::to_vec(self).unwrap_or_default()).map_err(at(&new))?;
        fs::rename(&new, path).map_err(at(path))
    }
}

/// Sorted rows, of which the later one of equal keys has stayed, and how many rows of the file end with them.
struct Batch {
    pairs: Pairs,
    rows: u64,
}

/// Gathers rows.
#[derive(Default)]
struct Gatherer {
    pairs: Pairs,
    bytes: usize,
    unsorted: bool,
}

impl Gatherer {
    /// Takes a row; whether the batch is full.
    fn push(&mut self, key: Value, value: Value) -> bool {
        self.unsorted |= self.pairs.last().is_some_and(|last| last.0 >= key);
        self.bytes += key.len() + value.len();
        self.pairs.push((key, value));
        self.pairs.len() >= BATCH_ROWS_MAX || self.bytes >= BATCH_BYTES_MAX
    }

    fn finish(&mut self, rows: u64) -> Batch {
        let Gatherer { mut pairs, unsorted, .. } = std::mem::take(self);
        if unsorted {
            pairs.sort_by(|a, b| a.0.cmp(&b.0));
            // Of equal keys the last one stays, which comes first from behind.
            if !mutant!(first_row_stays) {
                pairs.reverse();
            }
            pairs.dedup_by(|next, kept| next.0 == kept.0);
            if !mutant!(first_row_stays) {
                pairs.reverse();
            }
        }
        Batch { pairs, rows }
    }
}

/// Opens the rows of a plan.
fn open(plan: &Plan, read: &Arc<AtomicU64>) -> Result<Box<dyn Rows>> {
    let path = plan.file.clone().unwrap_or_else(|| "stdin".into());
    let wrong = |error: RowError| damaged(&path, None, error.to_string());
    let input: Box<dyn Read> = match &plan.file {
        Some(file) if plan.format == Format::Etcd => {
            return Ok(Box::new(EtcdRows::new(File::open(file).map_err(at(file))?).map_err(wrong)?));
        }
        Some(file) => Box::new(File::open(file).map_err(at(file))?),
        None => Box::new(io::stdin().lock()),
    };
    let input = BufReader::with_capacity(1 << 18, Counted::new(input, Arc::clone(read)));
    Ok(match plan.format {
        Format::Csv => Box::new(CsvRows::new(input, &plan.options).map_err(wrong)?),
        Format::Jsonl => Box::new(JsonlRows::new(input, &plan.options)),
        Format::Rdb => Box::new(RdbRows::new(input, plan.database).map_err(wrong)?),
        Format::Bin => Box::new(BinRows::new(input).map_err(wrong)?),
        Format::Etcd => return Err(damaged(&path, None, "a snapshot of etcd is read from a file, not from a stream")),
    })
}

/// What is said of a file once it was read.
type Notes = (u64, Vec<String>, Option<String>);

/// Reads rows into batches: on a thread of its own.
fn gather(plan: &Plan, skip: u64, read: &Arc<AtomicU64>, batches: &mpsc::Sender<Batch>) -> Result<Notes> {
    let path = plan.file.clone().unwrap_or_else(|| "stdin".into());
    let mut rows = open(plan, read)?;
    let (mut number, mut gatherer) = (0, Gatherer::default());
    let ended = loop {
        let (key, value) = match rows.next() {
            Ok(Some(row)) => row,
            Ok(None) => break Ok(()),
            // What is before it is loaded.
            Err(error) => break Err(damaged(&path, None, error.to_string())),
        };
        number += 1;
        if number <= skip {
            continue;
        }
        let key = crate::restore::prefixed(&plan.prefix, key)?;
        if gatherer.push(key, value) && batches.blocking_send(gatherer.finish(number)).is_err() {
            return Ok((number, Vec::new(), None));
        }
    };
    if !gatherer.pairs.is_empty() {
        // The receiver has failed, and says why.
        let _ = batches.blocking_send(gatherer.finish(number));
    }
    ended.map(|()| (number, rows.notes(), rows.refused()))
}

/// Imports a file.
///
/// # Errors
/// See [`ImportError`]. The rows before it are loaded.
pub async fn import(
    client: &Client,
    plan: &Plan,
    mut told: impl FnMut(Progress),
) -> std::result::Result<Done, ImportError> {
    // A pipe cannot be read again, so it has no position.
    let regular = |file: &&Path| fs::metadata(file).is_ok_and(|found| found.is_file());
    let file = plan.file.as_deref().filter(regular);
    let path = file.map(position_of);
    let mut import = Import { loader: Loader::new(client, Present::Overwrite), under_way: VecDeque::new(), rows: 0 };
    let begun = match file {
        Some(file) => match client.map().await {
            Ok(map) => Position::begin(file, plan, map.cluster).map(Some),
            Err(error) => Err(error.into()),
        },
        None => Ok(None),
    };
    let kept = begun.and_then(|begun| match (begun, &path) {
        (begun, _) if !plan.resume => Ok(begun),
        (Some(begun), Some(path)) => begun.kept(path).map(Some),
        _ => Err(Refusal::NoPosition(position_of(plan.file.as_deref().unwrap_or(Path::new("stdin")))).into()),
    });
    let ended = match kept {
        Ok(mut position) => {
            let ended = run(&mut import, plan, (&mut position, path.as_deref()), &mut told).await;
            let unfinished = ended.is_err() && import.rows > 0;
            if let (true, Some(position), Some(path)) = (unfinished, &mut position, &path) {
                position.rows = import.rows;
                // The error that ended it is what must be told.
                let _ = position.write(path);
            }
            ended
        }
        Err(error) => Err(error),
    };
    match ended {
        Ok(done) => {
            if let Some(path) = path {
                // There is one only after an interruption, or a second.
                let _ = fs::remove_file(path);
            }
            Ok(done)
        }
        Err(error) => Err(ImportError { error, rows: import.rows, position: path.filter(|path| path.exists()) }),
    }
}

struct Import {
    loader: Loader,
    /// Rows of the file that end with each batch under way, in their order.
    under_way: VecDeque<(u64, u64)>,
    /// Rows of the file that are loaded, all of them.
    rows: u64,
}

impl Import {
    fn count(&mut self) {
        while let Some((_, rows)) = self.under_way.pop_front_if(|(batch, _)| *batch < self.loader.loaded_below()) {
            self.rows = rows;
        }
    }
}

async fn run(
    import: &mut Import,
    plan: &Plan,
    (position, path): (&mut Option<Position>, Option<&Path>),
    told: &mut impl FnMut(Progress),
) -> Result<Done> {
    let skip = position.as_ref().map_or(0, |position| position.rows);
    import.rows = skip;
    let (sender, mut batches) = mpsc::channel(1);
    let counted = position.as_ref().filter(|_| plan.format != Format::Etcd);
    let (read, size) = (Arc::new(AtomicU64::new(0)), counted.map(|position| position.size));
    let (gathered, counter) = (plan.clone(), Arc::clone(&read));
    let (ended, gatherer) = oneshot::channel();
    // Not one of the runtime's: that would wait for it, and stdin may never say anything more.
    thread::spawn(move || ended.send(gather(&gathered, skip, &counter, &sender)));
    let mut highest: Option<Value> = None;
    let (mut number, mut written) = (0, Instant::now());
    while let Some(Batch { pairs, rows }) = batches.recv().await {
        let apart = match (&highest, pairs.first()) {
            (Some(highest), Some((lowest, _))) => highest < lowest,
            _ => true,
        };
        if !apart {
            import.loader.drain().await?;
        }
        highest = pairs.last().map(|(key, _)| key.clone());
        import.under_way.push_back((number, rows));
        number += 1;
        import.loader.submit(pairs).await?;
        import.count();
        told(Progress { rows: import.rows, passed_over: skip, read: read.load(Ordering::Relaxed), size });
        if let (Some(position), Some(path)) = (position.as_mut(), path)
            && written.elapsed() >= POSITION_EVERY
        {
            position.rows = import.rows;
            // Where none can be kept, the import goes on without: `--resume` then finds none.
            let _ = position.write(path);
            written = Instant::now();
        }
    }
    import.loader.drain().await?;
    import.count();
    let (rows, notes, refused) = gatherer.await.expect("the gatherer does not panic")?;
    told(Progress { rows: import.rows, passed_over: skip, read: read.load(Ordering::Relaxed), size });
    Ok(Done { rows, passed_over: skip, notes, refused })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::Coding;

    #[test]
    fn of_equal_keys_the_last_row_stays() {
        let mut gatherer = Gatherer::default();
        for (key, value) in [("b", "1"), ("a", "2"), ("b", "3"), ("c", "4"), ("a", "5")] {
            assert!(!gatherer.push(key.into(), value.into()));
        }
        let pairs = gatherer.finish(5).pairs;
        let pairs: Vec<(&[u8], &[u8])> = pairs.iter().map(|(key, value)| (&**key, &**value)).collect();
        assert_eq!(pairs, [(&b"a"[..], &b"5"[..]), (b"b", b"3"), (b"c", b"4")]);
    }

    #[cfg(feature = "mutants")]
    #[test]
    fn an_import_that_keeps_the_first_row_is_caught() {
        planted::assert_caught("first_row_stays", "import::tests::of_equal_keys_the_last_row_stays");
    }

    #[test]
    fn the_position_is_beside_the_file_and_knows_it() {
        let directory = std::env::temp_dir().join(format!("coppice-import-{}", std::process::id()));
        fs::create_dir_all(&directory).expect("the temporary directory takes one");
        let file = directory.join("rows.csv");
        fs::write(&file, "key,value\n").expect("it is writable");
        let options = TextOptions::default();
        let plan = Plan { file: None, format: Format::Rdb, options, database: 0, prefix: Vec::new(), resume: false };
        let begin = |plan: &Plan, cluster| Position::begin(&file, plan, ClusterId(cluster)).expect("a file");
        let (begun, path) = (begin(&plan, 1), position_of(&file));
        assert_eq!(path.file_name().and_then(|name| name.to_str()), Some("rows.csv.position"));
        assert!(matches!(begun.kept(&path), Err(Error::Refused(Refusal::NoPosition(_)))));
        Position { rows: 77, ..begun }.write(&path).expect("it is writable");
        let resumed = Plan { file: Some(file.clone()), resume: true, ..plan.clone() };
        assert_eq!(begin(&resumed, 1).kept(&path).expect("kept").rows, 77);
        let other = |begun: Position| matches!(begun.kept(&path), Err(Error::Refused(Refusal::OtherImport(_))));
        assert!(other(begin(&plan, 2)));
        assert!(other(begin(&Plan { database: 1, ..plan.clone() }, 1)));
        assert!(other(begin(&Plan { prefix: b"x/".to_vec(), ..plan.clone() }, 1)));
        assert!(other(begin(&Plan { format: Format::Bin, ..plan.clone() }, 1)));
        let options = TextOptions { coding: Coding::Hex, ..plan.options.clone() };
        assert!(other(begin(&Plan { options, ..plan.clone() }, 1)));
        fs::write(&file, "key,other\n").expect("it is writable");
        assert!(other(begin(&plan, 1)));
        fs::remove_dir_all(&directory).expect("it is there");
    }
}
