//! What can be wrong with a configuration, and what to do about it.

use std::path::PathBuf;

use super::load::Origin;

/// Why a configuration was refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file that was asked for cannot be read.
    #[error("{path}: {source}", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The file is no TOML.
    #[error("{path}: {reason}", path = path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The parser's reason, with line and column.
        reason: String,
    },
    /// A name that no version knows.
    #[error("unknown setting `{key}`{}", did_you_mean(nearest.as_deref()))]
    Unknown {
        /// The name as it was written.
        key: String,
        /// Where it was written.
        origin: Origin,
        /// The nearest known name.
        nearest: Option<String>,
    },
    /// A value that its setting cannot have.
    #[error("`{key}` must be {expected}")]
    Invalid {
        /// The name.
        key: &'static str,
        /// Where the value was written.
        origin: Origin,
        /// What was expected, and what was there.
        expected: String,
    },
    /// Values that are good alone but not together.
    #[error("{what}")]
    Conflict {
        /// What does not go together.
        what: String,
        /// Where the deciding value was written.
        origin: Origin,
        /// What would mend it.
        remedy: &'static str,
    },
}

fn did_you_mean(nearest: Option<&str>) -> String {
    nearest.map(|name| format!("; did you mean `{name}`?")).unwrap_or_default()
}

impl ConfigError {
    /// Where the fault stands: a file, a variable, a flag.
    #[must_use]
    pub fn place(&self) -> String {
        match self {
            Self::File { path, .. } | Self::Syntax { path, .. } => path.display().to_string(),
            Self::Unknown { origin, .. } | Self::Invalid { origin, .. } | Self::Conflict { origin, .. } => {
                origin.to_string()
            }
        }
    }

    /// The likely cause, in a sentence.
    #[must_use]
    pub fn cause(&self) -> String {
        match self {
            Self::File { .. } => "the file is missing, may not be read, or is not a file of settings".to_owned(),
            Self::Syntax { .. } => "the file is not valid TOML".to_owned(),
            Self::Unknown { nearest: Some(_), .. } => "a typing error".to_owned(),
            Self::Unknown { nearest: None, .. } => "no setting has this name".to_owned(),
            Self::Invalid { .. } => "the value is written wrongly or out of bounds".to_owned(),
            Self::Conflict { remedy, .. } => (*remedy).to_owned(),
        }
    }
}
