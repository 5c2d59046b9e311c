//! The fence of this process, for every thread.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use coppice_core::incarnation::fence::Fence;

/// See [`Fence`].
#[derive(Debug)]
pub struct SharedFence {
    /// What `fence` comes to, for every message: a load.
    may_speak: AtomicBool,
    fence: Mutex<Fence>,
}

impl Default for SharedFence {
    fn default() -> SharedFence {
        let fence = Fence::default();
        SharedFence { may_speak: AtomicBool::new(fence.may_speak()), fence: Mutex::new(fence) }
    }
}

impl SharedFence {
    /// Tells the fence something, or asks it.
    pub fn with<T>(&self, f: impl FnOnce(&mut Fence) -> T) -> T {
        let mut fence = self.fence.lock().unwrap_or_else(PoisonError::into_inner);
        let said = f(&mut fence);
        self.may_speak.store(fence.may_speak(), Ordering::Release);
        said
    }

    /// See [`Fence::may_speak`].
    pub fn may_speak(&self) -> bool {
        self.may_speak.load(Ordering::Acquire)
    }
}
