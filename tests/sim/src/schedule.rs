//! Runs as files: what `shrink` leaves of a failing seed, and what the bugs of the past were found with. A file holds a
//! whole plan, so it stays what it is when seeds draw other plans; some name a planted bug, with which the run must
//! fail.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::plan::Plan;

/// The version of the files.
const VERSION: u32 = 1;

/// What a file holds.
#[derive(Debug, Serialize, Deserialize)]
pub struct Schedule {
    v: u32,
    /// What it shows, in a sentence.
    pub story: String,
    /// The planted bug with which it must fail, if there is one.
    pub mutant: Option<String>,
    /// The run.
    pub plan: Plan,
}

impl Schedule {
    /// A schedule of this plan.
    pub fn new(story: String, mutant: Option<String>, plan: Plan) -> Schedule {
        Schedule { v: VERSION, story, mutant, plan }
    }

    /// Reads one.
    ///
    /// # Errors
    /// In words: there is no such file, or it is no schedule of this version.
    pub fn read(path: &Path) -> Result<Schedule, String> {
        let wrong = |what: String| format!("{}: {what}", path.display());
        let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        let schedule: Schedule = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
        match schedule.v {
            VERSION => Ok(schedule),
            other => Err(wrong(format!("a schedule of version {other}; this program knows {VERSION}"))),
        }
    }

    /// Writes it.
    ///
    /// # Errors
    /// In words: the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), String> {
        let text = serde_json::to_string_pretty(self).map_err(|error| error.to_string())?;
        std::fs::write(path, text + "\n").map_err(|error| format!("{}: {error}", path.display()))
    }
}

/// Where the schedules of the past are.
pub fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../schedules")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schedule_that_was_written_is_the_same_run() {
        let plan = Plan::of(3);
        let path = std::env::temp_dir().join(format!("coppice-schedule-{}.json", std::process::id()));
        Schedule::new("a run".into(), None, plan.clone()).write(&path).expect("written");
        let read = Schedule::read(&path);
        std::fs::remove_file(&path).expect("removed");
        assert_eq!(format!("{:?}", read.expect("read").plan), format!("{plan:?}"));
    }
}
