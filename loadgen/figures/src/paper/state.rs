//! What is measured already: a file of lines beside the output, one for each round of each heat, appended when the
//! round is over. Whatever ends the program, what is in there is not measured again.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::point::{Heat, Reading, Terms};

/// The file's name in the output directory.
pub const FILE_NAME: &str = "measured.jsonl";

/// One round of one heat.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Round {
    /// Version of the line; fields are only added.
    pub v: u32,
    /// See [`Heat::key`].
    pub heat: String,
    /// Source revision that was measured, as far as it is known.
    pub commit: String,
    /// One for each point of the heat, in its order.
    pub readings: Vec<Reading>,
}

/// The file and what it says.
#[derive(Debug)]
pub struct State {
    path: PathBuf,
    file: File,
    rounds: BTreeMap<String, Vec<Round>>,
}

impl State {
    /// Opens the file of this directory, or begins it. A last line that was not written to its end is taken away.
    ///
    /// # Errors
    /// In words, the file's name first.
    pub fn open(directory: &Path) -> Result<State, String> {
        let path = directory.join(FILE_NAME);
        let error = |e: std::io::Error| format!("{}: {e}", path.display());
        std::fs::create_dir_all(directory).map_err(|e| format!("{}: {e}", directory.display()))?;
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).map_err(error)?;
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(error)?;
        let whole = text.rfind('\n').map_or(0, |at| at + 1);
        if whole < text.len() {
            file.set_len(whole as u64).map_err(error)?;
        }
        file.seek(SeekFrom::End(0)).map_err(error)?;
        let mut rounds: BTreeMap<String, Vec<Round>> = BTreeMap::new();
        for (index, line) in text[..whole].lines().enumerate() {
            let round: Round = serde_json::from_str(line)
                .map_err(|e| format!("{}: line {} is no measurement: {e}", path.display(), index + 1))?;
            rounds.entry(round.heat.clone()).or_default().push(round);
        }
        Ok(State { path, file, rounds })
    }

    /// The rounds of a heat that are over.
    pub fn rounds(&self, heat: &Heat, terms: &Terms) -> &[Round] {
        let known = self.rounds.get(&heat.key(terms)).map_or(&[][..], Vec::as_slice);
        // A line with fewer readings than points is of a program that knew the heat by another order of points.
        if known.iter().all(|round| round.readings.len() == heat.0.len()) { known } else { &[] }
    }

    /// How many rounds of a heat are still wanted.
    pub fn missing(&self, heat: &Heat, terms: &Terms) -> u32 {
        terms.rounds.saturating_sub(self.rounds(heat, terms).len() as u32)
    }

    /// Remembers a round that is over.
    ///
    /// # Errors
    /// In words, the file's name first.
    pub fn add(&mut self, round: Round) -> Result<(), String> {
        let line = serde_json::to_string(&round).map_err(|e| format!("{}: {e}", self.path.display()))? + "\n";
        self.file.write_all(line.as_bytes()).map_err(|e| format!("{}: {e}", self.path.display()))?;
        self.rounds.entry(round.heat.clone()).or_default().push(round);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::point::{Load, Point, Shape, Workload};
    use super::*;
    use coppice_loadgen::units::Think;

    fn terms(rounds: u32) -> Terms {
        let (hold, trim) = (Duration::from_secs(2), Duration::from_millis(400));
        Terms { hold, trim, think: Think::NONE, entries: 1_000, flush: true, rounds }
    }

    fn heat(clients: u32) -> Heat {
        let shape = Shape { replicas: 3, partitions: 1 };
        let load = Load { shape, workload: Workload::C, clients, updates: 7, cross_percent: 0, speculation: true };
        Heat(vec![Point::Load(load)])
    }

    fn round(clients: u32, value: f64) -> Round {
        let reading = Reading::from([("mean_ms".to_owned(), value)]);
        Round { v: 1, heat: heat(clients).key(&terms(3)), commit: "abc".into(), readings: vec![reading] }
    }

    #[test]
    fn what_was_measured_is_there_again_and_a_torn_line_is_not() {
        let directory = std::env::temp_dir().join(format!("coppice-figures-state-{}", std::process::id()));
        let mut state = State::open(&directory).unwrap();
        assert_eq!(state.missing(&heat(5), &terms(3)), 3);
        state.add(round(5, 1.5)).unwrap();
        state.add(round(5, 2.5)).unwrap();
        drop(state);
        let path = directory.join(FILE_NAME);
        let torn = std::fs::read_to_string(&path).unwrap() + "{\"v\":1,\"hea";
        std::fs::write(&path, torn).unwrap();
        let mut state = State::open(&directory).unwrap();
        assert_eq!(state.rounds(&heat(5), &terms(3)), [round(5, 1.5), round(5, 2.5)]);
        assert_eq!((state.missing(&heat(5), &terms(3)), state.missing(&heat(6), &terms(3))), (1, 3));
        assert_eq!(state.missing(&heat(5), &terms(1)), 0);
        state.add(round(6, 9.0)).unwrap();
        drop(state);
        assert_eq!(State::open(&directory).unwrap().missing(&heat(6), &terms(1)), 0);
        std::fs::write(&path, "nonsense\n").unwrap();
        let error = State::open(&directory).unwrap_err();
        assert!(error.contains("measured.jsonl: line 1 is no measurement"), "{error}");
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
