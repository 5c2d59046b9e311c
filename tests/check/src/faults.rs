//! Faults of a history: what a wrong server might have answered.

use coppice_testkit::random::Random;

use super::event::{Event, Invoke, NEVER, Output, Return, Status};

/// Plants one fault.
pub fn plant(events: &mut [Event<'static>], random: &mut Random) {
    let answers: Vec<usize> = (0..events.len())
        .filter(|index| matches!(&events[*index], Event::Return(answer) if answer.status == Status::Ok))
        .collect();
    if answers.is_empty() {
        return;
    }
    let one = answers[random.below(answers.len())];
    let other = answers[random.below(answers.len())];
    match random.below(5) {
        0 => swap_outputs(events, one, other),
        1 => return_early(events, one, random),
        2 => mix_parts(events, one, other, random),
        3 => drop_write(events, one),
        _ => see_another_value(events, one, other, random),
    }
}

fn answer<'a>(events: &'a mut [Event<'static>], index: usize) -> Option<&'a mut Return<'static>> {
    match &mut events[index] {
        Event::Return(answer) => Some(answer),
        _ => None,
    }
}

/// Two answers of one shape change places.
fn swap_outputs(events: &mut [Event<'static>], one: usize, other: usize) {
    let output = |events: &mut [Event<'static>], index| answer(events, index).map(|answer| answer.output.clone());
    let (Some(first), Some(second)) = (output(events, one), output(events, other)) else { return };
    if std::mem::discriminant(&first) != std::mem::discriminant(&second) || matches!(first, Output::List(_)) {
        return;
    }
    if let Some(answer) = answer(events, one) {
        answer.output = second;
    }
    if let Some(answer) = answer(events, other) {
        answer.output = first;
    }
}

/// An answer leaves before the operation was executed.
fn return_early(events: &mut [Event<'static>], one: usize, random: &mut Random) {
    let Some(Return { id, .. }) = answer(events, one).cloned() else { return };
    let invoked = events.iter().find_map(|event| match event {
        Event::Invoke(Invoke { id: other, at, .. }) if *other == id => Some(*at),
        _ => None,
    });
    if let (Some(invoked), Some(answer)) = (invoked, answer(events, one)) {
        let span = (answer.at - invoked) as usize;
        answer.at = invoked + random.below(span.min(NEVER as usize - 1) / 2 + 1) as u64;
    }
}

/// A range gets the right end of another's pairs: a part from another position.
fn mix_parts(events: &mut [Event<'static>], one: usize, other: usize, random: &mut Random) {
    let Some(Output::Pairs(from)) = answer(events, other).map(|answer| answer.output.clone()) else { return };
    let Some(Output::Pairs(pairs)) = answer(events, one).map(|answer| &mut answer.output) else { return };
    let all: Vec<_> = pairs.iter().chain(&from).map(|pair| pair.0.clone()).collect();
    if all.is_empty() {
        return;
    }
    let cut = all[random.below(all.len())].clone();
    pairs.retain(|pair| pair.0 < cut);
    pairs.extend(from.into_iter().filter(|pair| pair.0 >= cut));
}

/// A write that happened is said to be refused.
fn drop_write(events: &mut [Event<'static>], one: usize) {
    if let Some(answer) = answer(events, one)
        && !matches!(answer.output, Output::Pairs(_))
    {
        (answer.status, answer.output) = (Status::No, Output::Value(None));
    }
}

/// An answer has the value of another one, or none.
fn see_another_value(events: &mut [Event<'static>], one: usize, other: usize, random: &mut Random) {
    let seen = match answer(events, other).map(|answer| answer.output.clone()) {
        Some(Output::Value(seen) | Output::Cas(_, seen)) if !random.chance(300) => seen,
        _ => None,
    };
    match answer(events, one).map(|answer| &mut answer.output) {
        Some(Output::Value(value)) => *value = seen,
        Some(Output::Pairs(pairs)) if !pairs.is_empty() => {
            let at = random.below(pairs.len());
            match seen {
                Some(seen) => pairs[at].1 = seen,
                None => drop(pairs.remove(at)),
            }
        }
        _ => {}
    }
}
