//! All links of a cluster, and what is done to them: by proxies, or by the kernel between the nodes' own networks.

use std::collections::BTreeMap;
use std::io;

use super::harm::{End, Harm};
use super::kernel::Network;
use super::proxy::{Proxy, Way};

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
        /// From those that speak RESP.
        resp: Vec<Proxy>,
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
            Links::Proxies { peers, clients, resp } => {
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
                        (End::Clients, End::Node(node)) | (End::Node(node), End::Clients) => {
                            if let Some(resp) = resp.get(*node) {
                                // No checksum of RESP tells a bit that is turned over.
                                resp.set(if way == Way::Flipped { Way::Torn } else { way });
                            }
                            clients.get(*node)
                        }
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
            Links::Proxies { peers, clients, resp } => {
                peers.values().chain(clients).chain(resp).for_each(|proxy| proxy.set(Way::Open));
            }
        }
        Ok(())
    }
}
