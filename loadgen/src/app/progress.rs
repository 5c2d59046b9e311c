//! The line that moves while a run goes on: on stderr, on a terminal only.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::runner::{Ends, Live};
use crate::units::{print_ms, significant};

/// A bar, or nothing.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    all: Ends,
    /// What the workers told in this quarter of a second, and the last full one.
    recent: Recent,
}

#[derive(Clone, Copy, Debug, Default)]
struct Recent {
    rate: f64,
    p50: u64,
    p99: u64,
    told: u32,
}

impl Progress {
    /// A bar of `length` steps, unless it is not wanted or nobody would see it.
    pub fn new(length: u64, quiet: bool) -> Progress {
        let hidden = quiet || !std::io::stderr().is_terminal();
        let bar = ProgressBar::with_draw_target(
            Some(length),
            if hidden { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr_with_hz(4) },
        );
        bar.set_style(
            ProgressStyle::with_template("[{bar:26}] {msg}").expect("the template is a constant").progress_chars("##-"),
        );
        Progress { bar, all: Ends::default(), recent: Recent::default() }
    }

    /// A worker's quarter of a second; `workers` of them make a whole one.
    pub fn live(&mut self, live: &Live, workers: u32) {
        self.all.merge(live.ends);
        if self.recent.told >= workers {
            self.recent = Recent::default();
        }
        self.recent.told += 1;
        self.recent.rate += live.ends.ok as f64 / live.over.as_secs_f64().max(1e-9);
        // The worst worker speaks for all: the bar is for watching, the report merges exactly.
        self.recent.p50 = self.recent.p50.max(live.p50);
        self.recent.p99 = self.recent.p99.max(live.p99);
    }

    /// So much of the run is over.
    pub fn tick(&self, elapsed: Duration) {
        self.bar.set_position(elapsed.as_millis() as u64);
        let Recent { rate, p50, p99, .. } = self.recent;
        let Ends { failed, busy, unknown, .. } = self.all;
        let busy = if busy > 0 { format!("  busy {busy}") } else { String::new() };
        self.bar.set_message(format!(
            "{} s  {rate:.0} op/s  p50 {} ms  p99 {} ms  failed {failed}{busy}  unknown {unknown}",
            significant(elapsed.as_secs_f64().floor()),
            print_ms(p50 as f64 / 1e6),
            print_ms(p99 as f64 / 1e6),
        ));
    }

    /// A count of something else, for `fill`.
    pub fn count(&self, done: u64, message: String) {
        self.bar.set_position(done);
        self.bar.set_message(message);
    }

    /// Takes the line away.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
