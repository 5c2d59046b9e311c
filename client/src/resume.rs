//! Resume tokens: a command whose outcome is unknown can be repeated under its number, by this process or a later one.

use std::fmt;
use std::str::FromStr;

use crate::wire::{PartitionId, SessionId};

/// Names a numbered command (protocol.md 6). Prints `p2.1841.0.57.1c291ca3`: session, number, checksum of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ResumeToken {
    /// The session that it was numbered in.
    pub session: SessionId,
    /// Its number.
    pub number: u64,
    /// Checksum of the command: another one is refused.
    pub checksum: u32,
}

impl fmt::Display for ResumeToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SessionId { partition, instance, index } = self.session;
        write!(f, "{partition}.{instance}.{index}.{}.{:08x}", self.number, self.checksum)
    }
}

/// The text is no token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a resume token")]
pub struct NotAToken;

impl FromStr for ResumeToken {
    type Err = NotAToken;

    fn from_str(text: &str) -> Result<ResumeToken, NotAToken> {
        let parts: Vec<&str> = text.strip_prefix('p').ok_or(NotAToken)?.split('.').collect();
        let [partition, instance, index, number, checksum] = parts[..] else { return Err(NotAToken) };
        let session = SessionId {
            partition: PartitionId(partition.parse().map_err(|_| NotAToken)?),
            instance: instance.parse().map_err(|_| NotAToken)?,
            index: index.parse().map_err(|_| NotAToken)?,
        };
        let number = number.parse().map_err(|_| NotAToken)?;
        let checksum = u32::from_str_radix(checksum, 16).map_err(|_| NotAToken)?;
        Ok(ResumeToken { session, number, checksum })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_survives_being_printed() {
        let session = SessionId { partition: PartitionId(2), instance: 1841, index: 0 };
        let token = ResumeToken { session, number: 57, checksum: 0x1c29_1ca3 };
        assert_eq!(token.to_string(), "p2.1841.0.57.1c291ca3");
        assert_eq!(token.to_string().parse(), Ok(token));
        for bad in ["", "p", "2.1841.0.57.1c291ca3", "p2.1841.0.57", "p2.1841.0.57.xyz", "p2.1841.0.57.1c291ca3.4"] {
            assert_eq!(bad.parse::<ResumeToken>(), Err(NotAToken));
        }
    }
}
