//! Coppice.
fn main() {}
