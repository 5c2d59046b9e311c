//! Snapshots: written as checkpoints when a worker says so, and fetched from other nodes when a controller does
//! (protocol.md 1.6). Either is an encoded state on a disk whose acts take their time.

use coppice_client::wire::{NodeId, PartitionId};
use coppice_core::controller::{self, FetchId};
use coppice_core::snapshot::{self, LoadedSnapshot, TakenSnapshot};
use coppice_core::worker::{CheckpointOutcome, Input};
use coppice_ordering::Instance;

use super::events::{Event, Mail, Writing};
use super::node::place;
use super::plan::{MS, Nanos};
use super::store::{CLUSTER, Refused, SavedSnapshot, Stage};
use super::world::World;

/// A snapshot that has not come by then is not waited for any more.
const SNAPSHOT_TIMEOUT: Nanos = 500 * MS;

/// Checkpoints.
impl World {
    /// A worker wants a checkpoint written.
    pub fn begin_checkpoint(&mut self, node: usize, (group, number): (PartitionId, u64), taken: TakenSnapshot) {
        if self.nodes[node].group(group).is_some_and(|host| host.boundaries.is_owed()) {
            self.coverage.note("merge: a neighbour is taken in");
        }
        let saved = SavedSnapshot::of(taken);
        let found = self.oracle.check_snapshot(group, &saved);
        self.expect(found);
        self.write_checkpoint(node, group, saved, Writing::Own(number));
    }

    /// Begins to write a checkpoint: one of this node's, or a snapshot that has come.
    fn write_checkpoint(&mut self, node: usize, group: PartitionId, saved: SavedSnapshot, writing: Writing) {
        let took = self.draws.disk.below(self.plan.disk.snapshot_max as usize) as Nanos;
        match self.nodes[node].store.begin_checkpoint(group, saved) {
            Ok(checkpoint) => {
                let (boot, at) = (self.nodes[node].boot, self.now + took);
                self.schedule(at, Event::Checkpoint { node, boot, group, checkpoint, writing });
            }
            Err(Refused::Present) => {
                self.coverage.note("checkpoint: there is one of this instance");
                self.checkpoint_counts(node, group, writing, CheckpointOutcome::Present);
            }
            Err(refused @ (Refused::Failed | Refused::Full)) => {
                let full = refused == Refused::Full;
                self.coverage.note(if full { "checkpoint: the disk has no room" } else { "checkpoint: an act fails" });
                self.give_up(node, group, writing);
            }
            Err(Refused::Busy) => {
                self.coverage.note("checkpoint: another one of the group is being written");
                self.give_up(node, group, writing);
            }
        }
    }

    /// The next act of a checkpoint's life; a node that is about to crash may do so before it.
    pub fn on_checkpoint(&mut self, node: usize, group: PartitionId, checkpoint: u64, writing: Writing) {
        if self.is_doomed(node) {
            return self.coverage.note("crash: between two acts of a checkpoint's boot");
        }
        match self.nodes[node].store.proceed(checkpoint) {
            Stage::Going => {
                let took = self.draws.acts.below(self.plan.disk.flush_max as usize + 1) as Nanos;
                let (boot, at) = (self.nodes[node].boot, self.now + took);
                self.schedule(at, Event::Checkpoint { node, boot, group, checkpoint, writing });
            }
            Stage::Done(trim_upto) => {
                // Its size is nobody's concern here: 0 bytes change nothing of when the next one is due.
                self.checkpoint_counts(node, group, writing, CheckpointOutcome::Done { bytes: 0, trim_upto });
            }
            Stage::GivenUp => {
                self.coverage.note("checkpoint: its files went meanwhile");
                self.give_up(node, group, writing);
            }
            Stage::Failed => {
                self.coverage.note("checkpoint: an act fails");
                self.give_up(node, group, writing);
            }
        }
    }

    /// Nothing came of a checkpoint, or of a snapshot.
    fn give_up(&mut self, node: usize, group: PartitionId, writing: Writing) {
        match writing {
            Writing::Own(number) => self.checkpointed(node, (group, number), CheckpointOutcome::Failed),
            Writing::Fetched(fetch) => self.end_fetch(node, fetch, None),
        }
    }

    fn checkpoint_counts(&mut self, node: usize, group: PartitionId, writing: Writing, written: CheckpointOutcome) {
        let fetch = match writing {
            Writing::Own(number) => {
                if matches!(written, CheckpointOutcome::Done { trim_upto: Some(_), .. }) {
                    self.coverage.note("checkpoint: the log below an older one goes");
                }
                return self.checkpointed(node, (group, number), written);
            }
            Writing::Fetched(fetch) => fetch,
        };
        match self.nodes[node].store.load_checkpoint(group) {
            (Some(loaded), _) => self.end_fetch(node, fetch, Some(Box::new(loaded))),
            // A replica of the group was removed meanwhile, and its checkpoints go, or have gone (seeds 543, 1100114,
            // 8009874).
            (None, bad) if bad == 0 || self.nodes[node].process.control.deleting.contains(&group) => {
                self.coverage.note("checkpoint: its files went meanwhile");
                self.end_fetch(node, fetch, None);
            }
            (None, bad) => self.fail("snapshot", format!("n{node}.{group}: all {bad} are damaged, one just kept")),
        }
    }

    /// The worker hears of it, from the thread that writes checkpoints.
    fn checkpointed(&mut self, node: usize, (group, number): (PartitionId, u64), written: CheckpointOutcome) {
        let owner = self.nodes[node].owner(group);
        self.mail(node, owner, Mail::Control(Input::Checkpointed { group, number, written }));
    }
}

/// Snapshots of other nodes.
impl World {
    /// Asks another node for a snapshot that reaches so far.
    pub fn fetch(&mut self, node: usize, fetch: FetchId, group: PartitionId, from: NodeId, least: Instance) {
        let (boot, from) = (self.nodes[node].boot, place(from));
        self.nodes[node].process.control.fetches.insert(fetch);
        self.schedule(self.now + SNAPSHOT_TIMEOUT, Event::SnapshotTimeout { node, boot, fetch, group });
        let delay = self.net.delay();
        self.schedule(self.now + delay, Event::SnapshotAsked { from, node, boot, fetch, group, least });
    }

    /// Another node asks for a snapshot.
    pub fn on_snapshot_asked(
        &mut self,
        from: usize,
        (node, boot, fetch): (usize, u64, FetchId),
        group: PartitionId,
        least: Instance,
    ) {
        if !self.net.hears(node, from) || !self.net.hears(from, node) {
            return;
        }
        let Some(host) = self.nodes[from].group(group) else { return };
        if host.replica.executor().decided() < least {
            self.coverage.note("snapshot: asked of one that is behind");
            return;
        }
        let saved = SavedSnapshot::of(snapshot::take(CLUSTER, &host.replica));
        let found = self.oracle.check_snapshot(group, &saved);
        self.expect(found);
        let took = self.net.delay() + self.draws.disk.below(self.plan.disk.snapshot_max as usize) as Nanos;
        self.schedule(self.now + took, Event::SnapshotArrived { node, boot, fetch, group, saved });
    }

    /// A snapshot of another node is here; it is kept as a checkpoint before anything is made of it, if it is wanted.
    pub fn on_snapshot_arrived(&mut self, node: usize, fetch: FetchId, group: PartitionId, saved: SavedSnapshot) {
        let loaded = match saved.load(self.plan.capacity(node)) {
            Ok(loaded) => loaded,
            Err(error) => return self.fail("snapshot", format!("an intact snapshot does not load: {error}")),
        };
        let data = loaded.machine.partition();
        let (kept, version) = data.map_or_else(Default::default, |data| (data.range().clone(), data.map_version()));
        self.nodes[node].process.control.offers.insert(fetch, (group, saved));
        self.tell(node, controller::Input::Offered { fetch, kept, version });
    }

    /// The controller wants it, or does not.
    pub fn on_admitted(&mut self, node: usize, fetch: FetchId, may: bool) {
        let Some((group, saved)) = self.nodes[node].process.control.offers.remove(&fetch) else { return };
        if may {
            return self.write_checkpoint(node, group, saved, Writing::Fetched(fetch));
        }
        self.coverage.note("snapshot: waits for what it gives away");
        self.end_fetch(node, fetch, None);
    }

    /// A fetch has ended, on a thread of its own.
    fn end_fetch(&mut self, node: usize, fetch: FetchId, loaded: Option<Box<LoadedSnapshot>>) {
        if !self.nodes[node].process.control.fetches.remove(&fetch) {
            return;
        }
        let thread = self.nodes[node].process.workers.len() + fetch as usize;
        self.report(node, thread, controller::Input::Fetched(fetch, loaded));
    }

    /// A replica is about to take a snapshot's state.
    pub fn before_install(&mut self, node: usize, group: PartitionId, loaded: &LoadedSnapshot) {
        let Some(host) = self.nodes[node].group(group) else { return };
        let me = host.me;
        self.coverage.note("snapshot: installed");
        if loaded.instance <= host.replica.paxos().decided_upto() {
            self.coverage.note("snapshot: installed below what is decided");
        }
        self.oracle.installed(group, me, loaded.instance);
    }

    /// It took too long; one that is on its way to the disk is waited for.
    pub fn on_snapshot_timeout(&mut self, node: usize, fetch: FetchId, group: PartitionId) {
        if self.nodes[node].process.control.fetches.contains(&fetch) && self.nodes[node].store.is_checkpointing(group) {
            let (boot, at) = (self.nodes[node].boot, self.now + SNAPSHOT_TIMEOUT);
            return self.schedule(at, Event::SnapshotTimeout { node, boot, fetch, group });
        }
        self.end_fetch(node, fetch, None);
    }
}
