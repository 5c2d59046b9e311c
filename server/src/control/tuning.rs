//! `coppice tuning`: how the groups of the cluster are tuned, gathered from their leaders (protocol.md 9).

use std::sync::Arc;
use std::time::Duration;

use coppice_client::wire::{AdminReply, AdminRequest};
use coppice_core::question::Question;
use coppice_core::survey::{self, Survey, tunings};
use tokio::sync::oneshot;

use super::survey::survey;
use super::{Control, coalesced};

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
    let on = control.controller.settings().auto_tuning;
    async move {
        let question = Question::Admin(AdminRequest::Tuning { local: true });
        let others = (!local).then(|| survey(&shared, &question, ASK_TIMEOUT, survey::tuning));
        let mut own = Vec::new();
        for thread in 0..shared.workers.count() {
            own.extend(shared.workers.ask(thread, ASK_TIMEOUT, |thread| thread.worker.tunings()).await);
        }
        let others = match others {
            Some(others) => others.await,
            None => Survey::default(),
        };
        AdminReply::Tuning(tunings(on, own.into_iter().flatten(), others))
    }
}
