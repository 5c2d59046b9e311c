//! Calls whose effect depends on what is there. Each is one operation or command of the state machine, not a loop, and
//! needs feature level 2 of the cluster (`coppice config set feature_level 2`).

use std::time::Duration;

use coppice_btree::{Condition, Edit, Expiry, ExpiryCondition, OpResult, Returns, Update, UpdateOutcome, Value};

use super::{Client, impossible, one};
use crate::command::{Answer, Command, Operation, Output};
use crate::error::{Error, Reason, Result};
use crate::range::Range;
use crate::session::Request;

/// Keys that [`Client::delete_range`] removes by one command, and their bytes: a command takes 1 MiB.
const DELETED_AT_ONCE: u64 = 1_000;
const DELETED_BYTES_AT_ONCE: u64 = 512 << 10;

/// What an update came to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Updated {
    /// Whether it was done, or why not.
    pub outcome: UpdateOutcome,
    /// Bytes of the value afterwards; `None`: the key is absent.
    pub length: Option<u32>,
    /// The value that was asked for ([`Returns`]), if there is one.
    pub value: Option<Value>,
}

/// What is known of a key without its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Look {
    /// Bytes of the value; `None`: the key is absent.
    pub length: Option<u32>,
    /// Milliseconds until it expires; `None`: it does not.
    pub remaining: Option<u64>,
}

/// What a guarded command came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ManyIf {
    /// All guards hold, and the operations ran; `None`: their results are more than an answer can hold.
    Done(Option<Vec<OpResult>>),
    /// This guard (from 0) does not hold, nothing was changed.
    Unmet {
        /// Its place among the guards, from 0.
        guard: u64,
    },
}

impl Client {
    /// Changes what is there, under a condition: the general call behind those below.
    ///
    /// ```no_run
    /// # async fn example(client: coppice_client::Client) -> coppice_client::error::Result<()> {
    /// use coppice_client::{Condition, Edit, Returns, Update, UpdateOutcome};
    /// let lock = Update::new(Edit::Set(b"worker 7")).when(Condition::Absent).returning(Returns::Previous);
    /// let taken = client.update("lock", lock).await?.output;
    /// if taken.outcome == UpdateOutcome::Unmet {
    ///     println!("held by {:?}", taken.value);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Client::put`]; [`Reason::Incompatible`] if the cluster's feature level is below 2. All calls below
    /// likewise.
    pub async fn update(&self, key: impl Into<Value>, update: Update<'_>) -> Result<Answer<Updated>> {
        let answer = self.one(Operation::update(key, update)).await?;
        Ok(Answer { output: updated(answer.output)?, position: answer.position })
    }

    /// Adds to a decimal integer; an absent key counts as 0. The sum, or why there is none.
    ///
    /// ```no_run
    /// # async fn example(client: coppice_client::Client) -> coppice_client::error::Result<()> {
    /// match client.increment("visits", 1).await?.output {
    ///     Ok(visits) => println!("visit {visits}"),
    ///     Err(why) => println!("not counted: {why}"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Client::update`].
    pub async fn increment(
        &self,
        key: impl Into<Value>,
        by: i64,
    ) -> Result<Answer<std::result::Result<i64, UpdateOutcome>>> {
        let answer = self.update(key, Update::new(Edit::Add(by)).returning(Returns::New)).await?;
        let output = match &answer.output {
            Updated { outcome: UpdateOutcome::Done, value: Some(value), .. } => {
                let sum = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
                Ok(sum.ok_or_else(impossible)?)
            }
            not_done => Err(not_done.outcome),
        };
        Ok(Answer { output, position: answer.position })
    }

    /// Appends to a value; an absent key counts as empty. The bytes that it has now, or why it is as before.
    ///
    /// ```no_run
    /// # async fn example(client: coppice_client::Client) -> coppice_client::error::Result<()> {
    /// let length = client.append("journal", "one more line\n").await?.output;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Client::update`].
    pub async fn append(
        &self,
        key: impl Into<Value>,
        bytes: impl AsRef<[u8]>,
    ) -> Result<Answer<std::result::Result<u32, UpdateOutcome>>> {
        let answer = self.update(key, Update::new(Edit::Append(bytes.as_ref()))).await?;
        let done = answer.output.outcome == UpdateOutcome::Done;
        let output = match answer.output.length {
            Some(length) if done => Ok(length),
            _ => Err(answer.output.outcome),
        };
        Ok(Answer { output, position: answer.position })
    }

    /// Removes a key only if it holds exactly `expected`; whether it did.
    ///
    /// ```no_run
    /// # async fn example(client: coppice_client::Client) -> coppice_client::error::Result<()> {
    /// let released = client.delete_if("lock", "worker 7").await?.output;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Client::update`].
    pub async fn delete_if(&self, key: impl Into<Value>, expected: impl AsRef<[u8]>) -> Result<Answer<bool>> {
        let update = Update::new(Edit::Remove).when(Condition::Equals(expected.as_ref()));
        Ok(self.update(key, update).await?.map(|updated| updated.outcome == UpdateOutcome::Done))
    }

    /// Gives value and expiry of a key to another key of the same partition, over what that holds; whether there was
    /// anything to give.
    ///
    /// ```no_run
    /// # async fn example(client: coppice_client::Client) -> coppice_client::error::Result<()> {
    /// let renamed = client.rename("draft", "article").await?.output;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Client::update`]; [`Reason::SpansPartitions`] if the keys belong to two partitions.
    pub async fn rename(&self, key: impl Into<Value>, to: impl Into<Value>) -> Result<Answer<bool>> {
        let answer = self.one(Operation::move_to(key, to)).await?;
        Ok(Answer { output: updated(answer.output)?.outcome == UpdateOutcome::Done, position: answer.position })
    }

    /// Whether a key is there, how long its value is and when it expires, without its value: a read, as
    /// [`Config::reads`](crate::Config::reads) says. Time is that of the partition, which its log moves on each second
    /// while keys expire: what is left may be a second more than a clock says, and is 0 for a key that is due and goes
    /// in a moment.
    ///
    /// ```no_run
    /// # async fn example(client: coppice_client::Client) -> coppice_client::error::Result<()> {
    /// if let Some(bytes) = client.look("apple").await?.output.length {
    ///     println!("{bytes} bytes");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Client::get`]; [`Reason::Incompatible`] if the partition's leader runs version 0.1.
    pub async fn look(&self, key: impl Into<Value>) -> Result<Answer<Look>> {
        let request = Request::Look { key: key.into(), mode: self.handle.reads() };
        let answer = one(self.call(request).await)?;
        match answer.output {
            OpResult::Look { exists, length, remaining } => {
                let output = Look { length: exists.then_some(length), remaining };
                Ok(Answer { output, position: answer.position })
            }
            _ => Err(impossible()),
        }
    }

    /// Writes a key that expires after `ttl`, over what is there; the previous value. Time passes by the clock of who
    /// leads the partition, in milliseconds: the key stays for `ttl` at least, and goes soon after it, later if leaders
    /// change.
    ///
    /// ```no_run
    /// # async fn example(client: coppice_client::Client) -> coppice_client::error::Result<()> {
    /// client.put_with_ttl("session/7", "alice", std::time::Duration::from_secs(1_800)).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Client::update`].
    pub async fn put_with_ttl(
        &self,
        key: impl Into<Value>,
        value: impl AsRef<[u8]>,
        ttl: Duration,
    ) -> Result<Answer<Option<Value>>> {
        let update = Update::new(Edit::Set(value.as_ref())).expiring(after(ttl)).returning(Returns::Previous);
        Ok(self.update(key, update).await?.map(|updated| updated.value))
    }

    /// Lets a key expire after `ttl`, whatever it did before; whether it is there. Writing it anew ends that, an update
    /// keeps it.
    ///
    /// ```no_run
    /// # async fn example(client: coppice_client::Client) -> coppice_client::error::Result<()> {
    /// let alive = client.expire("session/7", std::time::Duration::from_secs(1_800)).await?.output;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Client::update`].
    pub async fn expire(&self, key: impl Into<Value>, ttl: Duration) -> Result<Answer<bool>> {
        let answer = self.update(key, Update::new(Edit::Keep).expiring(after(ttl))).await?;
        Ok(answer.map(|updated| updated.outcome == UpdateOutcome::Done))
    }

    /// Lets a key stay that would expire; whether it would have.
    ///
    /// ```no_run
    /// # async fn example(client: coppice_client::Client) -> coppice_client::error::Result<()> {
    /// let kept = client.persist("session/7").await?.output;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Client::update`].
    pub async fn persist(&self, key: impl Into<Value>) -> Result<Answer<bool>> {
        let answer = self.update(key, Update::new(Edit::Keep).expiring(Expiry::Clear)).await?;
        Ok(answer.map(|updated| updated.outcome == UpdateOutcome::Done))
    }

    /// How long a key stays, as [`Client::look`] has it; `None`: it is absent, or does not expire.
    ///
    /// ```no_run
    /// # async fn example(client: coppice_client::Client) -> coppice_client::error::Result<()> {
    /// let left = client.ttl("session/7").await?.output;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Client::look`].
    pub async fn ttl(&self, key: impl Into<Value>) -> Result<Answer<Option<Duration>>> {
        Ok(self.look(key).await?.map(|look| look.remaining.map(Duration::from_millis)))
    }

    /// Executes operations of one partition together if all guards hold ([`Operation::check`]), and none of them else.
    ///
    /// ```no_run
    /// # async fn example(client: coppice_client::Client) -> coppice_client::error::Result<()> {
    /// use coppice_client::{Condition, ManyIf, Operation};
    /// let guards = [Operation::check("from", Condition::Equals(b"7")), Operation::check("to", Condition::Present)];
    /// let moved = [Operation::put("from", "6"), Operation::put("to", "1")];
    /// if let ManyIf::Unmet { guard } = client.many_if(guards, moved).await?.output {
    ///     println!("guard {guard} does not hold, nothing was changed");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Client::update`]; [`Reason::SpansPartitions`] if the keys belong to several partitions.
    pub async fn many_if(
        &self,
        guards: impl IntoIterator<Item = Operation>,
        operations: impl IntoIterator<Item = Operation>,
    ) -> Result<Answer<ManyIf>> {
        let answer = self.call(Request::Command(Command::guarded(guards, operations))).await?;
        let output = match answer.output {
            Output::Many(results) => ManyIf::Done(Some(results)),
            Output::Omitted => ManyIf::Done(None),
            Output::Unmet(guard) => ManyIf::Unmet { guard },
            _ => return Err(impossible()),
        };
        Ok(Answer { output, position: answer.position })
    }

    /// Removes the keys of a range; how many. Up to 1,000 keys of one partition are removed at one moment, the whole
    /// range is not: a key that is written meanwhile may be removed or stay. Repeat it after an error.
    ///
    /// ```no_run
    /// # async fn example(client: coppice_client::Client) -> coppice_client::error::Result<()> {
    /// use coppice_client::Range;
    /// let removed = client.delete_range(Range::prefix(b"session/")).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Client::update`] and [`Client::range`]; what was removed by then stays so.
    pub async fn delete_range(&self, range: impl Into<Range>) -> Result<u64> {
        let range: Range = range.into();
        let most = match range.pairs_max() {
            0 => u64::MAX,
            most => most,
        };
        let (mut removed, mut seen, mut rest) = (0, 0, range.keys_only().limit_bytes(DELETED_BYTES_AT_ONCE));
        loop {
            let mut keys: Vec<Value> = Vec::new();
            let mut stream = self.range(rest.clone().limit(DELETED_AT_ONCE.min(most - seen))).await?;
            while let Some((key, _)) = stream.next().await? {
                keys.push(key.into());
            }
            let map = self.map().await?;
            for together in keys.chunk_by(|a, b| map.position(a) == map.position(b)) {
                removed += self.delete_all(together).await?;
            }
            seen += keys.len() as u64;
            match keys.last() {
                Some(last) if seen < most => rest = rest.after(last),
                _ => return Ok(removed),
            }
        }
    }

    /// Removes these keys, together unless a boundary lies between them; how many were there.
    async fn delete_all(&self, keys: &[Value]) -> Result<u64> {
        let update = Update::new(Edit::Remove).when(Condition::Present);
        let operations: Vec<Operation> = keys.iter().map(|key| Operation::update(key.clone(), update)).collect();
        let done = |result: &OpResult| matches!(result, OpResult::Update { outcome: UpdateOutcome::Done, .. });
        match self.many(operations.clone()).await {
            Ok(answer) => Ok(answer.output.ok_or_else(impossible)?.iter().filter(|result| done(result)).count() as u64),
            Err(Error::Failed(failure)) if failure.reason == Reason::SpansPartitions => {
                let mut removed = 0;
                for answer in self.execute(operations).await {
                    removed += u64::from(done(&answer?.output));
                }
                Ok(removed)
            }
            Err(error) => Err(error),
        }
    }
}

/// At least so long: a part of a millisecond counts as one.
fn after(ttl: Duration) -> Expiry {
    let milliseconds = u64::try_from(ttl.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
    Expiry::After { milliseconds, only: ExpiryCondition::Always }
}

fn updated(result: OpResult) -> Result<Updated> {
    match result {
        OpResult::Update { outcome, exists, length, value } => {
            Ok(Updated { outcome, length: exists.then_some(length), value })
        }
        _ => Err(impossible()),
    }
}
