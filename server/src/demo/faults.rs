//! What can be done to a running demo, and what is said of it: faults, their gaps, waiting, load.

use std::fmt::Write as _;
use std::io;
use std::process::Stdio;
use std::time::{Duration, Instant};

use coppice_client::Admin;
use coppice_client::wire::{NodeId, Status};
use coppice_core::status::{Health, is_near, sentence};
use tokio::process::{Child, Command};
use tokio::sync::oneshot;

use super::availability_probe::AvailabilityProbe;
use super::completion::{Names, NodeState};
use super::cuts::Cuts;
use super::measure::Kind;
use super::nodes::{Nodes, Progress};
use super::page::Shown;
use super::prompt::{PromptCommand, Until};
use crate::status_view::milliseconds;

/// An election takes a second at most; after this a gap is reported as open.
const GAP_PATIENCE: Duration = Duration::from_secs(10);
/// A node that was away for minutes may have to fetch a snapshot.
pub(super) const CATCH_UP_PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks at the cluster while waiting for it.
pub(super) const LOOK: Duration = Duration::from_millis(10);

/// What a command at the prompt works on.
#[derive(Debug)]
pub struct Faults {
    /// The processes.
    pub nodes: Nodes,
    /// The demo's own questions.
    pub admin: Admin,
    pub pulse: AvailabilityProbe,
    /// Partitions that the pulse beats in: those of the map, without the directory.
    pub partitions: Vec<u32>,
    /// Where clients find the nodes.
    pub endpoints: String,
    /// What is cut or slow.
    pub cuts: Cuts,
    /// What the page shows of all this.
    pub shown: Shown,
    /// Ends the load that the page began.
    pub page_load: Option<oneshot::Sender<()>>,
}

/// Load that a page begins: enough to see everything move, and to leave room to look at it.
const PAGE_LOAD: [&str; 9] =
    ["run", "--workload", "mixed", "--clients", "16", "--cross-percent", "5", "--duration", "1h"];

/// A sentence for the person at the prompt: why something was not done.
pub type Refused = String;

impl Faults {
    /// The flags of a verb that asks these nodes.
    pub fn access(&self) -> Vec<String> {
        let endpoints = ["--endpoints".to_owned(), self.endpoints.clone()];
        let files = super::certs::of_client(self.nodes.certs());
        endpoints.into_iter().chain(files.into_iter().flat_map(|(name, file)| [format!("--{name}"), file])).collect()
    }

    /// The state of the cluster, if any node tells it.
    pub async fn status(&self) -> Option<Status> {
        if self.cuts.is_empty() { self.admin.status(false).await.ok() } else { self.status_of_most().await }
    }

    /// The line above the prompt, and what there is to name on a line.
    pub async fn look(&self) -> (String, Names) {
        let status = self.status().await;
        let mut line = self.health_of(status.as_ref());
        if let Some(recent) = self.pulse.recent() {
            let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
            let (p50, p99) = (milliseconds(us(recent.p50)), milliseconds(us(recent.p99)));
            let _ = write!(line, " | pulse {} op/s, p50 {p50}, p99 {p99}", recent.per_second);
        }
        let nodes = (1..=self.nodes.count()).map(|number| (number, self.state(number))).collect();
        // Nobody tells: those that there were.
        let known = || [0].into_iter().chain(self.partitions.iter().copied()).collect();
        let partitions = status.map_or_else(known, |status| status.partitions.iter().map(|p| p.id.0).collect());
        (line, Names { nodes, partitions })
    }

    /// The sentence of `status`, and what to try if it is not well.
    pub async fn health(&self) -> String {
        self.health_of(self.status().await.as_ref())
    }

    fn health_of(&self, status: Option<&Status>) -> String {
        let mut line = status.map_or_else(|| "unavailable: no node answers".to_owned(), sentence);
        if status.map(Health::of) != Some(Health::Healthy)
            && let Some(hint) = self.hint()
        {
            let _ = write!(line, " (try: {hint})");
        }
        line
    }

    /// The command that would mend the first broken node.
    fn hint(&self) -> Option<String> {
        if !self.cuts.is_empty() {
            return Some("heal".to_owned());
        }
        let mut numbers = 1..=self.nodes.count();
        numbers.find_map(|number| {
            if self.nodes.is_paused(number) {
                Some(format!("resume {number}"))
            } else if self.nodes.lives(number) {
                None
            } else {
                Some(format!("restart {number}"))
            }
        })
    }

    /// Kills a node and measures the gap.
    ///
    /// # Errors
    /// There is no such node, or it does not live.
    pub async fn kill(&mut self, number: u32) -> Result<Vec<String>, Refused> {
        self.living(number)?;
        let led = self.before_fault(&[number]).await;
        self.pulse.fault();
        self.nodes.kill(number).await;
        Ok(self.report(number, "killed", &led).await)
    }

    /// Stops a node and measures the gap.
    ///
    /// # Errors
    /// There is no such node, or it does not live, or it is stopped already.
    pub async fn pause(&mut self, number: u32) -> Result<Vec<String>, Refused> {
        self.living(number)?;
        if self.nodes.is_paused(number) {
            return Err(format!("n{number} is paused already (try: resume {number})"));
        }
        let led = self.before_fault(&[number]).await;
        self.pulse.fault();
        self.nodes.pause(number);
        Ok(self.report(number, "paused", &led).await)
    }

    /// Lets a stopped node go on, and waits until it has caught up.
    ///
    /// # Errors
    /// There is no such node, or it is not stopped.
    pub async fn resume(&mut self, number: u32) -> Result<Vec<String>, Refused> {
        self.living(number)?;
        if !self.nodes.is_paused(number) {
            return Err(format!("n{number} is not paused"));
        }
        let since = Instant::now();
        self.nodes.resume(number);
        let caught_up = self.caught_up(number, since).await;
        Ok(vec![format!("n{number} resumed, {caught_up}; {}", self.health().await)])
    }

    /// Starts a node that is down, and waits until it has caught up.
    ///
    /// # Errors
    /// There is no such node, it lives, or it does not start.
    pub async fn restart(&mut self, number: u32) -> Result<Vec<String>, Refused> {
        self.known(number)?;
        if self.nodes.lives(number) {
            return Err(format!("n{number} is running (try: kill {number})"));
        }
        let since = Instant::now();
        self.nodes.restart(number).map_err(|error| format!("n{number} cannot be started: {error}"))?;
        let (progress, took) = self.nodes.ready(number).await;
        if let Progress::Ended(how) = progress {
            return Err(format!("n{number} did not come up: {how}"));
        }
        self.tell_all().await;
        let caught_up = self.caught_up(number, since).await;
        Ok(vec![format!("n{number} up in {} ms, {caught_up}; {}", took.as_millis(), self.health().await)])
    }

    /// Waits until the cluster is as asked, at most a minute.
    ///
    /// # Errors
    /// It did not become so.
    pub async fn wait(&self, until: Until) -> Result<Vec<String>, Refused> {
        let wanted = match until {
            Until::Elapsed(time) => {
                tokio::time::sleep(time).await;
                return Ok(Vec::new());
            }
            Until::Healthy => Health::Healthy,
            Until::Degraded => Health::Degraded,
        };
        let deadline = Instant::now() + CATCH_UP_PATIENCE;
        loop {
            let health = self.status().await.map(|status| Health::of(&status));
            // What is unavailable is degraded, and more.
            let reached = health == Some(wanted) || (wanted == Health::Degraded && health != Some(Health::Healthy));
            if reached {
                return Ok(vec![self.health().await]);
            }
            if Instant::now() >= deadline {
                return Err(format!(
                    "not {} within {} s; {}",
                    wanted.word(),
                    CATCH_UP_PATIENCE.as_secs(),
                    self.health().await
                ));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Runs the load generator that stands beside this program.
    ///
    /// # Errors
    /// It is not there, or fails.
    pub async fn load(&mut self, arguments: &[String]) -> Result<Vec<String>, Refused> {
        let run = ["run".to_owned()];
        let mut child = self.start_load(if arguments.is_empty() { &run } else { arguments }, Stdio::inherit)?;
        let status = child.wait().await.map_err(|error| error.to_string())?;
        if status.success() { Ok(Vec::new()) } else { Err(format!("coppice-load ended with {status}")) }
    }

    /// Begins load in the background, or ends it.
    ///
    /// # Errors
    /// The load generator is not there, or it is as wanted already.
    pub fn load_of_page(&mut self, on: bool) -> Result<Vec<String>, Refused> {
        let runs = self.page_load.as_ref().is_some_and(|stop| !stop.is_closed());
        match (on, runs) {
            (true, true) => Err("load runs already".to_owned()),
            (false, false) => Err("no load of the page runs".to_owned()),
            (false, true) => {
                self.page_load = None;
                Ok(vec!["load ends".to_owned()])
            }
            (true, false) => {
                let mut child = self.start_load(&PAGE_LOAD.map(str::to_owned), Stdio::null)?;
                let (stop, mut stopped) = oneshot::channel();
                self.page_load = Some(stop);
                let shown = self.shown.clone();
                shown.change(|view| view.load = true);
                crate::task::spawn(async move {
                    let ended = tokio::select! {
                        _ = child.wait() => true,
                        _ = &mut stopped => false,
                    };
                    if !ended {
                        _ = child.kill().await;
                    }
                    shown.change(|view| view.load = false);
                });
                Ok(vec![format!("coppice-load {}", PAGE_LOAD.join(" "))])
            }
        }
    }

    fn start_load(&mut self, arguments: &[String], output: fn() -> Stdio) -> Result<Child, Refused> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?.with_file_name("coppice-load");
        if !program.exists() {
            let profile = if cfg!(debug_assertions) { "" } else { " --release" };
            let path = program.display();
            return Err(format!("there is no {path} (try: cargo build{profile} --bin coppice-load)"));
        }
        let mut command = Command::new(program);
        // Its own process group: Ctrl-C reaches the demo alone, which ends it.
        command.args(arguments).env("COPPICE_ENDPOINTS", &self.endpoints).process_group(0).kill_on_drop(true);
        command.stdout(output()).stderr(output());
        for (name, file) in super::certs::of_client(self.nodes.certs()) {
            command.env(format!("COPPICE_{}", name.replace('-', "_").to_ascii_uppercase()), file);
        }
        let child = command.spawn().map_err(|error: io::Error| error.to_string())?;
        if let Some(pid) = child.id() {
            self.nodes.guard(pid).map_err(|error| error.to_string())?;
        }
        Ok(child)
    }

    /// Carries out what a page may order too; none: it is something else.
    pub async fn carry_out(&mut self, command: &PromptCommand) -> Option<Result<Vec<String>, Refused>> {
        let done = match command {
            PromptCommand::Kill(node) => self.kill(*node).await,
            PromptCommand::Pause(node) => self.pause(*node).await,
            PromptCommand::Resume(node) => self.resume(*node).await,
            PromptCommand::Restart(node) => self.restart(*node).await,
            PromptCommand::Cut(sides) => self.cut(sides).await,
            PromptCommand::Slow(node, delay) => self.slow(*node, *delay).await,
            PromptCommand::Heal => self.heal().await,
            _ => return None,
        };
        Some(done)
    }

    /// Tells the page what is carried out now, and how the nodes are.
    pub fn show(&self, running: Option<String>) {
        let nodes = (1..=self.nodes.count()).map(|number| match self.state(number) {
            NodeState::Up => "up",
            NodeState::Paused => "paused",
            NodeState::Down => "down",
        });
        let (nodes, faults) = (nodes.collect(), self.cuts.said());
        self.shown.change(|view| (view.nodes, view.faults, view.running) = (nodes, faults, running));
    }

    fn state(&self, number: u32) -> NodeState {
        match (self.nodes.is_paused(number), self.nodes.lives(number)) {
            (true, _) => NodeState::Paused,
            (_, true) => NodeState::Up,
            _ => NodeState::Down,
        }
    }

    pub(super) fn known(&self, number: u32) -> Result<(), Refused> {
        if self.nodes.has(number) {
            Ok(())
        } else {
            Err(format!("there is no n{number}: nodes are n1 to n{}", self.nodes.count()))
        }
    }

    fn living(&self, number: u32) -> Result<(), Refused> {
        self.known(number)?;
        if self.nodes.lives(number) { Ok(()) } else { Err(format!("n{number} is down (try: restart {number})")) }
    }

    /// The groups that these nodes lead, the directory as 0. The pulse beats in all partitions that there are now.
    pub(super) async fn before_fault(&mut self, numbers: &[u32]) -> Vec<u32> {
        let Some(status) = self.status().await else { return Vec::new() };
        let lows = lows(&status);
        self.pulse.follow(&lows);
        self.partitions = lows.into_iter().map(|(id, _)| id).collect();
        self.pulse.quicken(&self.partitions).await;
        let is_hit = |leader: Option<NodeId>| leader.is_some_and(|leader| numbers.contains(&leader.0));
        let led = status.partitions.iter().filter(|partition| is_hit(partition.leader));
        led.map(|partition| partition.id.0).collect()
    }

    /// What a fault of a node cost, and how the cluster stands now.
    async fn report(&self, number: u32, what: &str, led: &[u32]) -> Vec<String> {
        self.report_of(&format!("n{number} {what}"), led, "it").await
    }

    /// The same of several nodes, called `who`.
    pub(super) async fn report_of(&self, what: &str, led: &[u32], who: &str) -> Vec<String> {
        let hit: Vec<u32> = led.iter().copied().filter(|group| *group != 0).collect();
        let queries = led.contains(&0) && self.partitions.len() > 1;
        let recovered = self.pulse.recovered(&self.partitions, queries, GAP_PATIENCE).await;
        let ledger = if led.is_empty() { format!("{who} led nothing") } else { format!("{who} led {}", names(led)) };
        let mut gap = self.gap(&hit, recovered);
        if queries {
            match self.pulse.query_silence() {
                Some(silence) => _ = write!(gap, "; no queries across partitions for {} ms", silence.as_millis()),
                None => _ = write!(gap, "; no query across partitions for {} s", GAP_PATIENCE.as_secs()),
            }
        }
        vec![format!("{what}; {ledger}. {gap}"), self.health().await]
    }

    fn gap(&self, hit: &[u32], recovered: bool) -> String {
        if !recovered {
            let seconds = GAP_PATIENCE.as_secs();
            let silent: Vec<u32> = self
                .partitions
                .iter()
                .copied()
                .filter(|p| {
                    self.pulse.silence(&[*p], Kind::Write).is_none() || self.pulse.silence(&[*p], Kind::Read).is_none()
                })
                .collect();
            if !silent.is_empty() {
                return format!("{}: still silent after {seconds} s", names(&silent));
            }
        }
        let ms =
            |time: Option<Duration>| time.map_or("an unknown time".to_owned(), |t| format!("{} ms", t.as_millis()));
        if hit.is_empty() {
            return format!("No write waited longer than {}", ms(self.pulse.wait(&self.partitions, Kind::Write)));
        }
        let (writes, reads) = (self.pulse.silence(hit, Kind::Write), self.pulse.silence(hit, Kind::Read));
        format!("{}: no writes for {}, no reads for {}", names(hit), ms(writes), ms(reads))
    }

    /// Waits until every replica on a node is there and near its leader.
    async fn caught_up(&self, number: u32, since: Instant) -> String {
        let node = NodeId(number);
        while since.elapsed() < CATCH_UP_PATIENCE {
            if self.status().await.is_some_and(|status| has_caught_up(&status, node)) {
                return format!("caught up in {} ms", since.elapsed().as_millis());
            }
            tokio::time::sleep(LOOK).await;
        }
        format!("not caught up after {} s", CATCH_UP_PATIENCE.as_secs())
    }
}

/// Whether every replica on a node is there, and where its leader is.
fn has_caught_up(status: &Status, node: NodeId) -> bool {
    let up = status.nodes.iter().any(|info| info.id == node && info.up);
    let mut replicas = status.partitions.iter().flat_map(|p| &p.replicas).filter(|replica| replica.node == node);
    up && replicas.all(|replica| is_near(replica) && replica.lag_instances == 0)
}

/// The partitions of a cluster with their first keys, without the directory.
pub(super) fn lows(status: &Status) -> Vec<(u32, Vec<u8>)> {
    let partitions = status.partitions.iter().filter(|partition| partition.id.0 != 0);
    partitions.map(|partition| (partition.id.0, partition.low.to_vec())).collect()
}

fn names(groups: &[u32]) -> String {
    groups.iter().map(|group| format!("p{group}")).collect::<Vec<_>>().join(" ")
}
