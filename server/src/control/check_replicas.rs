//! `check replicas`: asks all nodes for digests of their replicas until each that answers has been compared.

use std::ops::ControlFlow;
use std::sync::Arc;

use coppice_client::wire::AdminReply;
use coppice_core::digests::Digests;
use tokio::sync::oneshot;

use super::status::gather;
use super::{Control, coalesced};

/// Compares the digests of all replicas at instances that they have in common; under load that takes a few looks.
pub(super) fn check_replicas(control: &mut Control, reply: oneshot::Sender<AdminReply>) {
    coalesced::ask(control, |questions| &mut questions.verdicts, verdict, reply);
}

/// Asks the nodes until the comparison is over.
fn verdict(control: &Control) -> impl Future<Output = AdminReply> + use<> {
    let shared = Arc::clone(&control.shared);
    let first = gather(control, false);
    async move {
        let (mut digests, mut known) = (Digests::default(), first.await);
        loop {
            match digests.look(&shared.cluster.map(), &known) {
                ControlFlow::Continue(pause) => tokio::time::sleep(pause).await,
                ControlFlow::Break(comparison) => return comparison.into(),
            }
            let (sender, receiver) = oneshot::channel();
            shared.call(move |control| {
                let gathered = gather(control, false);
                crate::task::spawn(async move { _ = sender.send(gathered.await) });
            });
            known = match receiver.await {
                Ok(known) => known,
                // The node is stopping.
                Err(_) => return digests.compare(&shared.cluster.map()).into(),
            };
        }
    }
}
