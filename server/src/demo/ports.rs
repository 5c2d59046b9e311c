//! Which ports a demo's nodes listen on: the default ones plus 10 per node, or free ones.

use std::io;
use std::net::{Ipv4Addr, TcpListener};

use serde::{Deserialize, Serialize};

use crate::local::HeldPorts;

/// The ports of one node, all on loopback.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodePorts {
    /// Clients and operators.
    pub native: u16,
    /// Other nodes.
    pub peer: u16,
    /// Clients that speak RESP; 0: off, in a demo that was made without.
    #[serde(default)]
    pub resp: u16,
    /// Health and metrics.
    pub admin: u16,
}

/// The first node's native port.
const FIRST: u16 = 7400;
/// From one node's ports to the next one's.
const STEP: u16 = 10;

impl NodePorts {
    /// The usual ports of node `number`, from 1.
    #[must_use]
    pub fn usual(number: u32) -> Self {
        let native = FIRST + STEP * u16::try_from(number.saturating_sub(1)).unwrap_or(0);
        Self { native, peer: native + 2, resp: native + 1, admin: native + 3 }
    }

    /// All of them that are on.
    pub fn all(&self) -> impl Iterator<Item = u16> + use<> {
        [self.native, self.peer, self.resp, self.admin].into_iter().filter(|port| *port != 0)
    }
}

/// The usual ports of `nodes` nodes if all are free, else as many free ones.
///
/// # Errors
/// The system has no free ports.
pub fn choose(nodes: u32) -> io::Result<(Vec<NodePorts>, HeldPorts)> {
    let usual: Vec<NodePorts> = (1..=nodes).map(NodePorts::usual).collect();
    match first_taken(&usual) {
        None => Ok((usual.clone(), hold(&usual))),
        Some(_) => free(nodes),
    }
}

/// Keeps ports for nodes that are down for a while: nobody else is given them.
#[must_use]
pub fn hold(ports: &[NodePorts]) -> HeldPorts {
    HeldPorts::of(ports.iter().flat_map(|ports| ports.all()).collect())
}

/// The first of the ports that another process holds.
#[must_use]
pub fn first_taken(ports: &[NodePorts]) -> Option<u16> {
    ports.iter().flat_map(|ports| ports.all()).find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_err())
}

/// Free ports.
///
/// # Errors
/// The system has no free ports.
pub fn free(nodes: u32) -> io::Result<(Vec<NodePorts>, HeldPorts)> {
    let held = HeldPorts::draw(4 * nodes as usize)?;
    let each = held.numbers().chunks_exact(4);
    let ports = each.map(|of| NodePorts { native: of[0], peer: of[1], resp: of[2], admin: of[3] }).collect();
    Ok((ports, held))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn usual_ports_are_ten_apart() {
        assert_eq!(NodePorts::usual(1), NodePorts { native: 7400, peer: 7402, resp: 7401, admin: 7403 });
        assert_eq!(NodePorts::usual(3), NodePorts { native: 7420, peer: 7422, resp: 7421, admin: 7423 });
    }

    #[test]
    fn free_ports_are_all_different_and_a_taken_one_is_seen() {
        let (ports, _held) = free(9).expect("a machine has 36 ports");
        let all: BTreeSet<u16> = ports.iter().flat_map(|ports| ports.all()).collect();
        assert_eq!(all.len(), 36);
        let _taken = TcpListener::bind((Ipv4Addr::LOCALHOST, ports[1].peer)).expect("it is free");
        assert_eq!(first_taken(&ports), Some(ports[1].peer));
    }
}
