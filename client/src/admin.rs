//! Operators' verbs and the status: rare questions, each on a connection of its own, so that they work on a node that
//! belongs to no cluster yet and beside a client that is stuck.

mod round;
mod verbs;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::BytesMut;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use self::round::{Round, Standing};
use crate::channel::Channel;
use crate::config::Config;
use crate::error::{NodeError, Place, describe};
use crate::wire::control::{decode_control, encode_control};
use crate::wire::{ClientId, Frame, FrameDecoder, Hello, Kind, NodeId, PROTOCOL};

#[doc(inline)]
pub use crate::wire::{
    AdminError, AdminReply, AdminRequest, ChangeId, ConfigRow, Grant, HelloOk, InitRequest, MapReply, Refusal,
    ReshapeRequest, Reshaped, Role, Shape, Status, TuningReport, UserChange, UserChangeReply, UserRow,
};

/// An endpoint that has not answered a question by then gets company: the next one is asked too.
const HEDGE: Duration = Duration::from_millis(100);

/// Between two rounds of questions to nodes that were busy, or did not answer in time.
const ROUND_PAUSE: Duration = Duration::from_millis(50);

/// What is said of a node that did not answer in time.
const TIMED_OUT: &str = "timed out";

/// Asks any of several nodes; see the module.
///
/// Every verb fails with [`Error::Unreachable`] if no node answers within [`Config::timeout`], and with
/// [`Error::Refused`] and [`Refusal::Denied`] if access control is on and this client's user may not ask for it. A verb
/// that speaks for the cluster fails with [`Error::NoMajority`] if every node that answers is cut off. A verb that
/// changes something fails with [`Error::Unanswered`] if its outcome is not known: it is idempotent, so repeat it.
///
/// ```no_run
/// # async fn example() -> Result<(), coppice_client::admin::Error> {
/// use coppice_client::{Admin, Config};
///
/// let admin = Admin::new(["127.0.0.1:7400"], Config::default());
/// let map = admin.cluster_map().await?;
/// admin.set_config("sessions_max", "20000").await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Admin {
    endpoints: Vec<String>,
    config: Config,
    answered: Arc<Mutex<AnswerSource>>,
}

/// Who gave an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnswerSource {
    /// The node; none: it belongs to no cluster, or nobody answered.
    pub by: Option<NodeId>,
    /// Nodes that answered before it, and hear no majority of the directory.
    pub passed_over: Vec<NodeError>,
}

/// Why there is no answer to an operator's question.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No node answered; what became of each.
    #[error("no node answered{}", in_brackets(.0))]
    Unreachable(Vec<NodeError>),
    /// A node was asked for a change and did not answer: it may have been carried out. What became of each node.
    #[error("sent, and no node answered{}", in_brackets(.0))]
    Unanswered(Vec<NodeError>),
    /// Every node that answered is cut off from the directory's majority: nothing was done. What each said.
    #[error("no node that answers hears a majority of the directory{}", in_brackets(.0))]
    NoMajority(Vec<NodeError>),
    /// A node answered, and refused.
    #[error("refused: {0:?}")]
    Refused(Refusal),
    /// The verb was not carried out.
    #[error("{0}")]
    Failed(AdminError),
    /// A node sent something else than an answer.
    #[error("{0}")]
    Incompatible(String),
}

fn in_brackets(errors: &[NodeError]) -> Place {
    Place { nodes: errors.to_vec(), ..Place::default() }
}

/// What a question to one node came to.
enum Attempt<T> {
    Answered(T, Option<NodeId>),
    Refused(Refusal),
    /// Not asked, and why.
    Silent(String),
    /// Asked, and no answer: why.
    Unanswered(String),
    /// It belongs to no cluster, and was not asked: it waits to be formed, or has lost its disk.
    Blank,
}

/// Until when one endpoint is waited for.
#[derive(Clone, Copy)]
struct Until {
    /// For its greeting.
    greeted: Instant,
    /// For its answer.
    answered: Instant,
}

impl Until {
    /// All the time that there is.
    fn last(deadline: Instant) -> Until {
        Until { greeted: deadline, answered: deadline }
    }

    /// Of the time that is left for `left` endpoints, asked one after the other, the share of the first: one that hangs
    /// leaves time for the others. `least` is what the answer itself may take.
    fn share(deadline: Instant, left: usize, config: &Config, least: Duration) -> Until {
        let Ok(others @ 1..) = u32::try_from(left.saturating_sub(1)) else { return Until::last(deadline) };
        let now = Instant::now();
        let time = deadline.saturating_duration_since(now);
        let answered = deadline.min(now + least.max(time / 2));
        Until { greeted: deadline.min(now + config.connect_timeout.min(time / (others + 1))), answered }
    }
}

/// How long a healthy node may take for an answer, beside what all of them may.
fn least_patience(request: &AdminRequest) -> Duration {
    match request {
        // The pause at most, and a moment for the way there and back.
        AdminRequest::TransferLeader { deadline_ms, .. } => {
            Duration::from_millis(u64::from(*deadline_ms)) + Duration::from_secs(1)
        }
        _ => Duration::ZERO,
    }
}

/// Who may answer a question.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whom {
    /// Nodes of a cluster.
    Members,
    /// Whoever is there.
    Anybody,
}

impl Admin {
    /// Asks the nodes at `endpoints` (`host:port`), the first one first. Of `config` the timeouts, the cluster, the
    /// token and the certificates count.
    pub fn new<E: Into<String>>(endpoints: impl IntoIterator<Item = E>, config: Config) -> Admin {
        let endpoints = endpoints.into_iter().map(Into::into).collect();
        Admin { endpoints, config, answered: Arc::default() }
    }

    /// Who gave the last answer.
    pub fn answered(&self) -> AnswerSource {
        self.answered.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn note(&self, by: Option<NodeId>, passed_over: &[NodeError]) {
        let answered = AnswerSource { by, passed_over: passed_over.to_vec() };
        *self.answered.lock().unwrap_or_else(PoisonError::into_inner) = answered;
    }

    /// Any verb. Verbs are idempotent, so one that was sent without an answer is sent to the next node too; but never
    /// to two at a time. An endpoint that hangs costs half of the time that is left, and less if it does not even
    /// greet. A node that hears no majority of the directory carries nothing out: the next one is asked, and at last
    /// those of which it was told. Nodes that were busy, or did not answer in time, are asked again until the timeout.
    ///
    /// ```no_run
    /// # async fn example(admin: coppice_client::Admin) -> Result<(), coppice_client::admin::Error> {
    /// use coppice_client::admin::AdminRequest;
    /// let reply = admin.verb(AdminRequest::CheckReplicas).await?;
    /// println!("{reply:?}");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`Error`]; [`Error::Unanswered`] only if the verb changes something.
    pub async fn verb(&self, request: AdminRequest) -> Result<AdminReply, Error> {
        let deadline = Instant::now() + self.config.timeout;
        let (mut addresses, mut unanswered) = (self.endpoints.clone(), false);
        // Only a node without a cluster can form one.
        let mut whom = if matches!(request, AdminRequest::Init(_)) { Whom::Anybody } else { Whom::Members };
        loop {
            let mut round = Round::default();
            let mut at = 0;
            while let Some(address) = addresses.get(at).cloned() {
                let question = (Kind::Admin, &request);
                let until = Until::share(deadline, addresses.len() - at, &self.config, least_patience(&request));
                let asked: Attempt<AdminReply> =
                    ask(&address, &self.config, until, whom, question, Kind::AdminReply, "admin reply").await;
                at += 1;
                match asked {
                    Attempt::Answered(reply, by) => match reply.alone() {
                        Some(alone) => round.is_alone(&mut addresses, (by, &address), alone),
                        None => {
                            self.note(by, &round.alone);
                            return match reply {
                                AdminReply::Failed(error) => Err(Error::Failed(error)),
                                reply => Ok(reply),
                            };
                        }
                    },
                    // Another node may know better, or lead.
                    Attempt::Refused(refusal) => round.refused = Some(refusal),
                    Attempt::Silent(error) => round.errors.push(error_of(&address, error)),
                    Attempt::Unanswered(error) => {
                        unanswered |= request.properties().changes;
                        round.errors.push(error_of(&address, error));
                    }
                    Attempt::Blank => round.blank.push(address),
                }
            }
            let over = Instant::now() + ROUND_PAUSE >= deadline;
            if round.may_change() && !over {
                tokio::time::sleep(ROUND_PAUSE).await;
            } else if unanswered {
                return Err(Error::Unanswered(round.errors));
            } else if round.blank.is_empty() || round.refused.is_some() || !round.alone.is_empty() || over {
                return Err(round.failed());
            } else {
                (addresses, whom) = (round.blank, Whom::Anybody);
            }
        }
    }

    /// Asks one node after the other, each a little later than the one before, and takes the first answer of a node
    /// that hears a majority; if none does, that of another one. Those without a cluster only if nobody else answers:
    /// they know nothing of the others'.
    async fn any<Q, A>(
        &self,
        whom: Whom,
        kind: Kind,
        question: &Q,
        answer: Kind,
        what: &'static str,
    ) -> Result<A, Error>
    where
        Q: Serialize + Clone + Send + Sync + 'static,
        A: DeserializeOwned + Standing + Send + 'static,
    {
        let deadline = Instant::now() + self.config.timeout;
        let mut asked = JoinSet::new();
        let spawn = |asked: &mut JoinSet<_>, address: String, whom: Whom, pause: Duration| {
            let (config, question) = (self.config.clone(), question.clone());
            asked.spawn(async move {
                tokio::time::sleep(pause).await;
                let attempt: Attempt<A> =
                    ask(&address, &config, Until::last(deadline), whom, (kind, &question), answer, what).await;
                (address, attempt)
            });
        };
        let mut addresses = self.endpoints.clone();
        let (mut next, mut round, mut best) = (0, Round::default(), None);
        // Beside an answer that is no cluster's, nodes that do not even greet are not waited for any longer.
        let mut settled = deadline + HEDGE;
        loop {
            if let Some(address) = addresses.get(next) {
                spawn(&mut asked, address.clone(), whom, Duration::ZERO);
                next += 1;
            }
            let patience = if next < addresses.len() { Instant::now() + HEDGE } else { settled };
            match timeout_at(patience, asked.join_next()).await {
                Ok(Some(Ok((address, Attempt::Answered(answer, by))))) => match answer.alone() {
                    Some(alone) if whom == Whom::Members => {
                        round.is_alone(&mut addresses, (by, &address), alone);
                        best.get_or_insert((answer, by));
                        settled = settled.min(Instant::now() + self.config.connect_timeout);
                    }
                    _ => {
                        self.note(by, &round.alone);
                        return Ok(answer);
                    }
                },
                // It is asked again shortly.
                Ok(Some(Ok((address, Attempt::Refused(Refusal::Busy { .. })))))
                    if Instant::now() + ROUND_PAUSE < deadline =>
                {
                    spawn(&mut asked, address, whom, ROUND_PAUSE);
                }
                Ok(Some(Ok((_, Attempt::Refused(refusal))))) => round.refused = Some(refusal),
                Ok(Some(Ok((address, Attempt::Silent(error) | Attempt::Unanswered(error))))) => {
                    round.errors.push(error_of(&address, error));
                }
                Ok(Some(Ok((address, Attempt::Blank)))) => round.blank.push(address),
                Err(_) if next == addresses.len() && best.is_some() => break,
                Ok(Some(Err(_))) | Err(_) => {}
                Ok(None) if next < addresses.len() => {}
                Ok(None) if best.is_some() => break,
                Ok(None) if round.refused.is_none() && !round.blank.is_empty() => {
                    spawn(&mut asked, round.blank.remove(0), Whom::Anybody, Duration::ZERO);
                }
                Ok(None) => break,
            }
        }
        let Some((answer, by)) = best else { return Err(round.failed()) };
        self.note(by, &round.alone);
        Ok(answer)
    }
}

fn error_of(address: &str, error: String) -> NodeError {
    NodeError { node: None, address: address.into(), error }
}

/// One question to one node, on a connection of its own.
async fn ask<Q: Serialize, A: DeserializeOwned>(
    address: &str,
    config: &Config,
    until: Until,
    whom: Whom,
    (kind, question): (Kind, &Q),
    answer: Kind,
    what: &'static str,
) -> Attempt<A> {
    let (mut line, hello) = match connect(address, config, until.greeted).await {
        Ok((_, hello)) if whom == Whom::Members && hello.cluster.is_none() => return Attempt::Blank,
        Ok(greeted) => greeted,
        Err(Attempt::Refused(refusal)) => return Attempt::Refused(refusal),
        Err(Attempt::Silent(error) | Attempt::Unanswered(error)) => return Attempt::Silent(error),
        Err(Attempt::Answered(..) | Attempt::Blank) => return silent("did not greet"),
    };
    let mut out = BytesMut::new();
    encode_control(&mut out, kind, 1, question);
    match timeout_at(until.answered, line.exchange(out)).await {
        Err(_) => Attempt::Unanswered(TIMED_OUT.into()),
        Ok(Err(error)) => Attempt::Unanswered(error),
        Ok(Ok(frame)) => match Kind::from_u8(frame.kind) {
            Some(kind) if kind == answer => match decode_control(&frame.body, what) {
                Ok(answer) => Attempt::Answered(answer, hello.node.map(|identity| identity.node)),
                Err(error) => Attempt::Unanswered(error.to_string()),
            },
            Some(Kind::Refused) => match Refusal::decode(&frame.body) {
                Ok(refusal) => Attempt::Refused(refusal),
                Err(error) => Attempt::Unanswered(error.to_string()),
            },
            _ => Attempt::Unanswered("answered something else".into()),
        },
    }
}

fn silent<T>(error: &str) -> Attempt<T> {
    Attempt::Silent(error.into())
}

/// A connection with one question at a time.
struct Line {
    stream: Channel,
    decoder: FrameDecoder,
}

impl Line {
    async fn exchange(&mut self, question: BytesMut) -> Result<Frame, String> {
        self.stream.write_all(&question).await.map_err(|error| describe(&error))?;
        loop {
            if let Some(frame) = self.decoder.next_frame().map_err(|error| error.to_string())? {
                return Ok(frame);
            }
            match self.stream.read_some(self.decoder.space()).await {
                Ok(0) => return Err("closed the connection".into()),
                Ok(_) => {}
                Err(error) => return Err(describe(&error)),
            }
        }
    }
}

/// Connects and greets.
async fn connect(address: &str, config: &Config, until: Instant) -> Result<(Line, HelloOk), Attempt<()>> {
    let greeting = async {
        let stream = Channel::connect(address, config.tls.as_ref()).await.map_err(|error| describe(&error))?;
        let mut line = Line { stream, decoder: FrameDecoder::default() };
        let hello = Hello {
            protocol_min: *PROTOCOL.start(),
            protocol_max: *PROTOCOL.end(),
            features: 0,
            client: ClientId::default(),
            cluster: config.cluster,
            node: None,
            token: config.token.clone(),
        };
        let mut out = BytesMut::new();
        encode_control(&mut out, Kind::Hello, 0, &hello);
        let frame = line.exchange(out).await?;
        Ok::<_, String>((line, frame))
    };
    match timeout_at(until, greeting).await {
        Err(_) => Err(silent(TIMED_OUT)),
        Ok(Err(error)) => Err(Attempt::Silent(error)),
        Ok(Ok((line, frame))) => match Kind::from_u8(frame.kind) {
            Some(Kind::HelloOk) => match decode_control(&frame.body, "hello") {
                Ok(hello) => Ok((line, hello)),
                Err(error) => Err(Attempt::Silent(error.to_string())),
            },
            Some(Kind::Refused) => match Refusal::decode(&frame.body) {
                // It serves nobody now; another node may.
                Ok(Refusal::Unavailable { text }) => Err(Attempt::Silent(text)),
                Ok(refusal) => Err(Attempt::Refused(refusal)),
                Err(error) => Err(Attempt::Silent(error.to_string())),
            },
            _ => Err(silent("did not greet")),
        },
    }
}
