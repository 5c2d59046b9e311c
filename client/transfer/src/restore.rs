//! A restore: the pairs of a backup into a cluster, with other nodes and partitions if it is another one, and the proof
//! that they are what the backup holds.

use std::path::PathBuf;

use coppice_btree::Digest;
use coppice_client::wire::KEY_BYTES_MAX;
use coppice_client::{Client, Range, Value};

use crate::directory::Backup;
use crate::error::{Refusal, Result};
use crate::load::{Loader, Pairs, Present, is_passing};
use crate::manifest;
use crate::storage::blocking;
use crate::text::Coding;

/// How often what was restored is read, if that is interrupted.
const READINGS_MAX: u32 = 10;

/// What a restore is asked for.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where the backup is.
    pub directory: PathBuf,
    /// Stands before each key; empty: the keys are those of the backup.
    pub prefix: Vec<u8>,
    /// Goes on with an interrupted one: pairs that are there must be those of the backup.
    pub resume: bool,
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Pairs that were loaded, of so many.
    Loaded(u64, u64),
    /// Pairs that were read back, of so many.
    Checked(u64, u64),
}

/// Restores a backup; returns what the backup is.
///
/// # Errors
/// See [`crate::Error`]. What was loaded stays, and a restore that resumes goes on behind it.
pub async fn restore(client: &Client, plan: &Plan, mut told: impl FnMut(Progress)) -> Result<manifest::Header> {
    let directory = plan.directory.clone();
    let backup = blocking(move || Backup::open(&directory)).await?;
    let header = backup.manifest.header.clone();
    if !plan.resume {
        let mut there = client.range(range(&plan.prefix).limit(1)).await?;
        if let Some((key, _)) = there.next().await? {
            let shown = if key.is_empty() { "the empty key".to_owned() } else { Coding::Plain.show(key) };
            return Err(Refusal::NotEmpty(shown).into());
        }
    }
    load(client, plan, backup, &mut told).await?;
    check(client, plan, &header, &mut told).await?;
    Ok(header)
}

fn range(prefix: &[u8]) -> Range {
    if prefix.is_empty() { Range::new(..) } else { Range::prefix(prefix) }
}

async fn load(client: &Client, plan: &Plan, mut backup: Backup, told: &mut impl FnMut(Progress)) -> Result<()> {
    let mut loader = Loader::new(client, Present::Compare);
    let (mut loaded, all) = (0, backup.manifest.header.pairs);
    let (sender, mut chunks) = tokio::sync::mpsc::channel(2);
    let prefix = plan.prefix.clone();
    // A thread of its own reads and checks the files.
    let reader = tokio::task::spawn_blocking(move || {
        for entry in std::mem::take(&mut backup.manifest.chunks) {
            let chunk = backup.read(&entry)?;
            let pairs = chunk.pairs().map(|(key, value)| Ok((prefixed(&prefix, key.into())?, Value::from(value))));
            let pairs: Pairs = pairs.collect::<Result<_>>()?;
            if sender.blocking_send(pairs).is_err() {
                break;
            }
        }
        Ok::<_, crate::Error>(())
    });
    while let Some(pairs) = chunks.recv().await {
        loaded += pairs.len() as u64;
        loader.submit(pairs).await?;
        told(Progress::Loaded(loaded, all));
    }
    drop(chunks);
    match reader.await {
        Ok(read) => read?,
        Err(ended) => std::panic::resume_unwind(ended.into_panic()),
    }
    loader.drain().await
}

/// The key behind a prefix.
pub(crate) fn prefixed(prefix: &[u8], key: Value) -> Result<Value> {
    if prefix.is_empty() {
        return Ok(key);
    }
    if prefix.len() + key.len() > KEY_BYTES_MAX {
        return Err(Refusal::LongKey(Coding::Plain.show(&key)).into());
    }
    Ok(Value::from([prefix, &key].concat()))
}

/// Reads what was restored, at one moment, and compares it with the backup.
async fn check(client: &Client, plan: &Plan, header: &manifest::Header, told: &mut impl FnMut(Progress)) -> Result<()> {
    let mut reading = 1;
    let (pairs, digest) = loop {
        match content(client, &plan.prefix, header.pairs, told).await {
            Ok(content) => break content,
            Err(error) if reading < READINGS_MAX && error.reason().is_some_and(is_passing) => reading += 1,
            Err(error) => return Err(error.into()),
        }
    };
    let same = (pairs, Some(digest)) == (header.pairs, manifest::digest(&header.digest));
    if !same && !mutant!(restore_unproven) {
        let found = format!("{pairs} pairs with the digest {digest}");
        let wanted = format!("{} with {}", header.pairs, header.digest);
        return Err(Refusal::OtherContent { found, wanted }.into());
    }
    Ok(())
}

async fn content(
    client: &Client,
    prefix: &[u8],
    all: u64,
    told: &mut impl FnMut(Progress),
) -> std::result::Result<(u64, Digest), coppice_client::Error> {
    let mut range = client.range(range(prefix)).await?;
    let (mut pairs, mut digest) = (0, Digest::default());
    while let Some((key, value)) = range.next().await? {
        digest = digest.and(Digest::of_pair(&key[prefix.len()..], value));
        pairs += 1;
        if pairs % 65_536 == 0 {
            told(Progress::Checked(pairs, all));
        }
    }
    told(Progress::Checked(pairs, all));
    Ok((pairs, digest))
}
