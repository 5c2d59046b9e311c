//! What nodes say to each other, as bytes: the messages of replicas, the frames around them, and the pieces that all of
//! it is written in.

pub mod codec;
pub mod peer;
pub mod peer_frame;
