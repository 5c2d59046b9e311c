//! Copies of data directories: a node is stopped and its disk copied, it goes on, is stopped, and the copy takes the
//! place of its disk (hazards.md PX12). Who may speak, and whom a node lets in, is the core's to say
//! ([`coppice_core::controller`], [`coppice_core::handshake`]), by the boot ids in the log's header. Links between
//! nodes, which carry that, stand here for connections; they exist in runs with such a fault only.
//!
//! The rule: a copy says nothing, from its start until it is found out. It holds where a node of its groups that met a
//! boot id which the copy lacks can be asked. Where all such nodes are down or cut off when the copy starts, nobody can
//! know: such a copy is taken away before it speaks.
//!
//! A copy is put back only once every node has met a boot id that it lacks, and taken away before it meets one that has
//! not, for it joined since. Such a node would write the copy's boot id down, and refuse the original from then on,
//! whom only `coppice node replace` brings back.
//!
//! A copy beside the living node is not drawn: a place in the simulated network belongs to one process.

use std::collections::BTreeSet;
use std::sync::Arc;

use coppice_client::wire::{Frame, FrameDecoder, NodeId};
use coppice_core::controller::Input;
use coppice_core::handshake::{
    HELLO_BYTES_MAX, MetNodes, Objection, PEER_PROTOCOL, PeerHello, Presence, Purpose, WelcomeError, accept, frame_of,
    judge_answer, standing,
};
use coppice_core::wire::peer_frame;

use super::control::own;
use super::events::Event;
use super::faults::{Disk, DiskCopy};
use super::known::Aside;
use super::node::place;
use super::plan::fault::Target;
use super::plan::{MS, Nanos};
use super::store::CLUSTER;
use super::world::World;

/// Between two attempts to connect to a node that does not answer.
const REDIAL: Nanos = 20 * MS;

/// Between two looks whether a copy can be put back: whether somebody would know.
const LOOK: Nanos = 100 * MS;

/// Greetings.
impl World {
    /// Whether a message of this node may leave for that one.
    pub fn may_say(&mut self, node: usize, to: usize) -> bool {
        if !self.faults.copies.drawn || node == to {
            return true;
        }
        let each = &self.nodes[node];
        let linked = each.incarnations.links.get(&to) == Some(&self.nodes[to].boot);
        if !each.process.control.may_speak {
            self.fail("PX12 speaks unvetted", format!("n{node}, whom the others have not let in, to n{to}"));
            return false;
        }
        if linked && each.incarnations.is_copy {
            self.fail("PX12 a copy speaks", format!("n{node}, which runs on a copy of its disk, to n{to}"));
        }
        if linked {
            let durable = self.nodes[node].store.durable_lsn();
            self.nodes[to].incarnations.known.raise_durable(own(node), durable);
        }
        linked
    }

    /// A process is about to start what its disk holds.
    pub fn begin_greeting(&mut self, node: usize) {
        let incarnations = &mut self.nodes[node].incarnations;
        (incarnations.known, _) = MetNodes::read(incarnations.file.as_deref());
    }

    /// What its disk holds runs: it greets the others. Where no copy is made, they let each other in at once.
    pub fn restored(&mut self, node: usize) {
        if !self.faults.copies.drawn {
            let others = (0..self.nodes.len()).filter(|other| *other != node);
            others.for_each(|other| self.tell(node, Input::LetIn(own(other))));
        }
        self.tell(node, Input::Restored { seeds: self.plan.nodes, copy: None });
        if !self.faults.copies.drawn {
            return;
        }
        let awaited = self.nodes[node].process.control.controller.fence().awaited();
        if self.nodes[node].incarnations.is_copy && !self.is_known(node, awaited) {
            return self.take_away(node, "nobody is there who could know");
        }
        for other in (0..self.nodes.len()).filter(|other| *other != node) {
            self.greet_after(node, other, 0);
            if self.nodes[other].up {
                self.greet_after(other, node, 0);
            }
        }
    }

    fn greet_after(&mut self, node: usize, to: usize, pause: Nanos) {
        let (min, mean) = (self.plan.network.delay_min, self.plan.network.delay_mean);
        let way = 2 * min + self.faults.copies.random.below(4 * mean as usize + 1) as Nanos;
        let boot = self.nodes[node].boot;
        self.schedule(self.now + pause + way, Event::Greets { node, boot, to });
    }

    /// Whether one of these nodes has met a boot id that this copy lacks, and can be asked now.
    fn is_known(&self, node: usize, awaited: &BTreeSet<NodeId>) -> bool {
        awaited.iter().any(|id| {
            let other = id.0 as usize - 1;
            let each = &self.nodes[other];
            let met = self.has_met_what_is_lacking(other, node);
            let reached = each.up && each.paused_until <= self.now && each.crash.doom.is_none();
            let knows = standing(own(node), each.process.control.controller.map()).is_ok();
            met && reached && knows && self.net.hears(other, node) && self.net.hears(node, other)
        })
    }

    /// Whether `other` has met a boot id of `node` that the disk of `node` lacks.
    fn has_met_what_is_lacking(&self, other: usize, node: usize) -> bool {
        let boots = self.nodes[node].store.boots();
        self.nodes[other].incarnations.met.iter().any(|(of, boot)| *of == node && !boots.contains(boot))
    }

    /// A node connects to another one, and both say who they are.
    pub fn on_greets(&mut self, node: usize, to: usize) {
        if self.nodes[node].incarnations.links.get(&to) == Some(&self.nodes[to].boot) {
            return;
        }
        let there = self.nodes[to].up && self.nodes[to].paused_until <= self.now;
        let both = self.net.hears(node, to) && self.net.hears(to, node);
        if !there || !both {
            return self.greet_after(node, to, REDIAL);
        }
        let is_known = standing(own(node), self.nodes[to].process.control.controller.map()).is_ok();
        for (copy, other) in [(node, to), (to, node)] {
            if is_known && self.nodes[copy].incarnations.is_copy && !self.has_met_what_is_lacking(other, copy) {
                return self.take_away(copy, "a node that never met the original would believe it");
            }
        }
        match self.shake_hands(node, to) {
            Ok(_) => {
                let boot = self.nodes[to].boot;
                self.nodes[node].incarnations.links.insert(to, boot);
                self.tell(node, Input::LetIn(own(to)));
            }
            Err(WelcomeError::Copy(text)) => self.tell(node, Input::IsCopy { by: own(to), text }),
            // A copy hears that itself when it greets.
            Err(WelcomeError::Unwanted(text)) if !self.nodes[to].incarnations.is_copy => {
                self.fail("PX12 false alarm", format!("n{node} takes n{to} for a copy: {text}"));
            }
            Err(_) => self.greet_after(node, to, REDIAL),
        }
    }

    /// Both ends of a connection say who they are, and judge each other.
    fn shake_hands(&mut self, node: usize, to: usize) -> Result<Option<Presence>, WelcomeError> {
        let from = Some(self.presence(node));
        let hello = PeerHello { protocol: PEER_PROTOCOL, purpose: Purpose::Messages, from, to: Some(own(to)) };
        let first = first_frame(&frame_of(peer_frame::HELLO, &hello)).0;
        let (acceptor, map) = (self.presence(to), Arc::clone(self.nodes[to].process.control.controller.map()));
        let accepted = accept(&first, None, Some(acceptor), &map, |them| self.meet(to, them));
        let answer = accepted.map_or_else(|(_, objection)| objection.frame(), |(_, welcome)| welcome);
        let (answer, behind) = first_frame(&answer);
        judge_answer(&hello, &answer, &behind, |them| self.meet(node, them))
    }

    fn presence(&self, node: usize) -> Presence {
        let claim = self.nodes[node].store.claim().unwrap_or_default();
        Presence { cluster: CLUSTER, node: own(node), claim }
    }

    /// `by` judges who is at the other end of a connection, and remembers it durably.
    fn meet(&mut self, by: usize, them: &Presence) -> Result<(), Objection> {
        let map = Arc::clone(self.nodes[by].process.control.controller.map());
        let incarnations = &mut self.nodes[by].incarnations;
        if let Some(start) = incarnations.known.judge(them, &map)? {
            incarnations.file = Some(start.file());
            incarnations.known.take(start);
        }
        if standing(them.node, &map).is_ok() {
            incarnations.met.insert((place(them.node), them.claim.boot_id));
        }
        Ok(())
    }

    /// A process is mute, for it runs on a copy.
    pub fn on_found_out(&mut self, node: usize, by: NodeId, text: &str) {
        if !self.nodes[node].incarnations.is_copy {
            return self.fail("PX12 false alarm", format!("{by} takes n{node} for a copy: {text}"));
        }
        self.coverage.note("copy: found out");
        self.return_original(node);
    }

    /// A process is about to speak, although not all nodes of its groups have let it in.
    pub fn on_unreached(&mut self, node: usize) {
        if self.nodes[node].incarnations.is_copy {
            let known =
                self.nodes[node].incarnations.links.keys().any(|other| self.has_met_what_is_lacking(*other, node));
            // Else a node that should have known better has let it in, and the run fails when it speaks.
            if !known {
                return self.take_away(node, "who could know was not reached");
            }
        }
        self.coverage.note("fence: a node that was not reached is not awaited");
    }
}

/// The fault.
impl World {
    /// A node is stopped and copied; later the copy takes the place of its disk.
    pub fn copy(&mut self, who: Target, (after, down): (Nanos, Nanos), others_restart: bool) {
        let node = self.node_of(who);
        if self.faults.copies.copied.is_some() || !self.nodes[node].up {
            return;
        }
        self.crash_process(node, down);
        let each = &self.nodes[node];
        let Some(store) = each.store.copy(self.plan.seed) else { return };
        let (file, met) = (each.incarnations.file.clone(), each.incarnations.met.clone());
        let other = Disk { store, maps: each.kept_maps.clone(), file, met };
        self.faults.copies.copied = Some(DiskCopy { node, other, aside: Aside::default(), down, others_restart });
        self.coverage.note("copy: made");
        self.schedule(self.now + down + after, Event::PutBack { node });
    }

    /// The copy takes the place of the disk, as soon as everybody knows a boot id that it lacks.
    pub fn on_put_back(&mut self, node: usize) {
        let Some(copied) =
            self.faults.copies.copied.as_ref().filter(|_| !self.faults.healed && self.nodes[node].may_start())
        else {
            return;
        };
        let (down, others_restart) = (copied.down, copied.others_restart);
        let boot = self.nodes[node].store.claim().map(|claim| claim.boot_id);
        let met = |other: usize| boot.is_some_and(|boot| self.nodes[other].incarnations.met.contains(&(node, boot)));
        let knows = |other: usize| standing(own(node), self.nodes[other].process.control.controller.map()).is_ok();
        let others = || (0..self.nodes.len()).filter(|other| *other != node && knows(*other));
        if !self.nodes[node].up || others().next().is_none() || !others().all(met) {
            return self.schedule(self.now + LOOK, Event::PutBack { node });
        }
        self.crash_process(node, down);
        if others_restart {
            self.coverage.note("copy: all others start anew before it does");
            for other in (0..self.nodes.len()).filter(|other| *other != node) {
                if self.nodes[other].up {
                    self.crash_process(other, MS);
                }
            }
        }
        self.swap(node);
        self.nodes[node].incarnations.is_copy = true;
        if let Some(copied) = &mut self.faults.copies.copied {
            copied.aside = self.oracle.set_aside(node);
        }
        self.coverage.note("copy: put in the place of the disk");
    }

    /// Whether a copy is to start later: somebody who knows is on the way.
    pub fn waits_for_the_others(&self, node: usize) -> bool {
        let each = &self.nodes[node];
        if !each.incarnations.is_copy || self.faults.healed {
            return false;
        }
        let map = each.kept_maps.back().cloned().unwrap_or_default();
        let here = map.groups().filter(|entry| entry.replica_on(own(node)).is_some());
        let nodes = here.flat_map(|entry| entry.replicas.iter().map(|info| info.node));
        !self.is_known(node, &nodes.filter(|id| *id != own(node)).collect())
    }

    fn take_away(&mut self, node: usize, why: &str) {
        let now = self.now;
        self.trace.step(now, &node, |line| *line += &format!("the copy at n{node} is taken away: {why}"));
        self.coverage.note("copy: nobody can know, and it is taken away");
        self.return_original(node);
    }

    /// The disk that the copy was made of is put back, and starts.
    pub fn return_original(&mut self, node: usize) {
        if !self.nodes[node].incarnations.is_copy {
            return;
        }
        let down = self.faults.copies.copied.as_ref().map_or(MS, |copied| copied.down);
        self.crash_process(node, down);
        self.swap(node);
        self.nodes[node].incarnations.is_copy = false;
        if let Some(copied) = self.faults.copies.copied.take() {
            self.oracle.put_back(node, copied.aside);
        }
    }

    /// Everything works from now on: no copy runs any more.
    pub fn end_copies(&mut self) {
        if let Some(node) = self.faults.copies.copied.as_ref().map(|copied| copied.node) {
            self.return_original(node);
        }
        self.faults.copies.copied = None;
    }

    fn swap(&mut self, node: usize) {
        let Some(copied) = &mut self.faults.copies.copied else { return };
        let each = &mut self.nodes[node];
        std::mem::swap(&mut each.store, &mut copied.other.store);
        std::mem::swap(&mut each.kept_maps, &mut copied.other.maps);
        std::mem::swap(&mut each.incarnations.file, &mut copied.other.file);
        std::mem::swap(&mut each.incarnations.met, &mut copied.other.met);
    }
}

fn first_frame(bytes: &[u8]) -> (Frame, FrameDecoder) {
    let mut decoder = FrameDecoder::new(HELLO_BYTES_MAX);
    decoder.feed(bytes);
    let frame = decoder.next_frame().expect("a frame").expect("whole");
    (frame, decoder)
}
