//! The kinds of faults that can be asked for, which of them this machine allows, and those that were made.

use std::fmt;

use clap::ValueEnum;

use super::cuts::Cut;
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
    /// One bit of a log is turned over while its node is down: the node has to refuse to start, or to start as if
    /// nothing was; then its disk counts as lost, as with `wipe`.
    Rot,
    /// A node is restarted with another clock: up to an hour off, at half to twice the rate (libfaketime).
    Clock,
    /// Partitions are split and merged, leaderships transferred, replicas moved.
    Map,
    /// A node panics, waits or meets a failing disk at a named place of its code; its partitions are split, merged and
    /// handed over meanwhile (a build with failpoints).
    Fail,
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

/// A fault that was made: from when to when, nanoseconds of the history.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    pub kind: Kind,
    /// Of the matrix: which cut.
    pub cut: Option<Cut>,
    /// When it began.
    pub from: u64,
    /// When it was healed: all nodes run and hear each other.
    pub to: u64,
}

/// The kinds of these that can be made here, and why others cannot.
pub fn possible(
    wanted: &[Kind],
    own_processes: bool,
    root: bool,
    failpoints: bool,
) -> (Vec<Kind>, Vec<(Kind, &'static str)>) {
    let every = [Kind::Kill, Kind::Pause, Kind::Cut, Kind::SlowDisk, Kind::Flush, Kind::FullDisk, Kind::Power];
    let every = every.into_iter().chain([Kind::Wipe, Kind::Rot, Kind::Clock, Kind::Fail, Kind::Map, Kind::Gap]);
    let all = wanted.contains(&Kind::All);
    let (mut kinds, mut skipped): (Vec<Kind>, Vec<_>) = (Vec::new(), Vec::new());
    for kind in every.filter(|kind| (all && *kind != Kind::Gap) || wanted.contains(kind)) {
        match obstacle(kind, own_processes, root, failpoints) {
            // A mounted directory cannot be set aside.
            None if matches!(kind, Kind::Wipe | Kind::Rot) && kinds.contains(&Kind::Power) => {
                skipped.push((kind, "not beside power"))
            }
            None => kinds.push(kind),
            Some(why) => skipped.push((kind, why)),
        }
    }
    (kinds, skipped)
}

fn obstacle(kind: Kind, own_processes: bool, root: bool, failpoints: bool) -> Option<&'static str> {
    match kind {
        Kind::Map => None,
        _ if !own_processes => Some("needs nodes that this program started (no --endpoints)"),
        Kind::Kill | Kind::Pause | Kind::Cut | Kind::Wipe | Kind::Rot | Kind::Gap | Kind::All => None,
        Kind::SlowDisk | Kind::Flush | Kind::FullDisk if !runs("strace") => Some("needs strace"),
        Kind::SlowDisk | Kind::Flush | Kind::FullDisk => None,
        Kind::Power if !(root && rustix::process::geteuid().is_root()) => Some("needs root, and --root"),
        Kind::Power if !(runs("losetup") && runs("mkfs.ext4") && runs("perl")) => {
            Some("needs losetup, mkfs.ext4 and perl")
        }
        Kind::Power => None,
        Kind::Clock if libfaketime().is_none() => Some("needs libfaketime (Debian: apt install faketime)"),
        Kind::Clock => None,
        Kind::Fail if !failpoints => Some("needs nodes with failpoints: asked for by name, they are built"),
        Kind::Fail => None,
    }
}

/// What hazards.md 5 names, and no fault of these kinds makes: each is told as skipped.
pub fn unmade(kinds: &[Kind], nodes: u32, root: bool) -> Vec<(Kind, &'static str)> {
    let all = [
        (Kind::Cut, "no copies of packets, no limits of bandwidth"),
        (Kind::SlowDisk, "no slow reads, no limits of a disk's bandwidth"),
        (Kind::Flush, "no flush that lies, no read that fails"),
        (Kind::Rot, "no misplaced, old or short file, no flip while the node runs"),
        (Kind::Wipe, "no old copy of a directory"),
        (Kind::Clock, "no jump while the node runs"),
        (Kind::Map, "no nodes added and removed"),
        (Kind::Fail, "no files of trimmed segments written again: they are kept for the judge"),
    ];
    let mut unmade: Vec<_> = all.into_iter().filter(|(kind, _)| kinds.contains(kind)).collect();
    if kinds.contains(&Kind::Map) && nodes <= 3 {
        unmade.push((Kind::Map, "no moved replicas: these need --nodes above 3"));
    }
    if kinds.contains(&Kind::Cut) && !root {
        unmade.push((Kind::Cut, "no lost packets, no resets: these need --root"));
    } else if kinds.contains(&Kind::Cut) {
        unmade.push((Kind::Cut, "no torn or flipped frames, no half-closed connections, no delays: not with --root"));
    }
    unmade
}

/// Why the kernel cannot cut links here.
pub fn kernel_obstacle(root: bool) -> Option<&'static str> {
    match root {
        false => Some("needs root, and --root"),
        true if !kernel::TOOLS.into_iter().all(runs) => Some("by proxies only: the kernel's needs ip, nft and nsenter"),
        true => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_fail_at_places_of_their_code_only_where_they_can() {
        let fails = |wanted: &[Kind], failpoints| {
            let (kinds, skipped) = possible(wanted, true, false, failpoints);
            (kinds.contains(&Kind::Fail), skipped.iter().any(|(kind, _)| *kind == Kind::Fail))
        };
        assert_eq!([fails(&[Kind::All], true), fails(&[Kind::Fail], true)], [(true, false); 2]);
        assert_eq!([fails(&[Kind::All], false), fails(&[Kind::Fail], false)], [(false, true); 2]);
        assert_eq!(fails(&[Kind::Kill], true), (false, false));
        assert!(!possible(&[Kind::Fail], false, false, true).0.contains(&Kind::Fail), "not in a cluster of others");
    }

    #[test]
    fn what_is_not_made_is_told_of_the_kinds_that_were_asked_for() {
        assert_eq!(unmade(&[Kind::Kill, Kind::Pause, Kind::Gap], 3, false), []);
        let of = |kinds: &[Kind], nodes, root| -> Vec<String> {
            unmade(kinds, nodes, root).into_iter().map(|(_, why)| why.to_owned()).collect()
        };
        assert!(of(&[Kind::Map], 3, false).iter().any(|why| why.contains("--nodes above 3")));
        assert!(!of(&[Kind::Map], 4, false).iter().any(|why| why.contains("--nodes above 3")));
        assert!(of(&[Kind::Cut], 3, true).iter().any(|why| why.contains("half-closed")));
        assert!(of(&[Kind::Cut], 3, false).iter().any(|why| why.contains("need --root")));
    }
}
