//! What a search has placed so far, and what that makes of the keys.

use super::super::history::History;
use super::super::intern::NONE;
use super::links::{Counts, Links};
use super::problem::Problem;

/// Tasks that are placed, tasks that are not, and the state between them.
pub struct Placement {
    /// Mandatory tasks to place, by invocation.
    pub open: Links,
    /// The same, by deadline.
    pub due: Links,
    /// Whether a task is placed.
    pub placed: Vec<bool>,
    /// Mandatory tasks to place.
    pub left: usize,
    /// Per key.
    pub values: Vec<u32>,
    pub present: Counts,
    /// Per value: mandatory tasks to place that must still see it.
    pub needed: Vec<u32>,
    /// P1: of the tasks that are placed and of the state.
    pub hash: u128,
}

/// P1: a random number per task and per value.
fn zobrist(number: u64) -> u128 {
    let mix = |mut z: u64| {
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let low = mix(number.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1));
    let high = mix(number.wrapping_mul(0xc2b2_ae3d_27d4_eb4f).wrapping_add(0x1656_67b1));
    u128::from(high) << 64 | u128::from(low)
}

const VALUE: u64 = 1 << 40;

impl Placement {
    /// Nothing is placed.
    pub fn new(history: &History, problem: &Problem) -> Placement {
        let (tasks, keys) = (problem.tasks.len(), history.keys.len());
        let mandatory = |task: &u32| problem.tasks[*task as usize].mandatory;
        let mut placement = Placement {
            open: Links::new(tasks, (0..tasks as u32).filter(mandatory)),
            due: Links::new(tasks, problem.by_return.iter().copied()),
            placed: vec![false; tasks],
            left: problem.tasks.iter().filter(|task| task.mandatory).count(),
            values: vec![NONE; keys],
            present: Counts::new(keys),
            needed: vec![0; history.values.len()],
            hash: 0,
        };
        for &(key, value) in &history.state {
            placement.set(key, value);
        }
        for task in problem.tasks.iter().filter(|task| task.mandatory) {
            for (_, value) in problem.checks(task).iter().filter(|check| check.1 != NONE) {
                placement.needed[*value as usize] += 1;
            }
        }
        placement
    }

    /// A key gets a value; which it had.
    pub fn set(&mut self, key: u32, value: u32) -> u32 {
        let old = std::mem::replace(&mut self.values[key as usize], value);
        if old != NONE {
            self.hash ^= zobrist(VALUE | u64::from(old));
        }
        if value != NONE {
            self.hash ^= zobrist(VALUE | u64::from(value));
        }
        match (old == NONE, value == NONE) {
            (true, false) => self.present.add(key, 1),
            (false, true) => self.present.add(key, u32::MAX),
            _ => {}
        }
        old
    }

    /// Notes that a task is placed, or taken back.
    pub fn mark(&mut self, problem: &Problem, index: u32, placed: bool) {
        let task = &problem.tasks[index as usize];
        self.placed[index as usize] = placed;
        self.hash ^= zobrist(u64::from(index));
        if !task.mandatory {
            return;
        }
        let change = if placed { u32::MAX } else { 1 };
        for (_, value) in problem.checks(task).iter().filter(|check| check.1 != NONE) {
            let needed = &mut self.needed[*value as usize];
            *needed = needed.wrapping_add(change);
        }
        if placed {
            self.left -= 1;
            self.open.take(index);
            self.due.take(index);
        } else {
            self.left += 1;
            self.open.put_back(index);
            self.due.put_back(index);
        }
    }
}
