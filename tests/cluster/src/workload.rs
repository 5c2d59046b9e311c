//! Clients of a run: each asks, one call after the other, through the client library, and writes down when it asked
//! and what it was told. A write without an answer is repeated under its number until it is answered (hazards.md 2,
//! E4); some are given up and stay unknown.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use coppice_btree::OpResult;
use coppice_check::event::{Call, Output, Position};
use coppice_check::marks::MoveResult;
use coppice_check::record::{Answer, Recorder};
use coppice_client::{Client, Command, Error, Operation, Output as ClientOutput, Range, ReadMode};
use coppice_testkit::random::Random;
use coppice_words::{position, text};

use super::draw::{Draw, Drawer, call_of};
use super::space::Space;

/// Pause before a write without an answer is repeated.
const REPEAT_PAUSE: Duration = Duration::from_millis(20);

/// Of 1,000 writes without an answer, so many are given up at once.
const GIVEN_UP_PER_MILLE: u32 = 50;

/// What the logs name, but no value does: a delete, and any write of unknown outcome.
#[derive(Clone, Debug)]
pub struct NumberedWrite {
    /// The client, as the logs name it.
    pub client: u64,
    /// The workload's own number of the write.
    pub own: u64,
    /// The key of a delete; empty otherwise.
    pub key: Vec<u8>,
    /// Where it was executed, if that was told.
    pub position: Option<Position>,
    /// The number that the client library gave it, if that is known.
    pub number: Option<u64>,
}

/// What all clients of a run share.
#[derive(Debug)]
pub struct Workload {
    /// The history.
    pub recorder: Recorder,
    /// What is asked for.
    pub space: Space,
    /// Shape of all draws.
    pub seed: u64,
    /// Each client asks at most once in this time.
    pub pause: Duration,
    stopping: AtomicBool,
    hopeless: AtomicBool,
    asked: AtomicU64,
    numbered: Mutex<Vec<NumberedWrite>>,
    failed: Mutex<Option<io::Error>>,
}

impl Workload {
    /// Nothing was asked yet.
    pub fn new(recorder: Recorder, space: Space, seed: u64, pause: Duration) -> Arc<Workload> {
        Arc::new(Workload {
            recorder,
            space,
            seed,
            pause,
            stopping: AtomicBool::new(false),
            hopeless: AtomicBool::new(false),
            asked: AtomicU64::new(0),
            numbered: Mutex::new(Vec::new()),
            failed: Mutex::new(None),
        })
    }

    /// Calls made so far.
    pub fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }

    /// One call more.
    pub fn count(&self) {
        self.asked.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether clients ask for nothing more.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// The history cannot be written: nobody asks any more.
    pub fn fail(&self, error: io::Error) {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        self.stop();
    }

    /// Clients ask for nothing more; writes without an answer are still repeated.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// Stops repeating, too.
    pub fn give_up(&self) {
        self.hopeless.store(true, Ordering::Relaxed);
    }

    /// What was numbered without a value, so far.
    pub fn take_numbered(&self) -> Vec<NumberedWrite> {
        std::mem::take(&mut self.numbered.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Why the history could not be written, if so.
    pub fn failure(&self) -> Option<io::Error> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// One client, until it is told to stop.
    pub async fn client(self: Arc<Self>, number: u32, client: Client) {
        let mut drawer = Drawer::new(number, self.seed, self.space.clone());
        let mut random = Random::of(self.seed, 0x9e57_0000 + u64::from(number));
        let mut next = tokio::time::Instant::now();
        while !self.is_stopping() {
            // What follows at once is made up for behind it.
            next = if drawer.hurries() { next } else { tokio::time::Instant::now() } + self.pause;
            let draw = drawer.draw();
            self.count();
            let own = drawer.writes();
            let done = match &draw {
                Draw::Write(operations) => self.write(&client, own, operations, &mut drawer, &mut random).await,
                Draw::Get { key, mode } => self.get(&client, &draw, key, *mode, &mut drawer).await,
                Draw::Range { .. } => self.range(&client, &draw).await.map(|_| ()),
            };
            if let Err(error) = done {
                return self.fail(error);
            }
            if !drawer.hurries() {
                tokio::time::sleep_until(next).await;
            }
        }
    }

    async fn write(
        &self,
        client: &Client,
        own: u64,
        operations: &[Operation],
        drawer: &mut Drawer,
        random: &mut Random,
    ) -> io::Result<()> {
        let (id, call) = (client.id().0, call_of(&Draw::Write(operations.to_vec())));
        let delete = match &call {
            Call::Delete { key } => Some(key.to_vec()),
            _ => None,
        };
        let command = match operations {
            [one] => Command::One(one.clone()),
            several => Command::Many(several.into()),
        };
        let line = self.recorder.invoke(id, own, call, false)?;
        let (answer, number) = self.until_answered(client, &command, random).await;
        let (mut at, mut told, mut moved) = (None, None, MoveResult::Unknown);
        match &answer {
            Some(Ok(answer)) => {
                let output = output(&answer.output);
                learn(operations, &output, drawer);
                moved = moved_by(operations, &output);
                at = Some(position(answer.position));
                told = Some(Answer {
                    status: coppice_check::event::Status::Ok,
                    output,
                    positions: vec![position(answer.position)],
                    ticket: None,
                });
            }
            Some(Err(())) => (told, moved) = (Some(Answer::refused()), MoveResult::Refused),
            None => {}
        }
        drawer.told(moved);
        if let Some(told) = told {
            self.recorder.answer(line, told)?;
        }
        if delete.is_some() || number.is_some() {
            let key = delete.unwrap_or_default();
            let numbered = NumberedWrite { client: id, own, key, position: at, number };
            self.numbered.lock().unwrap_or_else(PoisonError::into_inner).push(numbered);
        }
        Ok(())
    }

    /// The answer; `Err`: surely without effect; none: unknown. And the command's number, if its token was seen.
    async fn until_answered(
        &self,
        client: &Client,
        command: &Command,
        random: &mut Random,
    ) -> (Option<Result<coppice_client::Answer<ClientOutput>, ()>>, Option<u64>) {
        let mut outcome = client.command(command.clone()).await;
        let mut token = None;
        loop {
            let error = match outcome {
                Ok(answer) => return (Some(Ok(answer)), token.map(number_of)),
                Err(error) => error,
            };
            if error.is_sure() && token.is_none() {
                return (Some(Err(())), None);
            }
            let again = match &error {
                Error::Unknown(unknown) => unknown.resume,
                // Sure of this repetition only.
                Error::Failed(_) => token,
            };
            token = again.or(token);
            let given_up = self.hopeless.load(Ordering::Relaxed) || random.chance(GIVEN_UP_PER_MILLE);
            let (Some(again), false) = (again, given_up) else { return (None, token.map(number_of)) };
            tokio::time::sleep(REPEAT_PAUSE).await;
            outcome = client.resume(again, command.clone()).await;
        }
    }

    async fn get(
        &self,
        client: &Client,
        draw: &Draw,
        key: &str,
        mode: ReadMode,
        drawer: &mut Drawer,
    ) -> io::Result<()> {
        if let Some(value) = self.read(client, draw, key, mode).await? {
            drawer.saw(key.as_bytes(), value.as_deref());
        }
        Ok(())
    }

    async fn read(
        &self,
        client: &Client,
        draw: &Draw,
        key: &str,
        mode: ReadMode,
    ) -> io::Result<Option<Option<coppice_btree::Value>>> {
        let line = self.recorder.invoke(client.id().0, 0, call_of(draw), mode == ReadMode::Stale)?;
        // A read without an answer says nothing.
        let Ok(answer) = client.get_as(key, mode).await else { return Ok(None) };
        let output = Output::Value(answer.output.as_deref().map(text));
        self.recorder.answer(line, ok(output, vec![position(answer.position)]))?;
        Ok(Some(answer.output))
    }

    /// The number that a key holds, if there is an answer.
    ///
    /// # Errors
    /// The history cannot be written.
    pub async fn number(&self, client: &Client, key: &str) -> io::Result<Option<i64>> {
        let mode = ReadMode::Leader;
        let value = self.read(client, &Draw::Get { key: key.to_owned(), mode }, key, mode).await?.flatten();
        Ok(value.and_then(|value| std::str::from_utf8(&value).ok()?.parse().ok()))
    }

    /// A range; whether it was answered.
    ///
    /// # Errors
    /// The history cannot be written.
    pub async fn range(&self, client: &Client, draw: &Draw) -> io::Result<bool> {
        let Draw::Range { low, high, limit, reverse, mode } = draw else { return Ok(false) };
        let line = self.recorder.invoke(client.id().0, 0, call_of(draw), *mode == ReadMode::Stale)?;
        let mut range = Range::between(low, high.as_deref()).mode(*mode).limit(u64::from(*limit));
        if *reverse {
            range = range.reverse();
        }
        let Ok(mut stream) = client.range(range).await else { return Ok(false) };
        let mut pairs = Vec::new();
        loop {
            match stream.next().await {
                Ok(Some((key, value))) => pairs.push((text(key), text(value))),
                Ok(None) => break,
                Err(_) => return Ok(false),
            }
        }
        if *reverse {
            pairs.reverse();
        }
        let ticket = stream.ticket().map(|ticket| coppice_check::event::Ticket {
            round: ticket.round,
            replica: ticket.replica.0,
            number: ticket.n,
        });
        let positions = stream.positions().iter().map(|at| position(*at)).collect();
        self.recorder.answer(line, Answer { ticket, ..ok(Output::Pairs(pairs), positions) })?;
        Ok(true)
    }
}

fn ok(output: Output<'static>, positions: Vec<Position>) -> Answer<'static> {
    Answer { status: coppice_check::event::Status::Ok, output, positions, ticket: None }
}

fn number_of(token: coppice_client::ResumeToken) -> u64 {
    token.number
}

fn output(told: &ClientOutput) -> Output<'static> {
    match told {
        ClientOutput::One(result) => one(result),
        ClientOutput::Many(results) => Output::List(results.iter().map(one).collect()),
        ClientOutput::Loaded(_) | ClientOutput::NotLoaded(_) | ClientOutput::Omitted | ClientOutput::Unmet(_) => {
            Output::Value(None)
        }
    }
}

fn one(result: &OpResult) -> Output<'static> {
    let value = |value: &Option<coppice_btree::Value>| value.as_deref().map(text);
    match result {
        OpResult::Put { previous } | OpResult::Delete { previous } => Output::Value(value(previous)),
        OpResult::Insert { present } => Output::Value(value(present)),
        OpResult::Get { value: found } => Output::Value(value(found)),
        OpResult::Cas { done, current } => Output::Cas(*done, value(current)),
        OpResult::Update { .. } | OpResult::Look { .. } => unreachable!("not drawn: {result:?}"),
    }
}

/// Of a ladder's or a token's key: the insert found nothing there, the delete something.
pub fn moved_by(operations: &[Operation], output: &Output<'_>) -> MoveResult {
    match (operations, output) {
        ([Operation::Insert { .. }], Output::Value(None))
        | ([Operation::Delete { .. }], Output::Value(Some(_)) | Output::Done) => MoveResult::Done,
        _ => MoveResult::Unknown,
    }
}

/// What a client knows of its keys after an answer, for its next cas.
pub fn learn(operations: &[Operation], output: &Output<'_>, drawer: &mut Drawer) {
    let [operation] = operations else { return };
    match (operation, output) {
        (Operation::Put { key, value }, _) => drawer.saw(key, Some(value)),
        (Operation::Insert { key, value }, Output::Value(present)) => {
            drawer.saw(key, Some(present.as_deref().unwrap_or(value)));
        }
        (Operation::Cas { key, value, .. }, Output::Cas(true, _)) => drawer.saw(key, Some(value)),
        (Operation::Cas { key, .. }, Output::Cas(false, current)) => drawer.saw(key, current.as_deref()),
        (Operation::Delete { key }, _) => drawer.saw(key, None),
        _ => {}
    }
}
