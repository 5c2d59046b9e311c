//! Whole clusters in this process, and what a patient client and a patient operator do with them: leaders change when
//! the machine is busy, and nobody is told so, but asks again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use coppice_client::Config;
use coppice_client::blocking::Client;
use coppice_client::map::PartitionMap;
use coppice_client::wire::{
    AdminError, AdminReply, AdminRequest, ChangeId, NodeId, PartitionId, ReshapeRequest, Reshaped, Shape,
};
use coppice_server::local::{Cluster, LocalError, LocalOptions, admin};

use super::{patience, wait_for, wait_until};

/// One question to one node; a node that is busy is asked again.
pub const ASK: Duration = Duration::from_secs(10);

/// Starts a cluster and forms it. Where forming took too long it goes on with what it has begun.
#[track_caller]
pub fn formed(options: &LocalOptions) -> Cluster {
    wait_for("the cluster is formed", patience(), || match Cluster::start_local(options) {
        Ok(cluster) => Some(cluster),
        Err(LocalError::Init(why)) => {
            println!("init: {why}");
            None
        }
        Err(error) => panic!("{error}"),
    })
}

/// A client whose calls end with an answer, unless the cluster does not serve.
#[track_caller]
pub fn connect(cluster: &Cluster) -> Client {
    let config = Config { timeout: patience(), ..Config::default() };
    Client::connect_with(cluster.endpoints().iter().map(ToString::to_string), config).expect("the cluster serves")
}

/// Who leads a group, as a running node knows it.
#[track_caller]
pub fn leader(cluster: &Cluster, group: PartitionId) -> NodeId {
    wait_for(&format!("{group} has a leader"), patience(), || cluster.leader_of(group))
}

/// The newest map of all nodes that run.
#[track_caller]
pub fn map(cluster: &Cluster) -> PartitionMap {
    let running = cluster.endpoints().into_iter().enumerate().filter(|(at, _)| cluster.node(*at).is_some());
    let maps = running.map(|(_, endpoint)| {
        let config = Config { timeout: patience(), ..Config::default() };
        let client = Client::connect_with([endpoint.to_string()], config).expect("it runs");
        client.map().expect("it has a map").as_ref().clone()
    });
    maps.max_by_key(|map| map.version).expect("a node runs")
}

/// What one round of questions came to.
fn ask_round(cluster: &Cluster, request: &ReshapeRequest) -> Option<Result<Reshaped, AdminError>> {
    for endpoint in cluster.endpoints() {
        match admin(endpoint, AdminRequest::Reshape(request.clone()), ASK) {
            Ok(AdminReply::Reshaped(reshaped)) => return reshaped.done.then_some(Ok(reshaped)),
            Ok(AdminReply::Failed(
                error @ (AdminError::Refused(_) | AdminError::NotFound(_) | AdminError::Unavailable(_)),
            )) => return Some(Err(error)),
            // Stopped, or without a leader of the directory for the moment.
            Ok(_) | Err(_) => {}
        }
    }
    None
}

/// Changes the shape of the cluster: asks any node that answers, until it is done. A node that is needed may be late.
#[track_caller]
pub fn reshape(cluster: &Cluster, change: u64, shape: Shape) -> Reshaped {
    let request = ReshapeRequest { change: ChangeId(change), shape, dry_run: false, force: false, within: None };
    wait_for(&format!("this is done: {request:?}"), patience(), || match ask_round(cluster, &request)? {
        Ok(reshaped) => Some(reshaped),
        // A busy machine: a node that was just added, or is needed, has not answered in time.
        Err(error @ AdminError::Unavailable(_)) => not_yet(&error),
        Err(error) if error.to_string().contains("does not answer") => not_yet(&error),
        Err(error) => panic!("{request:?}: {error}"),
    })
}

fn not_yet(error: &AdminError) -> Option<Reshaped> {
    println!("not yet: {error}");
    None
}

/// Asks for what must not be done, until it is refused in these words; that it is done fails at once.
#[track_caller]
pub fn refused(cluster: &Cluster, change: u64, shape: Shape, words: &str) {
    let request = ReshapeRequest { change: ChangeId(change), shape, dry_run: false, force: false, within: None };
    let mut last = String::new();
    let begun = Instant::now();
    // A busy machine may have another reason first: somebody does not answer.
    while !last.contains(words) {
        assert!(begun.elapsed() < patience(), "{request:?} is not refused with `{words}` but with `{last}`");
        match ask_round(cluster, &request) {
            Some(Ok(reshaped)) => panic!("{request:?} was done: {reshaped:?}"),
            Some(Err(error)) => last = error.to_string(),
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// Starts one more node and makes it part of the cluster.
#[track_caller]
pub fn add(cluster: &mut Cluster, change: u64) -> NodeId {
    let at = cluster.start_waiting().expect("it starts");
    let address = cluster.node(at).expect("it runs").endpoints().peer.to_string();
    reshape(cluster, change, Shape::AddNode { address }).node.expect("its number")
}

/// The move of a partition to these nodes.
pub fn relocate(partition: u32, to: &[u32]) -> Shape {
    Shape::Move { partition: PartitionId(partition), from: vec![], to: to.iter().map(|&node| NodeId(node)).collect() }
}

/// Key number `n`: all numbers, spread over the whole space.
pub fn key(n: u64) -> [u8; 8] {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

/// Inserts ever new keys until it is told to stop.
pub struct Writer {
    stop: Arc<AtomicBool>,
    written: Arc<AtomicU64>,
    thread: JoinHandle<Duration>,
}

impl Writer {
    pub fn start(cluster: &Cluster) -> Writer {
        Writer::of(connect(cluster))
    }

    /// One that uses this client.
    pub fn of(client: Client) -> Writer {
        let stop = Arc::new(AtomicBool::new(false));
        let written = Arc::new(AtomicU64::new(0));
        let (stopped, count) = (Arc::clone(&stop), Arc::clone(&written));
        let thread = std::thread::spawn(move || {
            let mut longest = Duration::ZERO;
            while !stopped.load(Ordering::Relaxed) {
                let (begun, n) = (Instant::now(), count.load(Ordering::Relaxed));
                // An insert that had been executed before would find its own value.
                let present = client.insert(key(n), n.to_be_bytes()).expect("the cluster serves").output;
                assert_eq!(present, None, "insert {n} was executed twice");
                longest = longest.max(begun.elapsed());
                count.store(n + 1, Ordering::Relaxed);
            }
            longest
        });
        Writer { stop, written, thread }
    }

    /// Set when it is to stop; for others who work as long as it does.
    pub fn stop(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.stop)
    }

    /// Waits until so many more keys are written.
    #[track_caller]
    pub fn goes_on(&self, count: u64) {
        let wanted = self.written.load(Ordering::Relaxed) + count;
        let what = format!("{count} more keys are written");
        wait_until(&what, patience(), || self.written.load(Ordering::Relaxed) >= wanted || self.thread.is_finished());
    }

    /// Writes go on, and every one that was answered is there.
    #[track_caller]
    pub fn check(self, cluster: &Cluster) {
        self.check_with(&connect(cluster));
    }

    /// The same as this client sees it; the longest time that a write took.
    #[track_caller]
    pub fn check_with(self, client: &Client) -> Duration {
        self.goes_on(10);
        self.stop.store(true, Ordering::Relaxed);
        let longest = self.thread.join().expect("the writer is content");
        let count = self.written.load(Ordering::Relaxed);
        println!("{count} writes, the longest took {longest:?}");
        for n in 0..count {
            let value = client.get(key(n)).expect("the cluster serves").output;
            assert_eq!(value.as_deref(), Some(&n.to_be_bytes()[..]), "write {n} is lost");
        }
        longest
    }
}
