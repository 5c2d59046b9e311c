//! Exhaustive searches of small worlds over the real cores: every order of every event within stated bounds
//! (hazards.md 7, models). What is found here needs no luck; what lies beyond the bounds is the simulator's.
//!
//! | room | what |
//! |---|---|
//! | [`search`] | the walk through all states, whatever they are of |
//! | [`paxos`] | one group: acceptors, proposers, crashes, a network that loses, repeats and reorders |
//! | [`tickets`] | several partitions: coordinators, queries, writes, judged by one order |
//! | [`cli`] | the command `coppice-sim model` |

pub mod cli;
pub mod paxos;
pub mod search;
pub mod tickets;
