//! One connection of the RESP port: reads its socket, carries out what its [`RespConnection`] decides, writes the
//! answers.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use coppice_client::channel::Channel;
use coppice_client::command::{Command, Output};
use coppice_client::error::{Error, Failure, Place, Reason, Result};
use coppice_client::token::Token;
use coppice_client::wire::REPLY_BYTES_MAX;
use coppice_client::{Callback, Client, OpResult, Operation, Value};
use coppice_core::access::Access;
use coppice_core::cost::{Account, ClientBytes};
use coppice_core::resp::connection::Limits;
use coppice_core::resp::identity::ClientRow;
use coppice_core::resp::pipeline::Ask;
use coppice_core::resp::plan::Ranged;
use coppice_core::resp::{Effect, Input, RespConnection};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::registry::{Done, Registration};
use super::{Thread, unix_now};
use crate::metrics::Queue;
use crate::shared::{PartialFrame, STRANGER_WAITS};

/// Bytes that one system call reads at most, unless a longer string has begun.
const READ_BYTES: usize = 16 << 10;

/// Bytes that are looked at between two times that others have their turn.
const SLICE_STEPS: usize = 256 << 10;

/// Where the node has no room, a connection looks again after so long.
const NO_ROOM_WAITS: Duration = Duration::from_millis(20);

/// A buffer that has grown beyond is let go when it is empty.
const KEPT_BYTES: usize = 64 << 10;

/// A connection that acts for nobody is closed after so long: people type their token.
const STRANGER_TIMEOUT: Duration = Duration::from_secs(60);

struct Connection {
    thread: Rc<Thread>,
    channel: Channel,
    resp: RespConnection,
    id: u64,
    registration: Rc<Registration>,
    client: Client,
    token: Option<Token>,
    access: Arc<Access>,
    callback: Callback,
    account: Account,
    /// Ranges and the like that are being read: they end with the connection.
    readings: JoinSet<()>,
    input: BytesMut,
    has_ended: bool,
    /// When the client sent bytes last.
    heard: std::time::Instant,
    /// Since when the client has taken none of what waits for it.
    stalled_since: Option<Instant>,
}

/// Until the client goes, or the node stops.
pub async fn serve(thread: Rc<Thread>, channel: Channel, stopped: watch::Receiver<bool>) {
    let mut connection = Connection::new(thread, channel);
    // The other end is gone, or must go: there is nobody to tell.
    _ = connection.run(stopped).await;
    connection.close().await;
}

impl Connection {
    fn new(thread: Rc<Thread>, channel: Channel) -> Connection {
        let node = &thread.node;
        let id = node.next_connection();
        let registration = thread.registry.open(id);
        let callback: Callback = {
            let inbox = Arc::clone(&registration.inbox);
            Arc::new(move |call, outcome| inbox.push(Done::Answered(call, outcome.map(|answer| answer.output))))
        };
        let limits = &node.shared.config.limits;
        let row = ClientRow {
            address: channel.peer_addr().map_or_else(|_| "?".into(), |address| address.to_string()),
            own_address: node.address.clone(),
            since: unix_now(),
            ..ClientRow::default()
        };
        let account =
            Account::new(limits.inflight_bytes, ClientBytes::default(), Arc::clone(node.shared.usage.budget()));
        let bounds =
            Limits { requests: limits.inflight, bytes: usize::try_from(limits.inflight_bytes).unwrap_or(usize::MAX) };
        let access = node.shared.cluster.access();
        let resp = node.with_context(&access, 0, |context| RespConnection::new(id, row, bounds, context));
        let client = thread.clients.take(node, None);
        Connection {
            channel,
            resp,
            id,
            registration,
            client,
            token: None,
            access,
            callback,
            account,
            readings: JoinSet::new(),
            input: BytesMut::new(),
            has_ended: false,
            heard: std::time::Instant::now(),
            stalled_since: None,
            thread,
        }
    }

    async fn run(&mut self, mut stopped: watch::Receiver<bool>) -> io::Result<()> {
        let stranger_until = Instant::now() + STRANGER_TIMEOUT;
        let shared = Arc::clone(&self.thread.node.shared);
        let (mut charge, mut arriving) = (self.account.charge(0), PartialFrame::new(Arc::clone(&shared)));
        loop {
            if !self.follow() || self.registration.must_go.get() {
                return Ok(());
            }
            if self.turn() {
                let Some(_place) = shared.usage.place_for_stranger() else { return Ok(()) };
                tokio::time::sleep(STRANGER_WAITS).await;
            }
            self.write()?;
            charge.resize(self.resp.bytes());
            arriving.set(self.input.len());
            if self.account.is_overdrawn() {
                // Nobody reads its answers, and others need the room.
                shared.metrics.worker(0).rejected(Queue::NodeBytes);
                return Ok(());
            }
            let (ends, stops) = (self.has_ended || self.resp.is_closing(), *stopped.borrow());
            let is_idle = self.resp.is_idle() && !self.channel.is_unsent();
            if (ends || stops) && is_idle {
                return Ok(());
            }
            if self.resp.is_cut() {
                tokio::task::yield_now().await;
                continue;
            }
            self.registration.is_let_in.set(self.resp.is_let_in());
            self.registration.idle_since.set((is_idle && self.resp.bytes() == 0).then_some(self.heard));
            let unsent = !self.resp.output().is_empty() || self.channel.is_unsent();
            let waits = arriving.must_wait() || self.account.room() == 0;
            let reads = self.resp.wants_input() && !self.has_ended && !stops && !waits;
            let stalled_until = self.stalled_since.map(|since| since + shared.config.limits.stalled_reader);
            let deadline = stalled_until.or_else(|| (!self.resp.is_let_in()).then_some(stranger_until));
            tokio::select! {
                () = self.registration.inbox.bell.notified() => {}
                readable = self.channel.readable(), if reads => {
                    readable?;
                    self.read()?;
                }
                writable = self.channel.writable(), if unsent => writable?,
                _ = stopped.changed(), if !stops => {}
                () = tokio::time::sleep_until(deadline.unwrap_or(stranger_until)), if deadline.is_some() => {
                    return Ok(());
                }
                // The node has no room for more bytes: other connections give some back.
                () = tokio::time::sleep(NO_ROOM_WAITS), if waits => {
                    if arriving.must_wait() && arriving.is_overdue() {
                        shared.metrics.worker(0).rejected(Queue::NodeBytes);
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Goes by the users of this moment; `false`: it ends.
    fn follow(&mut self) -> bool {
        let access = self.thread.node.shared.cluster.access();
        if !Arc::ptr_eq(&access, &self.access) {
            self.access = access;
            return self.resp.follow(&self.access);
        }
        true
    }

    /// One turn of the connection. Returns whether it was shown wrong credentials.
    fn turn(&mut self) -> bool {
        self.thread.idle.end_turn();
        let (done, mut effects) = (self.registration.inbox.take(), Vec::new());
        let room = usize::try_from(self.account.room()).unwrap_or(usize::MAX);
        let Connection { thread, resp, access, input, .. } = self;
        thread.node.with_context(access, room, |context| {
            for done in done {
                let input = match done {
                    Done::Answered(call, outcome) => Input::Answered { call, outcome },
                    Done::Ranged(call, outcome) => Input::Ranged { call, outcome },
                };
                resp.step(context, input, &mut effects);
            }
            resp.step(context, Input::TurnEnd(input), &mut effects);
        });
        while self.readings.try_join_next().is_some() {}
        thread.node.shared.metrics.resp().count(&self.resp.take_counts());
        if self.input.is_empty() && self.input.capacity() > KEPT_BYTES {
            self.input = BytesMut::new();
        }
        let mut is_stranger = false;
        for effect in effects {
            match effect {
                Effect::Ask(Ask { call, command: Command::Many(reads), reads_anywhere: true }) => {
                    let client = self.client.clone();
                    self.begin_reading(async move {
                        Done::Answered(call, read_many(&client, &reads).await.map(Output::Many))
                    });
                }
                Effect::Ask(ask) => {
                    if let Err(error) = self.client.submit(ask.command, &self.callback, ask.call) {
                        self.registration.inbox.push(Done::Answered(ask.call, Err(error)));
                    }
                }
                Effect::Range { call, range, pattern } => {
                    let (client, account) = (self.client.clone(), self.account.clone());
                    self.begin_reading(async move {
                        Done::Ranged(call, read_range(&client, range, pattern.as_ref(), &account).await)
                    });
                }
                Effect::Become(token) => {
                    let Thread { clients, node, .. } = &*self.thread;
                    clients.give_back(self.token.as_ref());
                    self.client = clients.take(node, token.as_ref());
                    self.token = token;
                }
                Effect::Stranger(reason) => {
                    is_stranger = true;
                    let from = self.channel.peer_addr().ok();
                    let host = from.map_or_else(|| "?".into(), |address| address.ip().to_string());
                    let port = from.map_or(0, |address| address.port());
                    tracing::warn!(from = %host, port, "a client is refused: {reason}");
                }
            }
        }
        is_stranger
    }

    fn begin_reading(&mut self, reading: impl Future<Output = Done> + 'static) {
        let inbox = Arc::clone(&self.registration.inbox);
        let reading: Pin<Box<dyn Future<Output = ()>>> = Box::pin(async move { inbox.push(reading.await) });
        self.readings.spawn_local(reading);
    }

    fn read(&mut self) -> io::Result<()> {
        self.heard = std::time::Instant::now();
        let wanted = READ_BYTES.max(self.resp.needs(self.input.len()) + 2);
        if self.input.capacity() - self.input.len() < wanted.min(READ_BYTES) / 2 || wanted > READ_BYTES {
            self.input.reserve(wanted);
        }
        match self.channel.read(&mut self.input) {
            Ok(0) => self.has_ended = true,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn write(&mut self) -> io::Result<()> {
        self.channel.try_flush()?;
        loop {
            let output = self.resp.output();
            if output.is_empty() {
                self.stalled_since = None;
                if output.capacity() > KEPT_BYTES {
                    *output = BytesMut::new();
                }
                return Ok(());
            }
            match self.channel.write_vectored(&[IoSlice::new(output)]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    output.advance(count);
                    self.stalled_since = None;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.stalled_since.get_or_insert_with(Instant::now);
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn close(mut self) {
        self.readings.abort_all();
        self.thread.clients.give_back(self.token.as_ref());
        self.thread.leave(self.id);
        self.channel.shutdown().await;
    }
}

/// All of a range that matches, as far as its limits go.
async fn read_range(
    client: &Client,
    range: coppice_client::Range,
    pattern: Option<&Bytes>,
    account: &Account,
) -> Result<Ranged> {
    let mut stream = client.range(range).await?;
    let (mut ranged, mut charge) = (Ranged::default(), account.charge(0));
    let (mut steps, mut bytes) = (0, 0);
    while let Some((key, value)) = stream.next().await? {
        steps += ranged.look_at(pattern, key, value) + key.len() + value.len();
        bytes += key.len() + value.len() + 2 * size_of::<Value>();
        if steps > SLICE_STEPS {
            steps = 0;
            charge.resize(bytes);
            if account.of_node().0 == 0 {
                let reason = Reason::Busy("limits.node_bytes leaves no room for a range".into());
                return Err(Error::Failed(Box::new(Failure { reason, place: Place::default() })));
            }
            tokio::task::yield_now().await;
        }
    }
    ranged.count = stream.count().await?;
    ranged.is_limited = stream.is_limited();
    Ok(ranged)
}

/// Gets or looks at keys as of one moment, wherever they lie; a look says whether the key is there.
async fn read_many(client: &Client, reads: &[Operation]) -> Result<Vec<OpResult>> {
    let keys = reads.iter().map(|read| Value::from(read.key()));
    if reads.iter().all(|read| matches!(read, Operation::Look { .. })) {
        let look = |exists| OpResult::Look { exists, length: 0, remaining: None };
        return Ok(client.contains_many(keys).await?.into_iter().map(look).collect());
    }
    let values = client.get_many_within(keys, REPLY_BYTES_MAX / 2).await?;
    Ok(values.into_iter().map(|value| OpResult::Get { value }).collect())
}
