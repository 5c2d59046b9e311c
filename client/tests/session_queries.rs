//! Queries across partitions one at a time, in worlds that misbehave in one way (ordering.md 4). What wild worlds do
//! all at once is in `session_model`.

mod model;

use std::time::Duration;

use bytes::Bytes;
use coppice_client::command::{Answer, Output, RangeCall, ReadMode};
use coppice_client::config::Config;
use coppice_client::error::{Error, Reason};
use coppice_client::session::{Effect, Input, Request, Session};
use coppice_client::time::Time;
use coppice_client::wire::{ClientId, Kind, Part};
use model::queries::QueryChaos;
use model::{Chaos, World};

const CALM: Chaos = Chaos {
    cut: 0,
    busy: 0,
    repeat: 0,
    lost_apply: 0,
    deposed: 0,
    leader_change: 0,
    expire: 0,
    split: 0,
    pause: 0,
    lost_part: 0,
    connect_fails: 0,
    delay_ms: 1,
};

type Outcome = Result<Answer<Output>, Error>;

struct Run {
    world: World,
    session: Session,
    effects: Vec<Effect>,
}

impl Run {
    /// Three partitions with 600 keys, a reader that takes everything at once.
    fn new(seed: u64, chaos: Chaos, queries: QueryChaos, range_credit: u32) -> Run {
        let mut world = World::new(seed, chaos, &["g", "n"]);
        world.queries.chaos = queries;
        world.queries.read_pause = Some(Duration::ZERO);
        for n in 0..600 {
            let key = format!("{}{n:04}", (b'a' + (n % 26) as u8) as char).into_bytes();
            let partition = world.partitions.iter_mut().find(|partition| model::contains(partition, &key)).unwrap();
            partition.data.insert(key, b"value".to_vec());
        }
        let config = Config { range_credit, ..Config::default() };
        let session = Session::new(config, ClientId(seed), seed, world.endpoints());
        Run { world, session, effects: Vec::new() }
    }

    fn ask(&mut self, token: u64, low: &'static str, high: Option<&'static str>) {
        let range = RangeCall {
            low: Bytes::from(low),
            high: high.map(Bytes::from),
            reverse: false,
            keys_only: false,
            count_only: false,
            pairs_max: 0,
            bytes_max: 0,
            mode: ReadMode::Leader,
        };
        let deadline = self.world.now + Duration::from_secs(5);
        let call = self.session.submit(token, deadline, Request::Range(range)).unwrap();
        self.world.queries.calls.insert(token, call);
    }

    fn run_for(&mut self, duration: Duration) {
        let until = self.world.now + duration;
        self.turn_end();
        loop {
            let event = self.world.next_event();
            let tick = self.session.deadline();
            let Some(next) = event.into_iter().chain(tick).min().filter(|&next| next <= until) else { break };
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

    fn turn_end(&mut self) {
        self.session.step(self.world.now, Input::TurnEnd, &mut self.effects);
        self.world.carry_out(&mut self.effects);
    }

    /// When and how a call ended.
    fn outcome(&self, token: u64) -> Option<(Time, &Outcome)> {
        self.world.completed.iter().find(|done| done.1 == token).map(|(at, _, outcome)| (*at, outcome))
    }

    /// The query ended well, and gave out what one ticket saw.
    fn assert_whole(&self, token: u64) {
        let (_, result) = self.outcome(token).unwrap_or_else(|| panic!("query {token} did not end"));
        let Output::Loaded(pairs) = result.as_ref().unwrap().output else { panic!("{result:?}") };
        let parts: Vec<_> = self.world.parts[&token].iter().map(|part| Part::decode(part).unwrap()).collect();
        assert!(self.world.is_query(token));
        self.world.check_query(token, &parts, Some(pairs));
    }

    fn received(&self, kind: Kind) -> u64 {
        self.world.received.get(&(kind as u8)).copied().unwrap_or(0)
    }
}

#[test]
fn in_a_calm_world_a_query_is_asked_once_its_coordinator_is_found() {
    for seed in 0..20 {
        let mut run = Run::new(seed, CALM, QueryChaos::default(), 1 << 20);
        run.ask(1, "", None);
        run.run_for(Duration::from_secs(1));
        run.assert_whole(1);
        assert_eq!(run.world.queries.tickets.len(), 1, "seed {seed}");
        // Everything came unasked, and nothing had to be called off.
        assert_eq!((run.received(Kind::PartCredit), run.received(Kind::PartCancel)), (0, 0), "seed {seed}");
        // From now on it is known who coordinates.
        let asked = run.received(Kind::RangeQuery);
        run.ask(2, "b", Some("z"));
        run.run_for(Duration::from_secs(1));
        run.assert_whole(2);
        assert_eq!(run.received(Kind::RangeQuery), asked + 1, "seed {seed}");
    }
}

#[test]
fn parts_that_come_before_the_cut_are_kept() {
    for seed in 0..20 {
        let queries = QueryChaos { late_cut: 1000, ..QueryChaos::default() };
        let mut run = Run::new(seed, CALM, queries, 1 << 20);
        // Connections are there, else parts could not be early.
        run.ask(1, "", None);
        run.run_for(Duration::from_secs(1));
        run.ask(2, "", None);
        run.run_for(Duration::from_secs(1));
        run.assert_whole(2);
        assert_eq!(run.world.queries.tickets.len(), 2, "seed {seed}");
    }
}

#[test]
fn nothing_is_given_out_while_the_ticket_is_held() {
    let queries = QueryChaos { void: 1000, ..QueryChaos::default() };
    let mut run = Run::new(5, CALM, queries, 1 << 20);
    run.ask(1, "", None);
    run.run_for(Duration::from_secs(4));
    assert!(run.world.parts.is_empty() && run.outcome(1).is_none());
    assert!(run.world.queries.tickets.len() > 4, "it is asked again: {:?}", run.world.queries.tickets.len());
    run.world.queries.chaos = QueryChaos::default();
    run.run_for(Duration::from_secs(1));
    run.assert_whole(1);
}

#[test]
fn a_query_that_never_completes_fails_by_its_deadline_and_leaves_nothing_behind() {
    let queries = QueryChaos { void: 1000, ..QueryChaos::default() };
    let mut run = Run::new(6, CALM, queries, 1 << 20);
    run.ask(1, "", None);
    run.run_for(Duration::from_secs(60));
    let (at, result) = run.outcome(1).unwrap();
    assert_eq!(result.as_ref().unwrap_err().reason(), Some(&Reason::TimedOut));
    assert!(at <= Time::from_millis(5_010), "{at:?}");
    assert_eq!(run.session.calls_waiting(), 0);
    assert_eq!(run.session.deadline(), None);
}

#[test]
fn a_query_in_flight_finds_the_new_coordinator() {
    for seed in 0..30 {
        let queries = QueryChaos { late_place: 1000, ..QueryChaos::default() };
        let mut run = Run::new(seed, CALM, queries, 1 << 20);
        run.ask(1, "", None);
        run.run_for(Duration::from_millis(15));
        run.world.queries.chaos = QueryChaos::default();
        run.world.change_coordinator();
        run.run_for(Duration::from_secs(4));
        run.assert_whole(1);
    }
}

#[test]
fn chunks_sent_twice_or_of_another_ticket_never_reach_the_reader() {
    for seed in 0..40 {
        let queries = QueryChaos { twice: 300, foreign: 5, ..QueryChaos::default() };
        let mut run = Run::new(seed, CALM, queries, 1 << 20);
        run.ask(1, "", None);
        run.run_for(Duration::from_secs(6));
        match run.outcome(1).unwrap().1 {
            Ok(_) => run.assert_whole(1),
            // A chunk of another ticket after something was given out.
            Err(error) => assert!(matches!(error.reason(), Some(Reason::Interrupted { .. } | Reason::TimedOut))),
        }
    }
}

#[test]
fn a_query_that_is_called_off_calls_its_parts_off() {
    let mut run = Run::new(3, CALM, QueryChaos::default(), 400);
    run.world.queries.read_pause = None;
    run.ask(1, "", None);
    run.run_for(Duration::from_millis(100));
    assert!(run.outcome(1).is_none() && run.world.parts_open() > 0);
    let call = run.world.queries.calls[&1];
    run.session.step(run.world.now, Input::Cancel(call), &mut run.effects);
    run.run_for(Duration::from_secs(60));
    assert_eq!(run.world.parts_open(), 0);
    assert_eq!((run.session.calls_waiting(), run.session.deadline()), (0, None));
}

#[test]
fn a_reader_that_stops_holds_no_more_than_the_credit_and_a_chunk_of_each_part() {
    for seed in 0..10 {
        let credit = 900;
        let mut run = Run::new(seed, CALM, QueryChaos::default(), credit);
        // Known to the client, so that all parts come.
        run.ask(1, "", None);
        run.run_for(Duration::from_secs(1));
        run.assert_whole(1);
        let most = run.world.queries.given[&1].unread_max;
        assert!(most <= 3 * (credit as usize + 100), "seed {seed}: {most}");
        run.world.queries.read_pause = None;
        run.ask(2, "", None);
        run.run_for(Duration::from_secs(60));
        let given = &run.world.queries.given[&2];
        assert!(given.unread <= 3 * (credit as usize + 100), "seed {seed}: {}", given.unread);
        // Its reader may take as long as it likes.
        assert!(run.outcome(2).is_none());
    }
}

#[test]
fn a_split_in_between_makes_a_range_a_query() {
    for seed in 0..20 {
        let mut run = Run::new(seed, CALM, QueryChaos::default(), 1 << 20);
        run.ask(1, "a", Some("b"));
        run.run_for(Duration::from_secs(1));
        // The client's map still has one partition there.
        while run.world.partitions.iter().all(|found| found.low <= "a" || found.low > "f") {
            run.world.split();
        }
        run.ask(2, "a", Some("g"));
        run.run_for(Duration::from_secs(1));
        run.assert_whole(2);
    }
}
