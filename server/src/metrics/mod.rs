//! Metrics of a node (operations.md 4). [`Metric`] is the only source of names; threads write through handles
//! ([`Worker`], [`Partition`], [`Peer`], [`Log`]) that they get once and keep; `/metrics` renders all of them.
//! Writing costs a relaxed addition to a cell that no other thread writes. Nothing here knows who reads.
//!
//! ```
//! use coppice_server::metrics::{Format, Node, Op, Outcome};
//! use std::time::Duration;
//!
//! let node = Node::new(1);                       // one per process
//! let worker = node.worker(0);                     // one per worker thread, kept by it
//! worker.request(Op::Put, Outcome::Ok, Duration::from_micros(700));
//! assert!(node.render(Format::OpenMetrics).contains("coppice_requests_total{op=\"put\",result=\"ok\"} 1"));
//! ```

mod cells;
mod names;
mod render;
mod resp;
mod samples;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::atomic::AtomicI64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cells::{BYTES, COUNT, Cell, Histogram, SECONDS, STEPS, nanos};
pub use names::{
    Area, CloseReason, Kind, Labels, Metric, Op, Outcome, Queue, Stage, TicketResult, Tuned, Unit, Warning,
};
pub use render::Format;
pub use resp::Resp;
pub use samples::History;

/// All metrics of one process. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Node(Arc<NodeCells>);

#[derive(Debug)]
struct NodeCells {
    workers: Vec<Arc<WorkerCells>>,
    log: Arc<LogCells>,
    resp: Arc<resp::RespCells>,
    /// Locked to add or remove a partition and to render; never by a thread that records.
    partitions: Mutex<BTreeMap<Label, Arc<PartitionCells>>>,
    tolerated_failures: AtomicI64,
    digest_mismatches: Cell,
    memory_limit: Cell,
    /// 0: there is none.
    /// In thousandths of all that a start does.
    to_recover: Cell,
    certificate_expiry: Cell,
    warnings: [Cell; Warning::COUNT],
}

/// Stands for "not known yet": the series is left out.
const UNKNOWN: i64 = i64::MIN;

/// A label such as `p4` or `n12`, ordered by number: shorter first, then by letter.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Label {
    length: usize,
    text: String,
}

impl Label {
    fn of(what: impl Display) -> Self {
        let text = what.to_string();
        Self { length: text.len(), text }
    }
}

impl Node {
    /// Cells for `workers` worker threads.
    pub fn new(workers: usize) -> Self {
        Self(Arc::new(NodeCells {
            workers: (0..workers).map(|_| Arc::new(WorkerCells::new())).collect(),
            log: Arc::new(LogCells::new()),
            resp: Arc::default(),
            partitions: Mutex::default(),
            tolerated_failures: AtomicI64::new(UNKNOWN),
            digest_mismatches: Cell::default(),
            memory_limit: Cell::default(),
            to_recover: Cell::default(),
            certificate_expiry: Cell::default(),
            warnings: Default::default(),
        }))
    }

    /// The handle of worker thread `index`, which is below the number given to [`Node::new`].
    pub fn worker(&self, index: usize) -> Worker {
        Worker(Arc::clone(&self.0.workers[index]))
    }

    /// The handle of the log writer thread.
    pub fn log(&self) -> Log {
        Log(Arc::clone(&self.0.log))
    }

    /// The handle of the RESP port.
    pub fn resp(&self) -> Resp {
        Resp(Arc::clone(&self.0.resp))
    }

    /// The handle of a partition hosted here (`PartitionId` prints as `p4`). The same partition gets the same cells.
    pub fn partition(&self, id: impl Display) -> Partition {
        Partition(Arc::clone(self.partitions().entry(Label::of(id)).or_default()))
    }

    /// Forgets a partition that is no longer hosted here; its series end.
    pub fn forget_partition(&self, id: impl Display) {
        self.partitions().remove(&Label::of(id));
    }

    /// Tickets that this node, as the coordinator, keeps now.
    pub fn tickets_in_flight(&self) -> u64 {
        self.0.workers.iter().map(|worker| worker.tickets.in_flight.get()).sum()
    }

    /// How many more nodes may fail; `None`: some partition has no quorum.
    pub fn set_tolerated_failures(&self, nodes: Option<u32>) {
        self.0.tolerated_failures.store(nodes.map_or(-1, i64::from), Relaxed);
    }

    /// Replicas were found to differ.
    pub fn digest_mismatch(&self) {
        self.0.digest_mismatches.add(1);
    }

    /// `memory.limit`, in bytes.
    pub fn set_memory_limit(&self, bytes: u64) {
        self.0.memory_limit.set(bytes);
    }

    /// So many thousandths of what a start does are still to be done.
    pub fn set_to_recover(&self, thousandths: u64) {
        self.0.to_recover.set(thousandths);
    }

    /// When the node's own certificate ends, in seconds of Unix time.
    pub fn set_certificate_expiry(&self, ends_at: Option<u64>) {
        self.0.certificate_expiry.set(ends_at.unwrap_or(0));
    }

    /// Turns a warning on or off.
    pub fn set_warning(&self, warning: Warning, on: bool) {
        self.0.warnings[warning.index()].set(u64::from(on));
    }

    /// Turns that each worker thread has made so far; a thread that stands still stopped turning.
    pub fn turns(&self) -> Vec<u64> {
        self.0.workers.iter().map(|worker| worker.turns.get()).collect()
    }

    /// The text of `/metrics`.
    pub fn render(&self, format: Format) -> String {
        render::render(self, format)
    }

    fn partitions(&self) -> MutexGuard<'_, BTreeMap<Label, Arc<PartitionCells>>> {
        // The map is whole between any two statements, so a panic elsewhere leaves nothing half done.
        self.0.partitions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What one worker thread writes. Its cells share no cache line with another thread's.
#[derive(Clone, Debug)]
pub struct Worker(Arc<WorkerCells>);

#[derive(Debug)]
#[repr(align(128))]
struct WorkerCells {
    turns: Cell,
    request_seconds: [Histogram; Op::COUNT],
    requests: [[Cell; Outcome::COUNT]; Op::COUNT],
    instance_seconds: Histogram,
    batch_bytes: Histogram,
    batch_commands: Histogram,
    batches_closed: [Cell; CloseReason::COUNT],
    reply_hold_seconds: Histogram,
    tickets: TicketCells,
    multicast_messages: Cell,
    stage_busy_nanos: [Cell; Stage::COUNT],
    worker_step_seconds: Histogram,
    worker_step_cpu_seconds: Histogram,
    queue_depth: [Cell; Queue::COUNT],
    rejected: [Cell; Queue::COUNT],
    memory: [Cell; Area::COUNT],
}

/// Of the tickets that this thread coordinates.
#[derive(Debug)]
struct TicketCells {
    seconds: Histogram,
    results: [Cell; TicketResult::COUNT],
    in_flight: Cell,
}

impl WorkerCells {
    fn new() -> Self {
        Self {
            turns: Cell::default(),
            request_seconds: std::array::from_fn(|_| Histogram::new(SECONDS)),
            requests: Default::default(),
            instance_seconds: Histogram::new(SECONDS),
            batch_bytes: Histogram::new(BYTES),
            batch_commands: Histogram::new(COUNT),
            batches_closed: Default::default(),
            reply_hold_seconds: Histogram::new(SECONDS),
            tickets: TicketCells {
                seconds: Histogram::new(SECONDS),
                results: Default::default(),
                in_flight: Cell::default(),
            },
            multicast_messages: Cell::default(),
            stage_busy_nanos: Default::default(),
            worker_step_seconds: Histogram::new(STEPS),
            worker_step_cpu_seconds: Histogram::new(STEPS),
            queue_depth: Default::default(),
            rejected: Default::default(),
            memory: Default::default(),
        }
    }
}

impl Worker {
    /// One turn of the thread's loop, idle ones included: what `/livez` looks at.
    pub fn turn(&self) {
        self.0.turns.add(1);
    }

    /// A request was answered.
    pub fn request(&self, op: Op, outcome: Outcome, took: Duration) {
        self.0.request_seconds[op.index()].observe_time(took);
        self.0.requests[op.index()][outcome.index()].add(1);
    }

    /// A request was not admitted, since its user may not ask it: it took no time.
    pub fn denied(&self, op: Op) {
        self.0.requests[op.index()][Outcome::Denied.index()].add(1);
    }

    /// An instance proposed here was decided, `took` after it was proposed.
    pub fn instance_decided(&self, took: Duration) {
        self.0.instance_seconds.observe_time(took);
    }

    /// A batch was proposed.
    pub fn batch_proposed(&self, bytes: u64, commands: u64) {
        self.0.batch_bytes.observe(bytes);
        self.0.batch_commands.observe(commands);
    }

    /// `batches` more were closed for this reason.
    pub fn batches_closed(&self, reason: CloseReason, batches: u64) {
        self.0.batches_closed[reason.index()].add(batches);
    }

    /// An output had to wait for the release of a ticket.
    pub fn reply_held(&self, took: Duration) {
        self.0.reply_hold_seconds.observe_time(took);
    }

    /// A query over several partitions ended at this coordinator, `took` after it came.
    pub fn ticket(&self, result: TicketResult, took: Duration) {
        self.0.tickets.results[result.index()].add(1);
        if result == TicketResult::Completed {
            self.0.tickets.seconds.observe_time(took);
        }
    }

    /// Multicast messages that began here.
    pub fn multicast_messages(&self, count: u64) {
        self.0.multicast_messages.add(count);
    }

    /// Tickets that this coordinator keeps now.
    pub fn set_tickets_in_flight(&self, tickets: u64) {
        self.0.tickets.in_flight.set(tickets);
    }

    /// The thread was busy in a stage.
    pub fn stage_busy(&self, stage: Stage, took: Duration) {
        self.0.stage_busy_nanos[stage.index()].add(nanos(took));
    }

    /// The thread did nothing else for so long, and its processor worked on it for so long.
    pub fn worker_step(&self, took: Duration, worked: Duration) {
        self.0.worker_step_seconds.observe_time(took);
        self.0.worker_step_cpu_seconds.observe_time(worked);
    }

    /// Entries now in this thread's queue.
    pub fn set_queue_depth(&self, queue: Queue, entries: u64) {
        self.0.queue_depth[queue.index()].set(entries);
    }

    /// Bytes that an area holds now on account of this thread.
    pub fn set_memory(&self, area: Area, bytes: u64) {
        self.0.memory[area.index()].set(bytes);
    }

    /// A full queue or a limit turned work away.
    pub fn rejected(&self, queue: Queue) {
        self.0.rejected[queue.index()].add(1);
    }
}

/// What the log writer thread writes.
#[derive(Clone, Debug)]
pub struct Log(Arc<LogCells>);

#[derive(Debug)]
#[repr(align(128))]
struct LogCells {
    flush_seconds: Histogram,
    flush_records: Histogram,
    log_bytes: Cell,
    disk_free_bytes: Cell,
    queue_depth: Cell,
    busy_nanos: Cell,
}

impl LogCells {
    fn new() -> Self {
        Self {
            flush_seconds: Histogram::new(SECONDS),
            flush_records: Histogram::new(COUNT),
            log_bytes: Cell::default(),
            disk_free_bytes: Cell::default(),
            queue_depth: Cell::default(),
            busy_nanos: Cell::default(),
        }
    }
}

impl Log {
    /// One write and flush, shared by `records`. It also counts as time of the stage `flush`.
    pub fn flushed(&self, took: Duration, records: u64) {
        self.0.flush_seconds.observe_time(took);
        self.0.flush_records.observe(records);
        self.0.busy_nanos.add(nanos(took));
    }

    /// Bytes of the log's files, and bytes free beside them.
    pub fn set_disk(&self, log_bytes: u64, free_bytes: u64) {
        self.0.log_bytes.set(log_bytes);
        self.0.disk_free_bytes.set(free_bytes);
    }

    /// Records that wait for the writer.
    pub fn set_queue_depth(&self, records: u64) {
        self.0.queue_depth.set(records);
    }
}

/// What the worker thread that owns a replica publishes about it.
#[derive(Clone, Debug)]
pub struct Partition(Arc<PartitionCells>);

#[derive(Debug, Default)]
#[repr(align(128))]
struct PartitionCells {
    commands_decided: Cell,
    instances_decided: Cell,
    window_instances: Cell,
    window_limit: Cell,
    window_instance_nanos: Cell,
    speculation: SpeculationCells,
    leader_changes: Cell,
    keys: Cell,
    expiry: ExpiryCells,
    bytes: Cell,
    leads: Cell,
    decided_instance: Cell,
    sessions: Cell,
    replies_held: Cell,
    tuning: TunedCells,
    /// Locked to add a peer and to render only.
    peers: Mutex<BTreeMap<Label, Arc<PeerCells>>>,
}

/// Of keys that expire.
#[derive(Debug, Default)]
struct ExpiryCells {
    keys: Cell,
    expired: Cell,
}

/// Of what a replica has executed ahead of its decision.
#[derive(Debug, Default)]
struct SpeculationCells {
    rollbacks: Cell,
    undone_commands: Cell,
    instances: Cell,
}

/// How the controller tunes a partition led here; shown while `known` is 1. Values are the bits of floats.
#[derive(Debug, Default)]
struct TunedCells {
    known: Cell,
    values: [Cell; Tuned::COUNT],
}

/// A replica's values as it counts them; totals count from the start of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartitionSample {
    /// Total of commands in decided batches.
    pub commands_decided: u64,
    /// Total of decided instances.
    pub instances_decided: u64,
    /// Undecided instances now, 0 where this node does not lead.
    pub window_instances: u64,
    /// Limit of the window.
    pub window_limit: u64,
    /// Total of undecided instances times nanoseconds.
    pub window_instance_nanos: u64,
    /// Total of rollbacks.
    pub speculation_rollbacks: u64,
    /// Total of commands undone.
    pub speculation_undone_commands: u64,
    /// Instances executed and undecided now.
    pub speculative_instances: u64,
    /// Total of leader changes seen.
    pub leader_changes: u64,
    /// Keys now.
    pub keys: u64,
    /// Keys that expire now.
    pub keys_expiring: u64,
    /// Total of keys that expired.
    pub keys_expired: u64,
    /// Bytes of keys and values now.
    pub bytes: u64,
    /// Whether this node leads.
    pub leads: bool,
    /// Highest decided instance with all below it.
    pub decided_instance: u64,
    /// Sessions now.
    pub sessions: u64,
    /// Outputs behind the gate now.
    pub replies_held: u64,
}

impl Partition {
    /// Publishes a replica's values: 17 plain stores. A few times a second is enough for any scrape.
    pub fn publish(&self, sample: &PartitionSample) {
        let cells = &*self.0;
        cells.commands_decided.set(sample.commands_decided);
        cells.instances_decided.set(sample.instances_decided);
        cells.window_instances.set(sample.window_instances);
        cells.window_limit.set(sample.window_limit);
        cells.window_instance_nanos.set(sample.window_instance_nanos);
        cells.speculation.rollbacks.set(sample.speculation_rollbacks);
        cells.speculation.undone_commands.set(sample.speculation_undone_commands);
        cells.speculation.instances.set(sample.speculative_instances);
        cells.leader_changes.set(sample.leader_changes);
        cells.keys.set(sample.keys);
        cells.expiry.keys.set(sample.keys_expiring);
        cells.expiry.expired.set(sample.keys_expired);
        cells.bytes.set(sample.bytes);
        cells.leads.set(u64::from(sample.leads));
        cells.decided_instance.set(sample.decided_instance);
        cells.sessions.set(sample.sessions);
        cells.replies_held.set(sample.replies_held);
        if !sample.leads {
            self.peers().values().for_each(|peer| peer.instances.set(NOT_SEEN));
        }
    }

    /// Publishes how the partition is tuned; `None`: nothing is known, or another node leads it.
    pub fn publish_tuning(&self, value: Option<impl Fn(Tuned) -> f64>) {
        let cells = &self.0.tuning;
        cells.known.set(u64::from(value.is_some()));
        if let Some(value) = value {
            Tuned::ALL.iter().for_each(|tuned| cells.values[tuned.index()].set(value(*tuned).to_bits()));
        }
    }

    /// The handle for the lag of this partition's replica on another node (`NodeId` prints as `n2`).
    pub fn peer(&self, node: impl Display) -> Peer {
        Peer(Arc::clone(self.peers().entry(Label::of(node)).or_default()))
    }

    fn peers(&self) -> MutexGuard<'_, BTreeMap<Label, Arc<PeerCells>>> {
        self.0.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How far another replica is behind, as its leader sees it. A node that does not lead shows no lag at all.
#[derive(Clone, Debug)]
pub struct Peer(Arc<PeerCells>);

/// Stands for "this node does not lead, so it does not know": the series is left out.
const NOT_SEEN: u64 = u64::MAX;

#[derive(Debug)]
struct PeerCells {
    instances: Cell,
    nanos: Cell,
}

impl Default for PeerCells {
    fn default() -> Self {
        let cells = Self { instances: Cell::default(), nanos: Cell::default() };
        cells.instances.set(NOT_SEEN);
        cells
    }
}

impl Peer {
    /// Instances behind, and for how long it has been behind at all.
    pub fn set_lag(&self, instances: u64, behind_for: Duration) {
        self.0.nanos.set(nanos(behind_for));
        self.0.instances.set(instances.min(NOT_SEEN - 1));
    }
}
