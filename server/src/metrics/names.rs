//! The one list of metrics: names, types, units, labels, help texts (operations.md 4). Dashboards, alerts and tests are
//! checked against [`Metric::ALL`]. This file knows nothing of cells, threads or text formats.

/// What a metric counts in; it is also the end of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A plain number.
    None,
    /// Seconds, kept in nanoseconds inside.
    Seconds,
    Bytes,
}

/// OpenMetrics type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows; rendered with the ending `_total`.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Power-of-2 buckets; rendered as `_bucket`, `_sum`, `_count`.
    Histogram,
    /// Always 1; its labels are the information; rendered with the ending `_info`.
    Info,
}

impl Kind {
    /// The end of the names of its series, if they all have the same.
    pub const fn ending(self) -> &'static str {
        match self {
            Kind::Counter => "_total",
            Kind::Info => "_info",
            Kind::Gauge | Kind::Histogram => "",
        }
    }
}

/// Label names of a metric. `partition` and `node` are never on a histogram; no label is a key or a client address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Labels {
    /// One series.
    None,
    /// `{op}`, see [`Op`].
    Op,
    /// `{op,result}`, see [`Op`] and [`Outcome`].
    OpResult,
    /// `{reason}`, see [`CloseReason`].
    Reason,
    /// `{stage}`, see [`Stage`].
    Stage,
    /// `{queue}`, see [`Queue`].
    Queue,
    /// `{kind}`, see [`Warning`].
    Warning,
    /// `{result}`, see [`TicketResult`].
    Result,
    /// `{area}`, see [`Area`].
    Area,
    /// `{partition}`: `p1`; `p0` is the directory.
    Partition,
    PartitionNode,
    /// `{partition,value,kind}`, see [`Tuned`].
    Tuning,
    Version,
    /// `{result}`, see [`coppice_core::resp::connection::Counted`].
    Counted,
}

impl Labels {
    /// The label names, in the order in which they are rendered.
    pub const fn names(self) -> &'static [&'static str] {
        match self {
            Self::None => &[],
            Self::Op => &["op"],
            Self::OpResult => &["op", "result"],
            Self::Reason => &["reason"],
            Self::Stage => &["stage"],
            Self::Queue => &["queue"],
            Self::Warning => &["kind"],
            Self::Result => &["result"],
            Self::Area => &["area"],
            Self::Partition => &["partition"],
            Self::PartitionNode => &["partition", "node"],
            Self::Tuning => &["partition", "value", "kind"],
            Self::Version => &["version"],
            Self::Counted => &["result"],
        }
    }
}

macro_rules! metrics {
    ($($variant:ident => $stem:literal, $kind:ident, $unit:ident, $labels:ident, $help:literal;)*) => {
        /// Every metric of a node.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Metric {
            $(#[doc = $help] $variant,)*
        }

        impl Metric {
            /// All of them, in the order in which `/metrics` shows them.
            pub const ALL: &'static [Metric] = &[$(Metric::$variant,)*];

            /// Name without prefix, unit and type ending; one of a process has its prefix.
            pub const fn stem(self) -> &'static str {
                match self { $(Self::$variant => $stem,)* }
            }

            /// Type.
            pub const fn kind(self) -> Kind {
                match self { $(Self::$variant => Kind::$kind,)* }
            }

            /// Unit, part of the name.
            pub const fn unit(self) -> Unit {
                match self { $(Self::$variant => Unit::$unit,)* }
            }

            /// Label names.
            pub const fn labels(self) -> Labels {
                match self { $(Self::$variant => Labels::$labels,)* }
            }

            /// The `# HELP` text.
            pub const fn help(self) -> &'static str {
                match self { $(Self::$variant => $help,)* }
            }
        }
    };
}

metrics! {
    RequestSeconds => "request", Histogram, Seconds, Op,
        "Time from the last byte of a request to its reply, by operation.";
    Requests => "requests", Counter, None, OpResult,
        "Requests answered, by operation and result.";
    CommandsDecided => "commands_decided", Counter, None, Partition,
        "Commands in decided batches.";
    InstanceSeconds => "instance", Histogram, Seconds, None,
        "Time from proposing an instance to its decision, at its leader.";
    InstancesDecided => "instances_decided", Counter, None, Partition,
        "Decided instances.";
    BatchBytes => "batch", Histogram, Bytes, None,
        "Bytes in a proposed batch.";
    BatchCommands => "batch_commands", Histogram, None, None,
        "Commands in a proposed batch.";
    BatchesClosed => "batches_closed", Counter, None, Reason,
        "Batches closed, by what closed them.";
    WindowInstances => "window_instances", Gauge, None, Partition,
        "Instances proposed here and not yet decided.";
    WindowLimit => "window_limit", Gauge, None, Partition,
        "Undecided instances that the leader allows itself.";
    WindowInstanceSeconds => "window_instance", Counter, Seconds, Partition,
        "Undecided instances summed over time: its rate is the average window.";
    ReplyHoldSeconds => "reply_hold", Histogram, Seconds, None,
        "Time that replies waited for the release of a ticket; replies that did not wait are not counted.";
    RepliesHeld => "replies_held", Gauge, None, Partition,
        "Replies that wait for a decision or for the release of a ticket.";
    TicketsInFlight => "tickets_in_flight", Gauge, None, None,
        "Tickets that this node, as the coordinator, has sent and not yet released or voided everywhere.";
    MulticastMessages => "multicast_messages", Counter, None, None,
        "Messages of the multicast between coordinator and partitions that this node originated, also to itself.";
    TicketSeconds => "ticket", Histogram, Seconds, None,
        "Time from a query's arrival at the coordinator to its completion.";
    Tickets => "tickets", Counter, None, Result,
        "Queries over several partitions that ended at this coordinator, by how.";
    SpeculationRollbacks => "speculation_rollbacks", Counter, None, Partition,
        "Times that executed batches were undone.";
    SpeculationUndoneCommands => "speculation_undone_commands", Counter, None, Partition,
        "Commands executed early and undone.";
    SpeculativeInstances => "speculative_instances", Gauge, None, Partition,
        "Instances executed and not yet decided.";
    LogFlushSeconds => "log_flush", Histogram, Seconds, None,
        "Time of one write and flush of the log.";
    LogFlushRecords => "log_flush_records", Histogram, None, None,
        "Records that shared one flush of the log.";
    LogBytes => "log", Gauge, Bytes, None,
        "Bytes of log files on disk.";
    DiskFreeBytes => "disk_free", Gauge, Bytes, None,
        "Bytes free where the data directory lies.";
    ReplicaLagInstances => "replica_lag_instances", Gauge, None, PartitionNode,
        "Instances that a replica is behind its leader, as the leader sees it.";
    ReplicaLagSeconds => "replica_lag", Gauge, Seconds, PartitionNode,
        "How long a replica has been behind its leader, as the leader sees it.";
    LeaderChanges => "leader_changes", Counter, None, Partition,
        "Changes of leader seen by this replica.";
    DigestMismatches => "digest_mismatches", Counter, None, None,
        "Times that replicas of a partition were found to differ. Never anything but 0.";
    PartitionKeys => "partition_keys", Gauge, None, Partition,
        "Keys in this replica.";
    PartitionKeysExpiring => "partition_keys_expiring", Gauge, None, Partition,
        "Keys in this replica that expire.";
    PartitionKeysExpired => "partition_keys_expired", Counter, None, Partition,
        "Keys that expired in this replica.";
    PartitionBytes => "partition", Gauge, Bytes, Partition,
        "Bytes of keys and values in this replica.";
    PartitionLeader => "partition_leader", Gauge, None, Partition,
        "1 where this node leads the partition, else 0.";
    DecidedInstance => "decided_instance", Gauge, None, Partition,
        "The highest instance that this replica knows to be decided, with all below it.";
    Sessions => "sessions", Gauge, None, Partition,
        "Client sessions in this replica.";
    StageBusySeconds => "stage_busy", Counter, Seconds, Stage,
        "Time that threads spent in a stage; the stage with the highest rate is the bottleneck. A step of the core in which \
         batches were executed counts as execute.";
    WorkerStepSeconds => "worker_step", Histogram, Seconds, None,
        "Time of one step of a worker, from taking an input until it can take the next one.";
    WorkerStepCpuSeconds => "worker_step_cpu", Histogram, Seconds, None,
        "Processor time of one step of a worker; less than worker_step where the machine ran something else.";
    QueueDepth => "queue_depth", Gauge, None, Queue,
        "Entries waiting in a queue.";
    Rejected => "rejected", Counter, None, Queue,
        "Requests, inputs and connections that a full queue or a limit turned away.";
    Tuning => "tuning", Gauge, None, Tuning,
        "How a led partition is tuned: throughput (commands/s), window (instances on average; chosen: at most) and batch \
         (bytes), each predicted by the model or chosen, and measured.";
    ToleratedFailures => "tolerated_failures", Gauge, None, None,
        "Nodes that may fail now without loss of service; -1: some partition has no quorum, or no leader.";
    Warning => "warning", Gauge, None, Warning,
        "1 while a warning of `coppice status` is on.";
    RecoveryRatio => "recovery_ratio", Gauge, None, None,
        "How much is done of what a start reads and executes before the node serves; 1: all of it.";
    CertificateExpirySeconds => "certificate_expiry", Gauge, Seconds, None,
        "When the node's own certificate ends, in Unix time; absent without one.";
    MemoryBytes => "memory", Gauge, Bytes, Area,
        "Bytes of content that the node holds in memory, by what; what lies around it comes on top.";
    MemoryLimitBytes => "memory_limit", Gauge, Bytes, None,
        "Resident memory above which writes that grow are refused; 0: no limit.";
    AllocatorBytes => "allocator", Gauge, Bytes, None,
        "Memory that the allocator has taken from the system and not given back.";
    RespConnections => "resp_connections", Gauge, None, None,
        "Connections of clients that speak RESP.";
    RespCommands => "resp_commands", Counter, None, Counted,
        "Commands of clients that speak RESP, by result.";
    BuildInfo => "build", Info, None, Version,
        "The running build.";
    ProcessCpuSeconds => "process_cpu", Counter, Seconds, None,
        "Total user and system CPU time spent in seconds.";
    ProcessOpenFds => "process_open_fds", Gauge, None, None,
        "Number of open file descriptors.";
    ProcessMaxFds => "process_max_fds", Gauge, None, None,
        "Maximum number of open file descriptors.";
    ProcessVirtualMemoryBytes => "process_virtual_memory", Gauge, Bytes, None,
        "Virtual memory size in bytes.";
    ProcessResidentMemoryBytes => "process_resident_memory", Gauge, Bytes, None,
        "Resident memory size in bytes.";
    ProcessStartTimeSeconds => "process_start_time", Gauge, Seconds, None,
        "Start time of the process since unix epoch in seconds.";
    ProcessThreads => "process_threads", Gauge, None, None,
        "Number of OS threads in the process.";
}

/// Prefix of the names that are ours. Those of [`PROCESS`] are what every Prometheus client says of its process.
const PREFIX: &str = "coppice_";

/// How the names begin that carry no prefix.
const PROCESS: &str = "process_";

impl Metric {
    /// Name without unit and type ending.
    pub fn family(self) -> String {
        let prefix = if self.stem().starts_with(PROCESS) { "" } else { PREFIX };
        format!("{prefix}{}", self.stem())
    }

    /// Full name of the family, as dashboards write it without type endings: `coppice_request_seconds`.
    pub fn name(self) -> String {
        let unit = match self.unit() {
            Unit::None => "",
            Unit::Seconds => "_seconds",
            Unit::Bytes => "_bytes",
        };
        self.family() + unit
    }
}

macro_rules! label_values {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)*
        }

        impl $name {
            /// All values; the position of a value is its index in the cells.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];
            /// How many there are.
            pub const COUNT: usize = Self::ALL.len();

            /// The label's text.
            pub const fn text(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }

            /// Position in the cells.
            pub(super) const fn index(self) -> usize {
                self as usize
            }
        }
    };
}

label_values! {
    /// What a client asked for.
    Op {
        /// Several commands in one pack.
        Pack = "pack",
        /// A pack of one put.
        Put = "put",
        /// A pack of one insert.
        Insert = "insert",
        /// A pack of one delete.
        Delete = "delete",
        /// A pack of one cas.
        Cas = "cas",
        /// A pack of one update, look or move.
        Update = "update",
        /// A pack of one command of several operations.
        Many = "many",
        /// A pack of one bulk load.
        Load = "load",
        /// Point reads.
        Get = "get",
        /// Range reads.
        Range = "range",
        /// Whether ranges have changed.
        Validate = "validate",
        /// Opening a session.
        Open = "open",
        /// The partition map.
        Map = "map",
        /// Status, configuration and other operator requests.
        Admin = "admin",
    }
}

impl Op {
    /// What a pack of one operation counts as; one without a label of its own is a pack.
    pub fn of(op: &coppice_btree::Op<'_>) -> Op {
        match op {
            coppice_btree::Op::Put { .. } => Op::Put,
            coppice_btree::Op::Insert { .. } => Op::Insert,
            coppice_btree::Op::Delete { .. } => Op::Delete,
            coppice_btree::Op::Cas { .. } => Op::Cas,
            coppice_btree::Op::Update { .. } | coppice_btree::Op::Look { .. } | coppice_btree::Op::Move { .. } => {
                Op::Update
            }
            coppice_btree::Op::Get { .. } => Op::Pack,
        }
    }
}

label_values! {
    /// How a request ended.
    Outcome {
        /// Carried out; a failed condition is an answer too.
        Ok = "ok",
        /// Sent elsewhere: this node does not lead the partition.
        NotLeader = "not_leader",
        /// Sent elsewhere: the client's map was old.
        WrongPartition = "wrong_partition",
        /// Turned away by a limit.
        Busy = "busy",
        /// Turned away: disk or memory reserve reached.
        Full = "full",
        /// The client's session is gone.
        SessionExpired = "session_expired",
        /// The user of the connection may not ask that.
        Denied = "denied",
        /// Anything else that is wrong with the request.
        Error = "error",
        /// The connection went before the answer.
        Gone = "gone",
    }
}

label_values! {
    /// How a query over several partitions ended (protocol.md 4).
    TicketResult {
        /// Its parts are its result.
        Completed = "completed",
        /// It has no result and is asked again.
        Aborted = "aborted",
        /// It was not taken.
        Refused = "refused",
    }
}

label_values! {
    /// What closed a batch (protocol.md 1.2).
    CloseReason {
        /// It reached `batch_bytes_max`.
        Bytes = "bytes",
        /// The pipe had room and waiting longer gained nothing.
        Idle = "idle",
        /// `batch_delay_max` after its first command.
        Delay = "delay",
    }
}

label_values! {
    /// A value of the tuning account, and its kind: see [`Tuned::labels`].
    Tuned {
        /// Commands per second that batches as they are come to at most.
        ThroughputPredicted = "throughput_predicted",
        /// Commands per second.
        ThroughputMeasured = "throughput_measured",
        /// Undecided instances that the measured throughput should take, on average.
        WindowPredicted = "window_predicted",
        /// Undecided instances, on average.
        WindowMeasured = "window_measured",
        /// Undecided instances that the model advises to allow.
        WindowChosen = "window_chosen",
        /// Bytes of a batch, on average.
        BatchMeasured = "batch_measured",
        /// Bytes at which the model advises to close a batch.
        BatchChosen = "batch_chosen",
    }
}

impl Tuned {
    /// The labels `value` and `kind`.
    pub fn labels(self) -> (&'static str, &'static str) {
        self.text().split_once('_').unwrap_or((self.text(), ""))
    }
}

label_values! {
    /// Where a thread's time goes.
    Stage {
        /// Reading sockets and decoding frames.
        Receive = "receive",
        /// Steps of the ordering core.
        Order = "order",
        /// Executing batches on the tree.
        Execute = "execute",
        /// Writing and flushing the log.
        Flush = "flush",
        /// Encoding and sending replies and messages.
        Respond = "respond",
    }
}

label_values! {
    /// A bounded queue or a limit.
    Queue {
        /// Inputs of a worker thread.
        Mailbox = "mailbox",
        /// Commands that wait for a batch.
        Batcher = "batcher",
        /// Records that wait for the log writer.
        Log = "log",
        /// Messages to other nodes.
        Peers = "peers",
        /// Replies that clients have not read.
        Replies = "replies",
        /// Range reads under way.
        Scans = "scans",
        /// Client connections.
        Connections = "connections",
        /// Statuses and operators' verbs that clients have under way.
        Control = "control",
        /// Requests in flight on a connection (`limits.inflight`, `limits.inflight_bytes`).
        Inflight = "inflight",
        /// Bytes of all requests in flight on the node (`limits.node_bytes`).
        NodeBytes = "node_bytes",
    }
}

label_values! {
    /// What the memory of a node holds.
    Area {
        /// Keys and values of all replicas.
        Trees = "trees",
        /// Batches of the logs that are kept for peers, or undecided.
        Logs = "logs",
        /// Replies of sessions that clients have not acknowledged.
        Sessions = "sessions",
        /// What takes undecided batches back.
        Undo = "undo",
        /// Requests and answers in flight (`limits.node_bytes`).
        Requests = "requests",
        /// Parts of scans that wait for their readers (`limits.scan_bytes`).
        Scans = "scans",
    }
}

label_values! {
    /// Warnings that `coppice status` shows.
    Warning {
        /// Listening beyond loopback without TLS.
        Insecure = "insecure",
        /// `log.flush = "off"`.
        FlushOff = "flush_off",
        /// Free disk is below `log.disk_reserve`.
        DiskReserve = "disk_reserve",
        /// Memory in use is above `memory.limit`.
        MemoryLimit = "memory_limit",
    }
}
