//! What a start of a node claims to be, and how the others judge it.
//!
//! A copy is a node that forgot what it promised. It cannot know that it is one, so the others tell. Every start of a
//! node draws a random *boot id*, and writes it into the log together with the boot ids of the starts before it, before
//! it speaks to anybody. It tells all of that whenever it connects ([`IncarnationClaim`]). The others remember of every
//! node the newest incarnation that they let in, durably, and how far its log was durable ([`KnownIncarnation`]). They
//! refuse
//!
//! - a start that is older than the one they know;
//! - another boot id of the same start: both are copies of one directory, and the one that was met first goes on;
//! - a newer start whose past does not contain the boot id that they know: it goes back to a state before that start;
//! - a newer start whose log ends below what the start that they know had made durable.
//!
//! What cannot be known: a copy whose missing part nobody is left to tell of, because all nodes that met the real node
//! since the copy was taken are gone, or cannot be reached when it starts. Of what the last start made durable, only
//! the memory of processes that run tells; the boot ids themselves outlive a restart of all nodes.

use serde::{Deserialize, Serialize};

/// Boot ids before the present one that a claim, and a header of the log, names at most: a peer that missed more starts
/// than these compares lsns only. As many as fit a header with room to spare: a copy that starts again and again where
/// nobody hears it must not outlive them.
pub const PAST_BOOT_IDS_MAX: usize = 256;

/// The boot ids of starts, newest first; 0 behind the first one. It travels as long as it is.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<u64>", into = "Vec<u64>")]
pub struct PastBootIds([u64; PAST_BOOT_IDS_MAX]);

impl PastBootIds {
    /// The newest of these.
    pub fn new(boot_ids: &[u64]) -> PastBootIds {
        let mut past = PastBootIds::default();
        past.0.iter_mut().zip(boot_ids).for_each(|(slot, boot_id)| *slot = *boot_id);
        past
    }

    fn known(&self) -> &[u64] {
        let end = self.0.iter().rposition(|&boot_id| boot_id != 0).map_or(0, |last| last + 1);
        &self.0[..end]
    }
}

impl Default for PastBootIds {
    fn default() -> PastBootIds {
        PastBootIds([0; PAST_BOOT_IDS_MAX])
    }
}

impl std::fmt::Debug for PastBootIds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.known()).finish()
    }
}

impl From<PastBootIds> for Vec<u64> {
    fn from(past: PastBootIds) -> Vec<u64> {
        past.known().to_vec()
    }
}

impl TryFrom<Vec<u64>> for PastBootIds {
    type Error = &'static str;

    fn try_from(boot_ids: Vec<u64>) -> Result<PastBootIds, &'static str> {
        if boot_ids.len() > PAST_BOOT_IDS_MAX { Err("too many boot ids") } else { Ok(PastBootIds::new(&boot_ids)) }
    }
}

/// What a node says of its log when it connects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IncarnationClaim {
    /// Which start of the node it is.
    pub incarnation: u64,
    /// Drawn by that start.
    pub boot_id: u64,
    /// The boot ids of the starts before it.
    pub past_boot_ids: PastBootIds,
    /// The last lsn that it recovered: its log goes on from there.
    pub recovered_lsn: u64,
}

impl IncarnationClaim {
    /// What a start says that found `past_boot_ids` in its log.
    pub fn new(incarnation: u64, boot_id: u64, past_boot_ids: &[u64], recovered_lsn: u64) -> IncarnationClaim {
        IncarnationClaim { incarnation, boot_id, past_boot_ids: PastBootIds::new(past_boot_ids), recovered_lsn }
    }

    /// The boot id of an earlier start, if it is not too long ago to be told.
    fn past_boot_id(&self, incarnation: u64) -> Option<u64> {
        let back = usize::try_from(self.incarnation.checked_sub(incarnation)?.checked_sub(1)?).ok()?;
        let told = if mutant!(short_past) { &self.past_boot_ids.0[..16] } else { &self.past_boot_ids.0[..] };
        told.get(back).copied()
    }
}

/// No node starts so often: what claims more would make every later start of the real node an old one.
const STARTS_MAX: u64 = 1 << 40;

/// No log has so many records: what tells of more would make the log of every later start one that ends too early.
const LSN_MAX: u64 = 1 << 56;

/// Why a node's connection is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    /// A newer start of the node was met.
    #[error("start {claimed} of this node is over, {known} was met: this is an old copy of its directory")]
    OlderStart {
        /// What it claims to be.
        claimed: u64,
        /// The newest known.
        known: u64,
    },
    /// The same start, with another boot id.
    #[error("another process was start {claimed} of this node: one of the two runs on a copy of its directory")]
    Twins {
        /// What both claim to be.
        claimed: u64,
    },
    /// A newer start that does not come after the one that was met.
    #[error(
        "start {claimed} of this node does not follow start {known}, which was met: this is a copy of its directory"
    )]
    OtherPast {
        /// What it claims to be.
        claimed: u64,
        /// The newest known.
        known: u64,
    },
    /// No node gets so far.
    #[error("no node is at its start {claimed} with {lsn} records in its log")]
    Absurd {
        /// The start that it claims to be.
        claimed: u64,
        /// Where its log ended.
        lsn: u64,
    },
    /// A newer start, which has forgotten what an older one knew.
    #[error(
        "the log of this node ends at lsn {claimed}, but {known} was durable: this is an old copy of its directory"
    )]
    ForgottenLog {
        /// Where its log ended.
        claimed: u64,
        /// What it had told to be durable.
        known: u64,
    },
}

/// What a node remembers of another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownIncarnation {
    incarnation: u64,
    boot_id: u64,
    /// Told by the newest start, or recovered by it.
    durable_lsn: u64,
}

/// What a claim that is let in means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// The start that is known already.
    Known,
    /// A start that is new here: it must be remembered durably before it is let in.
    New(KnownIncarnation),
}

impl KnownIncarnation {
    /// A connection opens.
    ///
    /// # Errors
    /// The claim contradicts what was met before: refuse the connection.
    pub fn judge(&self, claim: &IncarnationClaim) -> Result<Judgement, ClaimError> {
        let (claimed, known) = (claim.incarnation, self.incarnation);
        if (claimed > STARTS_MAX || claim.recovered_lsn > LSN_MAX) && !mutant!(absurd_claim_met) {
            return Err(ClaimError::Absurd { claimed, lsn: claim.recovered_lsn });
        }
        if claimed < known {
            return Err(ClaimError::OlderStart { claimed, known });
        }
        if claimed == known {
            let same = claim.boot_id == self.boot_id || mutant!(boot_id_ignored);
            return if same { Ok(Judgement::Known) } else { Err(ClaimError::Twins { claimed }) };
        }
        let met_before = known > 0 && !mutant!(boot_id_ignored);
        if met_before && claim.past_boot_id(known).is_some_and(|boot_id| boot_id != self.boot_id) {
            return Err(ClaimError::OtherPast { claimed, known });
        }
        if claim.recovered_lsn < self.durable_lsn {
            return Err(ClaimError::ForgottenLog { claimed: claim.recovered_lsn, known: self.durable_lsn });
        }
        Ok(Judgement::New(KnownIncarnation {
            incarnation: claimed,
            boot_id: claim.boot_id,
            durable_lsn: claim.recovered_lsn,
        }))
    }

    /// The node said how far its log is durable, on a connection that was let in.
    pub fn raise_durable(&mut self, durable_lsn: u64) {
        if durable_lsn <= LSN_MAX || mutant!(absurd_claim_met) {
            self.durable_lsn = self.durable_lsn.max(durable_lsn);
        }
    }

    /// Whether this is the newest start that was let in.
    pub fn has_boot_id(&self, boot_id: u64) -> bool {
        self.boot_id == boot_id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A data directory: the boot ids of its starts, newest first, and its log's end.
    #[derive(Clone, Default)]
    struct Directory {
        boot_ids: Vec<u64>,
        end: u64,
    }

    impl Directory {
        fn start(&mut self, boot_id: u64) -> IncarnationClaim {
            let claim = IncarnationClaim::new(self.boot_ids.len() as u64 + 1, boot_id, &self.boot_ids, self.end);
            self.boot_ids.insert(0, boot_id);
            claim
        }
    }

    fn meets(known: &mut KnownIncarnation, claim: &IncarnationClaim) -> Result<(), ClaimError> {
        if let Judgement::New(newer) = known.judge(claim)? {
            *known = newer;
        }
        Ok(())
    }

    #[test]
    fn a_restart_is_no_copy() {
        let (mut known, mut directory) = (KnownIncarnation::default(), Directory::default());
        for boot_id in 1..40 {
            let claim = directory.start(boot_id);
            assert_eq!(meets(&mut known, &claim), Ok(()));
            assert_eq!(meets(&mut known, &claim), Ok(()), "the same start connects again");
            directory.end += 10;
            known.raise_durable(directory.end);
        }
        for boot_id in 40..100 {
            directory.start(boot_id);
        }
        assert_eq!(meets(&mut known, &directory.start(100)), Ok(()), "starts that nobody met");
    }

    /// Stopped, copied, started, worked, stopped; the copy is put back and started: it counts the same start.
    #[test]
    fn px12_a_copy_taken_while_the_node_was_stopped_is_told_from_the_start_after_it() {
        let (mut known, mut directory) = (KnownIncarnation::default(), Directory::default());
        meets(&mut known, &directory.start(1)).expect("the first");
        directory.end = 100;
        let mut copy = directory.clone();
        meets(&mut known, &directory.start(2)).expect("the original");
        known.raise_durable(150);
        let claim = copy.start(3);
        assert_eq!((claim.incarnation, claim.recovered_lsn), (2, 100), "all else is as the original said it");
        assert_eq!(meets(&mut known, &claim), Err(ClaimError::Twins { claimed: 2 }));
        // It starts once more, and works alone until its log is longer than the original's.
        copy.end = 400;
        assert_eq!(meets(&mut known, &copy.start(4)), Err(ClaimError::OtherPast { claimed: 3, known: 2 }));
        directory.end = 200;
        assert_eq!(meets(&mut known, &directory.start(5)), Ok(()), "the original");
    }

    #[test]
    fn an_old_copy_and_one_of_a_running_node_are_told_too() {
        let (mut known, mut directory) = (KnownIncarnation::default(), Directory::default());
        let mut old = directory.clone();
        for boot_id in 1..4 {
            meets(&mut known, &directory.start(boot_id)).expect("the original");
        }
        assert_eq!(meets(&mut known, &old.start(9)), Err(ClaimError::OlderStart { claimed: 1, known: 3 }));
        directory.end = 50;
        let mut running = directory.clone();
        known.raise_durable(60);
        let claim = running.start(10);
        assert_eq!(meets(&mut known, &claim), Err(ClaimError::ForgottenLog { claimed: 50, known: 60 }));
    }

    /// A copy may start again and again where nobody hears it.
    #[test]
    fn px12_a_copy_does_not_become_the_node_by_starting_often() {
        let (mut known, mut directory) = (KnownIncarnation::default(), Directory::default());
        meets(&mut known, &directory.start(1)).expect("the first");
        directory.end = 100;
        let mut copy = directory.clone();
        meets(&mut known, &directory.start(2)).expect("the original");
        copy.end = 500;
        for boot_id in 3..250 {
            let claim = copy.start(boot_id);
            assert!(meets(&mut known, &claim).is_err(), "start {}", claim.incarnation);
        }
    }

    #[test]
    fn what_is_told_of_the_past_is_bounded() {
        let told =
            |boot_ids: &[u64]| postcard::from_bytes::<PastBootIds>(&postcard::to_stdvec(boot_ids).expect("plain data"));
        let most = [7; PAST_BOOT_IDS_MAX];
        assert_eq!(told(&most), Ok(PastBootIds::new(&most)));
        assert!(told(&[7; PAST_BOOT_IDS_MAX + 1]).is_err());
        assert_eq!(postcard::to_stdvec(&PastBootIds::new(&[1, 2, 3])).map(|bytes| bytes.len()), Ok(4));
    }

    /// The highest number that there is would make every later start of a node an old copy.
    #[test]
    fn px12_what_no_node_says_changes_nothing() {
        let (mut known, mut directory) = (KnownIncarnation::default(), Directory::default());
        meets(&mut known, &directory.start(1)).expect("the first");
        known.raise_durable(u64::MAX);
        for (incarnation, lsn) in [(u64::MAX, 5), (2, u64::MAX), (STARTS_MAX + 1, LSN_MAX)] {
            let absurd = IncarnationClaim::new(incarnation, 9, &[1], lsn);
            assert!(matches!(meets(&mut known, &absurd), Err(ClaimError::Absurd { .. })), "{absurd:?}");
        }
        assert_eq!(meets(&mut known, &directory.start(2)), Ok(()), "the node itself");
    }

    /// An empty directory that is given the identity of a node whose disk was lost in its first start.
    #[test]
    fn a_wiped_disk_is_not_the_node_that_it_was() {
        let mut known = KnownIncarnation::default();
        meets(&mut known, &Directory::default().start(1)).expect("the first");
        assert_eq!(meets(&mut known, &Directory::default().start(2)), Err(ClaimError::Twins { claimed: 1 }));
    }

    #[cfg(feature = "mutants")]
    #[test]
    fn a_past_that_is_told_in_part_is_caught() {
        let test = "incarnation::claim::tests::px12_a_copy_does_not_become_the_node_by_starting_often";
        planted::assert_caught("short_past", test);
    }

    #[cfg(feature = "mutants")]
    #[test]
    fn a_claim_that_no_node_makes_is_caught() {
        planted::assert_caught("absurd_claim_met", "incarnation::claim::tests::px12_what_no_node_says_changes_nothing");
    }
}
