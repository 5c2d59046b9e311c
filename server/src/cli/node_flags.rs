//! Node settings as flags: made from the table of settings, so that none is forgotten and none is extra.

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

use crate::config::{NODE_SETTINGS, Sources};

/// The node settings that were given as flags: name and text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeFlags {
    /// In the order of the table.
    pub given: Vec<(&'static str, String)>,
}

impl NodeFlags {
    /// These flags over the process's environment and `file`, or the usual files.
    #[must_use]
    pub fn sources(&self, file: Option<std::path::PathBuf>) -> Sources {
        Sources { flags: self.given.clone(), file, ..Sources::of_process() }
    }
}

impl FromArgMatches for NodeFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let text = |key: &str| match is_global(key) {
            true => matches.try_get_one::<String>(&key.replace('.', "_")).ok().flatten().cloned(),
            false => matches.get_one::<String>(key).cloned(),
        };
        Ok(Self { given: NODE_SETTINGS.iter().filter_map(|setting| Some((setting.key, text(setting.key)?))).collect() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for NodeFlags {
    fn augment_args(command: Command) -> Command {
        let flags = NODE_SETTINGS.iter().filter(|setting| !is_global(setting.key)).map(|setting| {
            let arg = Arg::new(setting.key)
                .long(setting.flag())
                .help(format!("{} [default: {}]", capital(setting.meaning), setting.default.words()))
                .help_heading("Node settings")
                .action(ArgAction::Set)
                .value_name(value_name(setting.key, setting.is_switch()));
            if setting.is_switch() {
                arg.num_args(0..=1).default_missing_value("true").require_equals(true)
            } else {
                arg.allow_hyphen_values(false)
            }
        });
        command.args(flags)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

/// Certificates are given to a node as to every other verb.
fn is_global(key: &str) -> bool {
    key.starts_with("tls.")
}

fn value_name(key: &str, switch: bool) -> &'static str {
    match key {
        _ if switch => "true|false",
        "seeds" => "HOST:PORT,..",
        "data_dir" => "DIR",
        _ if key.starts_with("listen.") || key.starts_with("advertise.") => "HOST:PORT",
        _ => "VALUE",
    }
}

fn capital(sentence: &str) -> String {
    let mut letters = sentence.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::args::Cli;
    use crate::cli::verbs::Verb;

    fn given(line: &[&str]) -> Vec<(&'static str, String)> {
        match Cli::try_parse_from(line).expect("good flags").verb {
            Verb::Serve(serve) => serve.settings.given,
            other => panic!("not serve: {other:?}"),
        }
    }

    #[test]
    fn every_setting_is_a_flag_of_serve() {
        for setting in NODE_SETTINGS {
            let flag = format!("--{}={}", setting.flag(), setting.default.value());
            assert_eq!(given(&["coppice", "serve", &flag]), [(setting.key, setting.default.value())]);
        }
    }

    #[test]
    fn switches_need_no_value_and_flags_may_be_shortened() {
        assert_eq!(given(&["coppice", "serve", "--insecure"]), [("insecure", "true".to_owned())]);
        assert_eq!(given(&["coppice", "serve", "--insecure=false"]), [("insecure", "false".to_owned())]);
        assert_eq!(given(&["coppice", "serve", "--log-fl", "off"]), [("log.flush", "off".to_owned())]);
    }
}
