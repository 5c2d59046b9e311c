//! The proposer: a leadership from the moment its round is chosen to its end (protocol.md 1.1, 1.2).
//!
//! Here is its state, and the one decision of Phase 1: which value each instance gets. The composition does the rest.

use std::collections::VecDeque;
use std::hash::{Hash, Hasher};
use std::time::Duration;

use crate::batch::{Batch, Configuration};
use crate::batcher::Batcher;
use crate::ids::{Ballot, Beat, Instance, Lsn, ReplicaId, Ticket, Time};
use crate::message::Phase1b;
use crate::quorum::{Quorum, VoteSet};
use crate::reads::Confirmations;
use crate::settings::Settings;
use crate::window::Window;

/// Phase 1 under way, for all instances from `from` on, under the configuration decided at `configured_at`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Phase1 {
    pub from: Instance,
    pub configured_at: Instance,
    pub answered: VoteSet,
    pub replies: Vec<(ReplicaId, Phase1b)>,
    pub begun_at: Time,
    pub retry_at: Time,
    /// A candidate gives up then. A leader that repeats Phase 1 resigns when it hears no quorum.
    pub give_up_at: Time,
}

/// What the leader knows of another replica.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Peer {
    pub id: ReplicaId,
    /// Anything of the own ballot came last then.
    pub heard_at: Time,
    /// The newest round that it acknowledged.
    pub acked: Beat,
    /// Its promise of a lease lasts at least until then, by the leader's clock.
    pub lease_until: Time,
    /// It durably holds everything decided up to here.
    pub durable_upto: Instance,
    /// The quickest heartbeat there and back.
    pub nearest: Nearest,
}

/// The shortest of the newest samples: those of the running period and of the one before it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Nearest {
    since: Time,
    now: Option<Duration>,
    before: Option<Duration>,
}

/// A way that got longer is believed after at most twice this.
const NEAREST_PERIOD: Duration = Duration::from_secs(2);

/// Measured, and no part of a hash (hazards.md 7, models).
impl Hash for Nearest {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl Nearest {
    pub fn sample(&mut self, at: Time, took: Duration) {
        if at - self.since >= NEAREST_PERIOD {
            (self.since, self.before, self.now) = (at, self.now, None);
        }
        self.now = Some(self.now.map_or(took, |now| now.min(took)));
    }

    pub fn shortest(&self) -> Option<Duration> {
        self.now.into_iter().chain(self.before).min()
    }
}

/// The leader hands over.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Handover {
    pub to: ReplicaId,
    pub deadline: Time,
    /// Nothing changes before the heir acknowledges this round, and holds most of what had been decided here when the
    /// round was asked for: one that cannot be reached, or is far behind, costs nobody a pause.
    pub asked: (Beat, Instance),
    /// Since when nothing is proposed.
    pub paused_at: Option<Time>,
    pub sent: bool,
}

impl Handover {
    /// When the leader goes on leading. A pause lasts no longer than an election would.
    pub fn ends_at(&self, election_timeout: Duration) -> Time {
        let paused = self.paused_at.filter(|_| !mutant!(handover_pauses_on));
        paused.map_or(self.deadline, |paused_at| self.deadline.min(paused_at + election_timeout))
    }
}

/// Round trips of `Phase2a`, flushes included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RoundTrip {
    smoothed_ns: u64,
    deviation_ns: u64,
    measured: bool,
}

/// Measured, and no part of a hash (hazards.md 7, models).
impl Hash for RoundTrip {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl RoundTrip {
    /// Takes a sample (RFC 6298's filter).
    pub fn sample(&mut self, sample: Duration) {
        let ns = u64::try_from(sample.as_nanos()).unwrap_or(u64::MAX / 8);
        if self.measured {
            self.deviation_ns = (3 * self.deviation_ns + self.smoothed_ns.abs_diff(ns)) / 4;
            self.smoothed_ns = (7 * self.smoothed_ns + ns) / 8;
        } else {
            (self.smoothed_ns, self.deviation_ns, self.measured) = (ns, ns / 2, true);
        }
    }

    /// How long to wait before sending again.
    pub fn timeout(&self, settings: &Settings) -> Duration {
        if !self.measured {
            return settings.retransmit_max;
        }
        let timeout = Duration::from_nanos(self.smoothed_ns.saturating_add(4 * self.deviation_ns));
        // No constant bounds it: a window's worth of a slow link takes as long as it takes, and what is only queued
        // there is not to be sent again.
        timeout.max(settings.retransmit_min)
    }
}

/// A candidacy, and the leadership that it becomes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Proposer {
    /// Promised by this replica too, as long as this exists.
    pub ballot: Ballot,
    /// The record of the round. Nothing is sent in `ballot` before it is flushed (hazards.md PX2).
    pub ballot_lsn: Lsn,
    /// Not begun: the round is not durable.
    pub begun: bool,
    /// Phase 1 was completed once: it leads.
    pub elected: bool,
    /// The leader that handed over to this candidate.
    pub handover_of: Option<Ballot>,
    /// Under way. Nothing is proposed meanwhile.
    pub phase1: Option<Phase1>,
    /// Values found in Phase 1 and not proposed again yet, from `window.next()` on.
    pub found: VecDeque<Batch>,
    /// The last instance that Phase 1 found: when it is executed, this replica serves.
    pub takeover_upto: Instance,
    /// `Effect::Leading` is out.
    pub serving: bool,
    pub window: Window,
    pub batcher: Batcher,
    /// Waits for the pipe to drain.
    pub change: Option<Configuration>,
    /// A configuration is in the pipe, the last thing there (protocol.md 1.5).
    pub change_in_pipe: bool,
    pub handover: Option<Handover>,
    /// A `TakeOver` was sent: this ballot uses no lease more, for the message may arrive whenever it likes.
    pub lease_void: bool,
    /// All other members, and those that leave.
    pub peers: Vec<Peer>,
    /// The newest heartbeat round; 0 before the first.
    pub beat: Beat,
    /// When the newest rounds were begun; the last one is `beat`.
    pub beats_begun_at: VecDeque<Time>,
    pub heartbeat_at: Time,
    /// Rounds in a row that found nothing to do.
    pub quiet_rounds: u32,
    /// The others were told that the next beat takes its time.
    pub resting: bool,
    /// How long, at most.
    pub rest_told: Duration,
    /// No round for reads before this.
    pub round_at: Time,
    pub confirmations: Confirmations,
    pub round_trip: RoundTrip,
    /// Doublings of the retransmission timeout since the last progress.
    pub backoff: u32,
    /// What the last `Phase2a` or heartbeat to everybody carried.
    pub carried: (Instance, Option<Ticket>),
    /// When to send a heartbeat because nothing else carried what is new.
    pub announce_at: Option<Time>,
}

/// Rounds whose begin is remembered: at one per `CONFIRM_INTERVAL` more than the longest round trip that matters.
const BEATS_REMEMBERED: usize = 1_024;

impl Proposer {
    pub fn new(ballot: Ballot, ballot_lsn: Lsn, handover_of: Option<Ballot>, decided_upto: Instance) -> Proposer {
        Proposer {
            ballot,
            ballot_lsn,
            begun: false,
            elected: false,
            handover_of,
            phase1: None,
            found: VecDeque::new(),
            takeover_upto: decided_upto,
            serving: false,
            window: Window::starting_at(decided_upto.next()),
            batcher: Batcher::default(),
            change: None,
            change_in_pipe: false,
            handover: None,
            lease_void: false,
            peers: Vec::new(),
            beat: Beat(0),
            beats_begun_at: VecDeque::new(),
            heartbeat_at: Time::ZERO,
            quiet_rounds: 0,
            resting: false,
            rest_told: Duration::ZERO,
            round_at: Time::ZERO,
            confirmations: Confirmations::default(),
            round_trip: RoundTrip::default(),
            backoff: 0,
            carried: (decided_upto, None),
            announce_at: None,
        }
    }

    /// Whether it has finished Phase 1 and may propose.
    pub fn may_propose(&self) -> bool {
        self.begun && self.phase1.is_none()
    }

    pub fn peer_mut(&mut self, id: ReplicaId) -> Option<&mut Peer> {
        self.peers.iter_mut().find(|peer| peer.id == id)
    }

    pub fn peer(&self, id: ReplicaId) -> Option<&Peer> {
        self.peers.iter().find(|peer| peer.id == id)
    }

    /// Whether the leader has stopped proposing, for another one to lead.
    pub fn pauses(&self) -> bool {
        self.handover.as_ref().is_some_and(|handover| handover.paused_at.is_some())
    }

    /// Fits `peers` to a configuration. A new one counts as heard now: it gets an election timeout to answer.
    pub fn set_peers(&mut self, configuration: &Configuration, me: ReplicaId, now: Time) {
        let old = std::mem::take(&mut self.peers);
        let all = configuration.members().chain(configuration.leaving.iter().copied());
        self.peers = all
            .filter(|id| *id != me)
            .map(|id| {
                let fresh = Peer {
                    id,
                    heard_at: now,
                    acked: Beat(0),
                    lease_until: Time::ZERO,
                    durable_upto: Instance::ZERO,
                    nearest: Nearest::default(),
                };
                let known = old.iter().find(|peer| peer.id == id).cloned();
                // Leases and rounds count anew under the new configuration (protocol.md 1.1).
                known.map_or(fresh, |known| Peer { heard_at: now, lease_until: Time::ZERO, acked: Beat(0), ..known })
            })
            .collect();
    }

    /// Begins a heartbeat round: its number is new in this ballot (hazards.md RD2).
    pub fn begin_beat(&mut self, now: Time) -> Beat {
        if !(mutant!(round_reused) && self.beat.0 > 0) {
            self.beat = Beat(self.beat.0 + 1);
            self.beats_begun_at.push_back(now);
            if self.beats_begun_at.len() > BEATS_REMEMBERED {
                self.beats_begun_at.pop_front();
            }
        }
        self.beat
    }

    /// When round `beat` was begun, if that is remembered.
    pub fn begun_at(&self, beat: Beat) -> Option<Time> {
        let back = self.beat.0.checked_sub(beat.0)? as usize;
        let index = self.beats_begun_at.len().checked_sub(back + 1)?;
        self.beats_begun_at.get(index).copied()
    }

    /// The newest round that a quorum acknowledged. The leader itself does so at once.
    pub fn acked_by(&self, quorum: &Quorum, me: ReplicaId) -> Beat {
        let acked = |id| if id == me { self.beat } else { self.peer(id).map_or(Beat(0), |peer| peer.acked) };
        quorum.reached(acked).unwrap_or_default()
    }

    /// Until when a quorum has promised to elect nobody else. The leader itself elects nobody while it leads.
    pub fn lease_until(&self, quorum: &Quorum, me: ReplicaId) -> Time {
        let lease = |id| if id == me { Time(u64::MAX) } else { self.peer(id).map_or(Time::ZERO, |p| p.lease_until) };
        quorum.reached(lease).unwrap_or_default()
    }

    /// When a quorum, this replica included, was last heard.
    pub fn quorum_heard_at(&self, quorum: &Quorum, me: ReplicaId) -> Time {
        let heard = |id| if id == me { Time(u64::MAX) } else { self.peer(id).map_or(Time::ZERO, |p| p.heard_at) };
        quorum.reached(heard).unwrap_or_default()
    }
}

/// The values that a new leader proposes in the instances after `decided_upto`: in each, that of the highest ballot
/// which a quorum's replies report; a hole becomes `NoOp`, never a queued command. The list ends at a configuration,
/// because the instances after it are another quorum's (protocol.md 1.1).
pub(crate) fn adopt(replies: &[(ReplicaId, Phase1b)], decided_upto: Instance) -> VecDeque<Batch> {
    let reported = || replies.iter().flat_map(|(_, reply)| &reply.accepted).filter(|a| a.instance > decided_upto);
    let last = reported().map(|accepted| accepted.instance).max().unwrap_or(decided_upto);
    let mut best: Vec<Option<(Ballot, &Batch)>> = vec![None; last.ahead_of(decided_upto) as usize];
    for accepted in reported() {
        let best = &mut best[(accepted.instance.0 - decided_upto.0 - 1) as usize];
        let better = best.is_none_or(|(ballot, _)| accepted.ballot > ballot && !mutant!(first_value_wins));
        if better {
            *best = Some((accepted.ballot, &accepted.batch));
        }
    }
    let mut values = VecDeque::with_capacity(best.len());
    for value in best {
        let batch = value.map_or(Batch::NoOp, |(_, batch)| batch.clone());
        let configuration = batch.as_configuration().is_some();
        values.push_back(batch);
        if configuration && !mutant!(conf_one_phase1) {
            break;
        }
    }
    values
}
