//! What several of the test crates share, and what knows no crate of ours.
#![forbid(unsafe_code)]

/// `println!`, but nobody has to listen (`say.rs`).
#[macro_export]
macro_rules! say {
    ($($words:tt)*) => {
        $crate::say::line(format_args!($($words)*))
    };
}

pub mod caught;
pub mod hazards;
pub mod object_store;
pub mod poll;
pub mod process;
pub mod random;
pub mod resp;
pub mod say;
pub mod serve;
pub mod variant;
