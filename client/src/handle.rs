//! What the clones of a client hold: the queue to their driver, and how long their calls may take.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::command::ReadMode;
use crate::config::Config;
use crate::error::{Error, Reason, Result};
use crate::ids::ClientId;
use crate::map::PartitionMap;
use crate::session::Request;
use crate::shared::Shared;

/// One clone's hold on its client. The last one that is dropped closes the client.
#[derive(Clone)]
pub(crate) struct Handle {
    open: Arc<Open>,
    timeout: Duration,
}

struct Open {
    shared: Arc<Shared>,
    /// How reads are served.
    reads: ReadMode,
    id: ClientId,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.shared.close();
    }
}

impl Handle {
    pub fn new(id: ClientId, config: &Config) -> Handle {
        let shared = Arc::new(Shared::new(config.calls_max, config.bytes_max));
        Handle { open: Arc::new(Open { shared, reads: config.reads, id }), timeout: config.timeout }
    }

    pub fn shared(&self) -> &Arc<Shared> {
        &self.open.shared
    }

    pub fn id(&self) -> ClientId {
        self.open.id
    }

    pub fn reads(&self) -> ReadMode {
        self.open.reads
    }

    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// The same client with another timeout for its calls.
    pub fn with_timeout(&self, timeout: Duration) -> Handle {
        Handle { open: Arc::clone(&self.open), timeout }
    }

    /// When a call that is made now times out.
    pub fn deadline(&self) -> Instant {
        Instant::now() + self.timeout
    }

    /// The partition map that the driver routes by; waits for one if there is none yet.
    pub async fn map(&self) -> Result<Arc<PartitionMap>> {
        if let Some(map) = self.shared().map() {
            return Ok(map);
        }
        self.shared().call(self.deadline(), Request::Map).await?;
        self.shared().map().ok_or_else(|| Error::failed(Reason::Closed))
    }
}
