//! Across groups: tickets and what they hold back (ordering.md 3, 4).

pub mod gate;
