//! A node ends, waits or meets a failing disk at a named place of its code (`failpoints.rs`), and comes back.

use std::time::{Duration, Instant};

use coppice_client::wire::NodeId;

use super::failpoints::{Action, Shot, Way};
use super::harm::Harm;
use super::nemesis::{Nemesis, RoundError, links, names};
use super::setup::RECOVERY_MAX;
use super::shape::Replacement;

/// An armed failpoint is waited for so long, and longer if it takes a fault to come there.
const FIRES_WITHIN: Duration = Duration::from_secs(5);
const FIRES_WITHIN_FAULT: Duration = Duration::from_secs(12);

/// A node that panics, or whose log failed, is gone within this time.
const END_WITHIN: Duration = Duration::from_secs(5);

/// How long one question to the cluster may take before the armed node is looked at again.
const LOOK: Duration = Duration::from_millis(100);

/// A crash at a place of a start, in so many of 1,000 recoveries.
const AGAIN_PER_MILLE: u32 = 250;

impl Nemesis<'_> {
    /// A node is started again with one failpoint armed, comes there, ends or goes on as it must, and is started again
    /// without.
    pub(super) fn fail(&mut self) -> Result<(), RoundError> {
        let said = self.nodes.all_seen();
        self.failpoints.learn(&said);
        let may_join = !self.disks.can_fail();
        let shot =
            self.failpoints.draw(&mut self.random, |shot| may_join || !matches!(shot.way(), Way::Join | Way::Give));
        let count = self.nodes.count();
        let node = self.random.below(count);
        let loser = match shot.way() {
            Way::Join => Some(node),
            Way::Give if count > 2 => Some((node + 1 + self.random.below(count - 1)) % count),
            _ => None,
        };
        let replacement = loser.map(|loser| {
            let change = self.random.next();
            (loser, Replacement::new(self.nodes.peer(loser), change))
        });
        self.count += 1;
        let mut replacement = self.shoot(node, shot, replacement)?;
        if replacement.is_none() && self.random.chance(AGAIN_PER_MILLE) {
            let again = self.failpoints.draw(&mut self.random, |shot| shot.way() == Way::Start);
            self.count += 1;
            replacement = self.shoot(node, again, None)?;
        }
        if self.disks.can_fail() {
            self.disks.shut_down(node)?;
            self.disks.mount_again(node)?;
        }
        let down = self.random.below(300) as u64;
        std::thread::sleep(Duration::from_millis(down));
        self.look()?;
        self.nodes.arm(node, None);
        self.nodes.relaunch(node)?;
        let Some((loser, replacement)) = &mut replacement else { return self.back(&[node]) };
        // The other one has spoken.
        self.nodes.waits(node).map_err(|error| RoundError::Node(error.to_string()))?;
        let replaced = replacement.ask(&self.operator, RECOVERY_MAX);
        self.look()?;
        let loser = *loser + 1;
        replaced.map_err(|why| RoundError::Node(format!("n{loser} lost its disk and was not replaced: {why}")))?;
        Ok(self.note("replaced", &format!("n{loser}"))?)
    }

    /// Starts a node with this failpoint armed, waits until it fires, or for long enough, looks at what comes of it,
    /// and leaves the node down. Whose disk is lost meanwhile is given back if that is not done.
    fn shoot(
        &mut self,
        node: usize,
        shot: Shot,
        mut replacement: Option<(usize, Replacement)>,
    ) -> Result<Option<(usize, Replacement)>, RoundError> {
        self.note("fail", &format!("n{}: {shot}", node + 1))?;
        self.nodes.kill(node);
        if let Some((loser, _)) = &replacement {
            self.note("wipe", &names(&[*loser]))?;
            self.nodes.kill(*loser);
            self.nodes.lose_disk(*loser)?;
        }
        self.nodes.arm(node, Some(shot.to_string()));
        let before = self.nodes.fires(node, shot.point.name);
        self.nodes.relaunch(node)?;
        if let Some((loser, _)) = &replacement {
            self.nodes.relaunch(*loser)?;
            self.nodes.waits(*loser).map_err(|error| RoundError::Node(error.to_string()))?;
        }
        let patience = if shot.way() == Way::Load { FIRES_WITHIN } else { FIRES_WITHIN_FAULT };
        let patience = if shot.way() == Way::Start { FIRES_WITHIN / 2 } else { patience };
        let goes_on = self.span(50, 800);
        let deadline = Instant::now() + patience;
        let (mut ended, mut fired): (_, Option<Instant>) = (None, None);
        while ended.is_none() {
            ended = self.nodes.ended(node);
            if fired.is_none() && self.nodes.fires(node, shot.point.name) > before {
                fired = Some(Instant::now());
            }
            let longest = if shot.ends() { END_WITHIN } else { goes_on };
            if fired.map_or(Instant::now() > deadline, |at| at.elapsed() > longest) {
                break;
            }
            match &mut replacement {
                Some((_, asked)) if fired.is_none() => {
                    // Done, and the failpoint was not reached: nothing else comes there.
                    if asked.ask(&self.operator, LOOK).is_ok() {
                        replacement = None;
                    }
                }
                _ if shot.way() == Way::Mute && fired.is_none() => self.mute(node)?,
                _ if shot.way() == Way::Lead && fired.is_none() => self.lead(node),
                _ => std::thread::sleep(Duration::from_millis(3)),
            }
        }
        if fired.is_some() {
            self.failpoints.fired(&shot);
        }
        let wrong = match (ended, fired) {
            (Some((_, how)), None) => Some(how),
            (Some((None, _)), Some(_)) if shot.action == Action::Panic => None,
            (Some((Some(1), _)), Some(_)) if shot.action == Action::Error => None,
            (Some((_, how)), Some(_)) => Some(how),
            (None, Some(_)) if shot.ends() => Some(format!("n{} goes on {END_WITHIN:?} after {shot}", node + 1)),
            (None, _) => None,
        };
        if let Some(wrong) = wrong {
            return Err(RoundError::Node(format!("{wrong}; armed was {shot}")));
        }
        self.nodes.kill(node);
        Ok(replacement)
    }

    /// A node is given leaderships, then another one.
    fn lead(&mut self, node: usize) {
        self.operator.give(NodeId(node as u32 + 1), LOOK * 3);
        let other = (node + 1) % self.nodes.count();
        self.operator.give(NodeId(other as u32 + 1), LOOK * 3);
    }

    /// A node leads something, and is heard by nobody for longer than an election takes: what it executes meanwhile is
    /// taken back.
    fn mute(&mut self, node: usize) -> Result<(), RoundError> {
        let settled = self.span(50, 400);
        std::thread::sleep(settled);
        self.operator.give(NodeId(node as u32 + 1), LOOK * 3);
        let pairs = links(self.nodes.count(), |from, _| from == node, None);
        self.links.harm(&pairs, Harm::Cut)?;
        let length = self.span(300, 1_000);
        std::thread::sleep(length);
        Ok(self.links.heal()?)
    }
}
