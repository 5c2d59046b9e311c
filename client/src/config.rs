//! What a client can be told, with the defaults of operations.md 3.

use std::time::Duration;

use crate::command::ReadMode;
use crate::tls::Tls;
use crate::token::Token;
use crate::wire::{ClusterId, NodeId};

/// Settings of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Every call ends within this time, with an answer, a failure or an unknown outcome.
    pub timeout: Duration,
    /// Silence after which a request is sent again, to another replica; doubles up to eight times this per call.
    pub attempt_timeout: Duration,
    /// A connection that is not open and greeted by then is given up.
    pub connect_timeout: Duration,
    /// Whether calls fail at once when every endpoint refuses the first connection: nobody listens there. For programs
    /// of one command; others may start before the nodes do, and try until the timeout.
    pub fail_when_refused: bool,
    /// A node that answers nothing for this long, while it is asked something, is disconnected.
    pub silence_max: Duration,
    /// First pause after `Busy` and after a failed connection; doubles, with jitter.
    pub backoff: Duration,
    /// Longest such pause.
    pub backoff_max: Duration,
    /// Longest pause between two searches for a partition's leader. Shorter than `backoff_max`, because a search costs
    /// one small frame and its pause adds to every gap that a leader's loss makes.
    pub search_pause_max: Duration,
    /// Bytes of commands that are packed into one frame.
    pub pack_bytes: usize,
    /// Packs of one partition that may wait for their answer. Commands beyond wait and fill the next pack.
    pub window: usize,
    /// Frames of gets of one partition that may wait for their answer.
    pub read_window: usize,
    /// Ranges that may be under way on one connection; further ones wait here. Well below what a node admits
    /// (`limits.inflight`), so that none is turned away with `Busy`.
    pub range_window: usize,
    /// Calls that may wait in this client; beyond, `submit` refuses and futures wait.
    pub calls_max: usize,
    /// Bytes of keys and values that may wait in this client.
    pub bytes_max: usize,
    /// How gets and ranges are served unless a call says otherwise.
    pub reads: ReadMode,
    /// Whether ranges across partitions are first read in each of them and validated, and ordered by a ticket only
    /// where that fails. Either way they are linearizable; without it all of them take a ticket.
    pub optimistic_scans: bool,
    /// Bytes of a range that may be under way or unread: its memory.
    pub range_credit: u32,
    /// How long an unknown command's number is kept unacknowledged, so that it can be resumed.
    pub resume_keep: Duration,
    /// The cluster that is wanted; none: the first that answers.
    pub cluster: Option<ClusterId>,
    /// Shows which user this client acts for; none: by its certificate, or nobody ([`Token::from_file`]).
    pub token: Option<Token>,
    /// Certificates; none: nodes are spoken to in the clear.
    pub tls: Option<Tls>,
    /// Dial these addresses instead of the map's: for proxies in tests.
    pub dial_override: Vec<(NodeId, String)>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            timeout: Duration::from_secs(5),
            attempt_timeout: Duration::from_millis(500),
            connect_timeout: Duration::from_secs(1),
            fail_when_refused: false,
            silence_max: Duration::from_secs(2),
            backoff: Duration::from_millis(5),
            backoff_max: Duration::from_millis(500),
            search_pause_max: Duration::from_millis(100),
            pack_bytes: 8 * 1024,
            window: 4,
            read_window: 4,
            range_window: 256,
            calls_max: 65_536,
            bytes_max: 64 * 1024 * 1024,
            reads: ReadMode::Leader,
            optimistic_scans: true,
            range_credit: 1024 * 1024,
            resume_keep: Duration::from_secs(60),
            cluster: None,
            token: None,
            tls: None,
            dial_override: Vec::new(),
        }
    }
}
