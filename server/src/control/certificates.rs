//! Certificates while the node runs. Their files are looked at with everything else; what has changed counts for new
//! connections at once. Connections that began with the old ones end within [`RETIRE_WITHIN`]: a link to another node
//! once its successor stands, a client's when nothing waits on it, a few at a time, so that not all of them come back
//! at the same moment.

use std::time::{Duration, Instant};

use coppice_client::tls::CertificateRefresh;

use super::Control;
use crate::shard::Shard;

/// After so long a connection that began with old certificates is closed, whatever waits on it.
pub const RETIRE_WITHIN: Duration = Duration::from_secs(60);

/// Idle connections are closed in so many lots.
const LOTS: u64 = 32;

/// Over which time the lots are spread.
const LOTS_WITHIN: Duration = Duration::from_secs(30);

impl Control {
    /// Takes up certificates that have changed, and lets go of what began with old ones.
    pub(super) fn look_at_certificates(&mut self) {
        let Some(tls) = self.shared.tls().cloned() else { return };
        let node = self.shared.identity().map(|identity| identity.node);
        match tls.refresh(node) {
            CertificateRefresh::Same => {}
            CertificateRefresh::Changed => {
                tracing::info!("certificates have changed, and are in use");
                self.retiring_since = Some(Instant::now());
                self.on_all_shards(|| |shard: &mut Shard| shard.links.values().for_each(|link| link.renew()));
            }
            CertificateRefresh::Unusable(error) => {
                tracing::error!(error, "certificates have changed and cannot be used: the old ones stay in use");
            }
        }
        let Some(elapsed) = self.retiring_since.map(|since| since.elapsed()) else { return };
        let last = elapsed >= RETIRE_WITHIN;
        if last {
            self.retiring_since = None;
        }
        let lots = (elapsed.as_millis() * u128::from(LOTS) / LOTS_WITHIN.as_millis()).min(u128::from(LOTS)) as u64;
        self.on_all_shards(|| {
            let tls = tls.clone();
            move |shard: &mut Shard| {
                let due = shard.connections.values().filter(|c| last || c.id() % LOTS < lots);
                due.filter(|connection| connection.is_outdated(&tls)).for_each(|connection| match last {
                    true => connection.close(),
                    false => connection.retire(),
                });
            }
        });
    }

    pub(super) fn on_all_shards<F: FnOnce(&mut Shard) + Send + 'static>(&self, call: impl Fn() -> F) {
        (0..self.shared.shards()).for_each(|shard| self.on_shard_index(shard, call()));
    }
}
