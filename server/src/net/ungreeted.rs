//! Which connection gives way when the peer port has too many that have not said who they are. Pure, without sockets.
//!
//! Whoever reaches the port can open connections faster than a node greets. Such a crowd must drive out its own, not a
//! node that is about to greet. So the larger side gives way first: addresses from which a node has greeted before, or
//! strangers. On that side it is the address with the most connections, and of these the oldest: nodes greet within a
//! round trip, so the silent ones are in the way.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv6Addr};

/// Connections that have not greeted, at most.
pub const UNGREETED_MAX: usize = 128;

/// Addresses that are remembered of nodes: more than a cluster has. One more takes the place of the oldest.
const ADDRESSES_MAX: usize = 1_024;

/// Connections that have not greeted, each with what `T` ends it.
#[derive(Debug)]
pub struct Ungreeted<T> {
    /// The oldest first.
    waiting: VecDeque<(IpAddr, T)>,
    nodes: BTreeSet<IpAddr>,
    /// The same, in the order in which they were met first.
    met: VecDeque<IpAddr>,
}

impl<T> Default for Ungreeted<T> {
    fn default() -> Ungreeted<T> {
        Ungreeted { waiting: VecDeque::new(), nodes: BTreeSet::new(), met: VecDeque::new() }
    }
}

impl<T> Ungreeted<T> {
    /// A node greeted from this address.
    pub fn greeted(&mut self, from: IpAddr) {
        let from = source(from);
        if self.nodes.insert(from) {
            self.met.push_back(from);
        }
        if self.met.len() > ADDRESSES_MAX
            && let Some(oldest) = self.met.pop_front()
        {
            self.nodes.remove(&oldest);
        }
    }

    /// One more connection, from this address; those that `is_over` names take no place. Returns the one that
    /// is to be ended, if there are too many: perhaps the new one.
    pub fn add(&mut self, from: IpAddr, connection: T, is_over: impl Fn(&T) -> bool) -> Option<T> {
        self.waiting.retain(|(_, connection)| !is_over(connection));
        self.waiting.push_back((source(from), connection));
        let surplus = self.waiting.len() > UNGREETED_MAX;
        let victim = if surplus { self.victim() } else { None }?;
        self.waiting.remove(victim).map(|(_, connection)| connection)
    }

    fn victim(&self) -> Option<usize> {
        if mutant!(oldest_ungreeted_goes) {
            return Some(0);
        }
        let known = |from: &IpAddr| self.nodes.contains(from);
        let of_nodes = self.waiting.iter().filter(|(from, _)| known(from)).count();
        let nodes_give = of_nodes > self.waiting.len() - of_nodes;
        let mut counts: BTreeMap<IpAddr, usize> = BTreeMap::new();
        let giving = |from: &IpAddr| known(from) == nodes_give;
        self.waiting
            .iter()
            .filter(|(from, _)| giving(from))
            .for_each(|(from, _)| *counts.entry(*from).or_default() += 1);
        let most = *counts.values().max()?;
        self.waiting.iter().position(|(from, _)| counts.get(from) == Some(&most))
    }
}

/// What counts as one address: whoever has an IPv6 network has all addresses of it.
fn source(from: IpAddr) -> IpAddr {
    match from.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(host: u32) -> IpAddr {
        IpAddr::V4((0x7f00_0000 + host).into())
    }

    /// Adds connections with these numbers, and returns those that were ended.
    fn add(
        crowd: &mut Ungreeted<usize>,
        from: impl Fn(usize) -> IpAddr,
        numbers: std::ops::Range<usize>,
    ) -> Vec<usize> {
        numbers.filter_map(|number| crowd.add(from(number), number, |_| false)).collect()
    }

    /// 64 connections, opened faster than a handshake takes, once ended every handshake that was under way.
    #[test]
    fn a_crowd_from_one_address_drives_out_its_own() {
        let mut crowd = Ungreeted::default();
        assert_eq!(crowd.add(v4(1), 0, |_| false), None);
        let ended = add(&mut crowd, |_| v4(2), 1..1_000);
        assert_eq!(ended, (1..1_000 - UNGREETED_MAX + 1).collect::<Vec<_>>(), "its oldest, and nobody else");
        assert_eq!(crowd.add(v4(3), 5_000, |_| false), Some(ended.len() + 1), "whoever comes later gets in too");
    }

    #[test]
    fn a_crowd_from_many_addresses_drives_out_no_node_that_was_here_before() {
        let mut crowd = Ungreeted::default();
        crowd.greeted(v4(1));
        add(&mut crowd, |_| v4(1), 0..16);
        let ended = add(&mut crowd, |number| v4(number as u32), 16..5_000);
        assert!(ended.iter().all(|number| *number >= 16), "{ended:?}");
        // A crowd at the address of a node leaves room for a process that is to become one.
        let mut crowd = Ungreeted::default();
        crowd.greeted(v4(1));
        assert_eq!(crowd.add(v4(2), 0, |_| false), None);
        assert!(!add(&mut crowd, |_| v4(1), 1..1_000).contains(&0));
    }

    #[test]
    fn those_that_are_over_take_no_place() {
        let mut crowd = Ungreeted::default();
        add(&mut crowd, |_| v4(1), 0..UNGREETED_MAX);
        assert_eq!(crowd.add(v4(1), UNGREETED_MAX, |number| *number < 7), None);
    }

    #[test]
    fn a_network_is_one_address() {
        let of = |text: &str| source(text.parse().expect("an address"));
        assert_eq!(of("2001:db8:1:2::1"), of("2001:db8:1:2:ffff::9"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_eq!(of("::ffff:127.0.0.1"), v4(1));
        let mut crowd = Ungreeted::<()>::default();
        (0..5_000).for_each(|host| crowd.greeted(v4(host)));
        assert_eq!((crowd.met.len(), crowd.nodes.len()), (ADDRESSES_MAX, ADDRESSES_MAX));
    }

    #[cfg(feature = "mutants")]
    #[test]
    fn a_crowd_that_drives_out_others_is_caught() {
        let test = "net::ungreeted::tests::a_crowd_from_one_address_drives_out_its_own";
        planted::assert_caught("oldest_ungreeted_goes", test);
    }
}
