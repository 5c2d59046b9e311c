//! How far a transfer is, on stderr: a bar on a terminal, a line now and then elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Without a terminal, so often a line.
const LINE_EVERY: Duration = Duration::from_secs(10);
/// Times a second that a bar is drawn.
const DRAWN_HZ: u8 = 4;

/// See the module.
pub struct Progress {
    verb: &'static str,
    bar: ProgressBar,
    terminal: bool,
    quiet: bool,
    begun: Instant,
    said: Instant,
}

impl Progress {
    /// Of a verb; `quiet`: nothing is said.
    pub fn new(verb: &'static str, quiet: bool) -> Progress {
        let terminal = std::io::stderr().is_terminal() && !quiet;
        let target = if terminal { ProgressDrawTarget::stderr_with_hz(DRAWN_HZ) } else { ProgressDrawTarget::hidden() };
        let now = Instant::now();
        Progress { verb, bar: ProgressBar::with_draw_target(None, target), terminal, quiet, begun: now, said: now }
    }

    /// So many of `all` steps are done, and so many `count` of what is `counted`. Without `all` nobody knows how many
    /// there will be.
    pub fn tell(&mut self, (done, all): (u64, Option<u64>), count: u64, counted: &str) {
        let rate = count as f64 / self.begun.elapsed().as_secs_f64().max(1e-3);
        let text = format!("{count} {counted}, {rate:.0}/s");
        if self.terminal {
            if self.bar.length() != all {
                let template = if all.is_some() { "[{bar:26}] {percent} %  {msg}" } else { "{spinner} {msg}" };
                let style = ProgressStyle::with_template(template).expect("the templates are constants");
                self.bar.set_style(style.progress_chars("##-"));
                all.map_or_else(|| self.bar.unset_length(), |all| self.bar.set_length(all));
            }
            self.bar.set_position(done);
            self.bar.set_message(text);
        } else if !self.quiet && self.said.elapsed() >= LINE_EVERY {
            self.said = Instant::now();
            let percent = all.filter(|&all| all > 0).map(|all| format!("{} %, ", 100 * done.min(all) / all));
            eprintln!("{}: {}{text}", self.verb, percent.unwrap_or_default());
        }
    }

    /// A line of its own, above the bar.
    pub fn say(&mut self, line: &str) {
        if self.quiet {
            return;
        }
        self.bar.suspend(|| eprintln!("{line}"));
    }

    /// Begins to count anew.
    pub fn restart(&mut self) {
        self.begun = Instant::now();
        self.bar.reset();
    }

    /// Takes the bar away; how long it took.
    pub fn end(&self) -> Duration {
        self.bar.finish_and_clear();
        self.begun.elapsed()
    }
}
