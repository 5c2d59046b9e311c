//! `coppice tuning`: how the groups of the cluster are tuned, gathered from their leaders (protocol.md 9).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use coppice_client::map::NodeState;
use coppice_client::wire::{AdminReply, AdminRequest, TuningReport};
use coppice_core::question::{Answer, Question};
use tokio::sync::oneshot;

use super::{Control, coalesced};
use crate::rpc::ask;

/// How long another node may take to answer; dead and paused ones are known by then.
const ASK_TIMEOUT: Duration = Duration::from_millis(450);

/// `local`: only of the groups that this node leads, as nodes ask one another.
pub(super) fn answer_tuning(control: &mut Control, local: bool, reply: oneshot::Sender<AdminReply>) {
    if local {
        let report = tuning(control, true);
        crate::task::spawn(async move { _ = reply.send(report.await) });
    } else {
        coalesced::ask(control, |questions| &mut questions.tunings, |control| tuning(control, false), reply);
    }
}

fn tuning(control: &Control, local: bool) -> impl Future<Output = AdminReply> + use<> {
    let shared = Arc::clone(&control.shared);
    let on = control.settings.values.auto_tuning;
    async move {
        let own = shared.own.identity().map(|identity| identity.node).unwrap_or_default();
        let mut asked = Vec::new();
        if !local {
            let map = shared.cluster.map();
            for node in map.nodes.iter().filter(|node| node.id != own && node.state != NodeState::Removed) {
                let (id, address) = (node.id, node.addresses.peer.clone());
                let shared = std::sync::Arc::clone(&shared);
                asked.push(crate::task::spawn(async move {
                    let question = Question::Admin(AdminRequest::Tuning { local: true });
                    (id, ask(&shared, Some(id), &address, &question, ASK_TIMEOUT).await.ok())
                }));
            }
        }
        let mut groups = BTreeMap::new();
        for thread in 0..shared.workers.count() {
            let told = shared.workers.ask(thread, ASK_TIMEOUT, |thread| thread.worker.tunings()).await;
            groups.extend(told.unwrap_or_default().into_iter().map(|group| (group.partition, group)));
        }
        let mut silent = Vec::new();
        for task in asked {
            match task.await {
                Ok((_, Some(Answer::Admin(AdminReply::Tuning(report))))) => {
                    groups.extend(report.groups.into_iter().map(|group| (group.partition, group)));
                }
                Ok((node, _)) => silent.push(node),
                // The task does not panic; a node that stops gives no answer.
                Err(_) => {}
            }
        }
        AdminReply::Tuning(TuningReport { on, groups: groups.into_values().collect(), silent })
    }
}
