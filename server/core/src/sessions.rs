//! The session table of one partition: at most once for every numbered command (protocol.md 6).
//!
//! It keeps the answers that clients have not acknowledged, by log order and never by a clock. Everything it does can
//! be taken back by one [`SessionUndo`]. It does not know what a command means, nor who waits for its answer.

mod limits;
mod order;
mod pressure;
mod repeats;
#[cfg(test)]
mod tests;
mod undo;

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use coppice_client::wire::{PartitionId, SessionId};
pub use limits::SessionLimits;
use limits::used_at;
use order::Order;
use pressure::Sizes;
pub use repeats::Repeats;
use serde::{Deserialize, Serialize};
pub use undo::SessionUndo;
use undo::{SessionChange, note_dropped};

/// What the table knows of a command's number.
#[derive(Debug, PartialEq, Eq)]
pub enum CommandLookup<'a> {
    /// Never seen: execute it.
    New,
    /// Executed before, at this instance and index, with this encoded result.
    Answered {
        /// In whose log: after a split, perhaps the parent's.
        partition: PartitionId,
        instance: u64,
        /// Index in its batch.
        index: u32,
        /// What came of it.
        result: &'a [u8],
    },
    /// Acknowledged by the client before: a late copy, dropped without an answer.
    Acknowledged,
    /// Executed or not, its answer is no longer kept: it must not execute, and its outcome stays unknown.
    Forgotten,
}

/// The numbers that one pack executed, in order.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Numbers {
    /// `count` numbers from `first`, without gaps.
    Run { first: u64, count: u32 },
    /// Any ascending numbers.
    List(Box<[u64]>),
}

impl Numbers {
    /// Packs ascending numbers as densely as they allow.
    pub fn from_ascending(numbers: &[u64]) -> Numbers {
        let dense = numbers.windows(2).all(|pair| pair[1] == pair[0] + 1);
        match numbers.first() {
            Some(&first) if dense => Numbers::Run { first, count: numbers.len() as u32 },
            _ => Numbers::List(numbers.into()),
        }
    }

    fn highest(&self) -> u64 {
        match self {
            Numbers::Run { first, count } => first + u64::from(*count) - 1,
            Numbers::List(list) => list.last().copied().unwrap_or(0),
        }
    }

    fn index_of(&self, number: u64) -> Option<usize> {
        match self {
            Numbers::Run { first, count } => {
                (number >= *first && number < first + u64::from(*count)).then(|| (number - first) as usize)
            }
            Numbers::List(list) => list.binary_search(&number).ok(),
        }
    }

    fn get(&self, at: usize) -> Option<u64> {
        match self {
            Numbers::Run { first, count } => (at < *count as usize).then(|| first + at as u64),
            Numbers::List(list) => list.get(at).copied(),
        }
    }

    fn len(&self) -> usize {
        match self {
            Numbers::Run { count, .. } => *count as usize,
            Numbers::List(list) => list.len(),
        }
    }

    /// Whether they are some, ascend, and have a successor.
    fn are_sound(&self) -> bool {
        match self {
            Numbers::Run { first, count } => *count > 0 && first.checked_add(u64::from(*count)).is_some(),
            Numbers::List(list) => !list.is_empty() && list.windows(2).all(|pair| pair[0] < pair[1]),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Numbers::Run { .. } => 16,
            Numbers::List(list) => 8 * list.len(),
        }
    }
}

/// The answers of the commands of one pack that executed, as they stand on the wire.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Answers {
    /// In whose log the pack was decided: after a split, perhaps the parent's.
    pub partition: PartitionId,
    /// Where the pack was decided.
    pub instance: u64,
    /// Numbers of the executed commands.
    pub numbers: Numbers,
    /// Index in its batch of each executed command.
    pub indexes: Numbers,
    /// The encoded results, one after the other. Repeated commands are rare, so they are found by walking.
    #[serde(with = "coppice_client::serde_bytes")]
    pub results: Bytes,
}

impl Answers {
    fn bytes(&self) -> usize {
        ANSWERS_BYTES + self.numbers.bytes() + self.indexes.bytes() + self.results.len()
    }

    /// Whether each number has an index. The results are looked at when they are repeated.
    fn are_sound(&self) -> bool {
        self.numbers.are_sound() && self.indexes.are_sound() && self.numbers.len() == self.indexes.len()
    }

    fn digest(&self) -> u64 {
        let seed = mix(self.instance ^ u64::from(self.partition.0) << 48, self.numbers.highest());
        mix(seed, u64::from(crc32c::crc32c(&self.results)) | (self.results.len() as u64) << 32)
    }
}

/// What one [`Answers`] costs beside its lists, in bytes.
const ANSWERS_BYTES: usize = 128;

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Row {
    client: u64,
    /// The highest "lowest unacknowledged" number seen: everything below is acknowledged.
    lowest_unacknowledged: u64,
    /// Highest number ever executed: a higher one is new without a search.
    highest: u64,
    /// Numbers up to here may have lost their answer to `bytes_max`.
    forgotten_upto: u64,
    /// Instance of the last pack, or of one before that and less than `SessionLimits::use_step` away. It begins with
    /// the very instance that opened the session: the newest is never the first to go.
    last_used: u64,
    /// A split copied it: another partition had the session too, and may have ended it since.
    shared: bool,
    /// Bytes of `answers` from `dropped` on.
    bytes: usize,
    /// Answers ever stored, ever dropped (acknowledged or forgotten), ever freed. `freed <= dropped <= stored`; what is
    /// dropped is freed only once the instance that dropped it is decided, so that undo can bring it back.
    stored: u64,
    dropped: u64,
    freed: u64,
    /// The answers from `freed` to `stored`.
    answers: VecDeque<Answers>,
}

impl Row {
    fn kept(&self) -> impl Iterator<Item = &Answers> {
        self.answers.iter().skip((self.dropped - self.freed) as usize)
    }

    fn front(&self) -> Option<&Answers> {
        self.answers.get((self.dropped - self.freed) as usize)
    }

    /// Forgets the oldest kept answers; their digest.
    fn forget_front(&mut self) -> Option<u64> {
        let front = self.front()?;
        let (bytes, highest, digest) = (front.bytes(), front.numbers.highest(), front.digest());
        self.forgotten_upto = self.forgotten_upto.max(highest);
        self.bytes -= bytes;
        self.dropped += 1;
        Some(digest)
    }

    fn free_to(&mut self, dropped: u64) {
        while self.freed < dropped {
            self.answers.pop_front();
            self.freed += 1;
        }
    }
}

/// The sessions of one partition.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Sessions {
    rows: BTreeMap<SessionId, Row>,
    order: Order,
    sizes: Sizes,
    /// Sum of the hashes of all kept answers and rows: equal tables have equal sums, whatever their history.
    digest: u64,
}

impl Sessions {
    /// How many sessions are open.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether no session is open.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// A rolling digest of the replicated content.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// Whether the session is open.
    pub fn contains(&self, session: SessionId) -> bool {
        self.rows.contains_key(&session)
    }

    /// Who opened the session, as its opening says. `None` if it is not open.
    pub fn client(&self, session: SessionId) -> Option<u64> {
        self.rows.get(&session).map(|row| row.client)
    }

    /// Opens `session`, named after the log position of the command that opens it. Ends what `limits` no longer allow.
    pub fn open(&mut self, session: SessionId, client: u64, limits: &SessionLimits, undo: &mut Vec<SessionUndo>) {
        let now = session.instance;
        loop {
            let Some((last_used, oldest)) = self.order.by_use().next() else { break };
            let idle = now.saturating_sub(last_used) > limits.expiry_instances;
            let full = self.rows.len() >= limits.sessions_max || self.sizes.total() > limits.table_bytes_max;
            if !idle && !full {
                break;
            }
            let first = match mutant!(hash_order) {
                true => self.by_address(last_used),
                false => self.order.first_to_go().filter(|_| !idle),
            };
            self.end(first.unwrap_or(oldest), undo);
        }
        undo.push(SessionUndo(SessionChange::Opened { session, digest: self.digest }));
        let last_used = used_at(now);
        let row = Row {
            client,
            lowest_unacknowledged: 0,
            highest: 0,
            forgotten_upto: 0,
            last_used,
            shared: false,
            bytes: 0,
            stored: 0,
            dropped: 0,
            freed: 0,
            answers: VecDeque::new(),
        };
        self.digest = self.digest.wrapping_add(row_digest(session, &row));
        self.insert(session, row);
    }

    fn insert(&mut self, session: SessionId, row: Row) {
        self.order.insert(session, row.client, row.last_used);
        self.sizes.change((session, row.client), 0, row.bytes);
        self.rows.insert(session, row);
    }

    fn remove(&mut self, session: SessionId) -> Option<Row> {
        let row = self.rows.remove(&session)?;
        self.order.remove(session, row.client, row.last_used);
        self.sizes.change((session, row.client), row.bytes, 0);
        Some(row)
    }

    /// Planted: of those used last at the same time, the one that memory happens to put first.
    fn by_address(&self, last_used: u64) -> Option<SessionId> {
        let alike = self.order.by_use().take_while(|(used, _)| *used == last_used);
        alike.map(|(_, session)| session).min_by_key(|session| mix(std::ptr::from_ref(self) as u64, session.instance))
    }

    fn end(&mut self, session: SessionId, undo: &mut Vec<SessionUndo>) {
        let Some(row) = self.remove(session) else { return };
        undo.push(SessionUndo(SessionChange::Ended { session, digest: self.digest, row: Box::new(row.clone()) }));
        let kept = row.kept().map(Answers::digest).fold(row_digest(session, &row), u64::wrapping_add);
        self.digest = self.digest.wrapping_sub(kept);
    }

    /// What the table knows of `number`. The session must be open; an absent one answers [`CommandLookup::Forgotten`].
    pub fn find(&self, session: SessionId, number: u64) -> CommandLookup<'_> {
        self.repeats(session).find(number)
    }

    /// Any number above this one is new: the session neither executed nor acknowledged it. `None` if it is not open.
    pub fn known_upto(&self, session: SessionId) -> Option<u64> {
        let row = self.rows.get(&session)?;
        let acknowledged = match mutant!(unexecuted_is_new) {
            true => 0,
            false => row.lowest_unacknowledged.saturating_sub(1),
        };
        Some(row.highest.max(acknowledged))
    }

    /// Notes that a pack of `session` was ordered at `instance`: raises what is acknowledged and drops those answers.
    pub fn acknowledge(
        &mut self,
        session: SessionId,
        lowest: u64,
        instance: u64,
        limits: &SessionLimits,
        undo: &mut Vec<SessionUndo>,
    ) {
        let Some(row) = self.rows.get_mut(&session) else { return };
        undo.push(SessionUndo(SessionChange::Used {
            session,
            lowest_unacknowledged: row.lowest_unacknowledged,
            highest: row.highest,
            forgotten_upto: row.forgotten_upto,
            last_used: row.last_used,
            bytes: row.bytes,
            dropped: row.dropped,
            dropped_after: row.dropped,
            stored: row.stored,
            digest: self.digest,
        }));
        self.digest = self.digest.wrapping_sub(row_digest(session, row));
        let used = used_at(instance);
        if used > row.last_used && used - row.last_used >= limits.use_step() {
            self.order.used(session, row.client, row.last_used, used);
            row.last_used = used;
        }
        row.lowest_unacknowledged = row.lowest_unacknowledged.max(lowest);
        let before = row.bytes;
        while let Some(front) = row.front() {
            if front.numbers.highest() >= row.lowest_unacknowledged {
                break;
            }
            self.digest = self.digest.wrapping_sub(front.digest());
            row.bytes -= front.bytes();
            row.dropped += 1;
        }
        self.sizes.change((session, row.client), before, row.bytes);
        note_dropped(undo, session, row.dropped);
        self.digest = self.digest.wrapping_add(row_digest(session, row));
    }

    /// Keeps the answers of the pack that [`Sessions::acknowledge`] was just called for, and of this session no more
    /// than `limits` allow. [`Sessions::relieve`] follows, once no pack waits for its answers.
    pub fn store(&mut self, session: SessionId, answers: Answers, limits: &SessionLimits, undo: &mut [SessionUndo]) {
        let Some(row) = self.rows.get_mut(&session) else { return };
        self.digest = self.digest.wrapping_sub(row_digest(session, row)).wrapping_add(answers.digest());
        let before = row.bytes;
        row.highest = row.highest.max(answers.numbers.highest());
        row.bytes += answers.bytes();
        row.answers.push_back(answers);
        row.stored += 1;
        // The newest answers stay: a client that waits for one answer at a time never meets this bound.
        while row.bytes > limits.bytes_max && row.dropped + 1 < row.stored {
            let Some(forgotten) = row.forget_front() else { break };
            self.digest = self.digest.wrapping_sub(forgotten);
        }
        self.sizes.change((session, row.client), before, row.bytes);
        note_dropped(undo, session, row.dropped);
        self.digest = self.digest.wrapping_add(row_digest(session, row));
    }

    /// Takes back one record; records go in the reverse of the order in which they were made.
    pub fn undo(&mut self, record: &SessionUndo) {
        match record.0.clone() {
            SessionChange::Opened { session, digest } => {
                self.remove(session);
                self.digest = digest;
            }
            SessionChange::Ended { session, row, digest } => {
                self.insert(session, *row);
                self.digest = digest;
            }
            SessionChange::Shared { sessions, digest } => {
                for session in sessions {
                    if let Some(row) = self.rows.get_mut(&session) {
                        row.shared = false;
                    }
                }
                self.digest = digest;
            }
            SessionChange::Used {
                session,
                lowest_unacknowledged,
                highest,
                forgotten_upto,
                last_used,
                bytes,
                dropped,
                dropped_after: _,
                stored,
                digest,
            } => {
                let Some(row) = self.rows.get_mut(&session) else { return };
                if row.last_used != last_used {
                    self.order.used(session, row.client, row.last_used, last_used);
                }
                row.lowest_unacknowledged = lowest_unacknowledged;
                row.highest = highest;
                row.forgotten_upto = forgotten_upto;
                row.last_used = last_used;
                self.sizes.change((session, row.client), row.bytes, bytes);
                row.bytes = bytes;
                row.dropped = dropped;
                row.stored = stored;
                row.answers.truncate((stored - row.freed) as usize);
                self.digest = digest;
            }
            SessionChange::Forgotten { session, forgotten_upto, bytes, dropped, dropped_after: _, digest } => {
                let Some(row) = self.rows.get_mut(&session) else { return };
                self.sizes.change((session, row.client), row.bytes, bytes);
                (row.forgotten_upto, row.bytes, row.dropped) = (forgotten_upto, bytes, dropped);
                self.digest = digest;
            }
        }
    }

    /// Frees what a decided record dropped: it can no longer be taken back. Records come in the order they were made.
    pub fn confirm(&mut self, record: &SessionUndo) {
        let (SessionChange::Used { session, dropped_after, .. }
        | SessionChange::Forgotten { session, dropped_after, .. }) = &record.0
        else {
            return;
        };
        if let Some(row) = self.rows.get_mut(session) {
            row.free_to(*dropped_after);
        }
    }

    /// The rows for the child of a split; from now on other partitions may have the same sessions.
    pub fn share(&mut self, undo: &mut Vec<SessionUndo>) -> Sessions {
        let digest = self.digest;
        let mut sessions = Vec::new();
        for (&session, row) in self.rows.iter_mut().filter(|(_, row)| !row.shared) {
            self.digest = self.digest.wrapping_sub(row_digest(session, row));
            row.shared = true;
            self.digest = self.digest.wrapping_add(row_digest(session, row));
            sessions.push(session);
        }
        undo.push(SessionUndo(SessionChange::Shared { sessions, digest }));
        // The rows of before, without what only undo still needs.
        Sessions::import(self.export())
    }

    /// Takes in the rows of a partition that is merged into this one at `instance`. A session that both know, since a
    /// split forked it, keeps the answers of both and the later of both rows' numbers: what was executed on either side
    /// is never executed again (hazards.md SE8). One that only one side knows, although a split copied it, may have
    /// ended on the other with what it executed there: it ends here too.
    pub fn unite(&mut self, other: &Sessions, instance: u64, limits: &SessionLimits, undo: &mut Vec<SessionUndo>) {
        let may_have_ended = |row: &Row| row.shared && !mutant!(merge_revives_sessions);
        let alone = |(session, row): &(&SessionId, &Row)| may_have_ended(row) && !other.contains(**session);
        for session in self.rows.iter().filter(alone).map(|(&session, _)| session).collect::<Vec<_>>() {
            self.end(session, undo);
        }
        for (&session, theirs) in &other.rows {
            if !self.rows.contains_key(&session) {
                if may_have_ended(theirs) {
                    continue;
                }
                undo.push(SessionUndo(SessionChange::Opened { session, digest: self.digest }));
                // Their log's instances say nothing here.
                let row = Row { last_used: instance, ..theirs.clone() };
                self.digest = row.kept().map(Answers::digest).fold(self.digest, u64::wrapping_add);
                self.digest = self.digest.wrapping_add(row_digest(session, &row));
                self.insert(session, row);
                continue;
            }
            self.acknowledge(session, theirs.lowest_unacknowledged, instance, limits, undo);
            let Some(row) = self.rows.get_mut(&session) else { continue };
            self.digest = self.digest.wrapping_sub(row_digest(session, row));
            row.highest = row.highest.max(theirs.highest);
            row.forgotten_upto = row.forgotten_upto.max(theirs.forgotten_upto);
            let before = row.bytes;
            for answers in theirs.kept() {
                let known =
                    answers.numbers.highest() < row.lowest_unacknowledged || row.kept().any(|own| own == answers);
                if !known {
                    self.digest = self.digest.wrapping_add(answers.digest());
                    row.bytes += answers.bytes();
                    row.stored += 1;
                    row.answers.push_back(answers.clone());
                }
            }
            self.sizes.change((session, row.client), before, row.bytes);
            self.digest = self.digest.wrapping_add(row_digest(session, row));
        }
    }

    /// Every row, for a snapshot: what was dropped is left out.
    pub fn export(&self) -> Vec<SavedSession> {
        let save = |(&session, row): (&SessionId, &Row)| SavedSession {
            session,
            client: row.client,
            lowest_unacknowledged: row.lowest_unacknowledged,
            highest: row.highest,
            forgotten_upto: row.forgotten_upto,
            last_used: row.last_used,
            shared: row.shared,
            answers: row.kept().cloned().collect(),
        };
        self.rows.iter().map(save).collect()
    }

    /// The table that [`Sessions::export`] wrote; a session that is already there keeps the later of both rows'
    /// numbers.
    pub fn import(saved: Vec<SavedSession>) -> Sessions {
        let mut sessions = Sessions::default();
        for row in saved {
            let answers: VecDeque<Answers> = row.answers.into();
            let restored = Row {
                client: row.client,
                lowest_unacknowledged: row.lowest_unacknowledged,
                highest: row.highest,
                forgotten_upto: row.forgotten_upto,
                last_used: row.last_used,
                shared: row.shared,
                bytes: answers.iter().map(Answers::bytes).sum(),
                stored: answers.len() as u64,
                dropped: 0,
                freed: 0,
                answers,
            };
            let kept = restored.kept().map(Answers::digest).fold(row_digest(row.session, &restored), u64::wrapping_add);
            sessions.digest = sessions.digest.wrapping_add(kept);
            sessions.insert(row.session, restored);
        }
        sessions
    }

    /// The table of a snapshot that came from a disk or from another node; none: it makes no sense. A session that
    /// stood there twice could never be ended, and numbers that wrap would be executed again.
    pub fn read(saved: Vec<SavedSession>) -> Option<Sessions> {
        let ascend = saved.windows(2).all(|pair| pair[0].session < pair[1].session);
        let sound = ascend && saved.iter().all(SavedSession::is_sound);
        (sound || mutant!(saved_sessions_believed)).then(|| Sessions::import(saved))
    }
}

impl SavedSession {
    fn is_sound(&self) -> bool {
        let known = |answers: &Answers| answers.are_sound() && answers.numbers.highest() <= self.highest;
        self.answers.iter().all(known)
    }
}

/// One session as a snapshot holds it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedSession {
    session: SessionId,
    client: u64,
    lowest_unacknowledged: u64,
    highest: u64,
    forgotten_upto: u64,
    last_used: u64,
    shared: bool,
    answers: Vec<Answers>,
}

fn row_digest(session: SessionId, row: &Row) -> u64 {
    let id = mix(session.instance, u64::from(session.index) << 32 | u64::from(session.partition.0));
    let numbers = mix(row.lowest_unacknowledged, row.highest);
    mix(mix(id, numbers), mix(row.forgotten_upto, row.last_used << 1 | u64::from(row.shared)))
}

/// A 64-bit mix of two words (the finalizer of SplitMix64): for digests, not against an adversary.
fn mix(a: u64, b: u64) -> u64 {
    let mut z = a.rotate_left(32) ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
