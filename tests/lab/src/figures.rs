//! What an experiment found: a line of a table, a line of CSV.

use std::fmt::Write as _;
use std::io;
use std::path::Path;

use coppice_client::wire::{BatchAndWindow, Bottleneck, GroupTuning};
use coppice_core::settings::units::show_size;

use super::load::Got;

/// Columns of the table and of the CSV.
const COLUMNS: &str = "link,size,settings,batch_bytes,window,window_bytes,commands_per_s,p50_ms,p99_ms,errors,\
                       link_used,congestions,of_best,predicted_per_s,bottleneck,batch_cpu_ms,command_cpu_ms,flush_ms,\
                       model_per_s,model_window";

/// One measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The link's word.
    pub link: String,
    /// Key and value, in bytes.
    pub size: u64,
    /// Where the settings came from: `grid`, `standard`, `cold`, `changed`, `best`, `light`, `unbatched`.
    pub settings: &'static str,
    /// What was in force; none: nobody said.
    pub in_force: Option<BatchAndWindow>,
    /// What it came to.
    pub got: Got,
    /// What one link of the leader carried, of what it could have, 0 to 1.
    pub link_used: f64,
    /// Times that the leader's links became congested.
    pub congestions: u64,
    /// This against the best of the grid, where that was measured beside it.
    pub of_best: Option<f64>,
    /// What the leader's model predicts, commands per second, and for what.
    pub predicted: Option<(f64, Bottleneck)>,
    /// What the model makes of the link as it is and of costs as they were measured, for batches of the size in force.
    pub modelled: Option<ModelFigures>,
}

/// The model of the paper with what was measured put into it (papers.md 2).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ModelFigures {
    /// Time of the leader's thread for a batch, in milliseconds.
    pub batch_cpu_ms: f64,
    /// And for each of its commands.
    pub command_cpu_ms: f64,
    /// A flush of the log, in milliseconds.
    pub flush_ms: f64,
    /// Commands per second in a window that is large enough.
    pub throughput: f64,
    /// Undecided instances that are enough.
    pub window: u32,
}

impl Row {
    /// Takes in what the leader said.
    pub fn told(self, tuning: Option<&GroupTuning>) -> Row {
        let account = tuning.and_then(|tuning| tuning.account.as_ref());
        Row {
            in_force: tuning.map(|tuning| tuning.in_force),
            predicted: account.map(|account| (account.predicted_throughput, account.bottleneck)),
            ..self
        }
    }

    fn bottleneck(&self) -> &'static str {
        match self.predicted {
            Some((_, Bottleneck::Cpu)) => "cpu",
            Some((_, Bottleneck::Network)) => "network",
            Some((_, Bottleneck::Disk)) => "disk",
            None => "",
        }
    }

    fn csv(&self) -> String {
        let Row { link, size, settings, in_force, got, link_used, congestions, of_best, predicted, modelled } = self;
        let number = |value: Option<u64>| value.map(|value| value.to_string()).unwrap_or_default();
        let batch = number(in_force.map(|set| set.batch_bytes_max));
        let window = number(in_force.map(|set| u64::from(set.window)));
        let bytes = number(in_force.map(|set| set.window_bytes_max));
        let of_best = of_best.map(|share| format!("{share:.4}")).unwrap_or_default();
        let predicted = predicted.map(|(rate, _)| format!("{rate:.1}")).unwrap_or_default();
        let modelled = modelled.map_or(",,,,".to_owned(), |modelled| {
            let ModelFigures { batch_cpu_ms, command_cpu_ms, flush_ms, throughput, window } = modelled;
            format!("{batch_cpu_ms:.5},{command_cpu_ms:.6},{flush_ms:.3},{throughput:.1},{window}")
        });
        let Got { throughput, p50_ms, p99_ms, errors } = got;
        format!(
            "{link},{size},{settings},{batch},{window},{bytes},{throughput:.1},{p50_ms:.3},{p99_ms:.3},{errors},\
             {link_used:.4},{congestions},{of_best},{predicted},{},{modelled}",
            self.bottleneck()
        )
    }

    /// For people, under [`heading`].
    pub fn line(&self) -> String {
        let Row { link, size, settings, in_force, got, link_used, congestions, of_best, predicted, .. } = self;
        let show = |set: BatchAndWindow| (show_size(set.batch_bytes_max), set.window.to_string());
        let (batch, window) = in_force.map_or(("?".to_owned(), "?".to_owned()), show);
        let used = 100.0 * link_used;
        let mut line = format!(
            "{link:<6} {size:>5}  {settings:<9} {batch:>9} x {window:<3} {:>9.0}/s  p50 {:>8.2} ms  link {used:>3.0} %",
            got.throughput, got.p50_ms
        );
        // A string takes everything.
        if let Some((rate, _)) = predicted {
            let _ = write!(line, "  predicted {rate:>7.0}/s ({})", self.bottleneck());
        }
        if let Some(share) = of_best {
            let _ = write!(line, "  {:.1} % of the best", 100.0 * share);
        }
        if *congestions > 0 {
            let _ = write!(line, "  congested {congestions}x");
        }
        if got.errors > 0 {
            let _ = write!(line, "  {} errors", got.errors);
        }
        line
    }
}

/// The heading of the lines.
pub fn heading() -> String {
    format!("{:<6} {:>5}  {:<9} {:>9} x {:<3} {:>11}", "link", "size", "settings", "batch", "window", "commands")
}

/// Writes them all.
///
/// # Errors
/// The file cannot be written.
pub fn write_csv(file: &Path, rows: &[Row]) -> io::Result<()> {
    let lines: Vec<String> = std::iter::once(COLUMNS.to_owned()).chain(rows.iter().map(Row::csv)).collect();
    std::fs::write(file, lines.join("\n") + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_file_has_every_column() {
        let in_force = BatchAndWindow { batch_bytes_max: 65_536, window: 16, window_bytes_max: 1 << 20 };
        let got = Got { throughput: 1_000.04, p50_ms: 1.5, p99_ms: 9.25, errors: 3 };
        let full = Row {
            link: "wan".into(),
            size: 128,
            settings: "cold",
            in_force: Some(in_force),
            got,
            link_used: 0.5,
            congestions: 2,
            of_best: Some(0.961),
            predicted: Some((1_040.0, Bottleneck::Network)),
            modelled: Some(ModelFigures {
                batch_cpu_ms: 0.05,
                command_cpu_ms: 0.004,
                flush_ms: 0.5,
                throughput: 990.0,
                window: 3,
            }),
        };
        let bare = Row { in_force: None, of_best: None, predicted: None, modelled: None, ..full.clone() };
        let columns = COLUMNS.split(',').count();
        for row in [&full, &bare] {
            assert_eq!(row.csv().split(',').count(), columns, "{}", row.csv());
        }
        assert!(
            full.csv().starts_with("wan,128,cold,65536,16,1048576,1000.0,1.500,9.250,3,0.5000,2,0.9610,1040.0,net")
        );
        assert!(full.csv().ends_with(",0.05000,0.004000,0.500,990.0,3"), "{}", full.csv());
        let line = full.line();
        for part in ["64 KiB x 16", "1000/s", "96.1 % of the best", "congested 2x", "3 errors", "1040/s (network)"] {
            assert!(line.contains(part), "no {part} in {line}");
        }
        assert!(bare.line().contains("? x ?"), "{}", bare.line());
    }
}
