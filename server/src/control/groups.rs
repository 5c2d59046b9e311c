//! Replicas of this node: started from the map, from the log at start, from a snapshot; stopped when removed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use coppice_client::map::{Entry, NodeState, PartitionMap};
use coppice_client::wire::{NodeId, PartitionId};
use coppice_core::access::{Access, Users};
use coppice_core::controller::{self, RecoveredReplica};
use coppice_core::executor::{ExecutorSettings, STEP_WORK_MAX};
use coppice_core::machine::Machine;
use coppice_core::replay::{Entry as LogEntry, GroupReplay};
use coppice_core::replica::Replica;
use coppice_core::replica_manager::Start;
use coppice_core::sessions::SessionLimits;
use coppice_core::settings::ClusterSettings;
use coppice_core::worker::{Group, Input};
use coppice_ordering::{Config, Instance, RecoveredGroup, ReplicaId, Settings};

use super::{Control, ToControl};
use crate::config::Keep;
use crate::log::{Append, Awaited, Hooks, LogOptions};
use crate::net::handshake::Purpose;
use crate::net::link::{Link, Opening};
use crate::node::StorageError;
use crate::shard::Shard;

/// Everything a shard thread needs to host a replica.
pub(super) struct Launch {
    group: PartitionId,
    me: ReplicaId,
    nodes: BTreeMap<ReplicaId, NodeId>,
    config: Config,
    recovered: RecoveredGroup,
    machine: Machine,
    snapshot: Instance,
    speculation: bool,
    digest_interval: u64,
    /// Unknown until the directory has told.
    session_limits: Option<SessionLimits>,
}

impl Control {
    /// Opens the log and starts every replica that it knows.
    pub(super) fn open_log(&mut self) -> Result<(), StorageError> {
        if self.home.identity().is_none() {
            return Ok(());
        }
        let config = &self.shared.config;
        let options = LogOptions {
            geometry: crate::log::Geometry {
                segment_bytes: config.log.segment_bytes,
                segments_ahead: config.log.segments_ahead,
                ..Default::default()
            },
            keep_all: config.log.keep == Keep::All,
            unsafe_no_flush: config.unsafe_no_flush && config.log.flush == crate::config::Flush::Off,
            disk_reserve_bytes: config.log.disk_reserve,
            busy_poll: config.busy_poll,
            ..LogOptions::default()
        };
        self.open_checkpoints()?;
        let hooks = self.hooks();
        let opened = self.home.open_log(options, hooks)?;
        if let Some(cut) = &opened.cut {
            tracing::info!(?cut, "the log ended in a write that was never answered for; it was cut");
        }
        self.shared.vetting.begins();
        self.shared.set_claim(opened.claim);
        self.shared.set_identity(opened.identity);
        self.tell(controller::Input::Identity(opened.identity.node));
        let checkpointer = self.checkpoints.as_ref().map(|(_, checkpointer)| Arc::downgrade(checkpointer));
        let checkpointer = checkpointer.unwrap_or_default();
        for shard in 0..self.shared.shards() {
            let (log, checkpointer) = (opened.writer.log(), checkpointer.clone());
            self.on_shard_index(shard, move |shard| shard.set_storage(log, checkpointer));
        }
        self.log = Some(opened.writer);
        self.link_to_seeds();
        let kept = self.home.read_map().and_then(|kept| postcard::from_bytes::<Kept>(&kept).ok());
        let kept = kept.filter(|(map, ..)| map.check().is_ok());
        match &kept {
            Some((_, pairs, users)) => {
                self.take_settings(pairs);
                self.tell_settings();
                _ = self.shared.set_access(Access::new(users.clone()));
            }
            None => _ = self.shared.set_access(Access::unknown()),
        }
        for (group, replay) in opened.replay.groups {
            self.restart(PartitionId(group.0), replay)?;
        }
        for (group, waiting) in self.controller.replicas().awaiting_snapshot() {
            let trimmed = waiting.trimmed().0;
            tracing::warn!(
                partition = %group, trimmed,
                "no good checkpoint reaches the trimmed log; a peer is asked for its state"
            );
        }
        self.delete_stale_checkpoints();
        // What the seeds do not name is found by the map as it was before; it may be old, so others are asked all the
        // same.
        if let Some((map, ..)) = kept {
            self.tell(controller::Input::Map(Arc::new(map)));
        }
        match self.home.read_copy() {
            Some(text) => {
                self.shared.was_found_out(&text);
                self.stop_as_copy();
            }
            None => self.await_vetting(),
        }
        Ok(())
    }

    /// What was found on the disk says nothing before the other nodes of its groups have let this process in, or could
    /// not be reached for an election timeout.
    fn await_vetting(&self) {
        let own = self.shared.identity().map(|identity| identity.node);
        let map = self.shared.map();
        let running = self.controller.replicas().running();
        let here = |entry: &&Entry| running.contains_key(&entry.partition);
        let mut nodes: BTreeSet<NodeId> =
            map.groups().filter(here).flat_map(|entry| entry.replicas.iter().map(|info| info.node)).collect();
        if map.version.0 == 0 && !running.is_empty() {
            nodes.extend((1..=self.shared.config.seeds.len() as u32).map(NodeId));
        }
        nodes.retain(|node| Some(*node) != own);
        self.shared.vetting.expects(nodes.into_iter());
        let (shared, timeout) = (Arc::clone(&self.shared), self.settings.election_timeout);
        crate::task::spawn(async move {
            tokio::time::sleep(timeout).await;
            let missing = shared.vetting.ends();
            if !missing.is_empty() {
                tracing::info!(?missing, "nodes that could not be asked whether this one is a copy");
            }
        });
    }

    /// Another node says that this one runs on a copy of its directory: nothing here takes part in anything any more.
    /// That is written down, so that no later start on this directory has to be told again.
    pub(crate) fn stop_as_copy(&mut self) {
        if let Some(text) = self.shared.vetting.copy()
            && let Err(error) = self.home.write_copy(&text)
        {
            tracing::warn!(%error, "the mark that this directory is a copy cannot be written");
        }
        for shard in 0..self.shared.shards() {
            self.on_shard_index(shard, move |shard| {
                let groups: Vec<PartitionId> = shard.worker.groups().keys().copied().collect();
                groups.into_iter().for_each(|group| shard.drop_group(group));
            });
        }
        for group in self.controller.replicas().running().keys() {
            self.shared.set_leader(*group, None);
        }
    }

    /// After a crash between a removal and the end of its deletion. One that stays takes room, and is tried again at
    /// the next start.
    fn delete_stale_checkpoints(&self) {
        let Some((checkpoints, _)) = &self.checkpoints else { return };
        for group in self.controller.replicas().stale(checkpoints.partitions().unwrap_or_default()) {
            match checkpoints.remove(group) {
                Ok(()) => tracing::info!(partition = %group, "checkpoints of a removed replica were deleted"),
                Err(error) => {
                    tracing::warn!(partition = %group, %error, "checkpoints of a removed replica could not be deleted")
                }
            }
        }
    }

    /// Before the map is known again: `init` numbered the nodes in the order of the seeds.
    fn link_to_seeds(&self) {
        for (at, seed) in self.shared.config.seeds.iter().enumerate() {
            self.link(NodeId(at as u32 + 1), &seed.to_string());
        }
    }

    fn hooks(&self) -> Hooks {
        let shared = Arc::clone(&self.shared);
        let metrics = shared.metrics.log();
        let flush = Arc::clone(&self.flush);
        let failed = Arc::clone(&self.failed);
        let mut by_shard: Vec<Vec<(PartitionId, coppice_ordering::Lsn)>> = vec![Vec::new(); shared.shards()];
        Hooks {
            flushed: Box::new(move |flushed| {
                metrics.flushed(flushed.took, flushed.records as u64);
                flush.note(&flushed);
                shared.looked(flushed.looked);
                // Before the completions: a vote never leaves ahead of the position that it raised.
                shared.set_durable_lsn(flushed.durable_lsn);
                for &(group, lsn) in flushed.completions {
                    let of_shard = &mut by_shard[group.0 as usize % shared.shards()];
                    let group = PartitionId(group.0);
                    match of_shard.last_mut() {
                        // Completions of a group ascend: the last one says it all.
                        Some(last) if last.0 == group => last.1 = last.1.max(lsn),
                        _ => of_shard.push((group, lsn)),
                    }
                }
                for (at, durable) in by_shard.iter_mut().enumerate().filter(|(_, durable)| !durable.is_empty()) {
                    shared.durable_upto(at).raise(durable);
                    shared.sender(at).ring();
                }
            }),
            failed: Box::new(move |failure| failed(failure.to_string())),
        }
    }

    /// A group that the log knows.
    fn restart(&mut self, group: PartitionId, mut replay: GroupReplay) -> Result<(), StorageError> {
        let created = match replay.created.take() {
            Some((me, create)) => {
                Some((me, postcard::from_bytes(&create).map_err(|_| StorageError::CreateRequest(group))?))
            }
            None => None,
        };
        let loaded = if created.is_some() { self.load_checkpoint(group)? } else { None };
        let removed = replay.removed;
        self.tell(controller::Input::Recovered(Box::new(RecoveredReplica { group, removed, created, loaded, replay })));
        self.state_lost.take().map_or(Ok(()), Err)
    }

    /// Writes down that this replica exists, before it does anything. It does not wait for that: whatever it writes
    /// later is durable only together with its create request. Others may have to, for what is to outlive a crash
    /// beside it.
    fn log_create(&self, start: &Start) -> Option<Awaited> {
        let log = self.log.as_ref()?;
        let body = Bytes::from(postcard::to_stdvec(&start.create).expect("a create request is plain data"));
        let created = LogEntry::Created { group: PartitionId(start.group.0), replica: start.me, create: body };
        log.log().append_awaited(vec![Append { entry: created, lsn: None, lazy: false }]).ok()
    }

    /// Tells the controller when the create request is durable.
    fn await_create(&self, (group, me): (PartitionId, ReplicaId), logged: Awaited) {
        let shared = Arc::clone(&self.shared);
        let waiting = std::thread::Builder::new().name(format!("create-{group}"));
        let spawned = waiting.spawn(move || {
            // A log that has stopped ends the process.
            if logged.wait().is_ok() {
                shared.tell_control(ToControl::Input(controller::Input::CreateDurable(group, me)));
            }
        });
        if let Err(error) = spawned {
            // It counts as not durable until the next start, and snapshots that need it wait.
            tracing::warn!(partition = %group, %error, "no thread for waiting for the log");
        }
    }

    fn launch(&self, start: Start) -> Launch {
        let identity = self.shared.identity().expect("replicas start after the identity is known");
        let Start { group, me, create, recovered, machine, snapshot, campaign_first, .. } = start;
        let config = Config {
            id: me,
            configuration: create.configuration(),
            seed: crate::random::draw(),
            incarnation: identity.incarnation,
            settings: core_settings(&self.settings),
            campaign_first,
        };
        Launch {
            group,
            me,
            nodes: create.nodes().collect(),
            config,
            recovered,
            machine,
            snapshot,
            speculation: self.settings.speculation,
            digest_interval: self.settings.digest_interval,
            session_limits: self.told.then(|| session_limits(&self.settings)),
        }
    }

    pub(super) fn start(&mut self, start: Start) {
        let create = if start.is_new { self.log_create(&start) } else { None };
        if start.is_new && create.is_none() {
            return;
        }
        if let (Some(upto), Some(log)) = (start.trim_upto, &self.log) {
            let entry = LogEntry::Trimmed { group: PartitionId(start.group.0), upto };
            // A log that has stopped ends the process.
            _ = log.log().append(vec![Append { entry, lsn: None, lazy: true }]);
        }
        failpoint!("control.born");
        let (partition, replica, instance) = (start.group, start.me, start.snapshot);
        match start.is_new {
            true => tracing::info!(%partition, %replica, %instance, "a replica begins here"),
            false => tracing::debug!(%partition, %replica, %instance, "a replica goes on"),
        }
        if let Some(logged) = create {
            self.await_create((start.group, start.me), logged);
        }
        let launch = self.launch(start);
        let metrics = self.shared.metrics.partition(launch.group);
        self.on_shard(launch.group, move |shard| {
            let Launch { group, me, nodes, config, recovered, machine, snapshot, speculation, .. } = launch;
            let mut effects = Vec::new();
            let now = shard.now();
            let executing = ExecutorSettings {
                deferred: true,
                step_work_max: STEP_WORK_MAX,
                ..ExecutorSettings::speculating(speculation)
            };
            let mut replica =
                Replica::recover(group, config, recovered, machine, snapshot, executing, now, &mut effects);
            if !replica.paxos().has_rounds_left() {
                tracing::error!(
                    partition = %group, replica = %me, ballot = %replica.paxos().promised(),
                    "the log holds a promise that no election made, so this replica can neither vote nor lead: \
                     replace this node (`coppice node replace`)"
                );
            }
            replica.executor_mut().set_digest_interval(launch.digest_interval);
            launch.session_limits.into_iter().for_each(|limits| replica.set_session_limits(limits));
            shard.host(Group::new(replica, nodes), effects, metrics);
            failpoint!("control.hosted");
        });
    }

    /// Uses `map` if it is newer: links to its nodes, replicas that it names for this node, and no others.
    pub(super) fn adopt(&mut self, map: PartitionMap, settings: BTreeMap<String, String>, users: Users) {
        if map.check().is_err() || map.version < self.shared.map().version {
            return;
        }
        self.apply_settings(&settings);
        // Before the map is: whoever meets a node that knows its map meets the users of that map.
        self.apply_users(users);
        self.tell(controller::Input::Map(Arc::new(map)));
    }

    /// The controller uses this map: so do the links, and the next start.
    pub(super) fn use_map(&mut self, map: Arc<PartitionMap>) {
        _ = self.shared.set_map(Arc::clone(&map));
        let own = self.shared.identity().map(|identity| identity.node);
        for node in map.nodes.iter().filter(|node| Some(node.id) != own) {
            if node.state == NodeState::Removed || node.addresses.peer.is_empty() {
                self.unlink(node.id);
            } else {
                self.link(node.id, &node.addresses.peer);
            }
        }
        if own.and_then(|own| map.node(own)).is_some_and(|node| node.state == NodeState::Removed) {
            tracing::warn!("this node was removed from its cluster: it may be stopped, and its data directory deleted");
        }
        let kept: Kept = ((*map).clone(), self.pairs.clone(), self.shared.access().users().clone());
        let kept = postcard::to_stdvec(&kept).expect("a map is plain data");
        if let Err(error) = self.home.write_map(&kept) {
            tracing::warn!(%error, "the partition map was not kept for the next start");
        }
        failpoint!("control.map_kept");
        self.announce();
        failpoint!("control.map_adopted");
    }

    /// No shard keeps a link to a node that is none any more.
    fn unlink(&self, node: NodeId) {
        for shard in 0..self.shared.shards() {
            self.on_shard_index(shard, move |shard| {
                shard.input(Input::Answers(node, false));
                if let Some(link) = shard.links.remove(&node) {
                    link.close();
                }
            });
        }
    }

    /// Every shard keeps a link to every other node.
    pub(super) fn link(&self, node: NodeId, address: &str) {
        if self.shared.identity().is_none_or(|own| own.node == node) {
            return;
        }
        let address = self.shared.config.dial_override.get(&node.0).cloned().or_else(|| address.parse().ok());
        let Some(address) = address else { return };
        // Questions and snapshots take the same way as the links.
        self.shared.set_peer_address(node, &address.to_string());
        for shard in 0..self.shared.shards() {
            let address = address.clone();
            self.on_shard_index(shard, move |shard| shard.link_to(node, address));
        }
    }

    /// The replica was removed from its group and nobody needs it any more.
    pub(super) fn remove(&mut self, group: PartitionId, replica: ReplicaId) {
        let entry = LogEntry::Removed { group: PartitionId(group.0), replica };
        let removed = vec![Append { entry, lsn: None, lazy: false }];
        let logged = self.log.as_ref().map(|log| log.log().append_awaited(removed));
        failpoint!("control.removed");
        self.shared.set_leader(group, None);
        self.shared.metrics.forget_partition(group);
        // A log that has stopped ends the process; the next start finds the replica as it was.
        if let Some(Ok(logged)) = logged {
            self.delete_checkpoints(group, logged);
        }
        tracing::info!(partition = %group, %replica, "the replica here was removed");
    }

    /// Whether these settings differ from those in use. Those of a version that knows more are not used.
    fn take_settings(&mut self, pairs: &BTreeMap<String, String>) -> bool {
        if *pairs == self.pairs {
            return false;
        }
        self.pairs = pairs.clone();
        let Ok(settings) = ClusterSettings::of_pairs(pairs) else {
            tracing::warn!("the directory holds settings that this version does not know; the known ones stay");
            return false;
        };
        let differ = settings != self.settings;
        self.settings = settings;
        differ
    }

    /// Goes by these users from now on, and so do the connections that stand.
    fn apply_users(&mut self, users: Users) {
        // Unknown users are nobody's, although they look like none.
        if users == *self.shared.access().users() && self.shared.map().version.0 > 0 {
            return;
        }
        let access = self.shared.set_access(Access::new(users));
        tracing::info!(on = access.is_on(), users = access.users().len(), "access control follows the directory");
        for shard in 0..self.shared.shards() {
            let access = Arc::clone(&access);
            self.on_shard_index(shard, move |shard| shard.apply_access(&access));
        }
    }

    /// Uses the cluster's settings, as the directory has them.
    pub(super) fn apply_settings(&mut self, pairs: &BTreeMap<String, String>) {
        let told = std::mem::replace(&mut self.told, true);
        if !self.take_settings(pairs) && told {
            return;
        }
        let settings = &self.settings;
        for shard in 0..self.shared.shards() {
            let settings = settings.clone();
            self.on_shard_index(shard, move |shard| shard.apply_settings(&settings));
        }
        self.tell_settings();
    }

    fn tell_settings(&mut self) {
        self.tell(controller::Input::Settings(Arc::new(self.settings.clone())));
    }
}

/// What a node keeps for its next start: the map, and the settings and users as the directory had them.
type Kept = (PartitionMap, BTreeMap<String, String>, Users);

/// The core's settings from the cluster's.
pub(crate) fn core_settings(settings: &ClusterSettings) -> Settings {
    Settings {
        batch_bytes_max: settings.batch_bytes_max as usize,
        batch_delay_max: settings.batch_delay_max,
        window: settings.window,
        window_bytes_max: settings.window_bytes_max as usize,
        heartbeat_interval: settings.heartbeat_interval,
        quiesce_heartbeat_interval: settings.quiesce_heartbeat_interval,
        election_timeout: settings.election_timeout,
        apply_lag_max: u64::from(settings.apply_lag_max),
        ..Settings::default()
    }
}

fn session_limits(settings: &ClusterSettings) -> SessionLimits {
    SessionLimits {
        expiry_instances: settings.session_expiry,
        sessions_max: settings.sessions_max as usize,
        bytes_max: settings.session_bytes_max as usize,
        ..SessionLimits::default()
    }
}

impl Shard {
    /// Uses other settings from now on.
    pub(super) fn apply_settings(&mut self, settings: &ClusterSettings) {
        for group in self.worker.groups_mut().values_mut() {
            group.replica.paxos_mut().set_settings(core_settings(settings));
            group.replica.executor_mut().set_speculation(settings.speculation);
            group.replica.set_session_limits(session_limits(settings));
            group.replica.executor_mut().set_digest_interval(settings.digest_interval);
        }
        self.input(Input::Settings(Arc::new(settings.clone())));
        self.set_tuning(settings);
    }

    /// Keeps a link to `node` at `address`.
    pub(super) fn link_to(&mut self, node: NodeId, address: crate::config::Address) {
        if let Some(link) = self.links.get(&node) {
            return link.set_address(address);
        }
        if self.shared.identity().is_none() {
            return;
        }
        let (judging, vetting) = (Arc::clone(&self.shared), Arc::clone(&self.shared));
        let opening = Opening {
            hello: judging.hello(Purpose::Messages, Some(node)),
            tls: judging.tls().cloned(),
            judge: Box::new(move |them| judging.judge(them)),
            vetted: Box::new(move |said| match said {
                Ok(()) => vetting.vetting.let_in(node),
                Err(text) => vetting.found_out(node, text),
            }),
        };
        let link = Link::new(node, address);
        let shard = self.this();
        let gone = move |node| shard.borrow_mut().tell_gone(node);
        crate::task::spawn(std::rc::Rc::clone(&link).run(opening, gone));
        self.links.insert(node, link);
    }
}
