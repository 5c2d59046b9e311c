//! What the control thread changes at a worker thread: settings, links to other nodes, users.

use std::sync::Arc;

use coppice_client::wire::NodeId;
use coppice_core::access::Access;
use coppice_core::sessions::SessionLimits;
use coppice_core::settings::ClusterSettings;
use coppice_core::worker::Input;
use coppice_ordering::Settings;

use super::WorkerThread;
use crate::net::handshake::Purpose;
use crate::net::link::{Link, Opening};

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

pub(crate) fn session_limits(settings: &ClusterSettings) -> SessionLimits {
    SessionLimits {
        expiry_instances: settings.session_expiry,
        sessions_max: settings.sessions_max as usize,
        bytes_max: settings.session_bytes_max as usize,
        ..SessionLimits::default()
    }
}

impl WorkerThread {
    /// Uses other settings from now on.
    pub(crate) fn apply_settings(&mut self, settings: &ClusterSettings) {
        for group in self.worker.groups_mut().values_mut() {
            group.replica.paxos_mut().set_settings(core_settings(settings));
            group.replica.executor_mut().set_speculation(settings.speculation);
            group.replica.set_session_limits(session_limits(settings));
            group.replica.executor_mut().set_digest_interval(settings.digest_interval);
        }
        self.input(Input::Settings(Arc::new(settings.clone())));
        self.tuner.set_settings(settings, &mut self.worker, &mut self.metrics.groups);
    }

    /// Keeps a link to `node` at `address`.
    pub(crate) fn link_to(&mut self, node: NodeId, address: crate::config::Address) {
        if let Some(link) = self.links.get(&node) {
            return link.set_address(address);
        }
        if self.shared.own.identity().is_none() {
            return;
        }
        let (judging, fence) = (Arc::clone(&self.shared), Arc::clone(&self.shared));
        let opening = Opening {
            hello: judging.hello(Purpose::Messages, Some(node)),
            tls: judging.tls().cloned(),
            judge: Box::new(move |them| judging.judge(them)),
            vetted: Box::new(move |said| match said {
                Ok(()) => fence.own.fence.let_in(node),
                Err(text) => fence.found_out(node, text),
            }),
        };
        let link = Link::new(node, address);
        let thread = self.this();
        let gone = move |node| thread.borrow_mut().tell_gone(node);
        crate::task::spawn(std::rc::Rc::clone(&link).run(opening, gone));
        self.links.insert(node, link);
    }

    /// Goes by these users from now on; connections that may do less than before end.
    pub(crate) fn apply_access(&mut self, access: &Access) {
        for connection in self.connections.iter().cloned().collect::<Vec<_>>() {
            if !connection.follow(access) {
                self.touch_connection(&connection);
            }
        }
    }
}
