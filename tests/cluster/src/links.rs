//! All links of a cluster, and what is done to them: by proxies, or by the kernel between the nodes' own networks.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use super::kernel::Network;
use super::proxy::{Proxy, Way};

/// One end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Node(usize),
    /// All clients.
    Clients,
}

/// What is done to a link, in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Harm {
    /// Nothing arrives. By a proxy it arrives later, old as it is; by the kernel it is lost, and TCP says it again.
    Cut,
    /// Proxies only: everything arrives so much later.
    Slow(Duration),
    /// Proxies only: connections break within a frame.
    Torn,
    /// Proxies only: a bit of each connection is turned over; the frame's checksum must tell.
    Flipped,
    /// Proxies only: each side is told the end of the other's words, and may go on with its own.
    Half,
    /// The kernel only: three packets of ten are lost.
    Lossy,
    /// The kernel only: whoever sends is told that the connection is gone.
    Reset,
}

#[derive(Debug)]
pub enum Links {
    /// Nodes and clients reach each other directly, and nothing can be done.
    Direct,
    /// A proxy each.
    Proxies {
        /// From one node to another.
        peers: BTreeMap<(usize, usize), Proxy>,
        /// From all clients to a node.
        clients: Vec<Proxy>,
    },
    /// The kernel forwards packets between the nodes.
    Kernel(Network),
}

impl Links {
    /// Whether the kernel is between the nodes.
    pub fn are_real(&self) -> bool {
        matches!(self, Links::Kernel(_))
    }

    /// Does this to all of these directed links, which were whole.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn harm(&self, pairs: &[(End, End)], harm: Harm) -> io::Result<()> {
        match self {
            Links::Direct => Ok(()),
            Links::Kernel(network) => network.harm(pairs, harm),
            Links::Proxies { peers, clients } => {
                let way = match harm {
                    Harm::Slow(delay) => Way::Slow(delay),
                    Harm::Torn => Way::Torn,
                    Harm::Flipped => Way::Flipped,
                    Harm::Half => Way::Half,
                    Harm::Cut | Harm::Lossy | Harm::Reset => Way::Held,
                };
                for pair in pairs {
                    let proxy = match pair {
                        (End::Node(from), End::Node(to)) => peers.get(&(*from, *to)),
                        (End::Clients, End::Node(node)) | (End::Node(node), End::Clients) => clients.get(*node),
                        (End::Clients, End::Clients) => None,
                    };
                    if let Some(proxy) = proxy {
                        proxy.set(way);
                    }
                }
                Ok(())
            }
        }
    }

    /// All links are whole again.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn heal(&self) -> io::Result<()> {
        match self {
            Links::Direct => {}
            Links::Kernel(network) => network.heal()?,
            Links::Proxies { peers, clients } => {
                peers.values().chain(clients).for_each(|proxy| proxy.set(Way::Open));
            }
        }
        Ok(())
    }
}
