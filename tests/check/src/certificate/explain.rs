//! When no order exists: the shortest cycle among the operations that could not be placed.

use super::super::cycle::Graph;
use super::super::event::NEVER;
use super::super::history::History;
use super::super::verdict::{Link, Violation, Why};
use super::order::Sort;

/// Explains a sort that got stuck.
pub fn cycle(history: &History, sort: &Sort<'_>) -> Box<Violation> {
    let cycle = short_cycle(history, sort).unwrap_or_else(|| graph(history, sort).shortest_cycle());
    let what = "no order of the operations agrees with the logs and with real time".to_string();
    Box::new(Violation { what, cycle, ..Violation::default() })
}

/// Two operations of which a log has the second, by real time, before the first.
fn short_cycle(history: &History, sort: &Sort<'_>) -> Option<Vec<Link>> {
    let times =
        |node: u32| history.operations.get(node as usize).map(|operation| (operation.invoked, operation.returned));
    for (partition, gaps) in chains(sort) {
        // The earliest answer among what the chain has later.
        let mut earliest: Option<(u64, u32)> = None;
        for gap in gaps.rev() {
            // Those of this gap alone: what was collected may stand behind later nodes.
            let reads = sort.chains.reads_before_close(gap).iter().copied();
            let reads = reads.filter(|read| !sort.placed[*read as usize] && sort.chains.reads(gap).contains(read));
            let closes = sort.chains.closes[gap as usize];
            if let Some((invoked, returned)) = times(closes) {
                if let Some((_, later)) = earliest.filter(|(answered, _)| *answered < invoked) {
                    return Some(pair(closes, later, partition));
                }
                earliest = Some(earliest.unwrap_or((NEVER, closes)).min((returned, closes)));
            }
            for read in reads.clone() {
                let invoked = history.operations[read as usize].invoked;
                if let Some((_, later)) = earliest.filter(|(answered, _)| *answered < invoked) {
                    return Some(pair(read, later, partition));
                }
            }
            earliest = reads.map(|read| (history.operations[read as usize].returned, read)).chain(earliest).min();
        }
    }
    None
}

fn pair(first: u32, later: u32, partition: u32) -> Vec<Link> {
    vec![Link { from: first, to: later, why: Why::Log(partition) }, Link { from: later, to: first, why: Why::Time }]
}

/// Each chain's partition and gaps, from the first one that is stuck.
fn chains<'a>(sort: &'a Sort<'_>) -> impl Iterator<Item = (u32, std::ops::Range<u32>)> + 'a {
    let first = &sort.chains.first;
    first.iter().enumerate().map(|(at, (partition, start))| {
        let end = first.get(at + 1).map_or(sort.chains.closes.len() as u32, |next| next.1);
        let stuck = |gap: &u32| {
            let closes = sort.chains.closes[*gap as usize];
            (closes != u32::MAX && !sort.placed[closes as usize])
                || sort.chains.reads(*gap).iter().any(|read| !sort.placed[*read as usize])
                || sort.chains.reads_before_close(*gap).iter().any(|read| !sort.placed[*read as usize])
        };
        (*partition, (*start..end).find(stuck).unwrap_or(end)..end)
    })
}

/// The graph of all that is stuck. A chain is a ladder of nameless nodes, so that one step leads anywhere later in it.
fn graph(history: &History, sort: &Sort<'_>) -> Graph {
    let mut graph = Graph::default();
    let mut number = vec![u32::MAX; sort.placed.len()];
    for node in (0..sort.placed.len()).filter(|node| sort.takes_part[*node] && !sort.placed[*node]) {
        number[node] = match history.operations.get(node) {
            Some(operation) => graph.node(node as u32, operation.invoked, operation.returned),
            None => graph.node(u32::MAX, 0, NEVER),
        };
    }
    for (partition, gaps) in chains(sort) {
        let why = Why::Log(partition);
        let mut before = None;
        for gap in gaps {
            // `open` is before the reads of the gap, `closed` is behind them.
            let open = graph.node(u32::MAX, 0, NEVER);
            let closed = graph.node(u32::MAX, 0, NEVER);
            graph.edges.push((open, closed, why));
            if let Some((before_closed, before_node)) = before {
                graph.edges.push((before_closed, open, why));
                if before_node != u32::MAX {
                    graph.edges.push((before_node, open, why));
                }
            }
            let stuck = |reads: &[u32]| {
                let numbers = reads.iter().map(|read| number[*read as usize]);
                numbers.filter(|read| *read != u32::MAX).collect::<Vec<_>>()
            };
            let (begin, end) = (stuck(sort.chains.reads(gap)), stuck(sort.chains.reads_before_close(gap)));
            graph.edges.extend(begin.into_iter().map(|read| (open, read, why)));
            graph.edges.extend(end.into_iter().map(|read| (read, closed, why)));
            let closes = number.get(sort.chains.closes[gap as usize] as usize).copied().unwrap_or(u32::MAX);
            if closes != u32::MAX {
                graph.edges.push((closed, closes, why));
            }
            before = Some((closed, closes));
        }
    }
    graph
}
