//! One answer for all who ask while it is made: asking every node once is enough, however many want to know.
//!
//! [`Coalesced`] is pure: whoever owns it makes the answer when it says so. An answer goes only to those who asked
//! before it was begun.

use std::sync::Arc;
use std::time::{Duration, Instant};

use coppice_client::wire::{AdminReply, Status};
use tokio::sync::oneshot;

use super::{Control, Handle};

/// Between the beginnings of two answers to the same question: one that all nodes are asked for costs many connections.
const INTERVAL: Duration = Duration::from_millis(50);

/// A question that many may ask.
#[derive(Debug)]
pub(super) struct Coalesced<T> {
    /// Those who get the answer that is being made.
    asked: Vec<oneshot::Sender<T>>,
    /// Those who came since it was begun.
    next: Vec<oneshot::Sender<T>>,
    /// When the last one was begun.
    begun: Option<Instant>,
    under_way: bool,
}

impl<T> Default for Coalesced<T> {
    fn default() -> Coalesced<T> {
        Coalesced { asked: Vec::new(), next: Vec::new(), begun: None, under_way: false }
    }
}

impl<T: Clone> Coalesced<T> {
    /// Somebody asks. An answer is to be begun after this pause; none: one is under way.
    pub fn ask(&mut self, now: Instant, reply: oneshot::Sender<T>) -> Option<Duration> {
        self.next.push(reply);
        self.begin(now)
    }

    /// The answer is begun: it is for all who asked so far, those who waited for the pause included.
    pub fn begins(&mut self) {
        self.asked.append(&mut self.next);
    }

    /// The answer is made. Another one is to be begun after this pause, if somebody came meanwhile.
    pub fn answered(&mut self, now: Instant, answer: &T) -> Option<Duration> {
        for reply in self.asked.drain(..) {
            // Who went away needs none.
            _ = reply.send(answer.clone());
        }
        self.under_way = false;
        self.begin(now)
    }

    fn begin(&mut self, now: Instant) -> Option<Duration> {
        if self.under_way || self.next.is_empty() {
            return None;
        }
        let at = self.begun.map_or(now, |begun| now.max(begun + INTERVAL));
        (self.begun, self.under_way) = (Some(at), true);
        Some(at - now)
    }
}

/// Questions that every node is asked, and who waits for their answers.
#[derive(Default)]
pub(super) struct Questions {
    pub statuses: Coalesced<Arc<Status>>,
    pub verdicts: Coalesced<AdminReply>,
    pub tunings: Coalesced<AdminReply>,
    pub majority: Coalesced<bool>,
}

/// Which of the questions.
type Which<T> = fn(&mut Questions) -> &mut Coalesced<T>;

/// Gives `reply` the next answer to a question; `make` makes it.
pub(super) fn ask<T, A, M>(control: &mut Control, which: Which<T>, make: M, reply: oneshot::Sender<T>)
where
    T: Clone + Send + 'static,
    A: Future<Output = T> + 'static,
    M: Fn(&Control) -> A + Copy + Send + 'static,
{
    if let Some(pause) = which(&mut control.questions).ask(Instant::now(), reply) {
        answer_after(&control.shared, pause, which, make);
    }
}

fn answer_after<T, A, M>(shared: &Arc<Handle>, pause: Duration, which: Which<T>, make: M)
where
    T: Clone + Send + 'static,
    A: Future<Output = T> + 'static,
    M: Fn(&Control) -> A + Copy + Send + 'static,
{
    let begin = move |control: &mut Control| {
        which(&mut control.questions).begins();
        let (shared, answer) = (Arc::clone(&control.shared), make(control));
        crate::task::spawn(async move {
            let answer = answer.await;
            shared.call(move |control| {
                if let Some(pause) = which(&mut control.questions).answered(Instant::now(), &answer) {
                    answer_after(&control.shared, pause, which, make);
                }
            });
        });
    };
    let shared = Arc::clone(shared);
    crate::task::spawn(async move {
        tokio::time::sleep(pause).await;
        shared.call(begin);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 20,000 statuses on one connection asked every node 20,000 times: the descriptors ran out, and a leadership with
    /// them.
    #[test]
    fn a_crowd_that_asks_at_once_takes_two_answers() {
        let (mut question, start) = (Coalesced::default(), Instant::now());
        let mut replies = Vec::new();
        let mut ask = |question: &mut Coalesced<u32>, now| {
            let (sender, receiver) = oneshot::channel();
            replies.push(receiver);
            question.ask(now, sender)
        };
        assert_eq!(ask(&mut question, start), Some(Duration::ZERO), "one alone does not wait");
        question.begins();
        let begun = (0..20_000).filter(|_| ask(&mut question, start).is_some()).count();
        assert_eq!(begun, 0);
        // Those who asked after the answer was begun may have seen more than it tells.
        let pause = question.answered(start + INTERVAL / 5, &1);
        assert_eq!(pause, Some(INTERVAL / 5 * 4));
        question.begins();
        assert_eq!(question.answered(start + INTERVAL * 3, &2), None);
        let answers: Vec<u32> = replies.iter_mut().map(|reply| reply.try_recv().expect("an answer")).collect();
        assert_eq!((answers[0], answers[1], answers.len()), (1, 2, 20_001));
        assert!(answers[1..].iter().all(|&answer| answer == 2));
    }

    #[test]
    fn who_asks_during_the_pause_gets_the_answer_behind_it() {
        let (mut question, start) = (Coalesced::default(), Instant::now());
        let [(first, _), (second, mut heard), (third, mut also)] = [(); 3].map(|()| oneshot::channel());
        assert_eq!(question.ask(start, first), Some(Duration::ZERO));
        question.begins();
        assert_eq!(question.answered(start, &1), None);
        assert_eq!(question.ask(start, second), Some(INTERVAL));
        assert_eq!(question.ask(start, third), None);
        question.begins();
        assert_eq!(question.answered(start + INTERVAL, &2), None);
        assert_eq!((heard.try_recv(), also.try_recv()), (Ok(2), Ok(2)));
    }
}
