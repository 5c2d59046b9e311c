//! What a connection may do. A request is compared with it before it is admitted: one look where a role is for all
//! keys, else one comparison of a prefix for each key and grant; nothing is allocated unless it is denied.

use std::collections::BTreeSet;
use std::fmt;

use bytes::Bytes;
use coppice_client::token::sha256;
use coppice_client::wire::{AdminRequest, Grant, Permission, Role};

/// Of a key, so much is shown in a refusal.
const SHOWN_BYTES_MAX: usize = 64;

/// What somebody may do. It never changes: who gets other rights gets another one of these.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rights {
    /// None: access control is off.
    user: Option<Box<str>>,
    /// See [`Rights::owner`].
    owner: Option<u64>,
    /// The strongest role that is for all keys.
    of_all: Option<Role>,
    /// Roles beyond that, for prefixes.
    of_prefixes: Box<[Prefix]>,
    /// The users are not known yet: see [`Rights::while_forming`].
    is_forming: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Prefix {
    role: Role,
    low: Bytes,
    /// The first key beyond; none: there is none.
    high: Option<Bytes>,
}

impl Rights {
    /// Of everybody, while access control is off.
    pub fn everything() -> Rights {
        Rights { user: None, owner: None, of_all: Some(Role::Admin), of_prefixes: Box::default(), is_forming: false }
    }

    /// Of everybody at a node that does not know the users of its cluster yet: status and `init`.
    pub fn while_forming() -> Rights {
        Rights { of_all: None, is_forming: true, ..Rights::everything() }
    }

    /// Of a user with these grants. Its sessions are its own: one of the same name that comes later has another number.
    pub(super) fn of_user(name: &str, number: u64, grants: &BTreeSet<Grant>) -> Rights {
        let of_all = grants.iter().filter(|grant| grant.prefix.is_empty()).map(|grant| grant.role).max();
        let beyond = grants.iter().filter(|grant| !grant.prefix.is_empty() && Some(grant.role) > of_all);
        let prefix =
            |grant: &Grant| Prefix { role: grant.role, low: grant.prefix.clone(), high: successor(&grant.prefix) };
        let number = if mutant!(namesakes_share_sessions) { 0 } else { number };
        let whole = [name.as_bytes(), &number.to_le_bytes()].concat();
        let owner = sha256(&whole).first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        Rights { user: Some(name.into()), owner, of_all, of_prefixes: beyond.map(prefix).collect(), is_forming: false }
    }

    /// Whose they are; none: access control is off.
    pub fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// Whether the node does not know the users yet: whoever asks for data is to ask again.
    pub fn is_forming(&self) -> bool {
        self.is_forming
    }

    /// Whether they hold `role` for all keys.
    #[inline]
    pub fn all_keys(&self, role: Role) -> bool {
        self.of_all >= Some(role)
    }

    /// Whether they hold `role` for some keys.
    pub fn some_keys(&self, role: Role) -> bool {
        self.all_keys(role) || self.of_prefixes.iter().any(|prefix| prefix.role >= role)
    }

    /// Whether they allow an operator's verb.
    pub fn verb(&self, verb: &AdminRequest) -> bool {
        match verb.properties().permission {
            Permission::Everybody => true,
            Permission::AdminOrForming => self.is_forming || self.all_keys(Role::Admin),
            Permission::AdminOfSomeKeys => self.some_keys(Role::Admin),
            Permission::Admin => self.all_keys(Role::Admin),
        }
    }

    /// Whether they hold `role` for a key.
    #[inline]
    pub fn key(&self, role: Role, key: &[u8]) -> bool {
        self.all_keys(role) || self.of_prefixes.iter().any(|prefix| prefix.role >= role && key.starts_with(&prefix.low))
    }

    /// Whether they hold `role` for all of `low..high`, by one grant; `high` none: to the last key there can be. Where
    /// a range ends beyond the prefix it begins in, it is denied, never cut.
    pub fn range(&self, role: Role, low: &[u8], high: Option<&[u8]>) -> bool {
        let within = |prefix: &Prefix| {
            let ends = match (high, &prefix.high) {
                (_, None) => true,
                (Some(high), Some(beyond)) => high <= beyond,
                (None, Some(_)) => false,
            };
            prefix.role >= role && low.starts_with(&prefix.low) && (ends || mutant!(prefix_not_checked_in_ranges))
        };
        self.all_keys(role) || self.of_prefixes.iter().any(within)
    }

    /// Whether these allow all that `other` allow.
    pub fn include(&self, other: &Rights) -> bool {
        let all = other.of_all.is_none_or(|role| self.all_keys(role));
        all && other.of_prefixes.iter().all(|prefix| self.range(prefix.role, &prefix.low, prefix.high.as_deref()))
    }

    /// Marks the sessions that its user opens, as those of nobody else are marked: a user repeats own commands only,
    /// and so hears no answers to another's. None while access control is off.
    pub fn owner(&self) -> Option<u64> {
        self.owner
    }

    /// The refusal of what needs `role` for something.
    pub fn denial(&self, role: Role, of: Needs<'_>) -> Denial {
        let of = match of {
            Needs::Key(key) => format!("key {}", shown(key)),
            Needs::Range(low, high) => format!("range {}..{}", shown(low), high.map_or_else(String::new, shown)),
            Needs::SomeKeys => "any key".to_owned(),
            Needs::AllKeys => "all keys".to_owned(),
        };
        Denial { user: self.user().unwrap_or("whoever connects").to_owned(), role, of }
    }
}

/// For what a role is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs<'a> {
    /// For one key.
    Key(&'a [u8]),
    /// From a key to before another one; none: to the end.
    Range(&'a [u8], Option<&'a [u8]>),
    /// For at least one prefix.
    SomeKeys,
    /// For all keys: an operator's verb.
    AllKeys,
}

/// Why something was not done: for the asker, who said the keys. Logs get [`Denial::user`] and [`Denial::role`] alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    /// Who asked.
    pub user: String,
    /// What it takes.
    pub role: Role,
    of: String,
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Denial { user, role, of } = self;
        write!(f, "user {user} does not have role {role} for {of}")
    }
}

fn shown(key: &[u8]) -> String {
    match key.get(..SHOWN_BYTES_MAX) {
        Some(start) => format!("{}...", start.escape_ascii()),
        None => key.escape_ascii().to_string(),
    }
}

/// The first byte string above all that begin with `prefix`; none: there is none.
fn successor(prefix: &[u8]) -> Option<Bytes> {
    let kept = prefix.iter().rposition(|&byte| byte != 0xff)?;
    let mut next = prefix[..=kept].to_vec();
    *next.last_mut()? += 1;
    Some(next.into())
}
