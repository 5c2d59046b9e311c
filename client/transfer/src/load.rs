//! Pairs into a cluster, many at a time: each batch is cut at the boundaries of partitions into bulk loads, several of
//! which are under way at once.
//!
//! A load changes nothing if one of its keys is there. Then a restore compares what is there with what it wants, and
//! loads what is missing; an import writes over it. A command whose outcome is unknown is resumed under its own number,
//! so that it is not executed behind a later one.

use std::collections::BTreeMap;
use std::time::Duration;

use coppice_client::error::Reason;
use coppice_client::map::PartitionMap;
use coppice_client::wire::{MANY_OPERATIONS_MAX, PACK_WORK_MAX};
use coppice_client::{Client, Command, Error as ClientError, Operation, Output, Range, ResumeToken, Value};
use tokio::task::JoinSet;

use crate::error::{Error, Refusal, Result};
use crate::text::Coding;

/// Pairs that ascend by key.
pub type Pairs = Vec<(Value, Value)>;

/// Commands that may be under way.
const UNDER_WAY_MAX: usize = 16;
/// Bytes of keys and values in one command, beside its last pair. The largest pair fits beside them.
const COMMAND_BYTES_MAX: usize = 32 << 10;
/// The same if its pairs are small: most of a command is then no single pair.
const SMALL_BYTES_MAX: usize = 512 << 10;
/// A pair up to this size is small.
const SMALL_PAIR_BYTES: usize = 64 << 10;
/// How often a command is repeated that has certainly not been executed, each time for the timeout of the client.
const ATTEMPTS_MAX: u32 = 12;
/// First pause before that; it doubles up to [`PAUSE_MAX`].
const PAUSE: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// What becomes of keys that are there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Present {
    /// They must have the value that is wanted.
    Compare,
    /// They are written over.
    Overwrite,
}

/// Loads batches. See the module.
#[derive(Debug)]
pub struct Loader {
    client: Client,
    present: Present,
    tasks: JoinSet<(u64, Result<()>)>,
    /// Commands under way of each batch, and whether more of it may follow.
    batches: BTreeMap<u64, usize>,
    /// Batches below it were submitted.
    next: u64,
}

impl Loader {
    /// A loader of a cluster.
    pub fn new(client: &Client, present: Present) -> Loader {
        let (tasks, batches) = (JoinSet::new(), BTreeMap::new());
        Loader { client: client.clone(), present, tasks, batches, next: 0 }
    }

    /// Begins to load pairs that ascend by key; waits while enough is under way. Batches are numbered from 0 in the
    /// order in which they are given. Those that share keys must not be under way together: see [`Loader::drain`].
    ///
    /// # Errors
    /// An earlier command failed.
    pub async fn submit(&mut self, pairs: Pairs) -> Result<()> {
        let batch = self.next;
        let map = self.client.map().await?;
        // It counts as one until all of its commands are begun.
        self.batches.insert(batch, 1);
        self.next += 1;
        for command in cut(&map, pairs) {
            while self.tasks.len() >= UNDER_WAY_MAX {
                self.one_more_done().await?;
            }
            *self.batches.entry(batch).or_default() += 1;
            let (client, present) = (self.client.clone(), self.present);
            self.tasks.spawn(async move { (batch, carry_out(&client, present, command).await) });
        }
        self.done(batch);
        Ok(())
    }

    /// Waits for all that is under way.
    ///
    /// # Errors
    /// One of it failed.
    pub async fn drain(&mut self) -> Result<()> {
        while !self.tasks.is_empty() {
            self.one_more_done().await?;
        }
        Ok(())
    }

    /// Batches below this number are loaded, all of them.
    pub fn loaded_below(&self) -> u64 {
        self.batches.keys().next().copied().unwrap_or(self.next)
    }

    async fn one_more_done(&mut self) -> Result<()> {
        match self.tasks.join_next().await {
            None => Ok(()),
            Some(Ok((batch, result))) => {
                result?;
                self.done(batch);
                Ok(())
            }
            Some(Err(ended)) => std::panic::resume_unwind(ended.into_panic()),
        }
    }

    fn done(&mut self, batch: u64) {
        if let Some(count) = self.batches.get_mut(&batch) {
            *count -= 1;
            if *count == 0 {
                self.batches.remove(&batch);
            }
        }
    }
}

/// Cuts ascending pairs into commands, each of one partition and of a bounded size.
fn cut(map: &PartitionMap, pairs: Pairs) -> Vec<Pairs> {
    let mut commands = Vec::new();
    let (mut command, mut bytes) = (Pairs::new(), 0);
    let mut high: Option<&[u8]> = None;
    for (key, value) in pairs {
        let size = key.len() + value.len();
        let room = if size <= SMALL_PAIR_BYTES { SMALL_BYTES_MAX } else { COMMAND_BYTES_MAX };
        let full = command.len() >= PACK_WORK_MAX as usize || bytes >= room;
        let beyond = high.is_some_and(|high| &*key >= high);
        if !command.is_empty() && (full || beyond) {
            commands.push(std::mem::take(&mut command));
            bytes = 0;
        }
        if command.is_empty() {
            high = map.cover(&key, None).first().and_then(|entry| entry.high.as_deref());
        }
        bytes += size;
        command.push((key, value));
    }
    if !command.is_empty() {
        commands.push(command);
    }
    commands
}

async fn carry_out(client: &Client, present: Present, pairs: Pairs) -> Result<()> {
    let mut waiting = vec![pairs];
    let mut rounds = 0;
    while let Some(pairs) = waiting.pop() {
        let load = Command::Load(pairs.clone().into());
        let ended = match sure(client, load).await {
            Ok(Output::Loaded(_)) => continue,
            Ok(_) => None,
            Err(error) => Some(error),
        };
        rounds += 1;
        match ended {
            Some(error) if error.reason() == Some(&Reason::SpansPartitions) && rounds < ATTEMPTS_MAX => {
                waiting.extend(cut(&*client.map().await?, pairs));
            }
            Some(error @ ClientError::Failed(_)) => return Err(error.into()),
            // One of its keys is there, or nobody knows whether all of them are.
            Some(error) if rounds >= ATTEMPTS_MAX => return Err(error.into()),
            _ if present == Present::Overwrite || mutant!(restore_writes_over) => put(client, pairs).await?,
            _ => match missing(client, &pairs).await {
                Ok(missing) => waiting.extend(cut(&*client.map().await?, missing)),
                Err(Error::Client(error)) if rounds < ATTEMPTS_MAX && error.reason().is_some_and(is_passing) => {
                    tokio::time::sleep(PAUSE).await;
                    waiting.push(pairs);
                }
                Err(error) => return Err(error),
            },
        }
    }
    Ok(())
}

/// The pairs that are not in the cluster. The others must have the same values there.
async fn missing(client: &Client, pairs: &Pairs) -> Result<Pairs> {
    let (Some(first), Some(last)) = (pairs.first(), pairs.last()) else { return Ok(Pairs::new()) };
    let behind = [&last.0[..], &[0]].concat();
    let mut there = client.range(Range::between(&first.0, Some(&behind))).await?;
    let mut missing = Pairs::new();
    let mut pairs = pairs.iter().peekable();
    while let Some((key, value)) = there.next().await? {
        while let Some(pair) = pairs.next_if(|pair| *pair.0 < *key) {
            missing.push(pair.clone());
        }
        if pairs.next_if(|pair| *pair.0 == *key).is_some_and(|pair| *pair.1 != *value) {
            return Err(Refusal::Differs(Coding::Plain.show(key)).into());
        }
    }
    missing.extend(pairs.cloned());
    Ok(missing)
}

/// Writes pairs over what is there.
async fn put(client: &Client, pairs: Pairs) -> Result<()> {
    let mut waiting = vec![pairs];
    let mut rounds = 0;
    while let Some(mut pairs) = waiting.pop() {
        if pairs.len() > MANY_OPERATIONS_MAX {
            waiting.push(pairs.split_off(MANY_OPERATIONS_MAX));
        }
        let operations: Box<[Operation]> =
            pairs.iter().map(|(key, value)| Operation::put(key.clone(), value.clone())).collect();
        let Err(error) = sure(client, Command::Many(operations)).await else { continue };
        rounds += 1;
        let spans = error.reason() == Some(&Reason::SpansPartitions);
        if (error.is_sure() && !spans) || rounds >= ATTEMPTS_MAX {
            return Err(error.into());
        }
        // Nobody can execute the one whose number is forgotten: it is put again.
        waiting.extend(cut(&*client.map().await?, pairs));
    }
    Ok(())
}

/// Carries a command out until it is known what became of it. An error says that it was not executed, or is unknown for
/// good.
async fn sure(client: &Client, command: Command) -> std::result::Result<Output, ClientError> {
    let mut token: Option<ResumeToken> = None;
    let mut pause = PAUSE;
    for attempt in 1.. {
        let answer = match token {
            Some(token) => client.resume(token, command.clone()).await,
            None => client.command(command.clone()).await,
        };
        let error = match answer {
            Ok(answer) => return Ok(answer.output),
            Err(error) => error,
        };
        let again = match (error.resume_token(), error.reason()) {
            (Some(given), _) => {
                token = Some(*given);
                true
            }
            (None, Some(reason)) => is_passing(reason),
            (None, None) => false,
        };
        if !again || attempt >= ATTEMPTS_MAX {
            return Err(error);
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
    unreachable!("the attempts are counted")
}

/// Whether it helps to ask again.
pub fn is_passing(reason: &Reason) -> bool {
    use Reason::{Busy, Interrupted, NoLeader, QueueFull, TimedOut, Unreachable};
    matches!(reason, NoLeader | Unreachable | Busy(_) | TimedOut | QueueFull | Interrupted { .. })
}

#[cfg(test)]
mod tests {
    use coppice_client::map::Entry;

    use super::*;

    #[test]
    fn batches_are_cut_at_partitions_and_sizes() {
        let entry = |low: &'static [u8], high: Option<&'static [u8]>| Entry {
            low: low.into(),
            high: high.map(Into::into),
            ..Entry::default()
        };
        let partitions = vec![entry(b"", Some(b"g")), entry(b"g", Some(b"n")), entry(b"n", None)];
        let map = PartitionMap { partitions, ..PartitionMap::default() };
        let pairs = |keys: &[&str]| keys.iter().map(|key| ((*key).into(), "v".into())).collect::<Pairs>();
        let sizes = |commands: Vec<Pairs>| commands.iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(sizes(cut(&map, pairs(&["a", "b", "g", "m", "n", "z"]))), [2, 2, 2]);
        assert_eq!(sizes(cut(&map, pairs(&["x"]))), [1]);
        let many: Pairs =
            (0..40_000u64).map(|n| ((n | 1 << 63).to_be_bytes().into(), n.to_be_bytes().into())).collect();
        assert_eq!(sizes(cut(&map, many)), [16_384, 16_384, 7_232]);
        let large: Pairs = (0..3u8).map(|n| (vec![b'z', n].into(), vec![n; 1 << 20].into())).collect();
        assert_eq!(sizes(cut(&map, large)), [1, 1, 1]);
    }
}
