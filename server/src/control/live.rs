//! What the page shows, once a second while somebody has it open: one question to every node.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use coppice_client::wire::{GroupTuning, NodeId, PartitionId};
use coppice_core::question::{Answer, LIVE_LEVEL, Question};
use coppice_core::status::live::{ClusterLive, GroupLive, LiveReport, NodeLive};
use coppice_core::status::{overview, remedies};
use coppice_core::survey::{self, Survey, members, tunings};
use coppice_core::worker::Group;
use tokio::sync::oneshot;

use super::Control;
use super::status::local_status;
use super::survey::survey_each;

/// How long another node may take to say how it is; as for `status`.
const ASK_TIMEOUT: Duration = Duration::from_millis(450);

/// Another node has a page open.
pub(super) fn answer_live_report(control: &Control, after: u64, reply: oneshot::Sender<Answer>) {
    let report = report(control, after);
    crate::task::spawn(async move { _ = reply.send(Answer::Live(Box::new(report.await))) });
}

/// A page is open here. `after`: the samples of each node that it has.
pub(super) fn answer_live(control: &Control, after: BTreeMap<NodeId, u64>, reply: oneshot::Sender<ClusterLive>) {
    let shared = Arc::clone(&control.shared);
    let settings = control.controller.settings().clone();
    let identity = shared.own.identity().map(|identity| (identity.cluster, identity.node));
    let (cluster, own) = identity.map_or_else(Default::default, |(cluster, own)| (Some(cluster), own));
    let after_of = move |node| after.get(&node).copied().unwrap_or(0);
    let report = report(control, after_of(own));
    crate::task::spawn(async move {
        let question = |node| match settings.feature_level < LIVE_LEVEL {
            true => Question::Status,
            false => Question::Live { after: after_of(node) },
        };
        let others = survey_each(&shared, question, ASK_TIMEOUT, survey::live);
        let (report, others) = (report.await, others.await);
        let map = shared.cluster.map();
        let admin = |node| map.node(node).map(|info| info.addresses.admin.clone()).unwrap_or_default();
        let of_node = |node: NodeId| (node, NodeLive { admin: admin(node), ..NodeLive::default() });
        let mut nodes: BTreeMap<NodeId, NodeLive> = members(&map).map(of_node).collect();
        let (mut known, mut led) = (BTreeMap::new(), Vec::<GroupTuning>::new());
        for (node, report) in others.heard.into_iter().chain([(own, report)]) {
            known.insert(node, report.status);
            led.extend(report.tunings);
            if let Some(live) = nodes.get_mut(&node) {
                (live.groups, live.samples) = (report.groups, report.samples);
            }
        }
        let silent = Survey { heard: BTreeMap::new(), silent: others.silent };
        let tickets = u32::try_from(shared.metrics.tickets_in_flight()).unwrap_or(u32::MAX);
        let excuses = shared.peers.excuses();
        let status = overview(&map, (cluster, own), &known, (Some(&settings), tickets), &excuses);
        let peer = |node| map.node(node).map(|info| info.addresses.peer.clone());
        let remedies = remedies(&status, peer);
        _ = reply.send(ClusterLive { status, remedies, tuning: tunings(settings.auto_tuning, led, silent), nodes });
    });
}

fn report(control: &Control, after: u64) -> impl Future<Output = LiveReport> + use<> {
    let (shared, status) = (Arc::clone(&control.shared), local_status(control));
    let samples = control.history.after(Instant::now(), after);
    async move {
        let (mut tunings, mut groups) = (Vec::new(), BTreeMap::new());
        for thread in 0..shared.workers.count() {
            let told = shared.workers.ask(thread, ASK_TIMEOUT, |thread| {
                let of = |(&id, group): (&PartitionId, &Group)| (id, live(group));
                (thread.worker.tunings(), thread.worker.groups().iter().map(of).collect::<Vec<_>>())
            });
            if let Some((led, all)) = told.await {
                tunings.extend(led);
                groups.extend(all);
            }
        }
        LiveReport { status: status.await, tunings, groups, samples }
    }
}

fn live(group: &Group) -> GroupLive {
    let (paxos, executor) = (group.replica.paxos(), group.replica.executor());
    let counters = executor.counters();
    GroupLive {
        window_limit: paxos.settings().window,
        speculative_instances: executor.last_executed().ahead_of(executor.decided()),
        rollbacks: (counters.rollbacks, counters.undone_commands),
        leader_changes: group.replica.leader_changes(),
    }
}
