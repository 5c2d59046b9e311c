//! The clients through which a thread of the port asks: one for each user, shared by all connections of that user.

use std::cell::RefCell;
use std::collections::BTreeMap;

use coppice_client::token::Token;
use coppice_client::{Client, Config};

use super::Node;

/// Users for whom a client is kept though no connection acts for them: those that come for a moment find theirs open.
const IDLE_MAX: usize = 16;

/// The client of a user and how many connections use it.
struct Kept {
    client: Client,
    connections: usize,
}

/// The clients of one thread, by the token of their user.
#[derive(Default)]
pub struct Clients(RefCell<BTreeMap<Option<String>, Kept>>);

impl Clients {
    /// The client for this user, for one connection more.
    pub fn take(&self, node: &Node, token: Option<&Token>) -> Client {
        let mut clients = self.0.borrow_mut();
        let name = token.map(|token| token.reveal().to_owned());
        let kept = clients.entry(name).or_insert_with(|| Kept { client: start(node, token.cloned()), connections: 0 });
        kept.connections += 1;
        kept.client.clone()
    }

    /// A connection uses it no more.
    pub fn give_back(&self, token: Option<&Token>) {
        let mut clients = self.0.borrow_mut();
        let name = token.map(|token| token.reveal().to_owned());
        if let Some(kept) = clients.get_mut(&name) {
            kept.connections -= 1;
        }
        let idle = clients.iter().filter(|(name, kept)| kept.connections == 0 && name.is_some());
        if idle.clone().count() > IDLE_MAX
            && let Some(first) = idle.map(|(name, _)| name.clone()).next()
        {
            clients.remove(&first);
        }
    }
}

fn start(node: &Node, token: Option<Token>) -> Client {
    let tls = node.shared.tls().cloned();
    Client::start([node.native.clone()], Config { token, tls, ..Config::default() })
}
