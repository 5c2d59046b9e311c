//! What a request costs the generator itself: drawing it, pacing, counting; no wire. At saturation in packed mode the
//! whole generator is to stay below 0.5 us per command, so this must be a small part of it.

use std::sync::Arc;
use std::time::Duration;

use coppice_loadgen::runner::engine::{self, Orders};
use coppice_loadgen::runner::{Pace, Timeline};
use coppice_loadgen::target::{Done, End, Nanos, Target};
use coppice_loadgen::units::Think;
use coppice_loadgen::workload::{KeySpace, Mix, Plan, Request, Source, ValueForm};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

/// Ends everything at once; time moves by one microsecond per request.
struct Nothing {
    now: Nanos,
    slots: Vec<u32>,
}

impl Target for Nothing {
    fn now(&self) -> Nanos {
        self.now
    }

    fn submit(&mut self, slot: u32, request: &Request) {
        std::hint::black_box(request);
        self.slots.push(slot);
    }

    fn poll(&mut self, _until: Nanos, done: &mut Vec<Done>) {
        self.now += 1_000 * self.slots.len() as Nanos;
        let at = self.now;
        done.extend(self.slots.drain(..).map(|slot| Done { slot, end: End::Ok, at, found: 0 }));
    }

    fn first_error(&mut self) -> Option<String> {
        None
    }
}

fn generator(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("generator");
    let requests = 200_000;
    group.sample_size(10).throughput(Throughput::Elements(requests));
    for workload in ["put", "b", "c", "mixed", "ycsb-a"] {
        let mix = Mix::named(workload).expect("it is one of ours");
        let value = ValueForm::Bytes(mix.value_bytes);
        let (entries, universe) = (12_000_000, 24_000_000);
        let keys = KeySpace::even(4);
        let plan = Arc::new(Plan { mix, keys, entries, universe, value, range_keys: 1_000, cross_percent: 0, seed: 1 });
        let timeline = Timeline::new(Duration::from_micros(requests), Duration::ZERO).expect("it has a middle");
        let pace = Pace::Closed { clients: 1_024, think: Think::NONE };
        let orders = Orders { timeline, pace, workers: 1, first_client: 0, seed: 1, drain: 0, start: 0 };
        group.bench_function(workload, |bencher| {
            bencher.iter(|| {
                let mut target = Nothing { now: 0, slots: Vec::new() };
                engine::run(&mut target, &mut Source::new(plan.clone(), 0, 1), &orders, |_| {}).ends().ok
            })
        });
    }
    group.finish();
}

criterion_group!(benches, generator);
criterion_main!(benches);
