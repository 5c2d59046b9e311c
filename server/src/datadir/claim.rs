//! Telling an old copy of a data directory from the real one (reliability.md PX12). Pure.
//!
//! A copy is a node that forgot what it promised. It cannot know that it is one, so the others tell: each remembers of
//! every node the highest incarnation it has met, and how far that node's log was durable then ([`Witness`]). A node
//! says with its `Hello` which start it is and from which lsn on it writes ([`Claim`]). Every start counts the
//! incarnation up durably, in the log and in `node.toml`, before it speaks. So
//!
//! - a copy that was made before the last start claims an incarnation that is known already, or an older one;
//! - a copy that was made since claims the next incarnation, but its log ends below what was durable.
//!
//! What others remember lies in their memory, so one process that met the real node must live through the exchange. If
//! every node restarts meanwhile, nobody is left to tell: then an old copy goes unnoticed.

/// What a node says of its log in `Hello`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Which start of the node it is.
    pub incarnation: u64,
    /// The last lsn that it recovered: its log goes on from there.
    pub recovered_lsn: u64,
}

/// Why a node's connection is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    /// A newer start of the node was met.
    #[error("incarnation {claimed} of this node is over, {known} was met: this is an old copy of its directory")]
    OlderStart {
        /// What it claims to be.
        claimed: u64,
        /// The newest known.
        known: u64,
    },
    /// The same start, with another history.
    #[error("two nodes claim to be incarnation {claimed}: one runs on a copy of the other's directory")]
    Twins {
        /// What both claim to be.
        claimed: u64,
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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Witness {
    newest: Option<Claim>,
    /// Told by the newest incarnation.
    durable_lsn: u64,
}

impl Witness {
    /// A connection opens.
    ///
    /// # Errors
    /// The claim contradicts what was met before: refuse the connection.
    pub fn judge(&mut self, claim: Claim) -> Result<(), ClaimError> {
        if let Some(known) = self.newest {
            let claimed = claim.incarnation;
            if claimed < known.incarnation {
                return Err(ClaimError::OlderStart { claimed, known: known.incarnation });
            }
            if claimed == known.incarnation && claim != known {
                return Err(ClaimError::Twins { claimed });
            }
            if claimed > known.incarnation && claim.recovered_lsn < self.durable_lsn {
                return Err(ClaimError::ForgottenLog { claimed: claim.recovered_lsn, known: self.durable_lsn });
            }
        }
        self.newest = Some(claim);
        self.durable_lsn = self.durable_lsn.max(claim.recovered_lsn);
        Ok(())
    }

    /// The node said how far its log is durable, on a connection that was let in.
    pub fn told(&mut self, durable_lsn: u64) {
        self.durable_lsn = self.durable_lsn.max(durable_lsn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_copy_is_told_from_a_restart() {
        let claim = |incarnation, recovered_lsn| Claim { incarnation, recovered_lsn };
        let mut witness = Witness::default();
        assert_eq!(witness.judge(claim(4, 100)), Ok(()));
        witness.told(150);
        assert_eq!(witness.judge(claim(4, 100)), Ok(()), "the same start connects again");
        // Copied during the start before: it counts itself up to a start that was met.
        assert_eq!(witness.judge(claim(4, 90)), Err(ClaimError::Twins { claimed: 4 }));
        assert_eq!(witness.judge(claim(3, 90)), Err(ClaimError::OlderStart { claimed: 3, known: 4 }));
        // Copied during this start: the next incarnation, without what came after.
        assert_eq!(witness.judge(claim(5, 120)), Err(ClaimError::ForgottenLog { claimed: 120, known: 150 }));
        assert_eq!(witness.judge(claim(5, 150)), Ok(()));
        assert_eq!(witness.judge(claim(9, 700)), Ok(()), "starts that nobody met");
    }
}
