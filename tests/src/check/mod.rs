//! Checkers of histories (reliability.md 3).
pub mod build;
pub mod cycle;
pub mod event;
pub mod generate;
pub mod history;
pub mod intern;
pub mod json;
pub mod random;
pub mod read;
pub mod state;
#[cfg(test)]
mod tests;
pub mod tier0;
pub mod verdict;
pub mod write;
