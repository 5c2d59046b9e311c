//! The graph form (hazards.md 3.4). Slower than the search to pass a history, but a failure is a cycle that
//! people can read. Needs unique values (E1), previous values in answers (E2) and known outcomes; keys of writes with
//! unknown ones are left out, and then it can fail a history but not pass it.

mod lives;
mod solve;

use lives::{Choice, lives};
use solve::{Contradiction, Solution, Solver};

use super::certificate::LogFindings;
use super::cycle::Graph;
use super::facts::facts;
use super::history::History;
use super::search::problem::Problem;
use super::verdict::{Link, Verdict, Violation, reason, short};

/// Checks what clients saw. `judged`, if given, says which unanswered operations happened.
pub fn check(history: &History, judged: Option<&LogFindings>) -> Verdict {
    let facts = match facts(history) {
        Ok(facts) => facts,
        Err(Ok(violation)) => return Verdict::Fail(violation),
        Err(Err(why)) => return Verdict::Unknown(why),
    };
    let problem = Problem::new(history, &facts, judged);
    let lives = lives(history, &facts, &problem);
    match Solver::new(&lives.graph, &lives.choices).solve() {
        Solution::Yes if lives.clouded => {
            Verdict::Unknown("some writes have unknown outcomes; all else has a legal order".into())
        }
        Solution::Yes => Verdict::Pass,
        Solution::Unknown => Verdict::Unknown("the graph search gave up".into()),
        Solution::No(contradiction) => Verdict::Fail(Box::new(explain(history, lives.graph, contradiction))),
    }
}

/// The shortest cycle; where a choice fails on both sides, one for each.
fn explain(history: &History, mut graph: Graph, contradiction: Contradiction) -> Violation {
    let Contradiction { edges, choice, guesses } = contradiction;
    graph.edges.extend(edges);
    let mut violation = Violation {
        what: "no order of the operations gives the answers".into(),
        cycle: Vec::new(),
        ..Violation::default()
    };
    if let Some(choice) = choice.filter(|choice| choice.first.is_none() && choice.second.is_none()) {
        (violation.what, violation.about) = choice.explain(history);
    }
    let mut cycles = cycles(&mut graph, choice);
    cycles.sort_by_key(Vec::len);
    let mut cycles = cycles.into_iter();
    violation.cycle = cycles.next().unwrap_or_default();
    for other in cycles {
        let words: Vec<String> =
            other.iter().map(|link| format!("{} -> ({})", short(history, link.from), reason(history, link))).collect();
        violation.notes.push(format!("The other way round closes a cycle too: {}", words.join(" ")));
    }
    if guesses > 0 {
        violation.notes.push(format!("Other orders were tried and refuted; {guesses} times nothing forced the order."));
    }
    violation
}

fn cycles(graph: &mut Graph, choice: Option<Choice>) -> Vec<Vec<Link>> {
    let Some(choice) = choice else { return vec![graph.shortest_cycle()] };
    let sides = [choice.first, choice.second].into_iter().flatten();
    let cycles = sides.map(|side| {
        graph.edges.push(side);
        let cycle = graph.shortest_cycle();
        graph.edges.pop();
        cycle
    });
    cycles.filter(|cycle| !cycle.is_empty()).collect()
}
