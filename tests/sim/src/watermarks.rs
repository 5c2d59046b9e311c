//! What must hold of one replica after every step, beside what the oracle knows of its votes: marks that never go back
//! (I3), what is forgotten and what is held (I4), quorums (I5), limits (I6), the beginning of a child (I15).

use coppice_btree::Capacity;
use coppice_client::wire::PartitionId;
use coppice_core::machine::{Machine, Mark};
use coppice_core::worker::Group as Hosted;
use coppice_ordering::{Ballot, Configuration, Instance, Settings, Ticket};

use super::found::{Found, broken};
use super::groups::Group;

/// How far a replica says that it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Watermarks {
    trimmed: Instance,
    released: Option<Ticket>,
    /// The state that its process began with.
    began: Instance,
    sizes: Sizes,
}

/// What it holds that is bounded.
#[derive(Clone, Copy, Debug, Default)]
struct Sizes {
    /// Instances in the pipe, and their bytes.
    open: (usize, usize),
    /// Submissions in the queue, and their bytes.
    queued: (usize, usize),
    /// Instances executed ahead of the decided one.
    ahead: usize,
}

/// What is true.
#[derive(Clone, Copy, Debug)]
struct Truth {
    decided: Instance,
    /// The highest watermark that a coordinator told.
    released: Option<Ticket>,
}

impl Watermarks {
    /// Of a replica that begins with the state of an instance.
    pub fn beginning(at: Instance) -> Watermarks {
        Watermarks { began: at, ..Watermarks::default() }
    }

    /// The state that its process began with.
    pub fn began(&self) -> Instance {
        self.began
    }

    /// Takes those of a replica after a step, held against these before it; `released` is the highest that a
    /// coordinator told.
    pub fn advance(&mut self, host: &Hosted, released: Option<Ticket>) -> Found {
        let paxos = host.replica.paxos();
        let truth = Truth { decided: paxos.decided_upto(), released };
        let before = std::mem::replace(self, Watermarks::of(host, self));
        let follows = self.follows(&before, truth);
        let fits = self.sizes.fits(&before.sizes, paxos.settings(), host.replica.executor().ahead_max());
        follows.and(fits)
    }

    fn of(host: &Hosted, before: &Watermarks) -> Watermarks {
        let (paxos, executor) = (host.replica.paxos(), host.replica.executor());
        let (submissions, bytes) = paxos.queued();
        let sizes = Sizes {
            open: paxos.in_flight(),
            queued: (submissions as usize, bytes),
            ahead: (executor.last_executed().0 - executor.decided().0) as usize,
        };
        let Watermarks { began, .. } = *before;
        Watermarks { trimmed: paxos.trimmed_upto(), released: paxos.released(), began, sizes }
    }

    /// I3: from one step to the next.
    fn follows(&self, before: &Watermarks, truth: Truth) -> Found {
        let Watermarks { trimmed, released, .. } = *self;
        if trimmed < before.trimmed {
            return broken("I3 trimmed goes back", format!("from {} to {trimmed}", before.trimmed));
        }
        if trimmed > truth.decided {
            return broken("I3 trimmed above the truth", format!("{trimmed} of {}", truth.decided));
        }
        if released < before.released {
            return broken("I3 released goes back", format!("from {:?} to {released:?}", before.released));
        }
        if released > truth.released {
            return broken("I3 released above the truth", format!("{released:?}, and not {:?}", truth.released));
        }
        Ok(())
    }
}

impl Sizes {
    /// I6: what was more than a limit that was made narrower since may only become less.
    fn fits(&self, before: &Sizes, settings: &Settings, ahead_max: usize) -> Found {
        let over = |what: &str, now: usize, before: usize, limit: usize| match now > limit.max(before) {
            true => broken("I6 a limit", format!("{what}: {now} of {limit}")),
            false => Ok(()),
        };
        over("instances open", self.open.0, before.open.0, settings.window as usize)?;
        // A single one may be larger than the limit.
        if self.open.0 > 1 {
            over("bytes open", self.open.1, before.open.1, settings.window_bytes_max)?;
        }
        over("submissions queued", self.queued.0, before.queued.0, settings.queue_submissions_max)?;
        if self.queued.0 > 1 {
            over("bytes queued", self.queued.1, before.queued.1, settings.queue_bytes_max)?;
        }
        over("instances to take back", self.ahead, before.ahead, ahead_max.max(1))
    }
}

/// I5: a leader has the promises of a majority of the voters under whom it leads, and of nobody else.
pub fn is_elected(ballot: Ballot, promises: u64, configuration: &Configuration) -> Found {
    let voters = &configuration.voters;
    let promised = voters.iter().filter(|voter| promises >> voter.0 & 1 == 1).count();
    if promised * 2 > voters.len() {
        return Ok(());
    }
    broken("I5 elected without a quorum", format!("{ballot} has {promised} promises of {configuration}"))
}

/// Every invariant of a tree's nodes, which are as wide as all of that replica (ST12).
pub fn has_sound_tree(machine: &Machine, capacity: Capacity) -> Found {
    let Some(partition) = machine.partition() else { return Ok(()) };
    let (group, tree) = (partition.id(), partition.tree());
    if tree.capacity() != capacity {
        return broken("ST12 a tree", format!("{group}: nodes of {:?}, and not {capacity:?}", tree.capacity()));
    }
    tree.check().map(drop).or_else(|violation| broken("ST12 a tree", format!("{group}: {violation}")))
}

/// I15: a child begins with the sessions and the last ticket of the place that made it.
pub fn forked_whole(group: PartitionId, parent: &Group, mark: &Mark) -> Found {
    let Some(partition) = parent.machine.partition() else { return Ok(()) };
    let instance = parent.decided_upto();
    let last = parent.answers.last().and_then(|answers| answers.last()).map(|answer| answer.index);
    for fork in Machine::forks(mark) {
        let (child, ticket) = (fork.partition.id(), fork.partition.last_ticket());
        let Some(at) = ticket.and_then(|ticket| parent.place_of(ticket)).filter(|at| at.0 == instance) else {
            let what = format!("{child} begins with {ticket:?}, which did not cut {group} at #{instance}");
            return broken("I15 a child's ticket", what);
        };
        // Whatever stands behind the cut has changed the parent's sessions, and not the child's.
        if Some(at.1) == last && fork.partition.sessions().export() != partition.sessions().export() {
            let (child_has, has) = (fork.partition.sessions().len(), partition.sessions().len());
            let what = format!("{child} begins with {child_has} sessions, and {group} has {has}");
            return broken("I15 a child's sessions", what);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use coppice_ordering::ReplicaId;

    use super::*;

    fn ticket(n: u64) -> Option<Ticket> {
        Some(Ticket { ballot: Ballot::new(1, 0), n })
    }

    fn follows(before: (u64, u64), now: (u64, u64)) -> Result<(), &'static str> {
        let marks =
            |(trimmed, n)| Watermarks { trimmed: Instance(trimmed), released: ticket(n), ..Watermarks::default() };
        let truth = Truth { decided: Instance(20), released: ticket(9) };
        marks(now).follows(&marks(before), truth).map_err(|(check, _)| check)
    }

    #[test]
    fn marks_go_on_and_never_beyond_what_is_true() {
        assert_eq!(follows((4, 4), (10, 9)), Ok(()));
        assert_eq!(follows((4, 4), (3, 4)), Err("I3 trimmed goes back"));
        assert_eq!(follows((4, 4), (21, 4)), Err("I3 trimmed above the truth"));
        assert_eq!(follows((4, 4), (4, 3)), Err("I3 released goes back"));
        assert_eq!(follows((4, 4), (4, 10)), Err("I3 released above the truth"));
    }

    #[test]
    fn what_is_bounded_fits_or_becomes_less() {
        let settings = Settings { window: 4, window_bytes_max: 100, queue_submissions_max: 2, ..Settings::default() };
        let open = |count, bytes| Sizes { open: (count, bytes), ..Sizes::default() };
        let fits = |now: Sizes, before: Sizes| now.fits(&before, &settings, 3).map_err(|(_, what)| what);
        assert_eq!(fits(open(4, 100), open(0, 0)), Ok(()));
        assert_eq!(fits(open(1, 900), open(0, 0)), Ok(()), "a large one goes alone");
        assert_eq!(fits(open(2, 101), open(1, 90)), Err("bytes open: 101 of 100".into()));
        assert_eq!(fits(open(5, 9), open(4, 9)), Err("instances open: 5 of 4".into()));
        assert_eq!(fits(open(6, 9), open(7, 9)), Ok(()), "it was made narrower");
        let queued = Sizes { queued: (3, 3), ..Sizes::default() };
        assert_eq!(fits(queued, Sizes::default()), Err("submissions queued: 3 of 2".into()));
        let ahead = Sizes { ahead: 4, ..Sizes::default() };
        assert_eq!(fits(ahead, Sizes::default()), Err("instances to take back: 4 of 3".into()));
    }

    #[test]
    fn promises_of_learners_elect_nobody() {
        let mut configuration = Configuration::of_voters([0, 1, 2].map(ReplicaId));
        configuration.learners.insert(ReplicaId(3));
        let elected = |promises| is_elected(Ballot::new(4, 0), promises, &configuration).is_ok();
        assert!(elected(0b0101) && elected(0b1110));
        assert!(!elected(0b1001) && !elected(0b11_0001));
    }
}
