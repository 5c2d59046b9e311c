//! The analytical model of *Tuning Paxos* (Santos, Schiper), equations 1 to 8, for LAN and WAN (papers.md 2).
//!
//! Times are in milliseconds, sizes in bytes, bandwidth in bytes per millisecond, `k` is the number of requests in a
//! batch. A request is one command; the pack that brought it counts with the header bytes of its commands, on average
//! (papers.md A9). Ours on top: the disk as a third resource, and the knee of the batch curve.

/// Whose link carries what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Network {
    /// Every copy of a batch and every answer share the leader's link: equations 2 to 4.
    Lan,
    /// Each replica is behind a link of its own, and answers do not touch those: equations 5 to 7.
    Wan,
}

/// What one replica can move, and how far away the others are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Whose link it is.
    pub network: Network,
    /// B: bytes per millisecond.
    pub bytes_per_ms: f64,
    /// L: one way, in milliseconds.
    pub latency_ms: f64,
}

/// phi(x) = a * x + b: CPU time of receiving or sending one message of x bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MessageCost {
    /// a, in milliseconds per byte.
    pub per_byte_ms: f64,
    /// b, in milliseconds.
    pub per_message_ms: f64,
}

impl MessageCost {
    /// The cost of a message of so many bytes, in milliseconds.
    pub fn of(self, bytes: f64) -> f64 {
        self.per_byte_ms * bytes + self.per_message_ms
    }
}

/// Bytes on the wire, averages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sizes {
    /// S_req: a request without headers.
    pub request: f64,
    /// h_r: headers per request.
    pub request_header: f64,
    /// h_b: headers per batch and copy.
    pub batch_header: f64,
    /// S_ans: an answer to a client.
    pub answer: f64,
    /// S_2b: a vote.
    pub vote: f64,
}

impl Sizes {
    /// S_2a: one copy of a batch of `k` requests.
    pub fn batch(&self, k: f64) -> f64 {
        k * (self.request + self.request_header) + self.batch_header
    }
}

/// What an instance takes: `per_batch_ms + k * per_request_ms`. Of the leader's CPU, if nothing else is said.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InstanceCost {
    /// F: what a batch costs however small it is.
    pub per_batch_ms: f64,
    /// v: what each request adds.
    pub per_request_ms: f64,
}

impl InstanceCost {
    /// phi_inst^CPU of the paper as `F + k * v`: requests and answers at `client`, copies and votes at `replica`.
    pub fn of_messages(
        client: MessageCost,
        replica: MessageCost,
        execute_ms: f64,
        replicas: u32,
        sizes: &Sizes,
    ) -> InstanceCost {
        let others = f64::from(replicas.saturating_sub(1));
        let request = sizes.request + sizes.request_header;
        InstanceCost {
            per_batch_ms: others * replica.of(sizes.batch_header + sizes.vote),
            per_request_ms: client.of(request + sizes.answer) + others * replica.per_byte_ms * request + execute_ms,
        }
    }

    /// Of an instance of `k` requests, in milliseconds.
    pub fn of(self, k: f64) -> f64 {
        self.per_batch_ms + k * self.per_request_ms
    }
}

/// The log's device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Disk {
    /// One flush, in milliseconds.
    pub flush_ms: f64,
    /// Batches that share a flush, at least 1.
    pub batches_per_flush: f64,
    /// Bytes per millisecond.
    pub bytes_per_ms: f64,
}

/// What an instance occupies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Resource {
    /// The leader's busiest stage.
    Cpu,
    /// The leader's link.
    Network,
    /// The leader's log.
    Disk,
}

/// The window at which each resource is busy all the time: w^R = T / phi_inst^R.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Windows {
    /// w^CPU.
    pub cpu: f64,
    /// w^NET; infinite if nothing is sent.
    pub network: f64,
    /// Ours; infinite without a disk.
    pub disk: f64,
}

impl Windows {
    /// Equation 8: the first resource that is busy all the time makes a larger window useless.
    pub fn smallest(&self) -> f64 {
        self.cpu.min(self.network).min(self.disk)
    }
}

/// One leader, its links, CPU and disk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Model {
    /// n, the leader included.
    pub replicas: u32,
    /// What is on the wire.
    pub sizes: Sizes,
    /// The links.
    pub link: Link,
    pub cpu: InstanceCost,
    /// phi_exec: executing one request, in milliseconds; part of `cpu` too.
    pub execute_ms: f64,
    /// The log, if votes wait for it.
    pub disk: Option<Disk>,
    /// What an instance takes with nothing else under way, as it was measured: in place of equations 4 and 7.
    pub alone: Option<InstanceCost>,
}

/// What the model advises (papers.md A13): the smallest batch at the knee, and the smallest window that fills the
/// bottleneck with such batches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// k.
    pub requests: f64,
    /// S_2a of `k` requests, in bytes.
    pub batch_bytes: f64,
    /// Equation 8.
    pub window_exact: f64,
    /// Instances.
    pub window: u32,
    /// Requests per second at this batch and this window or a larger one.
    pub throughput: f64,
    /// Of what batches without bound would reach, 0 to 1.
    pub share: f64,
    /// What is busy all the time.
    pub bottleneck: Resource,
}

/// The knee is where a batch reaches all but this share of what batches without bound would.
pub const KNEE_LOSS: f64 = 0.05;

/// A window of 1.1 counts as 1: the tenth that is lost is within what the model can tell.
const WINDOW_TOLERANCE: f64 = 0.1;

/// What a resource is busy with per instance, `fixed + k * per_request`, in milliseconds.
#[derive(Clone, Copy)]
struct Load {
    resource: Resource,
    fixed: f64,
    per_request: f64,
}

impl Load {
    fn of(self, k: f64) -> f64 {
        self.fixed + k * self.per_request
    }
}

impl Model {
    fn others(&self) -> f64 {
        f64::from(self.replicas.saturating_sub(1))
    }

    /// Copies of a batch that one link carries until a quorum has the batch: n/2, rounded down, on a shared link.
    fn quorum_copies(&self) -> f64 {
        f64::from(self.replicas / 2)
    }

    /// phi_inst^CPU in milliseconds.
    pub fn cpu_ms(&self, k: f64) -> f64 {
        self.cpu.of(k)
    }

    /// phi_inst^NET in milliseconds.
    pub fn network_ms(&self, k: f64) -> f64 {
        self.network().of(k)
    }

    /// phi_inst^DISK in milliseconds: zero without a disk.
    pub fn disk_ms(&self, k: f64) -> f64 {
        self.disk().of(k)
    }

    fn network(&self) -> Load {
        let (sizes, b) = (&self.sizes, self.link.bytes_per_ms);
        let request = sizes.request + sizes.request_header;
        let (copies, answer) = match self.link.network {
            Network::Lan => (self.others(), sizes.answer),
            // One copy on each of the links; a single replica sends none.
            Network::Wan => (self.others().min(1.0), 0.0),
        };
        let resource = Resource::Network;
        Load { resource, fixed: copies * sizes.batch_header / b, per_request: (copies * request + answer) / b }
    }

    fn disk(&self) -> Load {
        let resource = Resource::Disk;
        let Some(disk) = self.disk else { return Load { resource, fixed: 0.0, per_request: 0.0 } };
        let request = self.sizes.request + self.sizes.request_header;
        let fixed = disk.flush_ms / disk.batches_per_flush + self.sizes.batch_header / disk.bytes_per_ms;
        Load { resource, fixed, per_request: request / disk.bytes_per_ms }
    }

    fn loads(&self) -> [Load; 3] {
        let cpu = Load { resource: Resource::Cpu, fixed: self.cpu.per_batch_ms, per_request: self.cpu.per_request_ms };
        [cpu, self.network(), self.disk()]
    }

    /// Equations 2 and 5: the CPU sets the pace.
    fn t_cpu(&self, k: f64) -> f64 {
        let batch = self.sizes.batch(k) / self.link.bytes_per_ms;
        match self.link.network {
            Network::Lan => self.cpu_ms(k) + self.quorum_copies() * batch / 2.0,
            Network::Wan => self.cpu_ms(k) + batch,
        }
    }

    /// Equations 4 and 7: latency sets the pace; with a disk the flush is on the way too.
    fn t_latency(&self, k: f64) -> f64 {
        if let Some(alone) = self.alone {
            return alone.of(k);
        }
        let b = self.link.bytes_per_ms;
        let batch = self.sizes.batch(k) / b;
        let sent = match self.link.network {
            Network::Lan => self.quorum_copies() * batch + k * self.sizes.answer / b,
            Network::Wan => batch,
        };
        sent + 2.0 * self.link.latency_ms + k * self.execute_ms + self.disk.map_or(0.0, |disk| disk.flush_ms)
    }

    /// T, equation 1: from proposing an instance of `k` requests to its end, nothing else under way, in milliseconds.
    /// Equations 3 and 6 are the network's load.
    pub fn instance_ms(&self, k: f64) -> f64 {
        self.t_cpu(k).max(self.network_ms(k)).max(self.t_latency(k)).max(self.disk_ms(k))
    }

    /// Equation 8's terms.
    pub fn windows(&self, k: f64) -> Windows {
        let instance = self.instance_ms(k);
        let of = |busy: f64| if busy > 0.0 { instance / busy } else { f64::INFINITY };
        Windows { cpu: of(self.cpu_ms(k)), network: of(self.network_ms(k)), disk: of(self.disk_ms(k)) }
    }

    /// The resource that an instance of `k` requests keeps busy longest, and how long, in milliseconds.
    pub fn bottleneck(&self, k: f64) -> (Resource, f64) {
        let [cpu, network, disk] = self.loads().map(|load| (load.resource, load.of(k)));
        [network, disk].into_iter().fold(cpu, |most, other| if other.1 > most.1 { other } else { most })
    }

    /// Requests per second with batches of `k` and a window that keeps the bottleneck busy.
    pub fn throughput(&self, k: f64) -> f64 {
        1_000.0 * k / self.bottleneck(k).1
    }

    /// Requests per second with batches of `k` and `window` instances at most, for a group that gets `share` (0 to 1)
    /// of what keeps the bottleneck busy. How long its instances take is nobody else's.
    pub fn throughput_of(&self, k: f64, window: u32, share: f64) -> f64 {
        (share * self.throughput(k)).min(1_000.0 * k * f64::from(window) / self.instance_ms(k))
    }

    /// The fewest requests per batch that reach all but `loss` (above 0, below 1) of what batches without bound would;
    /// 1 if a batch costs nothing.
    pub fn knee(&self, loss: f64) -> f64 {
        let kept = 1.0 - loss;
        let loads = self.loads();
        let most = loads.iter().map(|load| load.per_request).fold(0.0, f64::max);
        let needed = loads.iter().map(|load| kept * load.fixed / (most - kept * load.per_request));
        needed.filter(|k| k.is_finite()).fold(1.0, f64::max).ceil()
    }

    /// The window for batches of `k`: equation 8 rounded up, at least 1.
    pub fn window(&self, k: f64) -> u32 {
        // A cast from a float stops at the bounds of the type.
        ((self.windows(k).smallest() - WINDOW_TOLERANCE).ceil() as u32).max(1)
    }

    /// The knee of the batch curve, and the window that goes with it; bytes are not capped.
    pub fn choose(&self) -> Choice {
        self.choice(self.knee(KNEE_LOSS))
    }

    /// What batches of `k` requests come to.
    pub fn choice(&self, k: f64) -> Choice {
        let (bottleneck, _) = self.bottleneck(k);
        let most = self.loads().iter().map(|load| load.per_request).fold(0.0, f64::max);
        Choice {
            requests: k,
            batch_bytes: self.sizes.batch(k),
            window_exact: self.windows(k).smallest(),
            window: self.window(k),
            throughput: self.throughput(k),
            share: self.throughput(k) * most / 1_000.0,
            bottleneck,
        }
    }

    /// Bytes that may be undecided at most, for batches of `batch_bytes`: two to four times what the link holds, never
    /// over half a second of it, and always two batches (papers.md 2). Every collapse that the paper reports is the
    /// same volume, about one second of its link (papers.md A14).
    pub fn window_bytes_max(&self, batch_bytes: f64) -> f64 {
        let b = self.link.bytes_per_ms;
        let delay = 2.0 * self.link.latency_ms + self.disk.map_or(0.0, |disk| disk.flush_ms);
        (2.0 * batch_bytes).max(2.0 * b * delay).max((4.0 * b * delay).min(HALF_SECOND_MS * b))
    }
}

/// What a link may have to carry at most, in milliseconds.
const HALF_SECOND_MS: f64 = 500.0;
