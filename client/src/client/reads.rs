//! Reads of several keys.

use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::sync::Arc;

use coppice_btree::{OpResult, Value};

use super::{Client, impossible, one};
use crate::command::{Answer, RangeCall, ReadMode};
use crate::error::{Error, Reason, Result};
use crate::session::{KEYS_MAX, Request};
use crate::shared::Shared;
use crate::wire::{PartCursor, ScanOptions, VALUE_BYTES_MAX};

/// Values that come together may be so many times as large as their reader wants, if they are as large as any.
const TOGETHER_FACTOR: usize = 8;

impl Client {
    /// The values of keys as of one moment, in the order of the keys, whatever partitions they lie in. At most
    /// [`KEYS_MAX`] keys. The reading is not written to any log. Where others write these keys all the
    /// time it is repeated until the timeout. O(n log n) of the keys.
    ///
    /// With [`ReadMode::Stale`] each key is read for itself, of any moment.
    ///
    /// ```no_run
    /// # async fn example(client: coppice_client::Client) -> coppice_client::error::Result<()> {
    /// let values = client.get_many(["apple", "pear"]).await?;
    /// println!("at one moment {:?} and {:?}", values[0], values[1]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Client::get`]; [`Reason::TooLarge`]: too many keys;
    /// [`Reason::Busy`]: they change too often to be read as of one moment.
    pub async fn get_many<K: Into<Value>>(&self, keys: impl IntoIterator<Item = K>) -> Result<Vec<Option<Value>>> {
        self.get_many_within(keys, usize::MAX).await
    }

    /// As [`Client::get_many`], for whoever must bound what an answer takes.
    ///
    /// # Errors
    /// As [`Client::get_many`]; [`Reason::TooLarge`]: the values have more than `bytes_max` bytes together.
    pub async fn get_many_within<K: Into<Value>>(
        &self,
        keys: impl IntoIterator<Item = K>,
        bytes_max: usize,
    ) -> Result<Vec<Option<Value>>> {
        let keys = at_most(keys)?;
        let mut bytes = 0;
        let mut count = |value: &[u8]| {
            bytes += value.len();
            let text = || format!("the values have more than {bytes_max} bytes together");
            if bytes > bytes_max { Err(Error::failed(Reason::TooLarge(text()))) } else { Ok(()) }
        };
        // Values read together come at once, however large they are.
        if keys.len().saturating_mul(VALUE_BYTES_MAX) <= bytes_max.saturating_mul(TOGETHER_FACTOR)
            && let Some(results) = self.read_together(&keys, |key, mode| Request::Get { key, mode }).await?
        {
            let values: Vec<Option<Value>> = results.iter().map(|result| result.value().cloned()).collect();
            values.iter().flatten().try_for_each(|value| count(value))?;
            return Ok(values);
        }
        // How often a key is asked for, and its value.
        let mut found = BTreeMap::<Value, (usize, Option<Value>)>::new();
        keys.iter().for_each(|key| found.entry(key.clone()).or_default().0 += 1);
        let take = |key: &[u8], value: &[u8]| {
            let (times, found) = found.get_mut(key).ok_or_else(impossible)?;
            (0..*times).try_for_each(|_| count(value))?;
            *found = Some(value.into());
            Ok(())
        };
        self.read_apart(&keys, ScanOptions::default(), take).await?;
        Ok(keys.iter().map(|key| found.get(key).and_then(|(_, value)| value.clone())).collect())
    }

    /// Which of the keys are there, as of one moment, in the order of the keys: [`Client::get_many`] without the
    /// values.
    ///
    /// ```no_run
    /// # async fn example(client: coppice_client::Client) -> coppice_client::error::Result<()> {
    /// let both = client.contains_many(["apple", "pear"]).await? == [true, true];
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Client::get_many`]; [`Reason::Incompatible`] if the leader of a partition runs version 0.1.
    pub async fn contains_many<K: Into<Value>>(&self, keys: impl IntoIterator<Item = K>) -> Result<Vec<bool>> {
        let keys = at_most(keys)?;
        if let Some(results) = self.read_together(&keys, |key, mode| Request::Look { key, mode }).await? {
            return Ok(results.iter().map(|result| matches!(result, OpResult::Look { exists: true, .. })).collect());
        }
        let mut found = BTreeSet::<Value>::new();
        let scan = ScanOptions { keys_only: true, ..ScanOptions::default() };
        self.read_apart(&keys, scan, |key, _| Ok(_ = found.insert(key.into()))).await?;
        Ok(keys.iter().map(|key| found.contains(key)).collect())
    }

    /// Reads keys wherever they lie as of one moment; `take` hears once of each that is there, with its value.
    async fn read_apart(
        &self,
        keys: &[Value],
        scan: ScanOptions,
        mut take: impl FnMut(&[u8], &[u8]) -> Result<()>,
    ) -> Result<()> {
        let keys: BTreeSet<Value> = keys.iter().cloned().collect();
        let range = RangeCall { low: Value::EMPTY, high: None, scan, mode: self.handle.reads(), stretches: None };
        let request = Request::Keys { keys: keys.into_iter().collect(), range };
        let slot = self.handle.shared().range(self.handle.deadline(), request).await?;
        let mut parts = Parts { shared: self.handle.shared(), slot: Some(slot) };
        while let Some(mut part) = parts.next().await? {
            while let Some((key, value)) = part.next_pair() {
                take(key, value)?;
            }
        }
        Ok(())
    }

    /// Reads keys each for itself. That was one moment if all of them were read at the same position, as those of one
    /// partition usually are: they share a message.
    async fn read_together(
        &self,
        keys: &[Value],
        request: impl Fn(Value, ReadMode) -> Request,
    ) -> Result<Option<Vec<OpResult>>> {
        if keys.is_empty() {
            return Ok(Some(Vec::new()));
        }
        let (map, mode) = (self.map().await?, self.handle.reads());
        let is_one = keys.windows(2).all(|pair| map.position(&pair[0]) == map.position(&pair[1]));
        let stale = mode == ReadMode::Stale;
        if !is_one && !stale {
            return Ok(None);
        }
        let requests = keys.iter().map(|key| request(key.clone(), mode)).collect();
        let outcomes = self.handle.shared().batch(self.handle.deadline(), requests).await;
        let answers: Vec<Answer<OpResult>> = outcomes.into_iter().map(one).collect::<Result<_>>()?;
        let same = answers.windows(2).all(|pair| pair[0].position == pair[1].position);
        Ok((same || stale).then(|| answers.into_iter().map(|answer| answer.output).collect()))
    }
}

/// As many keys as are read as of one moment.
fn at_most<K: Into<Value>>(keys: impl IntoIterator<Item = K>) -> Result<Vec<Value>> {
    let keys: Vec<Value> = keys.into_iter().map(Into::into).take(KEYS_MAX + 1).collect();
    match keys.len() > KEYS_MAX {
        true => Err(Error::failed(Reason::TooLarge(format!("at most {KEYS_MAX} keys are read as of one moment")))),
        false => Ok(keys),
    }
}

/// The parts of a reading; dropping it ends the reading.
struct Parts<'a> {
    shared: &'a Arc<Shared>,
    /// None: it has ended, and the slot may be another reading's.
    slot: Option<u32>,
}

impl Parts<'_> {
    async fn next(&mut self) -> Result<Option<PartCursor>> {
        let Some(slot) = self.slot else { return Ok(None) };
        match poll_fn(|cx| self.shared.next_part(slot, cx)).await {
            Ok((body, _)) => PartCursor::new(body).map(Some).map_err(|_| impossible()),
            Err(end) => {
                self.slot = None;
                end.map(|_| None)
            }
        }
    }
}

impl Drop for Parts<'_> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            self.shared.drop_range(slot);
        }
    }
}
