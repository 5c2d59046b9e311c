//! Nodes as hosts of a network of their own, for root: each in a network namespace, one more that forwards between
//! them, and a rule in it for every pair of addresses that shall not hear each other (hazards.md 5). Packets are
//! lost by the kernel; the nodes' own TCP finds out.
//!
//! Everything has the number of this process in its name. It is taken down at the end; what a process left that was
//! killed itself is taken down by the next one.

use std::fmt::Write as _;
use std::io;
use std::net::Ipv4Addr;
use std::path::Path;

use super::harm::{End, Harm};
use super::tools::{told, tool};

/// Tools that are needed.
pub const TOOLS: [&str; 3] = ["ip", "nft", "nsenter"];

/// Where `ip netns` keeps names.
const NAMES: &str = "/run/netns";

/// All namespaces of all runs begin with this.
const PREFIX: &str = "coppice-check-";

/// Packets from the first address of a pair to the second are dropped, lost in part, or refused.
const RULES: &str = "
table ip coppice {
  set lost { type ipv4_addr . ipv4_addr; }
  set thinned { type ipv4_addr . ipv4_addr; }
  set refused { type ipv4_addr . ipv4_addr; }
  chain links {
    type filter hook forward priority 0; policy accept;
    ip saddr . ip daddr @lost drop
    ip saddr . ip daddr @thinned numgen random mod 100 < 30 drop
    ip saddr . ip daddr @refused meta l4proto tcp reject with tcp reset
  }
}
";

/// A network; it is gone when this is dropped.
#[derive(Debug)]
pub struct Network {
    /// Of this process.
    number: u32,
    /// Addresses are 198.18.`block`.0/24, of the range that is meant for tests of networks.
    block: u8,
    nodes: usize,
}

impl Drop for Network {
    fn drop(&mut self) {
        // First the link to this machine, so that the next network finds its name free.
        let _ = tool("ip", &["link", "del", &self.outside()], &[]);
        let names = (0..self.nodes).map(|node| self.namespace(node)).chain([self.hub()]);
        names.for_each(|name| drop(tool("ip", &["netns", "del", &name], &[])));
    }
}

impl Network {
    /// One host per node, and this machine beside them.
    ///
    /// # Errors
    /// The kernel or a tool refuses.
    pub fn start(nodes: usize) -> io::Result<Network> {
        remove_left();
        let number = std::process::id();
        // Another run on this machine has another block, or this one takes the next.
        let mut network = Network { number, block: number as u8, nodes };
        network.build()?;
        for _ in 0..=u8::MAX {
            let block = format!("198.18.{}.0/24", network.block);
            let route = ["route", "add", &block, "via", &network.gateway(0), "dev", &network.outside()];
            network.attach(0, None)?;
            match tool("ip", &route, &[]) {
                Ok(()) => {
                    (0..nodes).try_for_each(|node| network.attach(node + 1, Some(&network.namespace(node))))?;
                    return Ok(network);
                }
                Err(error) if error.to_string().contains("File exists") => {
                    tool("ip", &["link", "del", &network.outside()], &[])?;
                    network.block = network.block.wrapping_add(1);
                }
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::other("no block of 198.18.0.0/16 is free"))
    }

    /// The namespaces, without links.
    fn build(&self) -> io::Result<()> {
        let hub = self.hub();
        for name in (0..self.nodes).map(|node| self.namespace(node)).chain([hub.clone()]) {
            tool("ip", &["netns", "add", &name], &[])?;
            tool("ip", &["-n", &name, "link", "set", "lo", "up"], &[])?;
        }
        self.inside("sh", &["-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"], "")?;
        self.inside("nft", &["-f", "-"], RULES)
    }

    /// A link between the hub and host `host`; 0 is this machine.
    fn attach(&self, host: usize, namespace: Option<&str>) -> io::Result<()> {
        let (hub, near, far) = (self.hub(), format!("host{host}"), namespace.map_or(self.outside(), |_| "eth0".into()));
        let mut words = vec!["link", "add", "name", &near, "netns", &hub, "type", "veth", "peer", "name", &far];
        words.extend(namespace.iter().flat_map(|name| ["netns", *name]));
        tool("ip", &words, &[])?;
        tool("ip", &["-n", &hub, "addr", "add", &format!("{}/30", self.gateway(host)), "dev", &near], &[])?;
        tool("ip", &["-n", &hub, "link", "set", &near, "up"], &[])?;
        let own: Vec<&str> = namespace.iter().flat_map(|name| ["-n", *name]).collect();
        let with = |words: &[&str]| tool("ip", &[&own, words].concat(), &[]);
        with(&["addr", "add", &format!("{}/30", self.address(host)), "dev", &far])?;
        with(&["link", "set", &far, "up"])?;
        if namespace.is_some() {
            with(&["route", "add", "default", "via", &self.gateway(host)])?;
        }
        Ok(())
    }

    /// The namespace of a node.
    pub fn namespace(&self, node: usize) -> String {
        format!("{PREFIX}{}-n{}", self.number, node + 1)
    }

    /// The address of a node.
    pub fn node(&self, node: usize) -> Ipv4Addr {
        self.address(node + 1)
    }

    fn hub(&self) -> String {
        format!("{PREFIX}{}-hub", self.number)
    }

    /// This machine's end of its link to the hub; such names have at most 15 letters.
    fn outside(&self) -> String {
        format!("coppice{}", self.number)
    }

    fn address(&self, host: usize) -> Ipv4Addr {
        Ipv4Addr::new(198, 18, self.block, host as u8 * 4 + 2)
    }

    fn gateway(&self, host: usize) -> String {
        Ipv4Addr::new(198, 18, self.block, host as u8 * 4 + 1).to_string()
    }

    fn of(&self, end: End) -> Ipv4Addr {
        match end {
            End::Node(node) => self.node(node),
            End::Clients => self.address(0),
        }
    }

    /// Does this to packets on these directed links, all at once.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn harm(&self, pairs: &[(End, End)], harm: Harm) -> io::Result<()> {
        let set = match harm {
            // It knows packets, not bytes: what only proxies can do is a cut here.
            Harm::Cut | Harm::Slow(_) | Harm::Torn | Harm::Flipped | Harm::Half => "lost",
            Harm::Lossy => "thinned",
            Harm::Reset => "refused",
        };
        let mut rules = String::new();
        for (from, to) in pairs {
            let _ = writeln!(rules, "add element ip coppice {set} {{ {} . {} }}", self.of(*from), self.of(*to));
        }
        self.inside("nft", &["-f", "-"], &rules)
    }

    /// All packets pass again.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn heal(&self) -> io::Result<()> {
        let rules: String = ["lost", "thinned", "refused"].map(|set| format!("flush set ip coppice {set}\n")).concat();
        self.inside("nft", &["-f", "-"], &rules)
    }

    /// Runs a tool in the hub.
    fn inside(&self, program: &str, words: &[&str], input: &str) -> io::Result<()> {
        let at = enter(&self.hub());
        told("nsenter", &[&[at.as_str(), program], words].concat(), &[], input)
    }
}

/// The word of `nsenter` for a namespace.
pub fn enter(namespace: &str) -> String {
    format!("--net={NAMES}/{namespace}")
}

/// Takes down what belongs to processes that are gone.
fn remove_left() {
    let Ok(names) = std::fs::read_dir(NAMES) else { return };
    for name in names.flatten().filter_map(|entry| entry.file_name().into_string().ok()) {
        let number = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        if number.is_some_and(|number| !Path::new("/proc").join(number).exists()) {
            let _ = tool("ip", &["netns", "del", &name], &[]);
        }
    }
}
