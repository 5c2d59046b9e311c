//! What the control thread changes at a worker thread: links to other nodes, users.

use std::sync::Arc;

use coppice_client::wire::NodeId;
use coppice_core::access::Access;
use coppice_core::handshake::Purpose;

use super::WorkerThread;
use crate::messages::ToControl;
use crate::net::link::{Link, Opening};

impl WorkerThread {
    /// Keeps a link to `node` at `address`.
    pub(crate) fn link_to(&mut self, node: NodeId, address: crate::config::Address) {
        if let Some(link) = self.links.get(&node) {
            return link.set_address(address);
        }
        if self.shared.own.identity().is_none() {
            return;
        }
        let (judging, shared) = (Arc::clone(&self.shared), Arc::clone(&self.shared));
        let opening = Opening {
            hello: judging.hello(Purpose::Messages, Some(node)),
            tls: judging.tls().cloned(),
            judge: Box::new(move |them| judging.judge(them)),
            vetted: Box::new(move |said| shared.tell_control(ToControl::Vetted(node, said.map_err(str::to_owned)))),
        };
        let link = Link::new(node, address);
        let thread = self.this();
        let gone = move |node| thread.borrow_mut().tell_gone(node);
        crate::task::spawn(std::rc::Rc::clone(&link).run(opening, gone));
        self.links.insert(node, link);
    }

    /// Goes by these users from now on; connections that may do less than before end.
    pub(crate) fn apply_access(&mut self, access: &Access) {
        for connection in self.connections.iter().cloned().collect::<Vec<_>>() {
            if !connection.follow(access) {
                self.touch_connection(&connection);
            }
        }
    }
}
