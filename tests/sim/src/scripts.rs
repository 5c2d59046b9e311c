//! `coppice-sim scripts`: schedules A to F of hazards.md 6, and the files of runs of the past; each ends well, and
//! does not with each of its planted bugs. A planted bug is on for a whole process, so each gets one of its own.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use coppice_model::tickets::scripts::{SCRIPTS, Script};

use super::panics::{panicked, run_plan};
use super::planted::with_mutants;
use super::schedule::{self, Schedule};
use super::trace::Trace;

/// `scripts`
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Where the files are [default: tests/schedules of this repository]
    directory: Option<PathBuf>,
    /// Only those of these names, separated by commas.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// As they are, without their planted bugs.
    #[arg(long)]
    plain: bool,
}

enum What {
    Script(&'static Script),
    File(Box<Schedule>),
}

/// One to play.
struct Scene {
    name: String,
    what: What,
}

impl Scene {
    fn mutants(&self) -> Vec<&str> {
        match &self.what {
            What::Script(script) => script.mutants.to_vec(),
            What::File(schedule) => schedule.mutant.as_deref().into_iter().collect(),
        }
    }

    /// Whether it ends well, else why not.
    fn play(&self) -> Result<(), String> {
        match &self.what {
            What::Script(script) => catch_unwind(AssertUnwindSafe(script.play)).map_err(|_| panicked()),
            What::File(schedule) => match run_plan(schedule.plan.clone(), Trace::silent()).failure {
                None => Ok(()),
                Some(failure) => Err(format!("{}: {}", failure.check, failure.what)),
            },
        }
    }
}

/// Plays all of them. Needs the feature `mutants` for the planted bugs: a program without it builds one that has it,
/// and runs that.
pub fn main(arguments: &Arguments) -> ExitCode {
    let scenes = match scenes(arguments) {
        Ok(scenes) => scenes,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(2);
        }
    };
    if !arguments.plain && !cfg!(feature = "mutants") {
        return with_mutants();
    }
    let failed = scenes.iter().filter(|scene| !holds(scene, arguments)).count();
    println!("{} scripts and schedules, {failed} failed", scenes.len());
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn scenes(arguments: &Arguments) -> Result<Vec<Scene>, String> {
    let scripts = SCRIPTS.iter().map(|script| Scene { name: script.name.into(), what: What::Script(script) });
    let mut scenes: Vec<Scene> = scripts.collect();
    let directory = arguments.directory.clone().unwrap_or_else(schedule::directory);
    let files = std::fs::read_dir(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let mut files: Vec<PathBuf> = files.flatten().map(|file| file.path()).collect();
    files.retain(|path| path.extension().is_some_and(|end| end == "json"));
    files.sort();
    for path in files {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        scenes.push(Scene { name, what: What::File(Box::new(Schedule::read(&path)?)) });
    }
    if let Some(strange) = arguments.only.iter().find(|name| !scenes.iter().any(|scene| scene.name == **name)) {
        return Err(format!("no script or schedule is called `{strange}`; without names all are played"));
    }
    scenes.retain(|scene| arguments.only.is_empty() || arguments.only.contains(&scene.name));
    Ok(scenes)
}

fn holds(scene: &Scene, arguments: &Arguments) -> bool {
    let name = &scene.name;
    if let Err(why) = scene.play() {
        println!("{name}: FAILED: {why}");
        return false;
    }
    println!("{name}: passes");
    let mutants = if arguments.plain { Vec::new() } else { scene.mutants() };
    let caught = mutants.into_iter().filter(|mutant| !is_caught(scene, mutant, arguments));
    caught.count() == 0
}

/// Whether it fails under a planted bug, in a process of its own.
fn is_caught(scene: &Scene, mutant: &str, arguments: &Arguments) -> bool {
    let name = &scene.name;
    let output = std::env::current_exe().and_then(|program| {
        let mut again = Command::new(program);
        again.args(["scripts", "--plain", "--only", name]).args(&arguments.directory).env("COPPICE_MUTANT", mutant);
        again.output()
    });
    let said = match &output {
        Ok(output) => String::from_utf8_lossy(&output.stdout),
        Err(error) => format!("it does not run: {error}").into(),
    };
    let why = said.lines().find_map(|line| line.strip_prefix(&format!("{name}: FAILED: ")));
    match why {
        Some(why) => println!("  with {mutant} it fails, as it must: {}", why.chars().take(120).collect::<String>()),
        None => println!("  with {mutant} it does not fail: FAILED"),
    }
    why.is_some()
}
