//! Black box (hazards.md 3.3). Only invocations and answers count; an own Wing-Gong-Lowe search looks for
//! one legal order. Rules P1-P5 remove only branches that cannot succeed; a found order is replayed before it is
//! believed.

mod depth_first;
mod links;
mod placement;
pub mod problem;

pub use depth_first::Limits;
use depth_first::{Outcome, Search};
use problem::Problem;

use super::certificate::{LogFindings, execute};
use super::facts::{Facts, facts};
use super::history::History;
use super::state::State;
use super::verdict::{Verdict, Violation, short};

/// Checks what clients saw. `judged`, if given, says which unanswered operations happened.
pub fn check(history: &History, judged: Option<&LogFindings>, limits: Limits) -> Verdict {
    let facts = match facts(history) {
        Ok(facts) => facts,
        Err(Ok(violation)) => return Verdict::Fail(violation),
        Err(Err(why)) => return Verdict::Unknown(why),
    };
    let problem = Problem::new(history, &facts, judged);
    let mut search = Search::new(history, &problem, limits);
    match search.run() {
        Outcome::Found => {
            let order: Vec<u32> = search.order().map(|task| problem.tasks[task as usize].operation).collect();
            match replays(history, &facts, &order) {
                Ok(()) => Verdict::Pass,
                Err(why) => Verdict::Unknown(format!("a bug of this checker: its own order does not replay: {why}")),
            }
        }
        Outcome::Exhausted => Verdict::Fail(Box::new(stuck(history, &problem, &search))),
        Outcome::OverLimits => Verdict::Unknown(format!("the search gave up after {} steps", search.steps())),
    }
}

/// Independent of the search: the order is legal, respects real time, and leaves out nothing that must be in it.
fn replays(history: &History, facts: &Facts, order: &[u32]) -> Result<(), String> {
    let mut state = State::new(history.keys.len(), &history.state);
    let mut placed = vec![false; history.operations.len()];
    let mut latest = 0;
    for &index in order {
        let operation = &history.operations[index as usize];
        if operation.returned < latest || std::mem::replace(&mut placed[index as usize], true) {
            return Err(format!("{} is too late, or placed twice", short(history, index)));
        }
        latest = latest.max(operation.invoked);
        execute(history, operation, &mut state).map_err(|_| format!("{} does not fit", short(history, index)))?;
    }
    let missing = history.operations.iter().zip(&placed).position(|(operation, placed)| {
        let must = operation.is_ok() || (operation.status.is_none() && facts.deadline(history, operation) != u64::MAX);
        must && !placed
    });
    missing.map_or(Ok(()), |index| Err(format!("{} is missing", short(history, index as u32))))
}

/// The longest prefix that the search found, and what it could not go on with.
fn stuck(history: &History, problem: &Problem, search: &Search<'_>) -> Violation {
    let best = search.best();
    let total = problem.tasks.iter().filter(|task| task.mandatory).count();
    let placed = total - best.left.min(total);
    let what = format!("no order of the operations gives the answers: at most {placed} of {total} were placed");
    let mut violation = Violation { what, ..Violation::default() };
    let Some(task) = best.task else { return violation };
    let operation = problem.tasks[task as usize].operation;
    violation.about.push(operation);
    let misfits = best.misfits.iter().map(|(key, held, wanted)| {
        let (key, held, wanted) = (history.key(*key), history.value(*held), history.value(*wanted));
        format!("{key} holds {held} and was seen as {wanted}")
    });
    let misfits: Vec<String> = misfits.collect();
    violation.notes.push(format!(
        "then {} must be next and cannot be: {}",
        short(history, operation),
        misfits.join(", ")
    ));
    violation
}
