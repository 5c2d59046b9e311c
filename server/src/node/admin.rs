//! What admin HTTP is told of the node.

use std::sync::Arc;
use std::time::Duration;

use coppice_client::wire::StatusGet;
use tokio::sync::oneshot;

use crate::admin_http;
use crate::config::{Address, NODE_SETTINGS, NodeConfig};
use crate::messages::ToControl;
use crate::shared::Shared;

/// How long a node that is asked whether it is ready may take. Probes give up after some seconds too.
const READINESS_TIMEOUT: Duration = Duration::from_secs(2);

/// What admin HTTP may ask of the node.
pub(super) fn admin_http(shared: &Arc<Shared>) -> admin_http::Admin {
    let (for_status, for_readiness, for_config) = (Arc::clone(shared), Arc::clone(shared), Arc::clone(shared));
    let (for_access, for_live, for_nodes) = (Arc::clone(shared), Arc::clone(shared), Arc::clone(shared));
    admin_http::Admin {
        metrics: shared.metrics.clone(),
        access: Arc::new(move || for_access.cluster.access()),
        status: Arc::new(move || {
            // The control thread answers as soon as it knows who this node is.
            let recovering = for_status.recovery.lines();
            if !recovering.is_empty() && for_status.own.identity().is_none() {
                return Box::pin(async move { serde_json::json!({ "v": 1, "recovering": recovering }) });
            }
            let (sender, receiver) = oneshot::channel();
            for_status.tell_control(ToControl::Status { get: StatusGet { local: false }, reply: sender });
            Box::pin(
                async move { receiver.await.map(|status| crate::status_view::to_json(&status)).unwrap_or_default() },
            )
        }),
        live: Arc::new(move |after| {
            let recovering = for_live.recovery.lines();
            if !recovering.is_empty() && for_live.own.identity().is_none() {
                return Box::pin(async move { Err(recovering) });
            }
            let (sender, receiver) = oneshot::channel();
            for_live.tell_control(ToControl::Live { after, reply: sender });
            Box::pin(async move { receiver.await.map_err(|_| vec!["the node is stopping".to_owned()]) })
        }),
        nodes: Arc::new(move || {
            let map = for_nodes.cluster.map();
            let members = coppice_core::survey::members(&map);
            members.filter_map(|node| Some(map.node(node)?.addresses.admin.clone())).collect()
        }),
        readiness: Arc::new(move || Box::pin(readiness(Arc::clone(&for_readiness)))),
        config: admin_http::ask(move || {
            let rows =
                NODE_SETTINGS.iter().map(|setting| (setting.key.to_owned(), setting.show(&for_config.config).into()));
            serde_json::Value::Object(rows.collect())
        }),
        hosts: hosts(&shared.config),
    }
}

/// The names by which this node is listened to, or others are told to dial it.
fn hosts(config: &NodeConfig) -> admin_http::Hosts {
    let (listen, advertise) = (&config.listen, &config.advertise);
    let listens = [Some(&listen.native), Some(&listen.peer), listen.resp.as_ref(), listen.admin.as_ref()];
    let advertised =
        [advertise.native.as_ref(), advertise.peer.as_ref(), advertise.resp.as_ref(), advertise.admin.as_ref()];
    admin_http::Hosts::new(listens.into_iter().chain(advertised).flatten().map(Address::host))
}

/// Why the node is not ready; empty if it is.
async fn readiness(shared: Arc<Shared>) -> Vec<String> {
    let recovering = shared.recovery.lines();
    if !recovering.is_empty() {
        return recovering;
    }
    if shared.is_draining() {
        return vec!["the node is stopping".into()];
    }
    let (sender, receiver) = oneshot::channel();
    shared.tell_control(ToControl::Readiness(sender));
    match tokio::time::timeout(READINESS_TIMEOUT, receiver).await {
        Ok(Ok(reasons)) => reasons,
        Ok(Err(_)) => vec!["the node is stopping".into()],
        Err(_) => vec!["the control thread does not answer".into()],
    }
}
