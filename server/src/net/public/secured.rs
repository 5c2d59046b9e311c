//! What a client's connection proves, and its end where that is outdated or there is no place for it.

use std::io::IoSlice;

use bytes::BytesMut;
use coppice_client::channel::Channel;
use coppice_client::tls::Tls;
use coppice_client::tls::names::Names;
use coppice_core::wire_reply::busy;

use super::Connection;

impl Connection {
    /// Whom the client's certificate names, if it has shown one: verified, so that roles can rest on it.
    pub fn certificate(&self) -> Option<&Names> {
        self.stream.names()
    }

    /// Whether certificates have changed since it began.
    pub fn is_outdated(&self, tls: &Tls) -> bool {
        self.stream.is_outdated(Some(tls))
    }

    /// Ends it as soon as nothing waits on it.
    pub fn retire(&self) {
        self.state.borrow_mut().retiring = true;
        self.bell.notify_one();
    }
}

/// Says to whoever finds no place that there is none.
pub fn turn_away(stream: &Channel) {
    let mut out = BytesMut::new();
    busy().encode(&mut out, 0);
    // A fresh socket takes so little at once, or the client learns it from the end.
    _ = stream.write_vectored(&[IoSlice::new(&out)]);
}
