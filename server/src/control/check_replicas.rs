//! `check replicas`: asks all nodes for digests of their replicas until each that answers has been compared.

use std::sync::Arc;
use std::time::Duration;

use coppice_client::wire::AdminReply;
use coppice_core::digests::Digests;
use tokio::sync::oneshot;

use super::status::gather;
use super::{Control, coalesced};

/// Between two looks at replicas that had no instance in common, while they go on deciding.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Looks at most.
const LOOKS_MAX: u32 = 40;

/// Compares the digests of all replicas at instances that they have in common; under load that takes a few looks.
pub(super) fn check_replicas(control: &mut Control, reply: oneshot::Sender<AdminReply>) {
    coalesced::ask(control, |questions| &mut questions.verdicts, verdict, reply);
}

/// Looks at all replicas until each that answers has been compared, or long enough.
fn verdict(control: &Control) -> impl Future<Output = AdminReply> + use<> {
    let shared = Arc::clone(&control.shared);
    let first = gather(control, false);
    async move {
        let mut digests = Digests::default();
        digests.note(&first.await);
        let mut verdict = digests.compare(&shared.cluster.map());
        for _ in 1..LOOKS_MAX {
            if !digests.is_open(&verdict) {
                break;
            }
            tokio::time::sleep(LOOK_AGAIN).await;
            let (sender, receiver) = oneshot::channel();
            shared.call(move |control| {
                let gathered = gather(control, false);
                crate::task::spawn(async move { _ = sender.send(gathered.await) });
            });
            let Ok(known) = receiver.await else { break };
            digests.note(&known);
            verdict = digests.compare(&shared.cluster.map());
        }
        verdict
    }
}
