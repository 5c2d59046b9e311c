//! The part of the environment that is meant for a node.

use std::ffi::{OsStr, OsString};

use coppice_core::settings::nearest;

use super::error::ConfigError;
use super::load::{Given, Origin};
use super::table::{NODE_SETTINGS, Setting};

const PREFIX: &str = "COPPICE_";

/// The name that programs of this kind share for the log level; the setting's own variable wins over it.
const SHARED_LOG_VARIABLE: &str = "COPPICE_LOG";

/// Variables of our prefix that are read elsewhere: by clients, by tests, by container images.
const READ_ELSEWHERE: [&str; 9] = [
    "COPPICE_ENDPOINTS",
    "COPPICE_TOKEN_FILE",
    "COPPICE_TIMEOUT",
    "COPPICE_OUTPUT",
    "COPPICE_CONFIG",
    "COPPICE_MUTANT",
    "COPPICE_VERSION",
    "COPPICE_FAILPOINTS",
    "COPPICE_FAILPOINTS_SEEN",
];

/// A container platform sets such variables for every service of our name; they are not meant for us.
const PLATFORM_PREFIXES: [&str; 2] = ["COPPICE_SERVICE_", "COPPICE_PORT"];

/// Takes the settings out of `environment`, over what the file gave. Returns warnings.
pub(super) fn read_environment(
    environment: &[(String, OsString)],
    given: &mut Given,
) -> Result<Vec<String>, ConfigError> {
    let mut warnings = Vec::new();
    for (name, text) in environment.iter().filter(|(name, _)| name == SHARED_LOG_VARIABLE) {
        given.insert("log_level", text_of("log_level", name, text)?);
    }
    for (name, text) in environment.iter().filter(|(name, _)| is_ours(name)) {
        match NODE_SETTINGS.iter().find(|setting| setting.variable() == *name) {
            Some(setting) => {
                given.insert(setting.key, text_of(setting.key, name, text)?);
            }
            None => warnings.push(warning_for(name)?),
        }
    }
    Ok(warnings)
}

/// The value of a variable, and where it stands.
fn text_of(key: &'static str, name: &str, value: &OsStr) -> Result<(String, Origin), ConfigError> {
    let origin = Origin::Environment(name.to_owned());
    match value.to_str() {
        Some(text) => Ok((text.to_owned(), origin)),
        None => Err(ConfigError::Invalid { key, origin, expected: format!("text in UTF-8, not {value:?}") }),
    }
}

fn is_ours(name: &str) -> bool {
    name.starts_with(PREFIX)
        && name != SHARED_LOG_VARIABLE
        && !READ_ELSEWHERE.contains(&name)
        && !PLATFORM_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// A variable that is no setting: refused if it is nearly one, else worth a warning only, for it may be
/// somebody else's.
fn warning_for(name: &str) -> Result<String, ConfigError> {
    let origin = Origin::Environment(name.to_owned());
    let spelled = name[PREFIX.len()..].to_ascii_lowercase();
    let spellings: Vec<String> = NODE_SETTINGS.iter().map(|setting| setting.key.replace('.', "_")).collect();
    let meant = nearest(&spelled, spellings.iter().map(String::as_str));
    match meant.and_then(|meant| spellings.iter().position(|spelling| spelling == meant)) {
        Some(index) => {
            let nearest = Some(Setting::variable(&NODE_SETTINGS[index]));
            Err(ConfigError::Unknown { key: name.to_owned(), origin, nearest })
        }
        None => Ok(format!("the environment variable {name} is no setting and is ignored")),
    }
}
