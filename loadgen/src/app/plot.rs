//! `coppice-load plot`: runs that were written with `--out`, drawn over each other.

use super::args::PlotArgs;
use super::failure::{Exit, Failure};
use crate::report::files;
use crate::report::plot;
use crate::say::say;

/// Carries the command out; the names of the pictures go to stdout.
pub fn plot(args: &PlotArgs) -> Result<Exit, Failure> {
    let failure = |error| Failure::file("a run cannot be drawn", error, "coppice-load run --out DIR");
    let mut runs = Vec::new();
    for directory in &args.directories {
        let name =
            directory.file_name().map_or_else(|| directory.display().to_string(), |n| n.to_string_lossy().into());
        runs.push((name, files::read(directory).map_err(failure)?));
    }
    let named: Vec<plot::Named<'_>> = runs.iter().map(|(name, run)| (name.clone(), run)).collect();
    let written = |path: &std::path::Path, e: std::io::Error| failure(format!("{}: {e}", path.display()));
    std::fs::create_dir_all(&args.out).map_err(|e| written(&args.out, e))?;
    for (name, svg) in plot::of_runs(&named) {
        let path = args.out.join(name);
        std::fs::write(&path, svg).map_err(|e| written(&path, e))?;
        say!("{}", path.display());
    }
    Ok(Exit::Done)
}
