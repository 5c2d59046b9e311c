//! `config show`, `config check` and `config default`: settings of a node, without a node.

use std::io;
use std::path::PathBuf;

use serde_json::json;

use super::args::{ConfigShowArgs, ConfigVerb, Format};
use super::failure::{Exit, Failure};
use super::output::Output;
use super::words::quote;
use crate::config::{ConfigError, Effective, Loaded, Origin, Sources, default_file, load, toml_value};

/// Carries out one of the verbs.
///
/// # Errors
/// That of stdout or stderr; a refused configuration is printed and gives the exit status.
pub fn run(verb: &ConfigVerb, output: &mut Output<'_>) -> io::Result<Result<Exit, Failure>> {
    match verb {
        ConfigVerb::Show(args) => show(args, output),
        ConfigVerb::Check { file } => check(file.clone(), output),
        ConfigVerb::Default => {
            write!(output.data, "{}", default_file())?;
            Ok(Ok(Exit::Done))
        }
        // Asked of the cluster: `settings`.
        ConfigVerb::Get { .. } | ConfigVerb::Describe { .. } | ConfigVerb::Set { .. } | ConfigVerb::Unset { .. } => {
            Ok(Err(Failure::usage(
                "config: a running cluster must be asked",
                "this verb works on files",
                "coppice config get",
            )))
        }
    }
}

fn show(args: &ConfigShowArgs, output: &mut Output<'_>) -> io::Result<Result<Exit, Failure>> {
    let loaded = match load(&args.settings.sources(args.config.clone())) {
        Ok(loaded) => loaded,
        Err(error) => return Ok(Err(config_failure("config show", &error))),
    };
    warn(&loaded, output)?;
    match output.style.admin() {
        Format::Table | Format::Raw => show_lines(&loaded, args.origin, output)?,
        format @ (Format::Json | Format::Jsonl) => show_json(&loaded, args.origin, format, output)?,
    }
    Ok(Ok(Exit::Done))
}

/// As a file that says the same, its origins as comments.
fn show_lines(loaded: &Loaded, origin: bool, output: &mut Output<'_>) -> io::Result<()> {
    let lines: Vec<String> = loaded.effective.iter().map(|e| format!("{} = {}", e.key, toml_value(&e.value))).collect();
    let width = lines.iter().map(|line| line.chars().count()).max().unwrap_or(0);
    for (line, effective) in lines.iter().zip(&loaded.effective) {
        if origin {
            writeln!(output.data, "{line:width$}  # {}", effective.origin)?;
        } else {
            writeln!(output.data, "{line}")?;
        }
    }
    Ok(())
}

fn show_json(loaded: &Loaded, origin: bool, format: Format, output: &mut Output<'_>) -> io::Result<()> {
    let object = |e: &Effective| {
        if origin {
            json!({ "key": e.key, "value": e.value, "origin": e.origin.to_string() })
        } else {
            json!({ "key": e.key, "value": e.value })
        }
    };
    if format == Format::Jsonl {
        return loaded.effective.iter().try_for_each(|e| {
            let mut line = object(e);
            line["v"] = 1.into();
            writeln!(output.data, "{line}")
        });
    }
    let settings: Vec<_> = loaded.effective.iter().map(object).collect();
    writeln!(output.data, "{}", json!({ "v": 1, "settings": settings }))
}

fn check(file: PathBuf, output: &mut Output<'_>) -> io::Result<Result<Exit, Failure>> {
    let sources = Sources { file: Some(file.clone()), ..Sources::default() };
    let loaded = match load(&sources) {
        Ok(loaded) => loaded,
        Err(error) => return Ok(Err(config_failure("config check", &error))),
    };
    let set = loaded.effective.iter().filter(|e| e.origin != Origin::Default).count();
    match output.style.admin() {
        Format::Json | Format::Jsonl => writeln!(output.data, "{}", json!({ "v": 1, "ok": true, "settings": set }))?,
        Format::Table | Format::Raw => writeln!(output.data, "ok  {}: {set} settings", file.display())?,
    }
    Ok(Ok(Exit::Done))
}

/// Prints what is worth knowing though nothing is wrong.
///
/// # Errors
/// That of stderr.
pub fn warn(loaded: &Loaded, output: &mut Output<'_>) -> io::Result<()> {
    loaded.warnings.iter().try_for_each(|warning| output.note(&format!("warning: {warning}")))
}

/// The settings of `sources`, or four lines that say what is wrong with them.
///
/// # Errors
/// The refusal.
pub fn node_config(verb: &str, sources: &Sources) -> Result<Loaded, Failure> {
    load(sources).map_err(|error| config_failure(verb, &error))
}

fn config_failure(verb: &str, error: &ConfigError) -> Failure {
    let next = match error {
        ConfigError::Syntax { path, .. } => format!("coppice config check {}", quote(&path.display().to_string())),
        // The list of all settings, with what each may be.
        _ => "coppice config default".to_owned(),
    };
    // Two of the parser's reasons span lines; ours are one each.
    let what: Vec<String> = error.to_string().split_whitespace().map(str::to_owned).collect();
    Failure {
        exit: Exit::Usage,
        code: "config",
        what: format!("{verb}: {}", what.join(" ")),
        place: error.place(),
        cause: error.cause(),
        next,
    }
}
