//! Merging flags, environment, file and defaults, and remembering where each value came from.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use coppice_core::settings::nearest;
use rustix::fs::OFlags;

use super::check::check;
use super::environment::read_environment;
use super::error::ConfigError;
use super::node::NodeConfig;
use super::table::{NODE_SETTINGS, Setting, find};

/// Files that are looked for, in this order, when none is named.
const FILES: [&str; 2] = ["./coppice.toml", "/etc/coppice/coppice.toml"];

/// All settings with all their comments are a hundredth of that.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Nobody said anything.
    Default,
    /// A configuration file.
    File(PathBuf),
    /// An environment variable.
    Environment(String),
    /// A flag of the command line.
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path) => write!(f, "file {}", path.display()),
            Self::Environment(variable) => write!(f, "environment {variable}"),
            Self::Flag(flag) => write!(f, "flag --{flag}"),
        }
    }
}

/// Everything that a configuration is merged from.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// Setting name and text, from the command line.
    pub flags: Vec<(&'static str, String)>,
    /// The environment, or as much of it as shall count.
    pub environment: Vec<(String, OsString)>,
    /// The file to read. None: the first that exists of `./coppice.toml` and `/etc/coppice/coppice.toml`.
    pub file: Option<PathBuf>,
    /// Looks at no file at all, not even those that are looked for by default.
    pub no_file: bool,
}

impl Sources {
    /// The process's own environment and the usual files.
    #[must_use]
    pub fn of_process() -> Self {
        let environment = std::env::vars_os()
            // A name that is no text is none of ours.
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
            .collect();
        Self { environment, ..Self::default() }
    }
}

/// A merged configuration.
#[derive(Debug)]
pub struct Loaded {
    /// The values.
    pub config: NodeConfig,
    /// Each setting, in the order of the table.
    pub effective: Vec<Effective>,
    /// The file that was read.
    pub file: Option<PathBuf>,
    /// Sentences for the operator: nothing wrong, but worth knowing.
    pub warnings: Vec<String>,
}

/// One setting as it holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Effective {
    pub key: &'static str,
    /// Its value, as it would be written.
    pub value: String,
    /// Where it came from.
    pub origin: Origin,
}

/// Merges `sources`, flag over environment over file over default, and checks that the values go together.
///
/// # Errors
/// The first fault found; nothing is guessed.
pub fn load(sources: &Sources) -> Result<Loaded, ConfigError> {
    let mut given = BTreeMap::new();
    let file = read_file(sources, &mut given)?;
    let warnings = read_environment(&sources.environment, &mut given)?;
    for (key, text) in &sources.flags {
        let setting = find(key).expect("flags are made from the table");
        given.insert(setting.key, (text.clone(), Origin::Flag(setting.flag())));
    }
    let mut config = NodeConfig::blank();
    let mut effective = Vec::with_capacity(NODE_SETTINGS.len());
    for setting in NODE_SETTINGS {
        let (text, origin) = given.remove(setting.key).unwrap_or_else(|| (setting.default.value(), Origin::Default));
        if let Err(expected) = setting.read(&mut config, &text) {
            return Err(ConfigError::Invalid { key: setting.key, origin, expected });
        }
        if origin != Origin::Default {
            config.origins.insert(setting.key, origin.clone());
        }
        effective.push(Effective { key: setting.key, value: setting.show(&config), origin });
    }
    check(&config, &effective)?;
    Ok(Loaded { config, effective, file, warnings })
}

/// Setting name to its text and where that stood.
pub(super) type Given = BTreeMap<&'static str, (String, Origin)>;

fn read_file(sources: &Sources, given: &mut Given) -> Result<Option<PathBuf>, ConfigError> {
    if sources.no_file {
        return Ok(None);
    }
    let found = || FILES.iter().map(PathBuf::from).find(|path| path.exists());
    let Some(path) = sources.file.clone().or_else(found) else { return Ok(None) };
    let text = read_text(&path).map_err(|source| ConfigError::File { path: path.clone(), source })?;
    let table: toml::Table =
        toml::from_str(&text).map_err(|error| ConfigError::Syntax { path: path.clone(), reason: error.to_string() })?;
    let origin = Origin::File(path.clone());
    for (key, value) in &table {
        read_value(key, value, &origin, given)?;
    }
    Ok(Some(path))
}

fn read_text(path: &Path) -> io::Result<String> {
    // A pipe without a writer must not be waited for.
    let file = OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(path)?;
    if !file.metadata()?.is_file() && path != Path::new("/dev/null") {
        return Err(io::Error::other("it is no regular file"));
    }
    let mut text = String::new();
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > FILE_BYTES_MAX { Err(io::Error::other("it is larger than 1 MiB")) } else { Ok(text) }
}

/// A value of a file; a table's keys continue its own name.
fn read_value(key: &str, value: &toml::Value, origin: &Origin, given: &mut Given) -> Result<(), ConfigError> {
    if let toml::Value::Table(table) = value {
        known_prefix(key, origin)?;
        return table.iter().try_for_each(|(inner, value)| read_value(&format!("{key}.{inner}"), value, origin, given));
    }
    let setting = known(key, origin)?;
    let text = text_of(value).ok_or_else(|| ConfigError::Invalid {
        key: setting.key,
        origin: origin.clone(),
        expected: format!("a string, a number, true, false or a list of strings, not `{value}`"),
    })?;
    given.insert(setting.key, (text, origin.clone()));
    Ok(())
}

/// A value of a file as the text that a flag would have.
fn text_of(value: &toml::Value) -> Option<String> {
    match value {
        toml::Value::String(text) => Some(text.clone()),
        toml::Value::Integer(number) => Some(number.to_string()),
        toml::Value::Boolean(switch) => Some(switch.to_string()),
        toml::Value::Array(items) => {
            let items: Option<Vec<&str>> = items.iter().map(toml::Value::as_str).collect();
            Some(items?.join(","))
        }
        _ => None,
    }
}

fn known(key: &str, origin: &Origin) -> Result<&'static Setting, ConfigError> {
    find(key).ok_or_else(|| unknown(key, origin))
}

/// Refuses a table that no setting stands in, by the table's own name.
fn known_prefix(key: &str, origin: &Origin) -> Result<(), ConfigError> {
    let inside = |setting: &Setting| setting.key.strip_prefix(key).is_some_and(|rest| rest.starts_with('.'));
    if NODE_SETTINGS.iter().any(inside) { Ok(()) } else { Err(unknown(key, origin)) }
}

fn unknown(key: &str, origin: &Origin) -> ConfigError {
    let nearest = nearest(key, NODE_SETTINGS.iter().map(|setting| setting.key)).map(str::to_owned);
    ConfigError::Unknown { key: key.to_owned(), origin: origin.clone(), nearest }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use coppice_core::settings::units::MIB;

    use super::*;
    use crate::config::Flush;

    /// A file of its own for one test, removed with it.
    struct TestFile(PathBuf);

    impl TestFile {
        fn new(text: &str) -> Self {
            static COUNT: AtomicU32 = AtomicU32::new(0);
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            let path = std::env::temp_dir().join(format!("coppice-config-{}-{count}.toml", std::process::id()));
            std::fs::write(&path, text).expect("the temporary directory takes a file");
            Self(path)
        }
    }

    impl Drop for TestFile {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    fn with(file: Option<&TestFile>, environment: &[(&str, &str)], flags: &[(&'static str, &str)]) -> Sources {
        Sources {
            flags: flags.iter().map(|(key, text)| (*key, (*text).to_owned())).collect(),
            environment: environment.iter().map(|(name, text)| ((*name).to_owned(), (*text).into())).collect(),
            file: file.map(|file| file.0.clone()),
            no_file: file.is_none(),
        }
    }

    fn error_of(sources: &Sources) -> String {
        load(sources).map(|_| ()).expect_err("a refusal").to_string()
    }

    fn origin_of(loaded: &Loaded, key: &str) -> Origin {
        loaded.effective.iter().find(|e| e.key == key).map(|e| e.origin.clone()).expect("a known key")
    }

    #[test]
    fn a_flag_beats_a_variable_beats_a_file_beats_the_default() {
        let file = TestFile::new("name = \"f\"\ndrain_timeout = \"1s\"\nkeepalive = \"7s\"\n");
        let environment = [("COPPICE_NAME", "e"), ("COPPICE_DRAIN_TIMEOUT", "2s")];
        let loaded = load(&with(Some(&file), &environment, &[("name", "flag")])).expect("good values");
        let seconds = |s| std::time::Duration::from_secs(s);
        assert_eq!(loaded.config.name, "flag");
        assert_eq!(loaded.config.drain_timeout, seconds(2));
        assert_eq!(loaded.config.keepalive, seconds(7));
        assert_eq!(loaded.config.handshake_timeout, seconds(5));
        assert_eq!(origin_of(&loaded, "name"), Origin::Flag("name".into()));
        assert_eq!(origin_of(&loaded, "drain_timeout"), Origin::Environment("COPPICE_DRAIN_TIMEOUT".into()));
        assert_eq!(origin_of(&loaded, "keepalive"), Origin::File(file.0.clone()));
        assert_eq!(origin_of(&loaded, "handshake_timeout"), Origin::Default);
    }

    #[test]
    fn tables_lists_and_numbers_of_a_file_are_read() {
        let file = TestFile::new(
            "seeds = [\"a:1\", \"b:2\"]\nlisten = { native = \"127.0.0.1:1\", peer = \"127.0.0.1:2\" }\n\
             insecure = false\n[log]\nsegment_bytes = \"16 MiB\"\nsegments_ahead = 2\n",
        );
        let config = load(&with(Some(&file), &[], &[])).expect("good values").config;
        assert_eq!(config.seeds.len(), 2);
        assert_eq!(config.listen.peer.port(), 2);
        assert_eq!((config.log.segment_bytes, config.log.segments_ahead), (16 * MIB, 2));
    }

    #[test]
    fn a_misspelled_name_is_refused_and_the_nearest_is_named() {
        let file = TestFile::new("[log]\nfulsh = \"off\"\n");
        assert_eq!(error_of(&with(Some(&file), &[], &[])), "unknown setting `log.fulsh`; did you mean `log.flush`?");
        let file = TestFile::new("[lgo]\nflush = \"off\"\n");
        assert!(error_of(&with(Some(&file), &[], &[])).starts_with("unknown setting `lgo`"));
        let text = error_of(&with(None, &[("COPPICE_LOG_FLSH", "off")], &[]));
        assert_eq!(text, "unknown setting `COPPICE_LOG_FLSH`; did you mean `COPPICE_LOG_FLUSH`?");
    }

    #[test]
    fn variables_of_a_container_platform_are_not_ours() {
        let environment =
            [("COPPICE_SERVICE_HOST", "10.0.0.1"), ("COPPICE_PORT_7400_TCP", "x"), ("COPPICE_ENDPOINTS", "x")];
        assert!(load(&with(None, &environment, &[])).is_ok_and(|loaded| loaded.warnings.is_empty()));
        let loaded = load(&with(None, &[("COPPICE_BANANAS", "1")], &[])).expect("a warning only");
        assert_eq!(loaded.warnings.len(), 1);
    }

    #[test]
    fn the_shared_log_variable_yields_to_the_settings_own() {
        let environment = [("COPPICE_LOG_LEVEL", "warn"), ("COPPICE_LOG", "debug")];
        let level = |environment: &[(&str, &str)]| load(&with(None, environment, &[])).map(|l| l.config.log_level).ok();
        assert_eq!(level(&environment), Some("warn".to_owned()));
        assert_eq!(level(&environment[1..]), Some("debug".to_owned()));
    }

    #[test]
    fn a_wrong_value_names_its_setting_its_place_and_what_was_expected() {
        let error = load(&with(None, &[("COPPICE_LOG_SEGMENT_BYTES", "64")], &[])).map(|_| ()).expect_err("no unit");
        assert_eq!(
            error.to_string(),
            "`log.segment_bytes` must be a size with its unit, such as `64 MiB` or `512 B`, not `64`"
        );
        assert_eq!(error.place(), "environment COPPICE_LOG_SEGMENT_BYTES");
    }

    #[test]
    fn a_missing_file_that_was_asked_for_is_an_error() {
        let sources = Sources { file: Some(PathBuf::from("/nowhere/coppice.toml")), ..Sources::default() };
        assert!(matches!(load(&sources), Err(ConfigError::File { .. })));
    }

    #[test]
    fn a_variable_that_is_no_text_is_refused() {
        use std::os::unix::ffi::OsStringExt;
        let broken = || OsString::from_vec(b"d\xff".to_vec());
        for (name, key) in [("COPPICE_DATA_DIR", "data_dir"), ("COPPICE_LOG", "log_level")] {
            let sources = Sources { environment: vec![(name.to_owned(), broken())], ..with(None, &[], &[]) };
            assert!(error_of(&sources).starts_with(&format!("`{key}` must be text in UTF-8, not ")), "{name}");
        }
        let foreign = Sources { environment: vec![("LESSOPEN".to_owned(), broken())], ..with(None, &[], &[]) };
        assert!(load(&foreign).is_ok());
    }

    #[test]
    fn only_a_regular_file_of_bounded_size_is_read() {
        let file = TestFile::new(&"#".repeat(FILE_BYTES_MAX as usize + 1));
        assert!(error_of(&with(Some(&file), &[], &[])).ends_with("it is larger than 1 MiB"));
        let of = |path: &str| Sources { file: Some(PathBuf::from(path)), ..Sources::default() };
        assert!(error_of(&of("/dev/zero")).ends_with("it is no regular file"));
        assert!(load(&of("/dev/null")).is_ok());
        let pipe = TestFile::new("");
        std::fs::remove_file(&pipe.0).expect("it is there");
        let made = std::process::Command::new("mkfifo").arg(&pipe.0).status().expect("mkfifo runs");
        assert!(made.success());
        assert!(error_of(&with(Some(&pipe), &[], &[])).ends_with("it is no regular file"));
    }

    #[test]
    fn two_doors_cannot_share_a_port() {
        let same = [("listen.native", "127.0.0.1:7400"), ("listen.peer", "127.0.0.1:7400")];
        assert!(error_of(&with(None, &[], &same)).contains("`listen.native` and `listen.peer` are both"));
        let any = [("listen.native", "127.0.0.1:0"), ("listen.peer", "127.0.0.1:0")];
        assert!(load(&with(None, &[], &any)).is_ok());
    }

    #[test]
    fn unsafe_things_need_their_second_word() {
        assert!(error_of(&with(None, &[], &[("log.flush", "off")])).contains("unsafe"));
        let loaded = load(&with(None, &[], &[("log.flush", "off"), ("unsafe_no_flush", "true")])).expect("asked twice");
        assert_eq!(loaded.config.log.flush, Flush::Off);
        assert!(error_of(&with(None, &[], &[("listen.native", "10.0.0.1:7400")])).contains("beyond loopback"));
        assert!(load(&with(None, &[], &[("listen.native", "10.0.0.1:7400"), ("insecure", "true")])).is_ok());
        assert!(
            error_of(&with(None, &[], &[("listen.peer", "0.0.0.0:7402"), ("insecure", "true")])).contains("wildcard")
        );
        let faults = [("allow_faults", "true"), ("listen.native", "10.0.0.1:7400"), ("insecure", "true")];
        assert!(error_of(&with(None, &[], &faults)).contains("loopback"));
        assert!(error_of(&with(None, &[], &[("dial_override", "n2=127.0.0.1:9002")])).contains("allow_faults"));
    }
}
