//! The same client for code that blocks: no runtime, no `async`. A caller drives the connections itself as long as it
//! is alone (see `drive`).

mod drive;

use std::sync::Arc;
use std::time::Duration;

use coppice_btree::{OpResult, Update, UpdateOutcome, Value};

use self::drive::Drive;
use crate::client::{Cas, Load, Look, ManyIf, Updated};
use crate::command::{Answer, Command, Operation, Output, ReadMode};
use crate::config::Config;
use crate::error::{Error, Reason, Result};
use crate::map::PartitionMap;
use crate::range::Range;
use crate::resume::ResumeToken;
use crate::wire::{Position, Ticket};

/// A blocking client; see [`crate::Client`] for what the calls mean and how they fail. Clones share their connections
/// and may be used by many threads at once.
///
/// ```no_run
/// # fn example() -> coppice_client::error::Result<()> {
/// let client = coppice_client::blocking::Client::connect(["127.0.0.1:7400"])?;
/// client.put("apple", "red")?;
/// let mut fruit = client.range("a".."n")?;
/// while let Some((key, value)) = fruit.next()? {
///     println!("{} {}", String::from_utf8_lossy(key), String::from_utf8_lossy(value));
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Client {
    client: crate::Client,
    drive: Arc<Drive>,
}

impl Client {
    /// Finds the cluster through any of `endpoints`, with the default settings.
    ///
    /// # Errors
    /// If no endpoint gives a partition map within the timeout, or no thread can be started.
    pub fn connect<E: Into<String>>(endpoints: impl IntoIterator<Item = E>) -> Result<Client> {
        Client::connect_with(endpoints, Config::default())
    }

    /// Finds the cluster through any of `endpoints`, with these settings.
    ///
    /// ```no_run
    /// # fn example() -> coppice_client::error::Result<()> {
    /// use coppice_client::{Config, blocking::Client};
    /// let config = Config { timeout: std::time::Duration::from_secs(1), ..Config::default() };
    /// let client = Client::connect_with(["127.0.0.1:7400", "127.0.0.1:7410"], config)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn connect_with<E: Into<String>>(endpoints: impl IntoIterator<Item = E>, config: Config) -> Result<Client> {
        let client = Client::start(endpoints, config)?;
        client.map()?;
        Ok(client)
    }

    /// A client that connects when it is first used.
    ///
    /// ```no_run
    /// # fn example() -> coppice_client::error::Result<()> {
    /// use coppice_client::{Config, blocking::Client};
    /// let client = Client::start(["127.0.0.1:7400"], Config::default())?;
    /// client.get("apple")?; // connects, and fails if there is no cluster
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn start<E: Into<String>>(endpoints: impl IntoIterator<Item = E>, config: Config) -> Result<Client> {
        let endpoints: Vec<String> = endpoints.into_iter().map(Into::into).collect();
        let failed = |error: std::io::Error| Error::failed(Reason::Incompatible(format!("no thread: {error}")));
        let (client, drive) = Drive::start(endpoints, config).map_err(failed)?;
        Ok(Client { client, drive: Arc::new(drive) })
    }

    /// Waits for what `call` makes of the asynchronous client: several calls at once, or one with an end of its own.
    ///
    /// ```no_run
    /// # fn example(client: coppice_client::blocking::Client) -> coppice_client::error::Result<()> {
    /// let (apple, pear) = client.block_on(async |client| tokio::join!(client.get("apple"), client.get("pear")));
    /// println!("{:?} {:?}", apple?.output, pear?.output);
    /// # Ok(())
    /// # }
    /// ```
    pub fn block_on<T>(&self, call: impl AsyncFnOnce(&crate::Client) -> T) -> T {
        self.wait(call(&self.client))
    }

    fn wait<F: Future>(&self, future: F) -> F::Output {
        self.drive.wait(future)
    }

    /// The same client with another timeout for its calls.
    #[must_use]
    pub fn with_timeout(&self, timeout: Duration) -> Client {
        Client { client: self.client.with_timeout(timeout), drive: Arc::clone(&self.drive) }
    }

    /// The asynchronous client behind this one. Whoever asks for it may leave without waiting, so from now on a thread
    /// of the client's own drives the connections.
    pub fn as_async(&self) -> &crate::Client {
        self.drive.share();
        &self.client
    }

    /// The partition map that this client routes by. See [`crate::Client::map`].
    ///
    /// # Errors
    /// As there; all calls below likewise.
    pub fn map(&self) -> Result<Arc<PartitionMap>> {
        self.wait(self.client.map())
    }

    /// Writes, whether or not the key was there; the previous value. See [`crate::Client::put`].
    ///
    /// # Errors
    /// As there.
    pub fn put(&self, key: impl Into<Value>, value: impl Into<Value>) -> Result<Answer<Option<Value>>> {
        self.wait(self.client.put(key, value))
    }

    /// Writes only if the key is absent; the value that was there, if any. See [`crate::Client::insert`].
    ///
    /// # Errors
    /// As there.
    pub fn insert(&self, key: impl Into<Value>, value: impl Into<Value>) -> Result<Answer<Option<Value>>> {
        self.wait(self.client.insert(key, value))
    }

    /// Removes; the removed value. See [`crate::Client::delete`].
    ///
    /// # Errors
    /// As there.
    pub fn delete(&self, key: impl Into<Value>) -> Result<Answer<Option<Value>>> {
        self.wait(self.client.delete(key))
    }

    /// Writes only if the key holds exactly `expected`. See [`crate::Client::cas`].
    ///
    /// # Errors
    /// As there.
    pub fn cas(
        &self,
        key: impl Into<Value>,
        expected: impl Into<Value>,
        value: impl Into<Value>,
    ) -> Result<Answer<Cas>> {
        self.wait(self.client.cas(key, expected, value))
    }

    /// Reads, as [`Config::reads`] says. See [`crate::Client::get`].
    ///
    /// # Errors
    /// As there.
    pub fn get(&self, key: impl Into<Value>) -> Result<Answer<Option<Value>>> {
        self.wait(self.client.get(key))
    }

    /// Reads in a given way. See [`crate::Client::get_as`].
    ///
    /// # Errors
    /// As there.
    pub fn get_as(&self, key: impl Into<Value>, mode: ReadMode) -> Result<Answer<Option<Value>>> {
        self.wait(self.client.get_as(key, mode))
    }

    /// The values of keys as of one moment, in the order of the keys. See [`crate::Client::get_many`].
    ///
    /// # Errors
    /// As there.
    pub fn get_many<K: Into<Value>>(&self, keys: impl IntoIterator<Item = K>) -> Result<Vec<Option<Value>>> {
        self.wait(self.client.get_many(keys))
    }

    /// Which of the keys are there, as of one moment. See [`crate::Client::contains_many`].
    ///
    /// # Errors
    /// As there.
    pub fn contains_many<K: Into<Value>>(&self, keys: impl IntoIterator<Item = K>) -> Result<Vec<bool>> {
        self.wait(self.client.contains_many(keys))
    }

    /// Executes several operations of one partition as one command: together or not at all. See
    /// [`crate::Client::many`].
    ///
    /// # Errors
    /// As there.
    pub fn many(&self, operations: impl Into<Box<[Operation]>>) -> Result<Answer<Option<Vec<OpResult>>>> {
        self.wait(self.client.many(operations))
    }

    /// Changes what is there, under a condition. See [`crate::Client::update`].
    ///
    /// # Errors
    /// As there.
    pub fn update(&self, key: impl Into<Value>, update: Update<'_>) -> Result<Answer<Updated>> {
        self.wait(self.client.update(key, update))
    }

    /// Adds to a decimal integer; the sum, or why there is none. See [`crate::Client::increment`].
    ///
    /// # Errors
    /// As there.
    pub fn increment(&self, key: impl Into<Value>, by: i64) -> Result<Answer<std::result::Result<i64, UpdateOutcome>>> {
        self.wait(self.client.increment(key, by))
    }

    /// Appends to a value; its bytes, or why it is as before. See [`crate::Client::append`].
    ///
    /// # Errors
    /// As there.
    pub fn append(
        &self,
        key: impl Into<Value>,
        bytes: impl AsRef<[u8]>,
    ) -> Result<Answer<std::result::Result<u32, UpdateOutcome>>> {
        self.wait(self.client.append(key, bytes))
    }

    /// Removes a key only if it holds exactly `expected`; whether it did. See [`crate::Client::delete_if`].
    ///
    /// # Errors
    /// As there.
    pub fn delete_if(&self, key: impl Into<Value>, expected: impl AsRef<[u8]>) -> Result<Answer<bool>> {
        self.wait(self.client.delete_if(key, expected))
    }

    /// Gives a value to another key of the same partition; whether there was one. See [`crate::Client::rename`].
    ///
    /// # Errors
    /// As there.
    pub fn rename(&self, key: impl Into<Value>, to: impl Into<Value>) -> Result<Answer<bool>> {
        self.wait(self.client.rename(key, to))
    }

    /// What is known of a key without its value. See [`crate::Client::look`].
    ///
    /// # Errors
    /// As there.
    pub fn look(&self, key: impl Into<Value>) -> Result<Answer<Look>> {
        self.wait(self.client.look(key))
    }

    /// Writes a key that expires after `ttl`; the previous value. See [`crate::Client::put_with_ttl`].
    ///
    /// # Errors
    /// As there.
    pub fn put_with_ttl(
        &self,
        key: impl Into<Value>,
        value: impl AsRef<[u8]>,
        ttl: Duration,
    ) -> Result<Answer<Option<Value>>> {
        self.wait(self.client.put_with_ttl(key, value, ttl))
    }

    /// Lets a key expire after `ttl`; whether it is there. See [`crate::Client::expire`].
    ///
    /// # Errors
    /// As there.
    pub fn expire(&self, key: impl Into<Value>, ttl: Duration) -> Result<Answer<bool>> {
        self.wait(self.client.expire(key, ttl))
    }

    /// Lets a key stay that would expire; whether it would have. See [`crate::Client::persist`].
    ///
    /// # Errors
    /// As there.
    pub fn persist(&self, key: impl Into<Value>) -> Result<Answer<bool>> {
        self.wait(self.client.persist(key))
    }

    /// How long a key stays, if it expires. See [`crate::Client::ttl`].
    ///
    /// # Errors
    /// As there.
    pub fn ttl(&self, key: impl Into<Value>) -> Result<Answer<Option<Duration>>> {
        self.wait(self.client.ttl(key))
    }

    /// Executes operations of one partition together if all guards hold. See [`crate::Client::many_if`].
    ///
    /// # Errors
    /// As there.
    pub fn many_if(
        &self,
        guards: impl IntoIterator<Item = Operation>,
        operations: impl IntoIterator<Item = Operation>,
    ) -> Result<Answer<ManyIf>> {
        self.wait(self.client.many_if(guards, operations))
    }

    /// Removes the keys of a range; how many. See [`crate::Client::delete_range`].
    ///
    /// # Errors
    /// As there.
    pub fn delete_range(&self, range: impl Into<Range>) -> Result<u64> {
        self.wait(self.client.delete_range(range))
    }

    /// Loads ascending pairs of one partition as one command, if all keys are new. See [`crate::Client::load`].
    ///
    /// # Errors
    /// As there.
    pub fn load(&self, pairs: impl Into<Box<[(Value, Value)]>>) -> Result<Answer<Load>> {
        self.wait(self.client.load(pairs))
    }

    /// Executes operations, each for itself and in any order; one outcome each, in the order given. See
    /// [`crate::Client::execute`].
    ///
    /// # Errors
    /// As there, of each outcome.
    pub fn execute(&self, operations: Vec<Operation>) -> Vec<Result<Answer<OpResult>>> {
        self.wait(self.client.execute(operations))
    }

    /// Any command, with any output. See [`crate::Client::command`].
    ///
    /// # Errors
    /// As there.
    pub fn command(&self, command: impl Into<Command>) -> Result<Answer<Output>> {
        self.wait(self.client.command(command))
    }

    /// Repeats a command whose outcome is not known; it is executed at most once. See [`crate::Client::resume`].
    ///
    /// # Errors
    /// As there.
    pub fn resume(&self, token: ResumeToken, command: impl Into<Command>) -> Result<Answer<Output>> {
        self.wait(self.client.resume(token, command))
    }

    /// Reads a range as a stream of pairs, the state of one moment. See [`crate::Client::range`].
    ///
    /// # Errors
    /// As there.
    pub fn range(&self, range: impl Into<Range>) -> Result<RangeStream> {
        let stream = self.wait(self.client.range(range))?;
        Ok(RangeStream { stream, client: self.clone() })
    }
}

/// A range that is being read; see [`crate::RangeStream`]. As an iterator it gives pairs that own their bytes.
///
/// ```no_run
/// # fn example(client: coppice_client::blocking::Client) -> coppice_client::error::Result<()> {
/// for pair in client.range("a".."n")? {
///     let (key, value) = pair?;
///     println!("{key:?} {value:?}");
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct RangeStream {
    stream: crate::RangeStream,
    client: Client,
}

impl RangeStream {
    /// The next pair, or none at the end. See [`crate::RangeStream::next`].
    ///
    /// # Errors
    /// As there.
    // Not an iterator: the pair is borrowed from the stream.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        self.client.drive.wait_driven(self.stream.next())
    }

    /// Reads to the end and returns the number of pairs. See [`crate::RangeStream::count`].
    ///
    /// # Errors
    /// As there.
    pub fn count(&mut self) -> Result<u64> {
        self.client.drive.wait_driven(self.stream.count())
    }

    /// Where it was read: one position per partition so far. See [`crate::RangeStream::positions`].
    pub fn positions(&self) -> &[Position] {
        self.stream.positions()
    }

    /// The ticket that makes the positions one moment, if one was needed. See [`crate::RangeStream::ticket`].
    pub fn ticket(&self) -> Option<Ticket> {
        self.stream.ticket()
    }

    /// Whether a limit ended it. See [`crate::RangeStream::is_limited`].
    pub fn is_limited(&self) -> bool {
        self.stream.is_limited()
    }

    /// The last key given out. See [`crate::RangeStream::last_key`].
    pub fn last_key(&self) -> Option<&[u8]> {
        self.stream.last_key()
    }
}

impl IntoIterator for RangeStream {
    type Item = Result<(Value, Value)>;
    type IntoIter = Pairs;

    fn into_iter(self) -> Pairs {
        Pairs(Some(self))
    }
}

/// The pairs of a range, each with a key and a value of its own. It ends behind the last pair or behind an error.
#[derive(Debug)]
pub struct Pairs(Option<RangeStream>);

impl Iterator for Pairs {
    type Item = Result<(Value, Value)>;

    fn next(&mut self) -> Option<Self::Item> {
        let pair = self.0.as_mut()?.next().map(|pair| pair.map(|(key, value)| (key.into(), value.into())));
        if !matches!(pair, Ok(Some(_))) {
            self.0 = None;
        }
        pair.transpose()
    }
}

impl std::iter::FusedIterator for Pairs {}
