//! One session in a world, driven as its owner would: event by event, tick by tick, in simulated time.

use std::time::Duration;

use bytes::Bytes;
use coppice_client::command::{Answer, Output, RangeCall, ReadMode};
use coppice_client::config::Config;
use coppice_client::error::Error;
use coppice_client::session::{Effect, Input, Request, Session, SubmitError};
use coppice_client::time::Time;
use coppice_client::wire::{ClientId, ScanOptions};

use super::World;

pub type Outcome = Result<Answer<Output>, Error>;

pub struct Run {
    pub world: World,
    pub session: Session,
    pub effects: Vec<Effect>,
}

impl Run {
    pub fn new(seed: u64, world: World, config: Config) -> Run {
        let session = Session::new(config, ClientId(seed), seed, world.endpoints());
        Run { world, session, effects: Vec::new() }
    }

    pub fn submit(&mut self, token: u64, timeout: Duration, request: Request) -> Result<(), SubmitError> {
        let call = self.session.submit(token, self.world.now + timeout, request)?;
        self.world.queries.calls.insert(token, call);
        self.world.moments.submitted(token);
        Ok(())
    }

    /// Lets the world go on until `until`, or until nothing can happen.
    pub fn run_until(&mut self, until: Time) {
        self.turn_end();
        let mut same = 0;
        loop {
            let event = self.world.next_event();
            let tick = self.session.deadline();
            let Some(next) = event.into_iter().chain(tick).min().filter(|&next| next <= until) else { break };
            same = if next <= self.world.now { same + 1 } else { 0 };
            assert!(same < 10_000, "time stands still at {next:?}: {:#?}", self.session);
            if event == Some(next) {
                self.world.happen(&mut self.session, &mut self.effects);
            } else {
                self.world.now = self.world.now.max(next);
                self.session.step(self.world.now, Input::Tick, &mut self.effects);
            }
            self.world.carry_out(&mut self.effects);
            self.turn_end();
        }
        self.world.now = self.world.now.max(until);
    }

    pub fn run_for(&mut self, duration: Duration) {
        let until = self.world.now + duration;
        self.run_until(until);
    }

    fn turn_end(&mut self) {
        self.session.step(self.world.now, Input::TurnEnd, &mut self.effects);
        self.world.carry_out(&mut self.effects);
    }

    /// When and how a call ended.
    pub fn ended(&self, token: u64) -> Option<(Time, &Outcome)> {
        self.world.completed.iter().find(|done| done.1 == token).map(|(at, _, outcome)| (*at, outcome))
    }

    /// How a call ended.
    #[track_caller]
    pub fn outcome(&self, token: u64) -> &Outcome {
        self.ended(token).expect("it has ended").1
    }
}

/// A range of the newest state with everything.
pub fn range_call(low: Bytes, high: Option<Bytes>, reverse: bool) -> RangeCall {
    RangeCall {
        low: low[..].into(),
        high: high.as_deref().map(Into::into),
        scan: ScanOptions { reverse, ..ScanOptions::default() },
        mode: ReadMode::Leader,
        stretches: None,
    }
}
