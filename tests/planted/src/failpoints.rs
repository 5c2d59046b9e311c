//! Failpoints: named places at which a process can be made to panic, to wait, or to be told that its disk failed
//! (hazards.md 2, E10). A test ends a node at each of them, in the middle of what it is about.
//!
//! They exist only in builds with the feature `failpoints`, which no release has; in others `failpoint!` is nothing at
//! all. The environment arms them: `COPPICE_FAILPOINTS="log.after_flush=panic@37,checkpoint.chunk=delay(20)"`, the
//! number being the hit that it happens at; without one it happens at every hit. A file named by
//! `COPPICE_FAILPOINTS_SEEN` is told which were reached, and how often.
//!
//! A module of our own, not the crate `fail`: that one has no list of its points, does not count how often one is
//! reached, and brings a generator of random numbers.

/// A place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failpoint {
    /// Its name: the part of the node, and what has just been done, or is about to be.
    pub name: &'static str,
    /// An error of the disk can be met there.
    pub can_fail: bool,
}

/// A place in code that has no error to return.
const fn at(name: &'static str) -> Failpoint {
    Failpoint { name, can_fail: false }
}

/// A place in code that hears from a disk.
const fn io(name: &'static str) -> Failpoint {
    Failpoint { name, can_fail: true }
}

/// All of them. A tidy test holds this list against the sources.
pub const ALL: &[Failpoint] = &[
    // The log's writer: one write and one flush for every vote that waits.
    io("log.before_write"),
    at("log.after_write"),
    io("log.before_flush"),
    at("log.after_flush"),
    at("log.before_completions"),
    // The segment that every start opens for itself.
    io("open.before_create"),
    io("open.before_write"),
    io("open.before_flush"),
    io("open.before_rename"),
    io("open.before_flush_dir"),
    at("open.after_flush_dir"),
    io("open.before_truncate"),
    io("open.before_remove"),
    // The log's keeper: segments made ahead, from nothing or of files that were segments before.
    io("segment.before_create"),
    io("segment.before_flush"),
    io("segment.before_flush_dir"),
    at("segment.after_flush_dir"),
    io("reuse.before_clear"),
    io("reuse.before_rename"),
    // The log's keeper: segments that nobody needs.
    io("trim.before_rename"),
    io("trim.before_remove"),
    io("trim.before_flush_dir"),
    at("trim.after_flush_dir"),
    // Files of the data directory: `node.toml`, `VERSION`, `map`, `endpoints.json`, `SUMS`.
    io("file.before_write"),
    io("file.before_flush"),
    io("file.before_rename"),
    io("file.before_flush_dir"),
    at("recovery.log"),
    at("datadir.log_made"),
    at("datadir.log_opened"),
    at("datadir.identified"),
    // Checkpoints, the node's own and received ones.
    io("checkpoint.present"),
    io("checkpoint.begun"),
    io("checkpoint.chunk"),
    io("checkpoint.part_flushed"),
    io("checkpoint.written"),
    io("checkpoint.read_back"),
    io("checkpoint.summed"),
    io("checkpoint.before_rename"),
    io("checkpoint.renamed"),
    at("checkpoint.durable"),
    io("checkpoint.old_aside"),
    at("checkpoint.old_gone"),
    io("checkpoint.before_load"),
    at("checkpoint.counts"),
    io("checkpoint.before_delete"),
    // Snapshots between nodes.
    io("snapshot.chunk_sent"),
    at("snapshot.begun"),
    io("snapshot.chunk_received"),
    at("snapshot.stored"),
    at("snapshot.before_install"),
    at("snapshot.installed"),
    // Batches: run, decided, taken back.
    at("batch.executed"),
    at("batch.decided"),
    at("undo.tree_record"),
    at("undo.boundaries"),
    at("undo.session_record"),
    at("undo.batch"),
    // Tickets and moved boundaries in a partition's log.
    at("ticket.placed"),
    at("split.cut"),
    at("split.forked"),
    at("merge.sealed"),
    at("merge.joined"),
    // The change machine in the directory's log.
    at("change.split"),
    at("change.merge"),
    at("change.move"),
    at("change.moved"),
    at("change.released"),
    at("change.gone"),
    // What replicas have the worker thread do.
    at("worker.promise"),
    at("worker.vote"),
    at("worker.learned"),
    at("worker.appended"),
    at("worker.leads"),
    at("worker.follows"),
    at("worker.answered"),
    at("worker.replied"),
    at("worker.leaves"),
    at("worker.absorbs"),
    // Replicas that begin and end here, the map, leaderships.
    at("control.created"),
    at("control.forked"),
    at("control.joined"),
    at("control.hosted"),
    at("control.removed"),
    at("control.map_kept"),
    at("control.map_adopted"),
    at("control.configures"),
    at("control.transfers"),
];

/// A failpoint: nothing, unless a build with the feature `failpoints` was told otherwise. With `io` before its name it
/// gives the result of an input or output that did nothing.
#[macro_export]
macro_rules! failpoint {
    (io $name:literal) => {{
        #[cfg(feature = "failpoints")]
        let met: std::io::Result<()> = $crate::failpoints::meet_io(const { $crate::failpoints::place($name, true) });
        #[cfg(not(feature = "failpoints"))]
        let met: std::io::Result<()> = Ok(());
        met
    }};
    ($name:literal) => {{
        #[cfg(feature = "failpoints")]
        $crate::failpoints::meet(const { $crate::failpoints::place($name, false) });
    }};
}

#[cfg(feature = "failpoints")]
pub use armed::{meet, meet_io, place};

#[cfg(all(feature = "failpoints", not(debug_assertions)))]
compile_error!("failpoints are for tests: build with debug assertions (profiles dev and sim), never a release");

/// Reads what the environment arms, in a build that has failpoints: a mistake in it ends the process now.
pub fn arm() {
    #[cfg(feature = "failpoints")]
    armed::arm();
}

/// What the feature adds.
#[cfg(feature = "failpoints")]
mod armed {
    use std::fs::{File, OpenOptions};
    use std::io::{self, Write};
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use super::ALL;

    /// An input or output error, as the system counts them.
    const EIO: i32 = 5;

    /// What happens at an armed failpoint.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum Action {
        Panic,
        Delay(Duration),
        Error,
    }

    /// One failpoint that was armed.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) struct Armed {
        pub(super) place: usize,
        pub(super) action: Action,
        /// At this hit, counted from 1; none: at each.
        pub(super) hit: Option<u64>,
    }

    struct Setting {
        armed: Vec<Armed>,
        /// Who is told what was reached.
        seen: Option<File>,
    }

    static HITS: [AtomicU64; ALL.len()] = [const { AtomicU64::new(0) }; ALL.len()];
    static SETTING: OnceLock<Setting> = OnceLock::new();

    /// The number of a failpoint of this name and kind; a name that is not listed does not compile.
    pub const fn place(name: &str, can_fail: bool) -> usize {
        let mut at = 0;
        while at < ALL.len() {
            if same(ALL[at].name.as_bytes(), name.as_bytes()) && ALL[at].can_fail == can_fail {
                return at;
            }
            at += 1;
        }
        panic!("not in the list of failpoints, or of the other kind there");
    }

    const fn same(one: &[u8], other: &[u8]) -> bool {
        let mut at = 0;
        while at < one.len() && at < other.len() && one[at] == other[at] {
            at += 1;
        }
        at == one.len() && at == other.len()
    }

    /// Reads `name=action@hit,..`.
    pub(super) fn parse(text: &str) -> Result<Vec<Armed>, String> {
        let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
        words.map(|word| parse_one(word).ok_or_else(|| format!("`{word}` arms no failpoint"))).collect()
    }

    fn parse_one(word: &str) -> Option<Armed> {
        let (name, action) = word.split_once('=')?;
        let (action, hit) = match action.split_once('@') {
            Some((action, hit)) => (action, Some(hit.parse().ok().filter(|hit| *hit > 0)?)),
            None => (action, None),
        };
        let place = ALL.iter().position(|known| known.name == name)?;
        let action = match action {
            "panic" => Action::Panic,
            "error" if ALL[place].can_fail => Action::Error,
            _ => {
                let millis = action.strip_prefix("delay(")?.strip_suffix(')')?;
                Action::Delay(Duration::from_millis(millis.parse().ok()?))
            }
        };
        Some(Armed { place, action, hit })
    }

    /// What the environment says. One that arms something that there is not ends the process: a test would be about
    /// nothing.
    fn setting() -> &'static Setting {
        SETTING.get_or_init(|| {
            let armed = parse(&std::env::var("COPPICE_FAILPOINTS").unwrap_or_default());
            let armed = armed.unwrap_or_else(|wrong| {
                eprintln!("COPPICE_FAILPOINTS: {wrong}");
                std::process::exit(2)
            });
            let seen = std::env::var_os("COPPICE_FAILPOINTS_SEEN");
            let open = |path| OpenOptions::new().create(true).append(true).open(path).ok();
            Setting { armed, seen: seen.and_then(open) }
        })
    }

    /// Reads it now.
    pub(super) fn arm() {
        setting();
    }

    /// A failpoint is reached.
    pub fn meet(place: usize) {
        // A place without an error to return cannot be armed with one.
        _ = meet_io(place);
    }

    /// A failpoint is reached where the disk may fail.
    pub fn meet_io(place: usize) -> io::Result<()> {
        let Setting { armed, seen } = setting();
        let hit = HITS[place].fetch_add(1, Ordering::Relaxed) + 1;
        if hit.is_power_of_two() {
            tell(seen.as_ref(), place, &hit.to_string());
        }
        let met = armed.iter().filter(|armed| armed.place == place && armed.hit.is_none_or(|wanted| wanted == hit));
        for armed in met {
            if armed.hit.is_some() || hit == 1 {
                tell(seen.as_ref(), place, "fires");
            }
            match armed.action {
                Action::Panic => panic!("failpoint {}, hit {hit}", ALL[place].name),
                Action::Delay(delay) => std::thread::sleep(delay),
                Action::Error => return Err(io::Error::from_raw_os_error(EIO)),
            }
        }
        Ok(())
    }

    /// One line, in one write: threads and processes share the file, and a process may be killed at any time.
    fn tell(seen: Option<&File>, place: usize, what: &str) {
        if let Some(mut seen) = seen {
            _ = seen.write_all(format!("{} {what}\n", ALL[place].name).as_bytes());
        }
    }
}

#[cfg(all(test, feature = "failpoints"))]
mod tests {
    use std::time::Duration;

    use super::armed::{Action, Armed, parse};
    use super::*;

    #[test]
    fn what_the_environment_arms_is_read_and_mistakes_are_told() {
        let place = |name: &str| ALL.iter().position(|known| known.name == name).expect("listed");
        let (flush, reply) = (place("log.before_flush"), place("worker.replied"));
        let delay = Action::Delay(Duration::from_millis(20));
        let armed = [
            Armed { place: flush, action: Action::Panic, hit: Some(37) },
            Armed { place: reply, action: delay, hit: None },
            Armed { place: flush, action: Action::Error, hit: Some(1) },
        ];
        let text = "log.before_flush=panic@37, worker.replied=delay(20),log.before_flush=error@1,";
        assert_eq!(parse(text).expect("well written"), armed);
        for wrong in ["log.before_flush", "log.nowhere=panic", "worker.replied=error", "worker.replied=panic@0"] {
            assert!(parse(wrong).is_err_and(|why| why.contains(wrong)), "{wrong}");
        }
        assert!(parse("worker.replied=delay(x)").is_err() && parse("worker.replied=sleep").is_err());
    }
}
