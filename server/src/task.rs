//! Tasks of a thread's own runtime.

use std::pin::Pin;

use tokio::task::JoinHandle;

/// Runs a future beside others on this thread's `LocalSet`. It is boxed: the runtime's code for tasks is compiled once
/// for each type of future, and would be a seventh of this crate.
pub fn spawn<T: 'static>(future: impl Future<Output = T> + 'static) -> JoinHandle<T> {
    let future: Pin<Box<dyn Future<Output = T>>> = Box::pin(future);
    tokio::task::spawn_local(future)
}
