//! Certificates while the node runs. Their files are looked at with everything else; what has changed counts for new
//! connections at once. Connections that began with the old ones end within [`RETIRE_WITHIN`]: a link to another node
//! once its successor stands, a client's when nothing waits on it, a few at a time, so that not all of them come back
//! at the same moment.

use std::time::{Duration, Instant};

use coppice_client::tls::CertificateRefresh;

use super::{Handle, outbox::Outbox};
use crate::worker_thread::{RETIRE_WITHIN, WorkerThread};

/// Idle connections are closed in so many lots.
const LOTS: u64 = 32;

/// Over which time the lots are spread.
const LOTS_WITHIN: Duration = Duration::from_secs(30);

/// Connections that began with older certificates.
#[derive(Default)]
pub(super) struct Retirement {
    /// They end since then.
    since: Option<Instant>,
}

impl Retirement {
    /// Takes up certificates that have changed, and lets go of what began with old ones.
    pub(super) fn check(&mut self, shared: &Handle, outbox: &Outbox) {
        let Some(tls) = shared.tls().cloned() else { return };
        let node = shared.own.identity().map(|identity| identity.node);
        match tls.refresh(node) {
            CertificateRefresh::Same => {}
            CertificateRefresh::Changed => {
                tracing::info!("certificates have changed, and are in use");
                self.since = Some(Instant::now());
                outbox.on_all(|| |thread: &mut WorkerThread| thread.links.values().for_each(|link| link.renew()));
            }
            CertificateRefresh::Unusable(error) => {
                tracing::error!(error, "certificates have changed and cannot be used: the old ones stay in use");
            }
        }
        shared.metrics.set_certificate_expiry(tls.ends_at());
        let Some(elapsed) = self.since.map(|since| since.elapsed()) else { return };
        let last = elapsed >= RETIRE_WITHIN;
        if last {
            self.since = None;
        }
        let lots = (elapsed.as_millis() * u128::from(LOTS) / LOTS_WITHIN.as_millis()).min(u128::from(LOTS)) as u64;
        outbox.on_all(|| {
            let tls = tls.clone();
            move |thread: &mut WorkerThread| {
                let due = thread.connections.iter().filter(|c| last || c.id() % LOTS < lots);
                due.filter(|connection| connection.is_outdated(&tls)).for_each(|connection| match last {
                    true => connection.close(),
                    false => connection.retire(),
                });
            }
        });
    }
}
