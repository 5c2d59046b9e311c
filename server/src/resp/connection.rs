//! One connection of the RESP port: reads its socket, carries out what its [`RespConnection`] decides, writes the answers.

use std::io::{self, IoSlice};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use coppice_client::channel::Channel;
use coppice_client::command::{Command, Output};
use coppice_client::error::Result;
use coppice_client::token::Token;
use coppice_client::{Callback, Client, OpResult};
use coppice_core::access::Access;
use coppice_core::cost::{Account, ClientBytes};
use coppice_core::resp::connection::Limits;
use coppice_core::resp::identity::ClientRow;
use coppice_core::resp::pipeline::Ask;
use coppice_core::resp::plan::Ranged;
use coppice_core::resp::{Effect, Input, RespConnection};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::clients::Clients;
use super::{Node, unix_now};

/// Bytes that one system call reads at most, unless a longer string has begun.
const READ_BYTES: usize = 16 << 10;

/// A buffer that has grown beyond is let go when it is empty.
const KEPT_BYTES: usize = 64 << 10;

/// Whoever shows wrong credentials waits so long for the answer, as at the native port.
const STRANGER_WAITS: Duration = Duration::from_millis(500);

/// A connection that acts for nobody is closed after so long: people type their token.
const STRANGER_TIMEOUT: Duration = Duration::from_secs(60);

/// What came to an end.
enum Done {
    Answered(u64, Result<Output>),
    Ranged(u64, Result<Ranged>),
}

/// What has come to an end and the connection has not taken in.
#[derive(Default)]
struct Inbox {
    done: Mutex<Vec<Done>>,
    bell: Notify,
}

impl Inbox {
    fn push(&self, done: Done) {
        let mut all = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(done);
        let first = all.len() == 1;
        drop(all);
        if first {
            self.bell.notify_one();
        }
    }

    fn take(&self) -> Vec<Done> {
        std::mem::take(&mut *self.done.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

struct Connection {
    node: Arc<Node>,
    clients: Rc<Clients>,
    channel: Channel,
    resp: RespConnection,
    id: u64,
    client: Client,
    token: Option<Token>,
    access: Arc<Access>,
    inbox: Arc<Inbox>,
    callback: Callback,
    account: Account,
    input: BytesMut,
    has_ended: bool,
    /// Since when the client has taken none of what waits for it.
    stalled_since: Option<Instant>,
}

/// Until the client goes, or the node stops.
pub async fn serve(node: Arc<Node>, clients: Rc<Clients>, channel: Channel, stopped: watch::Receiver<bool>) {
    let mut connection = Connection::new(node, clients, channel);
    // The other end is gone, or must go: there is nobody to tell.
    _ = connection.run(stopped).await;
    connection.close().await;
}

impl Connection {
    fn new(node: Arc<Node>, clients: Rc<Clients>, channel: Channel) -> Connection {
        let inbox = Arc::<Inbox>::default();
        let callback: Callback = {
            let inbox = Arc::clone(&inbox);
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
        let (id, access) = (node.next_connection(), node.shared.cluster.access());
        let resp = node.with_context(&access, |context| RespConnection::new(id, row, bounds, context));
        let client = clients.take(&node, None);
        Connection {
            node,
            clients,
            channel,
            resp,
            id,
            client,
            token: None,
            access,
            inbox,
            callback,
            account,
            input: BytesMut::new(),
            has_ended: false,
            stalled_since: None,
        }
    }

    async fn run(&mut self, mut stopped: watch::Receiver<bool>) -> io::Result<()> {
        let stranger_until = Instant::now() + STRANGER_TIMEOUT;
        let mut charge = self.account.charge(0);
        loop {
            if !self.follow() {
                return Ok(());
            }
            let is_stranger = self.turn();
            if is_stranger {
                tokio::time::sleep(STRANGER_WAITS).await;
            }
            charge.resize(self.resp.bytes() + self.input.len());
            self.write()?;
            let (ends, stops) = (self.has_ended || self.resp.is_closing(), *stopped.borrow());
            if (ends || stops) && self.resp.is_idle() && !self.channel.is_unsent() {
                return Ok(());
            }
            if self.resp.is_cut() {
                tokio::task::yield_now().await;
                continue;
            }
            let unsent = !self.resp.output().is_empty() || self.channel.is_unsent();
            let reads = self.resp.wants_input() && !self.has_ended && !stops && self.account.room() > 0;
            let stalled_until = self.stalled_since.map(|since| since + self.node.shared.config.limits.stalled_reader);
            let deadline = match (stalled_until, self.resp.is_let_in()) {
                (Some(until), _) => until,
                (None, false) => stranger_until,
                (None, true) => Instant::now() + Duration::from_secs(3_600),
            };
            tokio::select! {
                () = self.inbox.bell.notified() => {}
                readable = self.channel.readable(), if reads => {
                    readable?;
                    self.read()?;
                }
                writable = self.channel.writable(), if unsent => writable?,
                _ = stopped.changed(), if !stops => {}
                () = tokio::time::sleep_until(deadline) => {
                    if self.stalled_since.is_some() || !self.resp.is_let_in() {
                        return Ok(());
                    }
                }
                // The node has no room for more bytes: other connections give some back.
                () = tokio::time::sleep(Duration::from_millis(5)), if self.account.room() == 0 => {}
            }
        }
    }

    /// Goes by the users of this moment; `false`: it ends.
    fn follow(&mut self) -> bool {
        let access = self.node.shared.cluster.access();
        if !Arc::ptr_eq(&access, &self.access) {
            self.access = access;
            return self.resp.follow(&self.access);
        }
        true
    }

    /// One turn of the connection. Returns whether it was shown wrong credentials.
    fn turn(&mut self) -> bool {
        let (done, mut effects) = (self.inbox.take(), Vec::new());
        let Connection { node, resp, access, input, .. } = self;
        node.with_context(access, |context| {
            for done in done {
                let input = match done {
                    Done::Answered(call, outcome) => Input::Answered { call, outcome },
                    Done::Ranged(call, outcome) => Input::Ranged { call, outcome },
                };
                resp.step(context, input, &mut effects);
            }
            resp.step(context, Input::TurnEnd(input), &mut effects);
        });
        self.node.shared.metrics.resp().count(&self.resp.take_counts());
        if self.input.is_empty() && self.input.capacity() > KEPT_BYTES {
            self.input = BytesMut::new();
        }
        let mut is_stranger = false;
        for effect in effects {
            match effect {
                Effect::Ask(Ask { call, command: Command::Many(gets), gets_anywhere: true }) => {
                    let (client, inbox) = (self.client.clone(), Arc::clone(&self.inbox));
                    crate::task::spawn(async move {
                        let keys = gets.iter().map(|get| get.key().to_vec());
                        let values = client.get_many(keys).await;
                        let results =
                            |values: Vec<_>| values.into_iter().map(|value| OpResult::Get { value }).collect();
                        inbox.push(Done::Answered(call, values.map(results).map(Output::Many)));
                    });
                }
                Effect::Ask(ask) => {
                    if let Err(error) = self.client.submit(ask.command, &self.callback, ask.call) {
                        self.inbox.push(Done::Answered(ask.call, Err(error)));
                    }
                }
                Effect::Range { call, range } => {
                    let (client, inbox) = (self.client.clone(), Arc::clone(&self.inbox));
                    crate::task::spawn(async move {
                        let outcome = read_range(&client, range).await;
                        inbox.push(Done::Ranged(call, outcome));
                    });
                }
                Effect::Become(token) => {
                    self.clients.give_back(self.token.as_ref());
                    self.client = self.clients.take(&self.node, token.as_ref());
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

    fn read(&mut self) -> io::Result<()> {
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
        self.clients.give_back(self.token.as_ref());
        self.node.view().clients.remove(&self.id);
        self.channel.shutdown().await;
    }
}

/// All of a range, as far as its limits go.
async fn read_range(client: &Client, range: coppice_client::Range) -> Result<Ranged> {
    let mut stream = client.range(range).await?;
    let mut ranged = Ranged::default();
    while let Some((key, value)) = stream.next().await? {
        ranged.pairs.push((key.into(), value.into()));
    }
    ranged.count = stream.count().await?;
    ranged.is_limited = stream.is_limited();
    Ok(ranged)
}
