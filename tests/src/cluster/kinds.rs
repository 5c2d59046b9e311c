//! The kinds of faults that can be asked for, and which of them this machine allows.

use std::fmt;

use clap::ValueEnum;

use super::kernel;
use super::nodes::libfaketime;
use super::tools::runs;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum)]
pub enum Kind {
    /// SIGKILL of one node, of several, of all at once; restarted, sometimes killed again while it recovers.
    Kill,
    /// SIGSTOP, later SIGCONT.
    Pause,
    /// Links between nodes, and from clients to nodes, are held: both ways or one. With `--root` by the kernel, which
    /// loses packets or resets connections (network namespaces, nft).
    Cut,
    /// Every flush of a node takes longer (strace).
    SlowDisk,
    /// A flush of a node fails (strace): the node has to end, and is started again. With `power` its disk loses what
    /// was not flushed.
    Flush,
    /// For a while no write of a node finds room (strace): it has to wait, and go on.
    FullDisk,
    /// The file system of a node loses what was not flushed, and the node is killed (root, loop device).
    Power,
    /// The disk of a node is lost with everything on it; it comes back as another node (`coppice node replace`).
    Wipe,
    /// A node is restarted with another clock: up to an hour off, at half to twice the rate (libfaketime).
    Clock,
    /// Partitions are split and merged, leaderships handed over, replicas moved.
    Map,
    /// One node is given every leadership and gets a SIGKILL: how long does each partition serve nobody? To be asked
    /// for alone; no part of `all`.
    Gap,
    /// Every kind that this machine allows.
    All,
}

impl fmt::Display for Kind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(self.to_possible_value().as_ref().map_or("?", |value| value.get_name()))
    }
}

/// The kinds of these that can be made here, and why others cannot.
pub fn possible(wanted: &[Kind], own_processes: bool, root: bool) -> (Vec<Kind>, Vec<(Kind, &'static str)>) {
    let every = [Kind::Kill, Kind::Pause, Kind::Cut, Kind::SlowDisk, Kind::Flush, Kind::FullDisk, Kind::Power];
    let every = every.into_iter().chain([Kind::Wipe, Kind::Clock, Kind::Map, Kind::Gap]);
    let all = wanted.contains(&Kind::All);
    let (mut kinds, mut skipped): (Vec<Kind>, Vec<_>) = (Vec::new(), Vec::new());
    for kind in every.filter(|kind| (all && *kind != Kind::Gap) || wanted.contains(kind)) {
        match obstacle(kind, own_processes, root) {
            // A mounted directory cannot be set aside.
            None if kind == Kind::Wipe && kinds.contains(&Kind::Power) => skipped.push((kind, "not beside power")),
            None => kinds.push(kind),
            Some(why) => skipped.push((kind, why)),
        }
    }
    (kinds, skipped)
}

fn obstacle(kind: Kind, own_processes: bool, root: bool) -> Option<&'static str> {
    match kind {
        Kind::Map => None,
        _ if !own_processes => Some("needs nodes that this program started (no --endpoints)"),
        Kind::Kill | Kind::Pause | Kind::Cut | Kind::Wipe | Kind::Gap | Kind::All => None,
        Kind::SlowDisk | Kind::Flush | Kind::FullDisk if !runs("strace") => Some("needs strace"),
        Kind::SlowDisk | Kind::Flush | Kind::FullDisk => None,
        Kind::Power if !(root && rustix::process::geteuid().is_root()) => Some("needs root, and --root"),
        Kind::Power if !(runs("losetup") && runs("mkfs.ext4") && runs("perl")) => {
            Some("needs losetup, mkfs.ext4 and perl")
        }
        Kind::Power => None,
        Kind::Clock if libfaketime().is_none() => Some("needs libfaketime (Debian: apt install faketime)"),
        Kind::Clock => None,
    }
}

/// Why the kernel cannot cut links here.
pub fn kernel_obstacle(root: bool) -> Option<&'static str> {
    match root {
        false => Some("needs root, and --root"),
        true if !kernel::TOOLS.into_iter().all(runs) => Some("by proxies only: the kernel's needs ip, nft and nsenter"),
        true => None,
    }
}
