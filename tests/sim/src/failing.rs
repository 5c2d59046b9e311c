//! What a sweep says of a seed that fails: the check, the commit, how to replay it, and the last steps before.

use std::path::Path;
use std::process::Command;
use std::time::SystemTime;

use super::panics::run_plan;
use super::plan::Plan;
use super::trace::Trace;
use super::world::Failure;

/// Characters of a line of a trace that are shown.
const LINE_MAX: usize = 400;

/// Seeds of one sweep whose last steps are shown: the first ones to fail.
pub const SHOWN_MAX: usize = 3;

/// Says that a seed failed.
pub fn tell(seed: u64, failure: &Failure) {
    println!("seed {seed} FAILED: {}: {}", failure.check, failure.what);
    println!("  at step {}, {} ns; {}", failure.step, failure.at, commit());
    println!("  replay: coppice-sim replay {seed:#x} --trace {seed}.trace");
}

/// Runs it again, for its last steps.
pub fn last_steps(seed: u64, plan: Plan) -> String {
    let Ok(trace) = Trace::wordy(None) else { return String::new() };
    let outcome = run_plan(plan, trace);
    let said = format!("  seed {seed}, the last {} of {} steps:\n", outcome.last.len(), outcome.steps);
    said + &lines(&outcome.last)
}

/// Lines of a trace, the long ones cut.
pub fn lines(lines: &[String]) -> String {
    let cut = |line: &String| line.chars().take(LINE_MAX).chain(['\n']).collect::<String>();
    lines.iter().map(cut).collect()
}

/// The commit of this program: what its build was told, or that of the sources if it is no older than they are.
pub fn commit() -> String {
    let told = option_env!("COPPICE_COMMIT").map(str::to_owned);
    match told.or_else(|| checked_out(Path::new(env!("CARGO_MANIFEST_DIR")))) {
        Some(commit) => format!("commit {commit}"),
        None => format!("version {}, of a commit that is not known", env!("CARGO_PKG_VERSION")),
    }
}

/// The commit whose sources lie there, if this program was built after it; marked if there are changes since.
fn checked_out(sources: &Path) -> Option<String> {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").arg("-C").arg(sources).args(arguments).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned()).filter(|text| !text.is_empty())
    };
    let made: u64 = git(&["log", "-1", "--format=%ct"])?.parse().ok()?;
    let program = std::env::current_exe().and_then(std::fs::metadata).and_then(|file| file.modified()).ok()?;
    let built = program.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs();
    if built < made { None } else { git(&["describe", "--always", "--dirty", "--abbrev=12", "--match", ""]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_nothing_is_checked_out_no_commit_is_known() {
        assert_eq!(checked_out(&std::env::temp_dir().join("coppice-no-such-directory")), None);
    }
}
