//! What `coppice` for Python is made of: the Rust client, with Python's objects going in and out. The verbs with their
//! types and documentation are in `python/coppice`.
//!
//! | file | what it holds |
//! |---|---|
//! | `core` | the verbs, each for both clients |
//! | `engine` | who drives the connections, and how a call is waited for |
//! | `operation` | operations of a command, and what their results become |
//! | `reply` | results and errors as Python's objects |
#![warn(missing_docs)]

mod core;
mod engine;
mod operation;
mod reply;

/// The module behind the package `coppice`.
#[pyo3::pymodule]
mod _coppice {
    #[pymodule_export]
    use crate::core::Core;
    #[pymodule_export]
    use crate::operation::PyOperation;
    #[pymodule_export]
    use crate::reply::Scan;
}
