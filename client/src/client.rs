//! The asynchronous client: a handle that any number of tasks share.

mod reads;
mod updates;

use std::sync::Arc;
use std::time::Duration;

use coppice_btree::{OpResult, Value};
pub use updates::{Look, ManyIf, Updated};

use crate::command::{Answer, Command, Operation, Output, ReadMode};
use crate::config::Config;
use crate::driver::Driver;
use crate::error::{Error, Reason, Result};
use crate::handle::Handle;
use crate::map::PartitionMap;
use crate::range::{ComparedRange, Range, RangeStream};
use crate::resume::ResumeToken;
use crate::session::Request;
use crate::shared::{Callback, Outcome};
use crate::wire::{ClientId, Stretch};

/// A connection to a cluster. Cloning it is cheap; all clones share their connections, and what they ask for at the
/// same time travels together. When the last clone is dropped, calls that wait end with [`Reason::Closed`] or unknown.
///
/// Every call ends within the timeout (5 s unless configured), in one of three ways: an answer, an error that is sure,
/// or an outcome that is not known ([`Error::Unknown`]).
///
/// ```no_run
/// # async fn example() -> coppice_client::error::Result<()> {
/// use coppice_client::{Client, Range};
///
/// let client = Client::connect(["127.0.0.1:7400"]).await?;
/// let put = client.put("apple", "red").await?;
/// println!("apple is red since {}, it was {:?}", put.position, put.output);
/// println!("{:?}", client.get("apple").await?.output);
///
/// let mut fruit = client.range(Range::new("a".."c").limit(10)).await?;
/// while let Some((key, value)) = fruit.next().await? {
///     println!("{} {}", String::from_utf8_lossy(key), String::from_utf8_lossy(value));
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Client {
    handle: Handle,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client")
            .field("id", &self.handle.id())
            .field("timeout", &self.handle.timeout())
            .finish_non_exhaustive()
    }
}

/// Randomness without a crate for it: the standard library seeds its hash maps from the operating system.
pub(crate) fn random() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

impl Client {
    /// Finds the cluster through any of `endpoints` (`host:port`), with the default settings.
    ///
    /// # Errors
    /// If no endpoint gives a partition map within the timeout.
    ///
    /// # Panics
    /// Outside of a tokio runtime with time and net enabled.
    pub async fn connect<E: Into<String>>(endpoints: impl IntoIterator<Item = E>) -> Result<Client> {
        Client::connect_with(endpoints, Config::default()).await
    }

    /// Finds the cluster through any of `endpoints`, with these settings.
    ///
    /// ```no_run
    /// # async fn example() -> coppice_client::error::Result<()> {
    /// use coppice_client::{Client, Config};
    /// let config = Config { timeout: std::time::Duration::from_secs(1), ..Config::default() };
    /// let client = Client::connect_with(["127.0.0.1:7400", "127.0.0.1:7410"], config).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Client::connect`].
    ///
    /// # Panics
    /// Outside of a tokio runtime with time and net enabled.
    pub async fn connect_with<E: Into<String>>(
        endpoints: impl IntoIterator<Item = E>,
        config: Config,
    ) -> Result<Client> {
        let client = Client::start(endpoints, config);
        client.map().await?;
        Ok(client)
    }

    /// A client that connects when it is first used.
    ///
    /// ```no_run
    /// # async fn example() -> coppice_client::error::Result<()> {
    /// use coppice_client::{Client, Config};
    /// let client = Client::start(["127.0.0.1:7400"], Config::default());
    /// client.get("apple").await?; // connects, and fails if there is no cluster
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    /// Outside of a tokio runtime with time and net enabled.
    pub fn start<E: Into<String>>(endpoints: impl IntoIterator<Item = E>, config: Config) -> Client {
        let (client, driver) = Client::parts(endpoints, config);
        tokio::spawn(driver);
        client
    }

    /// A client and the task that it needs; for callers with a runtime of their own.
    pub(crate) fn parts<E: Into<String>>(endpoints: impl IntoIterator<Item = E>, config: Config) -> (Client, Driver) {
        let id = ClientId(random());
        let handle = Handle::new(id, &config);
        let endpoints = endpoints.into_iter().map(Into::into).collect();
        let driver = Driver::new(Arc::clone(handle.shared()), config, id, random(), endpoints);
        (Client { handle }, driver)
    }

    /// The same client with another timeout for its calls, in place of [`Config::timeout`].
    ///
    /// ```no_run
    /// # async fn example(client: coppice_client::Client) -> coppice_client::error::Result<()> {
    /// let hasty = client.with_timeout(std::time::Duration::from_millis(200));
    /// hasty.get("apple").await?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn with_timeout(&self, timeout: Duration) -> Client {
        Client { handle: self.handle.with_timeout(timeout) }
    }

    /// Which client this is, as sessions and histories name it.
    pub fn id(&self) -> ClientId {
        self.handle.id()
    }

    /// The partition map that this client routes by; waits for one if there is none yet.
    ///
    /// ```no_run
    /// # async fn example(client: coppice_client::Client) -> coppice_client::error::Result<()> {
    /// for entry in &client.map().await?.partitions {
    ///     println!("{} begins at {:?}", entry.partition, entry.low);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If no node gives one within the timeout.
    pub async fn map(&self) -> Result<Arc<PartitionMap>> {
        self.handle.map().await
    }

    /// One request, with this client's timeout.
    async fn call(&self, request: Request) -> Outcome {
        self.handle.shared().call(self.handle.deadline(), request).await
    }

    async fn one(&self, operation: Operation) -> Result<Answer<OpResult>> {
        one(self.call(Request::Command(Command::One(operation))).await)
    }

    /// Writes, whether or not the key was there; the previous value. O(log n) of the partition's pairs, like all
    /// commands on one key. Keys have up to 4 KiB, values up to 1 MiB.
    ///
    /// ```no_run
    /// # async fn example(client: coppice_client::Client) -> coppice_client::error::Result<()> {
    /// let put = client.put("apple", "red").await?;
    /// println!("written at {}, over {:?}", put.position, put.output);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Failed`]: it had no effect, with a [`Reason`]. [`Error::Unknown`]: it may have been executed, once at
    /// most; [`Client::resume`] finds out. All writes below likewise.
    pub async fn put(&self, key: impl Into<Value>, value: impl Into<Value>) -> Result<Answer<Option<Value>>> {
        previous(self.one(Operation::put(key, value)).await)
    }

    /// Writes only if the key is absent. `None`: inserted; else the value that was there and stays.
    ///
    /// ```no_run
    /// # async fn example(client: coppice_client::Client) -> coppice_client::error::Result<()> {
    /// if let Some(present) = client.insert("apple", "green").await?.output {
    ///     println!("it is {present:?} and stays so");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Client::put`].
    pub async fn insert(&self, key: impl Into<Value>, value: impl Into<Value>) -> Result<Answer<Option<Value>>> {
        previous(self.one(Operation::insert(key, value)).await)
    }

    /// Removes; the removed value.
    ///
    /// ```no_run
    /// # async fn example(client: coppice_client::Client) -> coppice_client::error::Result<()> {
    /// let removed = client.delete("apple").await?.output;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Client::put`].
    pub async fn delete(&self, key: impl Into<Value>) -> Result<Answer<Option<Value>>> {
        previous(self.one(Operation::delete(key)).await)
    }

    /// Writes only if the key holds exactly `expected`.
    ///
    /// ```no_run
    /// # async fn example(client: coppice_client::Client) -> coppice_client::error::Result<()> {
    /// let cas = client.cas("apple", "red", "green").await?.output;
    /// if !cas.done {
    ///     println!("it was {:?}", cas.current);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Client::put`].
    pub async fn cas(
        &self,
        key: impl Into<Value>,
        expected: impl Into<Value>,
        value: impl Into<Value>,
    ) -> Result<Answer<Cas>> {
        let answer = self.one(Operation::cas(key, expected, value)).await?;
        match answer.output {
            OpResult::Cas { done, current } => Ok(Answer { output: Cas { done, current }, position: answer.position }),
            _ => Err(impossible()),
        }
    }

    /// Reads, as [`Config::reads`] says (linearizable, by the leader, unless changed).
    ///
    /// ```no_run
    /// # async fn example(client: coppice_client::Client) -> coppice_client::error::Result<()> {
    /// let colour = client.get("apple").await?.output;
    /// assert_eq!(colour.as_deref(), Some(&b"red"[..]));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Failed`] if there is no answer within the timeout.
    pub async fn get(&self, key: impl Into<Value>) -> Result<Answer<Option<Value>>> {
        self.get_as(key, self.handle.reads()).await
    }

    /// Reads in a given way.
    ///
    /// ```no_run
    /// # async fn example(client: coppice_client::Client) -> coppice_client::error::Result<()> {
    /// use coppice_client::ReadMode;
    /// let perhaps_old = client.get_as("apple", ReadMode::Stale).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn get_as(&self, key: impl Into<Value>, mode: ReadMode) -> Result<Answer<Option<Value>>> {
        let request = Request::Get { key: key.into(), mode };
        previous(one(self.call(request).await))
    }

    /// Executes several operations of one partition as one command: together or not at all. `None` in the answer: they
    /// were executed, but their results are more than an answer can hold. At most 2,048 operations, of about 1 MiB.
    ///
    /// ```no_run
    /// # async fn example(client: coppice_client::Client) -> coppice_client::error::Result<()> {
    /// use coppice_client::Operation;
    /// let moved = [Operation::delete("apple"), Operation::put("pear", "green")];
    /// client.many(moved).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Client::put`]; [`Reason::SpansPartitions`] if the keys belong to several partitions.
    pub async fn many(&self, operations: impl Into<Box<[Operation]>>) -> Result<Answer<Option<Vec<OpResult>>>> {
        let request = Request::Command(Command::Many(operations.into()));
        let answer = self.call(request).await?;
        let output = match answer.output {
            Output::Many(results) => Some(results),
            Output::Omitted => None,
            _ => return Err(impossible()),
        };
        Ok(Answer { output, position: answer.position })
    }

    /// Loads ascending pairs of one partition, up to 1 MiB, as one command. All keys must be new, else nothing is
    /// changed.
    ///
    /// ```no_run
    /// # async fn example(client: coppice_client::Client) -> coppice_client::error::Result<()> {
    /// use coppice_client::Load;
    /// let pairs = [("a".into(), "1".into()), ("b".into(), "2".into())];
    /// if let Load::Present { pair } = client.load(pairs).await?.output {
    ///     println!("pair {pair} was there, nothing was loaded");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Client::put`]; [`Reason::SpansPartitions`] if the keys belong to several partitions.
    pub async fn load(&self, pairs: impl Into<Box<[(Value, Value)]>>) -> Result<Answer<Load>> {
        let request = Request::Command(Command::Load(pairs.into()));
        let answer = self.call(request).await?;
        let output = match answer.output {
            Output::Loaded(pairs) => Load::Done { pairs },
            Output::NotLoaded(pair) => Load::Present { pair },
            _ => return Err(impossible()),
        };
        Ok(Answer { output, position: answer.position })
    }

    /// Executes operations, each for itself and in any order, as fast as packing allows; one outcome each, in the order
    /// given. Gets and looks are served as reads.
    ///
    /// ```no_run
    /// # async fn example(client: coppice_client::Client) -> coppice_client::error::Result<()> {
    /// use coppice_client::Operation;
    /// let operations = (0..1_000).map(|n| Operation::put(format!("key/{n}").as_str(), "value")).collect();
    /// for outcome in client.execute(operations).await {
    ///     outcome?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// None of the call itself. Of each outcome: as [`Client::put`]; of a get as [`Client::get`].
    pub async fn execute(&self, operations: Vec<Operation>) -> Vec<Result<Answer<OpResult>>> {
        let mode = self.handle.reads();
        let requests = operations.into_iter().map(|operation| request(Command::One(operation), mode)).collect();
        self.handle.shared().batch(self.handle.deadline(), requests).await.into_iter().map(one).collect()
    }

    /// Hands a command over without waiting; `callback` hears how it ends, with `tag`. It runs on the client's task and
    /// must be quick. For load generators: no allocation per command.
    ///
    /// ```no_run
    /// # async fn example(client: coppice_client::Client) -> coppice_client::error::Result<()> {
    /// use std::sync::Arc;
    /// use coppice_client::{Callback, Operation};
    /// let callback: Callback = Arc::new(|tag, outcome| println!("{tag}: {outcome:?}"));
    /// client.submit(Operation::put("apple", "red"), &callback, 1)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Reason::QueueFull`] if too many calls wait, [`Reason::Closed`]. Then the callback is not called.
    pub fn submit(&self, command: impl Into<Command>, callback: &Callback, tag: u64) -> Result<()> {
        let request = request(command.into(), self.handle.reads());
        self.handle.shared().submit(self.handle.deadline(), request, callback, tag)
    }

    /// Any command, with any output.
    ///
    /// ```no_run
    /// # async fn example(client: coppice_client::Client) -> coppice_client::error::Result<()> {
    /// use coppice_client::{Command, Operation, Output};
    /// let command = Command::Many([Operation::get("apple"), Operation::get("pear")].into());
    /// if let Output::Many(results) = client.command(command).await?.output {
    ///     println!("{results:?}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Client::put`].
    pub async fn command(&self, command: impl Into<Command>) -> Result<Answer<Output>> {
        self.call(Request::Command(command.into())).await
    }

    /// Repeats a command whose outcome is not known, under the same number: it is executed at most once, however often
    /// it is repeated, and answered as it was the first time. Possible for [`Config::resume_keep`] after the outcome
    /// was told to be unknown, by this process or another one.
    ///
    /// ```no_run
    /// # async fn example(client: coppice_client::Client) -> coppice_client::error::Result<()> {
    /// use coppice_client::Operation;
    /// let put = Operation::put("apple", "red");
    /// if let Err(error) = client.command(put.clone()).await
    ///     && let Some(token) = error.resume_token()
    /// {
    ///     client.resume(*token, put).await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Client::put`]; [`Reason::OtherCommand`] if the token was made for another command. A sure error says only
    /// that this repetition had no effect.
    pub async fn resume(&self, token: ResumeToken, command: impl Into<Command>) -> Result<Answer<Output>> {
        self.call(Request::Resume(command.into(), token)).await
    }

    /// Reads a range as a stream of pairs, in bounded memory: the state of one moment, however many partitions it
    /// spans, unless it is stale. The memory is [`Config::range_credit`] bytes.
    ///
    /// ```no_run
    /// # async fn example(client: coppice_client::Client) -> coppice_client::error::Result<()> {
    /// use coppice_client::Range;
    /// let mut fruit = client.range(Range::new("a".."n").limit(100)).await?;
    /// while let Some((key, value)) = fruit.next().await? {
    ///     println!("{} {}", String::from_utf8_lossy(key), String::from_utf8_lossy(value));
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Failed`], with a [`Reason`]. Most come from [`RangeStream::next`].
    pub async fn range(&self, range: impl Into<Range>) -> Result<RangeStream> {
        RangeStream::begin(self.handle.clone(), range.into(), None).await
    }

    /// Reads a range, and compares it with what the reader holds: of each [`Stretch`] that reads the same, the nodes
    /// say so instead of sending its pairs. Stretches ascend and do not overlap. It is one moment, in bounded memory,
    /// as [`Client::range`] is; a node hashes what it compares.
    ///
    /// # Errors
    /// As [`Client::range`]; [`Reason::Invalid`] if the stretches do not ascend.
    pub async fn compare(&self, range: impl Into<Range>, stretches: Arc<[Stretch]>) -> Result<ComparedRange> {
        ComparedRange::begin(self.handle.clone(), range.into(), stretches).await
    }
}

/// What a compare-and-set came to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cas {
    /// Whether the new value was written.
    pub done: bool,
    /// The value found before, written over or not.
    pub current: Option<Value>,
}

/// What a load came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Load {
    /// So many pairs are loaded.
    Done {
        /// How many pairs were loaded.
        pairs: u64,
    },
    /// Nothing was changed: the key of this pair (from 0) was there.
    Present {
        /// Its place among the pairs of the load, from 0.
        pair: u64,
    },
}

/// The session gives each command an output of its kind.
fn impossible() -> Error {
    debug_assert!(false, "an output of another kind");
    Error::failed(Reason::Incompatible("an unexpected answer".into()))
}

/// What alone is a read is served as one.
fn request(command: Command, mode: ReadMode) -> Request {
    match command {
        Command::One(Operation::Get { key }) => Request::Get { key, mode },
        Command::One(Operation::Look { key }) => Request::Look { key, mode },
        command => Request::Command(command),
    }
}

fn one(outcome: Outcome) -> Result<Answer<OpResult>> {
    let answer = outcome?;
    match answer.output {
        // Nodes name the first place of the instance that a read saw all of: they do not keep how much it held.
        Output::One(result @ (OpResult::Get { .. } | OpResult::Look { .. })) => {
            Ok(Answer { output: result, position: answer.position.whole() })
        }
        Output::One(result) => Ok(Answer { output: result, position: answer.position }),
        _ => Err(impossible()),
    }
}

fn previous(answer: Result<Answer<OpResult>>) -> Result<Answer<Option<Value>>> {
    let answer = answer?;
    let output = match answer.output {
        OpResult::Put { previous } | OpResult::Delete { previous } => previous,
        OpResult::Insert { present } => present,
        OpResult::Get { value } => value,
        OpResult::Cas { .. } | OpResult::Update { .. } | OpResult::Look { .. } => return Err(impossible()),
    };
    Ok(Answer { output, position: answer.position })
}
