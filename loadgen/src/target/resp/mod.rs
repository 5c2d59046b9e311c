//! Any server that speaks RESP, such as Redis. Pipelined over a few connections of one thread.

pub mod codec;

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::ErrorKind;
use std::net::{SocketAddr, ToSocketAddrs};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use codec::Reply;
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

use super::clock::{Clock, runtime};
use super::{Done, End, Nanos, Target};
use crate::workload::Request;

/// A connection that was lost is tried again this often.
const RETRY: Nanos = 100_000_000;

/// How long a connection may take to come up; it holds up the worker meanwhile.
const CONNECT: Duration = Duration::from_millis(500);

/// Read at once; all connections of a worker share the room.
const READ_BYTES: usize = 256 * 1024;

/// What to connect to.
#[derive(Clone, Debug)]
pub struct Options {
    /// `host:port`, one or more; connections go to them in turn.
    pub endpoints: Vec<String>,
    /// Connections of one worker.
    pub connections: u32,
    /// Silence that ends a request as unknown.
    pub timeout: Duration,
    /// Whether what is submitted together leaves together; else one system call per command.
    pub pack: bool,
    /// A write has ended when so many replicas have it, by the store's own word (`WAIT`), which holds up all that
    /// follows on its connection; 0: when the one process has answered it.
    pub wait_replicas: u32,
}

/// The target of one worker.
#[derive(Debug)]
pub struct Resp {
    clock: Clock,
    connections: Vec<Connection>,
    first_error: Option<String>,
    scratch: Vec<u8>,
    /// What a connection reads into, before it keeps what it got.
    buffer: Box<[u8]>,
    runtime: Runtime,
}

#[derive(Debug)]
struct Connection {
    address: SocketAddr,
    stream: Option<TcpStream>,
    retry_at: Nanos,
    timeout: Nanos,
    out: Vec<u8>,
    sent: usize,
    /// Where commands in `out` end, if each leaves alone.
    ends: VecDeque<usize>,
    pack: bool,
    /// What follows each write; empty: nothing.
    wait: Vec<u8>,
    read: Vec<u8>,
    parsed: usize,
    /// Requests in the order of their replies.
    waiting: VecDeque<Waiting>,
    /// Requests that were never sent.
    refused: Vec<u32>,
}

/// A request whose answer has not come, or not all of it.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    slot: u32,
    since: Nanos,
    /// Replies that are missing.
    replies: u32,
    /// The worst that those before said.
    end: End,
}

/// One command and its reply over a connection of its own, for setting up and for asking how a server is set.
pub fn ask(endpoint: &str, words: &[&str]) -> Result<String, String> {
    use std::io::{Read, Write};
    let text = |e: std::io::Error| format!("{endpoint}: {e}");
    let address = resolve(endpoint)?;
    let mut stream = std::net::TcpStream::connect_timeout(&address, CONNECT).map_err(text)?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).map_err(text)?;
    let mut out = Vec::new();
    codec::command(&mut out, &words.iter().map(|word| word.as_bytes()).collect::<Vec<_>>());
    stream.write_all(&out).map_err(text)?;
    let mut read = Vec::new();
    loop {
        let mut chunk = [0; 4_096];
        let count = stream.read(&mut chunk).map_err(text)?;
        read.extend_from_slice(&chunk[..count]);
        match codec::reply(&read) {
            Ok(Some((Reply::Error(error), _))) => return Err(format!("{endpoint}: {error}")),
            Ok(Some((Reply::Ok { .. }, length))) => return Ok(String::from_utf8_lossy(&read[..length]).into_owned()),
            Ok(None) if count > 0 => {}
            _ => return Err(format!("{endpoint} does not speak RESP")),
        }
    }
}

fn resolve(endpoint: &str) -> Result<SocketAddr, String> {
    let mut addresses = endpoint.to_socket_addrs().map_err(|e| format!("{endpoint}: {e}"))?;
    addresses.next().ok_or_else(|| format!("{endpoint}: no such address"))
}

impl Resp {
    /// Connects; times count from `epoch`.
    pub fn connect(options: &Options, epoch: Instant) -> Result<Resp, String> {
        let runtime = runtime().map_err(|e| e.to_string())?;
        let guard = runtime.enter();
        let clock = Clock::new(epoch).map_err(|e| e.to_string())?;
        let mut connections = Vec::new();
        for index in 0..options.connections.max(1) as usize {
            let address = resolve(&options.endpoints[index % options.endpoints.len()])?;
            let mut connection = Connection::new(address, options);
            connection.open().map_err(|e| format!("{address}: {e}"))?;
            connections.push(connection);
        }
        drop(guard);
        let buffer = vec![0; READ_BYTES].into_boxed_slice();
        Ok(Resp { clock, connections, first_error: None, scratch: Vec::new(), buffer, runtime })
    }
}

impl Connection {
    fn new(address: SocketAddr, options: &Options) -> Connection {
        let mut wait = Vec::new();
        if options.wait_replicas > 0 {
            // No limit of the server's: silence ends the request by our own.
            codec::command(&mut wait, &[b"WAIT", options.wait_replicas.to_string().as_bytes(), b"0"]);
        }
        Connection {
            wait,
            address,
            stream: None,
            retry_at: 0,
            timeout: options.timeout.as_nanos() as Nanos,
            out: Vec::new(),
            sent: 0,
            ends: VecDeque::new(),
            pack: options.pack,
            read: Vec::new(),
            parsed: 0,
            waiting: VecDeque::new(),
            refused: Vec::new(),
        }
    }

    fn open(&mut self) -> std::io::Result<()> {
        let stream = std::net::TcpStream::connect_timeout(&self.address, CONNECT)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        self.stream = Some(TcpStream::from_std(stream)?);
        Ok(())
    }

    fn submit(&mut self, slot: u32, request: &Request, scratch: &mut Vec<u8>, now: Nanos) {
        if self.stream.is_none() && now >= self.retry_at {
            self.retry_at = now + RETRY;
            // Refused again: the request below is told so.
            let _ = self.open();
        }
        if self.stream.is_none() {
            return self.refused.push(slot);
        }
        codec::request(&mut self.out, scratch, request);
        let waits = !self.wait.is_empty() && !matches!(request, Request::Get(_) | Request::Range { .. });
        if waits {
            self.out.extend_from_slice(&self.wait);
        }
        if !self.pack {
            self.ends.push_back(self.out.len());
        }
        self.waiting.push_back(Waiting { slot, since: now, replies: 1 + u32::from(waits), end: End::Ok });
    }

    /// Sends and receives as far as it goes without waiting.
    fn progress(
        &mut self,
        cx: &mut Context<'_>,
        now: Nanos,
        buffer: &mut [u8],
        done: &mut Vec<Done>,
    ) -> Result<(), String> {
        done.extend(self.refused.drain(..).map(|slot| Done { slot, end: End::Failed, at: now, found: 0 }));
        if self.stream.is_none() {
            return Ok(());
        }
        let mut error = None;
        let moved = self.write(cx).and_then(|()| self.read(cx, now, buffer, done, &mut error));
        let overdue = self.waiting.front().is_some_and(|first| now >= first.since + self.timeout);
        let broken = match moved {
            Ok(()) if overdue => Some(format!("{}: no reply in {} ms", self.address, self.timeout / 1_000_000)),
            Ok(()) => None,
            Err(e) => Some(format!("{}: {e}", self.address)),
        };
        if let Some(broken) = broken {
            self.lose(now, done);
            return Err(broken);
        }
        error.map_or(Ok(()), Err)
    }

    /// Replies on a connection come in order: with one missing, all behind it are unknown too.
    fn lose(&mut self, now: Nanos, done: &mut Vec<Done>) {
        self.stream = None;
        self.retry_at = now + RETRY;
        (self.sent, self.parsed) = (0, 0);
        self.out.clear();
        self.ends.clear();
        self.read.clear();
        let unknown = |waiting: Waiting| Done { slot: waiting.slot, end: End::Unknown, at: now, found: 0 };
        done.extend(self.waiting.drain(..).map(unknown));
    }

    fn write(&mut self, cx: &mut Context<'_>) -> std::io::Result<()> {
        let Some(stream) = &self.stream else { return Ok(()) };
        while self.sent < self.out.len() {
            let end = if self.pack { self.out.len() } else { self.ends.front().copied().unwrap_or(self.out.len()) };
            match stream.try_write(&self.out[self.sent..end]) {
                Ok(count) => self.sent += count,
                Err(e) if e.kind() == ErrorKind::WouldBlock => match stream.poll_write_ready(cx) {
                    Poll::Ready(ready) => ready?,
                    Poll::Pending => return Ok(()),
                },
                Err(e) => return Err(e),
            }
            if self.ends.front() == Some(&self.sent) {
                self.ends.pop_front();
            }
        }
        self.sent = 0;
        self.out.clear();
        Ok(())
    }

    fn read(
        &mut self,
        cx: &mut Context<'_>,
        now: Nanos,
        buffer: &mut [u8],
        done: &mut Vec<Done>,
        error: &mut Option<String>,
    ) -> std::io::Result<()> {
        loop {
            let Some(stream) = &self.stream else { return Ok(()) };
            match stream.try_read(buffer) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => {
                    self.read.extend_from_slice(&buffer[..count]);
                    self.parse(now, done, error)?;
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => match stream.poll_read_ready(cx) {
                    Poll::Ready(ready) => ready?,
                    Poll::Pending => return Ok(()),
                },
                Err(e) => return Err(e),
            }
        }
    }

    fn parse(&mut self, at: Nanos, done: &mut Vec<Done>, error: &mut Option<String>) -> std::io::Result<()> {
        loop {
            let reply = codec::reply(&self.read[self.parsed..]);
            let Some((reply, length)) = reply.map_err(|_| std::io::Error::other("does not speak RESP"))? else { break };
            self.parsed += length;
            let first = self.waiting.front_mut().ok_or_else(|| std::io::Error::other("a reply to nothing"))?;
            let (end, found) = match reply {
                Reply::Ok { found } => (End::Ok, found),
                Reply::Error(text) => (end_of(&text, error), 0),
            };
            if first.end == End::Ok {
                first.end = end;
            }
            first.replies -= 1;
            if first.replies == 0 {
                done.push(Done { slot: first.slot, end: first.end, at, found });
                self.waiting.pop_front();
            }
        }
        self.read.drain(..self.parsed);
        self.parsed = 0;
        Ok(())
    }
}

/// How a request ended, by the first word of its error: any word that is not listed here is a sure error.
fn end_of(text: &str, error: &mut Option<String>) -> End {
    // Servers quote what they were sent: keys are bytes, not text.
    error.get_or_insert_with(|| text.chars().map(|c| if c.is_ascii_graphic() || c == ' ' { c } else { '?' }).collect());
    match text.split_whitespace().next() {
        Some("OVERLOADED" | "BUSY") => End::Busy,
        Some("OUTCOMEUNKNOWN") => End::Unknown,
        _ => End::Failed,
    }
}

impl Target for Resp {
    fn now(&self) -> Nanos {
        self.clock.now()
    }

    fn submit(&mut self, slot: u32, request: &Request) {
        let _guard = self.runtime.enter();
        let now = self.clock.now();
        let index = slot as usize % self.connections.len();
        self.connections[index].submit(slot, request, &mut self.scratch, now);
    }

    fn poll(&mut self, until: Nanos, done: &mut Vec<Done>) {
        let Resp { clock, connections, first_error, buffer, runtime, .. } = self;
        let before = done.len();
        let oldest = connections.iter().filter_map(|c| Some(c.waiting.front()?.since + c.timeout)).min();
        let until = until.min(oldest.unwrap_or(Nanos::MAX));
        runtime.block_on(poll_fn(|cx| {
            let now = clock.now();
            for connection in connections.iter_mut() {
                if let Err(error) = connection.progress(cx, now, buffer, done) {
                    first_error.get_or_insert(error);
                }
            }
            if done.len() == before { clock.poll_until(cx, until) } else { Poll::Ready(()) }
        }));
    }

    fn first_error(&mut self) -> Option<String> {
        self.first_error.take()
    }
}

#[cfg(test)]
mod tests;
