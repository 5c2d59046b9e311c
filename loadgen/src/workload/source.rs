//! The requests of one worker's clients, one at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::distribution::Popularity;
use super::mix::Scan;
use super::request::{Key, Kind, Request, Updates, Value};
use super::{Plan, Spread};
use crate::random::Rng;

/// Insertions of fresh keys by one of several workers: worker w of W takes keys N + w, N + w + W, ..
#[derive(Clone, Debug)]
struct Fresh {
    next: u64,
    step: u64,
    /// By key, the index of each insertion under way.
    under_way: BTreeMap<Key, u64>,
    /// Indexes whose insertion ended while an earlier one was under way.
    ended_early: BTreeSet<u64>,
    /// Insertions below this index have ended: reads draw from below.
    ended_below: u64,
}

impl Fresh {
    fn draw(&mut self, plan: &Plan) -> Key {
        let key = plan.keys.key(self.next);
        self.under_way.insert(key, self.next);
        self.next += self.step;
        key
    }

    fn ended(&mut self, key: Key) {
        let Some(index) = self.under_way.remove(&key) else { return };
        self.ended_early.insert(index);
        while self.ended_early.remove(&self.ended_below) {
            self.ended_below += self.step;
        }
    }
}

/// Draws requests by a plan.
#[derive(Clone, Debug)]
pub struct Source {
    plan: Arc<Plan>,
    popularity: Popularity,
    total: u64,
    first_fresh: u64,
    fresh: Fresh,
}

impl Source {
    /// The source of worker `worker` of `workers`.
    pub fn new(plan: Arc<Plan>, worker: u64, workers: u64) -> Source {
        let popularity = match plan.mix.spread {
            Spread::Uniform => Popularity::Uniform,
            Spread::Zipfian => Popularity::scrambled(),
            Spread::Latest => Popularity::latest(plan.universe),
        };
        let first_fresh = plan.universe + worker;
        let fresh = Fresh {
            next: first_fresh,
            step: workers,
            under_way: BTreeMap::new(),
            ended_early: BTreeSet::new(),
            ended_below: first_fresh,
        };
        Source { total: plan.mix.total(), popularity, plan, first_fresh, fresh }
    }

    /// The `number`-th request of `client`.
    pub fn request(&mut self, client: u32, number: u64) -> Request {
        let mut rng = Rng::of_request(self.plan.seed, client, number);
        let value = self.value(client, number);
        match self.plan.mix.pick(rng.below(self.total)) {
            Kind::Get => Request::Get(self.existing(&mut rng)),
            Kind::Put => Request::Put(self.existing(&mut rng), value),
            Kind::Insert if self.plan.mix.fresh_inserts => Request::Insert(self.fresh.draw(&self.plan), value),
            Kind::Insert => Request::Insert(self.existing(&mut rng), value),
            Kind::Delete => Request::Delete(self.existing(&mut rng)),
            Kind::ReadModifyWrite => Request::ReadModifyWrite(self.existing(&mut rng), value),
            Kind::Many => self.many(rng, value),
            Kind::Range => self.range(&mut rng),
        }
    }

    /// What the `number`-th request of `client` writes, if it writes.
    pub fn value(&self, client: u32, number: u64) -> Value {
        Value { client, number, form: self.plan.value }
    }

    /// Tells that an insertion has ended, so that later reads may draw its key.
    pub fn ended(&mut self, key: Key) {
        self.fresh.ended(key);
    }

    /// How many fresh keys this worker has asked to insert.
    pub fn inserted(&self) -> u64 {
        (self.fresh.next - self.first_fresh) / self.fresh.step
    }

    /// A key that is taken to be there. The other workers are taken to insert at the pace of this one.
    fn existing(&mut self, rng: &mut Rng) -> Key {
        let inserted = self.fresh.ended_below - self.first_fresh;
        self.plan.keys.key(self.popularity.draw(self.plan.universe + inserted, rng))
    }

    fn many(&self, mut rng: Rng, value: Value) -> Request {
        let plan = &self.plan;
        let part = rng.below(plan.keys.parts());
        let keys = plan.keys.count_in(part, plan.universe).max(1);
        let (part, count) = (plan.keys.part(part), plan.mix.many);
        Request::Many(Updates { part, keys, count, draws: rng, value })
    }

    fn range(&mut self, rng: &mut Rng) -> Request {
        match self.plan.mix.scan {
            Scan::Limit { max } => {
                let low = self.existing(rng);
                let limit = 1 + rng.below(u64::from(max)) as u32;
                Request::Range { low, high: self.plan.keys.end_of_part_at(low), limit }
            }
            Scan::Span { .. } => self.span(rng),
        }
    }

    fn span(&mut self, rng: &mut Rng) -> Request {
        let (plan, position) = (&self.plan, rng.next());
        let part = rng.below(plan.keys.parts());
        let across = rng.below(100) < u64::from(plan.cross_percent);
        let span = across.then(|| {
            let left = part.min(plan.keys.parts().saturating_sub(2));
            plan.keys.span_across(left, plan.range_keys, plan.universe, position)
        });
        let span = span.flatten().unwrap_or_else(|| plan.keys.span_in(part, plan.range_keys, plan.universe, position));
        Request::Range { low: span.low, high: Some(span.high), limit: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{KeySpace, Mix, Update, ValueForm};
    use super::*;

    fn plan(name: &str, universe: u64, cross_percent: u8) -> Arc<Plan> {
        let mix = Mix::named(name).unwrap();
        let value = ValueForm::Bytes(mix.value_bytes);
        let keys = KeySpace::even(4);
        let range_keys = 1_000;
        Arc::new(Plan { mix, keys, entries: universe, universe, value, range_keys, cross_percent, seed: 42 })
    }

    #[test]
    fn the_same_seed_gives_the_same_requests_on_any_worker() {
        let mut one = Source::new(plan("mixed", 10_000, 0), 0, 1);
        let mut two = Source::new(plan("mixed", 10_000, 0), 1, 2);
        for client in 0..10 {
            for number in 0..100 {
                assert_eq!(one.request(client, number), two.request(client, number));
            }
        }
    }

    #[test]
    fn kinds_come_in_the_proportions_of_the_mix() {
        let mut source = Source::new(plan("mixed", 10_000, 0), 0, 1);
        let mut counts = [0u32; 7];
        for number in 0..100_000 {
            counts[source.request(0, number).kind().index()] += 1;
        }
        for (kind, percent) in [(Kind::Put, 40), (Kind::Insert, 20), (Kind::Delete, 10), (Kind::Get, 20)] {
            let share = f64::from(counts[kind.index()]) / 1_000.0;
            assert!((share - f64::from(percent)).abs() < 1.0, "{}: {share} %", kind.name());
        }
    }

    #[test]
    fn seven_updates_stay_in_one_partition() {
        let mut source = Source::new(plan("c", 24_000, 0), 0, 1);
        let mut parts = [0u32; 4];
        for number in 0..1_000 {
            let Request::Many(updates) = source.request(1, number) else { panic!("c is made of many") };
            let list: Vec<Update> = updates.iter().collect();
            assert_eq!(list, updates.iter().collect::<Vec<Update>>(), "they are drawn anew");
            let found: BTreeSet<u64> = list.iter().map(|update| update.key() >> 62).collect();
            assert_eq!((list.len(), found.len()), (7, 1));
            found.iter().for_each(|&part| parts[part as usize] += 1);
        }
        assert!(parts.iter().all(|&count| (180..=320).contains(&count)), "{parts:?}");
    }

    #[test]
    fn the_share_of_ranges_across_partitions_is_what_was_asked_for() {
        let mut source = Source::new(plan("a", 24_000, 10), 0, 1);
        let across = (0..10_000).filter(|&number| match source.request(0, number) {
            Request::Range { low, high: Some(high), .. } => low >> 62 != high >> 62,
            other => panic!("a is made of ranges, not {other:?}"),
        });
        let across = across.count();
        assert!((880..=1_120).contains(&across), "{across} of 10 000");
    }

    #[test]
    fn latest_reads_keys_once_their_insertion_has_ended() {
        let mut source = Source::new(plan("ycsb-d", 1_000, 0), 0, 1);
        let fresh: Vec<Request> =
            (0..20_000).map(|n| source.request(0, n)).filter(|r| r.kind() == Kind::Insert).collect();
        let keys: BTreeSet<Key> = fresh.iter().map(Request::key).collect();
        let expected: BTreeSet<Key> = (0..keys.len() as u64).map(|i| KeySpace::even(4).key(1_000 + i)).collect();
        assert_eq!(keys, expected, "fresh keys follow the loaded ones in the list");
        let reads_fresh = |source: &mut Source| {
            let reads =
                (20_000..30_000).filter(|&n| matches!(source.request(0, n), Request::Get(k) if keys.contains(&k)));
            reads.count()
        };
        assert_eq!(reads_fresh(&mut source.clone()), 0);
        // Ends in another order than they began: all count in the end.
        fresh.iter().rev().for_each(|request| source.ended(request.key()));
        assert!(reads_fresh(&mut source) > 5_000);
        assert!(source.inserted() >= keys.len() as u64);
    }
}
