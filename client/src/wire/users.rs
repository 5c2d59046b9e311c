//! Users: who may do what (the server's `access`).

use std::fmt;
use std::str::FromStr;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::NodeId;
use crate::token::TokenHash;

/// What somebody may do; each role includes the ones before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Role {
    /// Reads keys and ranges.
    Read,
    /// Also changes keys.
    Write,
    /// Also manages users whose grants lie within the prefix; for all keys: every verb.
    Admin,
}

impl Role {
    /// All roles.
    pub const ALL: [Role; 3] = [Role::Read, Role::Write, Role::Admin];
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Read => "read",
            Role::Write => "write",
            Role::Admin => "admin",
        })
    }
}

/// The text names no role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a role: read, write or admin")]
pub struct NotARole;

impl FromStr for Role {
    type Err = NotARole;

    fn from_str(text: &str) -> Result<Role, NotARole> {
        Role::ALL.into_iter().find(|role| role.to_string() == text).ok_or(NotARole)
    }
}

/// A role for the keys that begin with a prefix.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Grant {
    pub role: Role,
    /// Which keys; empty: all.
    #[serde(with = "crate::serde_bytes")]
    pub prefix: Bytes,
}

/// A change of the users. Repeated it changes nothing more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum UserChange {
    /// A new user. The first one is an admin for all keys with a token, and switches access control on.
    Add {
        name: String,
        /// What it may do.
        grant: Grant,
        /// Hash of its token.
        token: Option<TokenHash>,
        /// Name in the client certificates that stand for it.
        certificate: Option<String>,
    },
    /// A user may do more.
    Grant { name: String, grant: Grant },
    /// A user may no longer do something that was granted.
    Revoke {
        name: String,
        /// What, as it was granted.
        grant: Grant,
    },
    /// A user gets a new token.
    Token {
        name: String,
        token: TokenHash,
        /// The token of before counts too, until the next change of this kind.
        keep: bool,
    },
    /// A user goes, with its tokens and grants.
    Remove { name: String },
}

impl UserChange {
    /// Whom it is about.
    pub fn name(&self) -> &str {
        match self {
            UserChange::Add { name, .. }
            | UserChange::Grant { name, .. }
            | UserChange::Revoke { name, .. }
            | UserChange::Token { name, .. }
            | UserChange::Remove { name } => name,
        }
    }

    /// What it does, in a word.
    pub fn verb(&self) -> &'static str {
        match self {
            UserChange::Add { .. } => "add",
            UserChange::Grant { .. } => "grant",
            UserChange::Revoke { .. } => "revoke",
            UserChange::Token { .. } => "token",
            UserChange::Remove { .. } => "remove",
        }
    }
}

/// A user as an operator sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserRow {
    pub name: String,
    /// What it may do.
    pub grants: Vec<Grant>,
    /// How many tokens it has.
    pub tokens: u32,
    /// Name in the client certificates that stand for it.
    pub certificate: Option<String>,
}

/// A change of the users was decided.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserChangeReply {
    /// It switched access control on.
    pub is_first: bool,
    /// Nodes that have not confirmed it: each follows it as soon as it hears from the others.
    pub behind: Vec<NodeId>,
}
