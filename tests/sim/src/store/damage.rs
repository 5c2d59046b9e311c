//! A disk that does not give what was written: changed bytes, blocks written elsewhere, blocks read from elsewhere.

use coppice_core::replay::{Entry, GroupReplay, ReadsLog, Replay};
use coppice_ordering::{Ballot, Configuration, Instance, Lsn, RecoveredGroup};
use coppice_server::log::engine::Found;
use coppice_server::log::segment::{BadHeader, Header};
use coppice_server::log::{Disk, FileName, LogError};
use coppice_testkit::random::Random;

use super::sim_disk::SimDisk;
use super::{SavedSnapshot, Store};

/// Places that are tried for one that matters.
const ROT_TRIES: usize = 8;

/// What a disk writes at once.
const SECTOR_BYTES: usize = 512;

/// What a file system writes at once.
const BLOCK_BYTES: usize = 4_096;

/// What changed bytes of a disk did.
#[derive(Debug, Default)]
pub struct Rot {
    /// Bytes that were changed, one at a time.
    pub flips: usize,
    /// Times that a start refused.
    pub refused: usize,
    /// Times that it did not, and made something else of it.
    pub wrong: Vec<String>,
}

/// What a start makes of a log of which it is given one block that is another's.
#[derive(Debug)]
pub enum Misread {
    /// The same as without, or as of a last write that was torn: nothing tells these apart.
    Unseen,
    /// It says that something is missing.
    Refused,
    /// In words: it takes something for its log that is not.
    Believed(String),
}

/// What a start reads of a log.
struct Held {
    /// All entries, and which of them are carried copies.
    entries: Vec<(bool, Entry)>,
    /// So many at the end are of the last write, which nothing proves.
    unproven: usize,
}

impl Held {
    /// This is `whole`, or the same without a part of its last write, as a crash may tear it.
    fn is_torn(&self, whole: &Held) -> bool {
        self.entries.len() >= whole.proven() && whole.entries.starts_with(&self.entries)
    }

    /// A start makes of this what it makes of such a log. Not all entries need be there: what was written again may go
    /// where it stood first.
    fn replays_as(&self, whole: &Held) -> bool {
        let replayed = |entries: &[(bool, Entry)]| {
            let mut replay = Replay::default();
            entries.iter().for_each(|(carried, entry)| replay.apply(*carried, entry.clone()));
            let starts: Vec<RecoveredGroup> = replay.groups.values_mut().map(start_of).collect();
            (replay, starts)
        };
        let found = replayed(&self.entries);
        (whole.proven()..=whole.entries.len()).rev().any(|upto| replayed(&whole.entries[..upto]) == found)
    }

    fn proven(&self) -> usize {
        self.entries.len() - self.unproven
    }
}

impl std::fmt::Display for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} entries, of them {} unproven", self.entries.len(), self.unproven)
    }
}

/// What a replica of this group starts from. Where each record stands makes no difference.
fn start_of(group: &mut GroupReplay) -> RecoveredGroup {
    let trimmed = group.trimmed.unwrap_or_default();
    let mut start = RecoveredGroup::from_snapshot(trimmed, Configuration::default(), Instance::ZERO, Ballot::ZERO);
    group.take_records().for_each(|(_, record)| start.apply(Lsn(1), record));
    start
}

/// The block of a file with this number, if both are there.
fn block(disk: &SimDisk, name: FileName, number: usize) -> Option<Vec<u8>> {
    let bytes = disk.file_names().contains(&name).then(|| disk.bytes(name))?;
    bytes.chunks_exact(BLOCK_BYTES).nth(number).map(<[u8]>::to_vec)
}

/// A file is read as another one, of this log or another node's.
const FILE: &str = "another file instead";

/// A file is read as it was before.
const OLDER: &str = "an older state";

/// What a start is given for one of the files of `disk`, and what is wrong with it.
fn wrong(disk: &SimDisk, other: &SimDisk, random: &mut Random) -> Option<(FileName, Vec<u8>, &'static str)> {
    let names = disk.file_names();
    let (name, from) = (names[random.below(names.len())], names[random.below(names.len())]);
    let mut place = |name: FileName| random.below((disk.bytes(name).len() / BLOCK_BYTES).max(1));
    let (to, at) = (place(name), place(from));
    let block_of = |given: Option<Vec<u8>>| {
        let mut bytes = disk.bytes(name).to_vec();
        bytes.get_mut(to * BLOCK_BYTES..(to + 1) * BLOCK_BYTES)?.copy_from_slice(&given?);
        Some(bytes)
    };
    let (given, what) = match random.below(5) {
        0 => (block_of(block(disk, from, at)), "a block"),
        1 => (block_of(block(other, name, to)), "another log's block"),
        2 => (Some(disk.bytes(from).to_vec()), FILE),
        3 => (other.file_names().contains(&name).then(|| other.bytes(name).to_vec()), FILE),
        _ => {
            let mut bytes = disk.bytes(name).to_vec();
            let length = bytes.len();
            bytes.truncate(to * BLOCK_BYTES);
            // Room that was made beforehand is there, or the file is as short as it was.
            if random.below(2) == 0 {
                bytes.resize(length, 0);
            }
            (Some(bytes), OLDER)
        }
    };
    Some((name, given?, what))
}

impl Store {
    /// Changes a byte of the newest checkpoint of a group that has an older one, which is whole. False: there is none.
    pub fn rot_checkpoint(&mut self, at: u64) -> bool {
        let capacity = self.capacity;
        let whole =
            |generations: &Vec<&mut SavedSnapshot>| generations.len() == 2 && generations[0].load(capacity).is_ok();
        let mut groups: Vec<Vec<&mut SavedSnapshot>> = self.checkpoints.counted().into_iter().filter(whole).collect();
        if groups.is_empty() {
            return false;
        }
        let number = at as usize % groups.len();
        let newest = &mut *groups[number][1];
        *newest = newest.flipped((at >> 16) as usize % newest.bytes());
        true
    }

    /// Damages a part of the log that was flushed, and that a later mark proves, so that a start finds it. False: there
    /// was nothing of the kind where it was looked for.
    pub fn rot_log(&mut self, at: u64) -> bool {
        let mut random = Random::of(at, 0x107);
        let Ok(whole) = self.read(self.disk.clone()) else { return false };
        let names = self.disk.0.borrow().file_names();
        for _ in 0..ROT_TRIES {
            let name = names[random.below(names.len())];
            let before = self.disk.0.borrow().bytes(name).to_vec();
            if before.is_empty() {
                continue;
            }
            let mut after = before.clone();
            let place = random.below(before.len());
            let block = |at: usize, bytes: usize| at - at % bytes..(at - at % bytes + bytes).min(before.len());
            match random.below(3) {
                0 => after[place] ^= 1 << random.below(8),
                1 => after[block(place, SECTOR_BYTES)].fill(0),
                _ => {
                    // A write that went to another place, and is missing in its own.
                    let (to, from) = (block(place, BLOCK_BYTES), block(random.below(before.len()), BLOCK_BYTES));
                    let bytes = to.len().min(from.len());
                    after[to.start..to.start + bytes].copy_from_slice(&before[from.start..from.start + bytes]);
                }
            }
            self.disk.0.borrow_mut().damage(name, |bytes| bytes.copy_from_slice(&after));
            // A last write that is damaged may have been torn: nothing tells, and the atlas spares it.
            if !self.read(self.disk.clone()).is_ok_and(|found| found.is_torn(&whole)) {
                return true;
            }
            self.disk.0.borrow_mut().damage(name, |bytes| bytes.copy_from_slice(&before));
        }
        false
    }

    /// What the next start makes of the log if it is given something that is not what was asked for: one block or a
    /// whole file that is another of the same log's, or the one of `other`'s in that place; or a file as it was before.
    pub fn misread(&self, other: &Store, at: u64) -> Misread {
        let mut random = Random::of(at, 0x108);
        let (mut disk, other) = (self.disk.0.borrow().clone(), other.disk.0.borrow());
        let Ok(whole) = self.read(disk.clone()) else { return Misread::Unseen };
        let Some((name, given, what)) = wrong(&disk, &other, &mut random) else { return Misread::Unseen };
        // Where nothing was written later, the log does not tell that there was more: other nodes do (PX12). Nor does
        // it if this is like a file whose first write was torn.
        let FileName::Segment(number) = name else { return Misread::Unseen };
        let whole_header =
            !matches!(Header::decode(&given, number), Err(BadHeader::Unused | BadHeader::Short | BadHeader::Checksum));
        let tells_nothing = what == OLDER || what == FILE && !whole_header;
        if tells_nothing && !self.goes_on_behind(name, &whole) {
            return Misread::Unseen;
        }
        disk.damage(name, |bytes| *bytes = given);
        match self.read(disk) {
            Err(_) => Misread::Refused,
            Ok(found) if found.is_torn(&whole) || found.replays_as(&whole) => Misread::Unseen,
            Ok(found) => Misread::Believed(format!("{what} of {name}: {} of {whole}", found.entries.len())),
        }
    }

    /// Whether the files behind this one hold something.
    fn goes_on_behind(&self, name: FileName, whole: &Held) -> bool {
        let mut disk = self.disk.0.borrow().clone();
        let is_segment = |name: &FileName| matches!(name, FileName::Segment(_));
        let behind = disk.file_names().into_iter().filter(|other| is_segment(other) && *other > name);
        behind.collect::<Vec<_>>().into_iter().for_each(|other| disk.lose_file(other));
        self.read(disk).is_ok_and(|found| found.entries.len() < whole.entries.len())
    }

    /// All that a log holds.
    fn read(&self, mut disk: impl Disk) -> Result<Held, LogError> {
        let mut entries = Vec::new();
        let found = Found::read(&mut disk, self.identity, &mut |carried, entry| entries.push((carried, entry)))?;
        Ok(Held { entries, unproven: found.unproven() })
    }

    /// Changes every `step`th byte of the log and of the checkpoints in turn, and reads them as a start does.
    pub fn rot(&mut self, step: usize) -> Rot {
        let mut rot = Rot::default();
        let whole = match self.read(self.disk.clone()) {
            Ok(whole) => whole,
            Err(error) => {
                rot.wrong.push(format!("the log as it is: {error}"));
                return rot;
            }
        };
        let names = self.disk.0.borrow().file_names();
        for name in names {
            let length = self.disk.0.borrow().bytes(name).len();
            for at in (0..length).step_by(step) {
                let flip = || self.disk.0.borrow_mut().damage(name, |bytes| bytes[at] ^= 1 << (at % 8));
                flip();
                let found = self.read(self.disk.clone());
                flip();
                match found {
                    Err(LogError::Damage(_)) => rot.refused += 1,
                    Err(error) => rot.wrong.push(format!("{name} byte {at}: {error}")),
                    Ok(found) if found.is_torn(&whole) => {}
                    Ok(found) => rot.wrong.push(format!("{name} byte {at}: {} of {whole}", found.entries.len())),
                }
                rot.flips += 1;
            }
        }
        let capacity = self.capacity;
        for saved in self.checkpoints.counted().into_iter().flatten() {
            for at in (0..saved.bytes()).step_by(step) {
                rot.flips += 1;
                match saved.flipped(at).load(capacity) {
                    Err(_) => rot.refused += 1,
                    Ok(_) => rot.wrong.push(format!("a checkpoint of {} loads with byte {at} changed", saved.instance)),
                }
            }
        }
        rot
    }
}
