//! What proves Coppice right: checkers of histories, what makes histories worth checking, and the house's own rules.
#![forbid(unsafe_code)]

#[macro_use]
extern crate planted;

/// The last commit of the sources that these programs were built from; empty: they were built outside of git.
pub const COMMIT: &str = env!("COPPICE_COMMIT");

/// `println!`, but nobody has to listen (`say.rs`).
macro_rules! say {
    ($($words:tt)*) => {
        $crate::say::line(format_args!($($words)*))
    };
}

pub mod check;
pub mod cluster;
pub mod fairness;
pub mod hazards;
pub mod lab;
pub mod say;
pub mod sim;
pub mod tidy;
pub mod variant;
pub mod words;
