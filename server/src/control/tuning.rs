//! `coppice tuning`: how the groups of the cluster are tuned, gathered from their leaders (protocol.md 9).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use coppice_client::map::NodeState;
use coppice_client::wire::{AdminReply, AdminRequest, TuningReport};
use tokio::sync::oneshot;

use super::{Control, ToControl, ask_shard};
use crate::net::rpc::{Answer, Question, ask};

/// How long another node may take to answer; dead and paused ones are known by then.
const ASK_TIMEOUT: Duration = Duration::from_millis(450);

impl Control {
    /// `local`: only of the groups that this node leads, as nodes ask one another.
    pub(super) fn answer_tuning(&mut self, local: bool, reply: oneshot::Sender<AdminReply>) {
        if local {
            let report = self.tuning(true);
            crate::task::spawn(async move { _ = reply.send(report.await) });
        } else if let Some(pause) = self.tunings.ask(Instant::now(), reply) {
            self.later(pause, Control::begin_tuning);
        }
    }

    fn begin_tuning(&mut self) {
        self.tunings.begins();
        let (shared, report) = (Arc::clone(&self.shared), self.tuning(false));
        crate::task::spawn(async move {
            let report = report.await;
            shared.tell_control(ToControl::Call(Box::new(move |control: &mut Control| {
                if let Some(pause) = control.tunings.answered(Instant::now(), &report) {
                    control.later(pause, Control::begin_tuning);
                }
            })));
        });
    }

    fn tuning(&self, local: bool) -> impl Future<Output = AdminReply> + use<> {
        let shared = Arc::clone(&self.shared);
        let on = self.settings.auto_tuning;
        async move {
            let own = shared.identity().map(|identity| identity.node).unwrap_or_default();
            let mut asked = Vec::new();
            if !local {
                let map = shared.map();
                for node in map.nodes.iter().filter(|node| node.id != own && node.state != NodeState::Removed) {
                    let (id, address) = (node.id, node.addresses.peer.clone());
                    let shared = std::sync::Arc::clone(&shared);
                    asked.push(crate::task::spawn(async move {
                        let question = Question::Admin(AdminRequest::Tuning { local: true });
                        // A demo's cut is of every message between the two, this one too.
                        let answer = match shared.is_cut_off(id) {
                            true => None,
                            false => ask(&shared, Some(id), &address, &question, ASK_TIMEOUT).await.ok(),
                        };
                        (id, answer)
                    }));
                }
            }
            let mut groups = BTreeMap::new();
            for shard in 0..shared.shards() {
                let told = ask_shard(&shared, shard, ASK_TIMEOUT, |shard| shard.tunings()).await;
                groups.extend(told.unwrap_or_default().into_iter().map(|group| (group.partition, group)));
            }
            let mut silent = Vec::new();
            for task in asked {
                match task.await {
                    Ok((_, Some(Answer::Admin(AdminReply::Tuning(report))))) => {
                        groups.extend(report.groups.into_iter().map(|group| (group.partition, group)));
                    }
                    Ok((node, _)) => silent.push(node),
                    // The task does not panic; a node that stops answers nothing any more.
                    Err(_) => {}
                }
            }
            AdminReply::Tuning(TuningReport { on, groups: groups.into_values().collect(), silent })
        }
    }
}
