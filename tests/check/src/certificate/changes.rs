//! Which commands of the logs changed something, by running the logs: an answer may be missing, or wrong.

use super::super::history::History;
use super::super::state::State;
use super::judge::LogFindings;

/// For each operation: whether it counted and changed a key. A key belongs to one partition at a time, so any order of
/// the logs will do in which a partition begins, or goes on, after those that it comes from.
pub fn changing(history: &History, judged: &LogFindings) -> Vec<bool> {
    let operations = history.operations.len();
    let mut state = State::new(history.keys.len(), &history.state);
    let mut changing = vec![false; operations];
    let chains: Vec<_> = judged.partitions.values().map(|partition| &partition.chain[..]).collect();
    // Of each split or merge: logs that have still to come to it.
    let mut missing = vec![0; judged.joints as usize];
    let nodes = chains.iter().flat_map(|chain| chain.iter().map(|(_, node)| *node as usize));
    nodes.filter_map(|node| node.checked_sub(operations)).for_each(|joint| missing[joint] += 1);
    // How far each log is run, and whether it waits for others.
    let mut at = vec![(0, false); chains.len()];
    loop {
        let mut moved = false;
        for (chain, (at, waits)) in chains.iter().zip(&mut at) {
            while let Some((_, node)) = chain.get(*at) {
                if let Some(joint) = (*node as usize).checked_sub(operations) {
                    missing[joint] -= usize::from(!std::mem::replace(waits, true));
                    if missing[joint] > 0 {
                        break;
                    }
                } else {
                    for step in history.steps(&history.operations[*node as usize]) {
                        if let Some(value) = step.execute(state.get(step.key)) {
                            state.set(step.key, value);
                            changing[*node as usize] = true;
                        }
                    }
                }
                (*at, *waits, moved) = (*at + 1, false, true);
            }
        }
        if !moved {
            return changing;
        }
    }
}
