//! The multicast over the real coordinator, chain, acknowledger and gate: scripts, an exhaustive search of small worlds
//! and random schedules, all judged by one history (protocol.md 3, 4, 5, 8; hazards.md 6, tickets).

mod explore;
mod fuzz;
#[cfg(feature = "mutants")]
mod mutants;
mod scripts;
