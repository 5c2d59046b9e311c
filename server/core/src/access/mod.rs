//! Access control: which users there are, and what each may do.
//!
//! [`Users`] is replicated state, a part of the directory's (`machine/directory`): it reaches every node beside the map
//! and the settings, under the map's version. [`Access`] is what a node makes of it, and [`Rights`] what a connection
//! has of that: it changes only when the users do, and the connections hear of it then.
//!
//! Pure: no sockets, no time. No users: access control is off, and everybody may do everything.

mod rights;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use coppice_client::token::TokenHash;
use coppice_client::wire::control::AdminError;
use coppice_client::wire::{AdminRequest, Grant, KEY_BYTES_MAX, Role, UserChange, UserRow};
pub use rights::{Denial, Needs, Rights};
use serde::{Deserialize, Serialize};

/// Longest name of a user.
const NAME_BYTES_MAX: usize = 64;

/// Longest name in a certificate: that of a host.
const CERTIFICATE_BYTES_MAX: usize = 253;

/// Grants of one user. Every key of a request is compared with them.
const GRANTS_MAX: usize = 32;

/// All users together, encoded: they travel with the map, and the directory keeps copies for undo.
const USERS_BYTES_MAX: usize = 256 * 1024;

/// A user as the directory keeps it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// What it may do.
    grants: BTreeSet<Grant>,
    /// Hashes of its tokens, the newest first; at most two.
    tokens: Vec<Credential<TokenHash>>,
    /// Name in the client certificates that stand for it.
    certificate: Option<Credential<String>>,
    /// No other user has it, nor one of this name that was removed.
    number: u64,
}

/// By what a user is known, and who set it: whoever did may hold it too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Credential<T> {
    shown: T,
    /// Number of an admin for a prefix; none: who set it was an admin for all keys.
    set_by: Option<u64>,
}

/// The users of a cluster.
///
/// Unless there are none, one is an admin for all keys and has a credential.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Users(BTreeMap<String, User>);

/// Why a change of the users is not taken. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum UserError {
    /// No such user.
    #[error("there is no user {0}")]
    Unknown(String),
    /// The name is taken.
    #[error("there is a user {0} already; `user grant`, `user revoke` and `user token` change it")]
    Exists(String),
    /// The token or the certificate's name stands for somebody else.
    #[error("this {what} stands for user {name} already")]
    CredentialTaken {
        /// Token or certificate.
        what: String,
        /// For whom.
        name: String,
    },
    /// A name, prefix or number is beyond its limits.
    #[error("{0}")]
    Invalid(String),
    /// The user has no such grant.
    #[error("{name} was not granted {role} for the prefix named, or for all keys without one: `user ls` says for what")]
    NotGranted { name: String, role: Role },
    /// Access control begins with somebody who can change it.
    #[error("the first user must be an admin for all keys and have a token: else nobody could add another one")]
    FirstMustBeAdmin,
    /// Nobody could change anything.
    #[error("no admin for all keys would be left who can log in: add another one first")]
    LastAdmin,
    /// Whoever set a credential would get what only its user is to have.
    #[error(
        "{name} has a token or certificate that an admin for a prefix set who may not grant that: give it a new token \
         first (`user token {name}`), and if that is not enough, remove it and add it again"
    )]
    SetByAnother { name: String },
    /// The asker may not do that.
    #[error("{by} may not manage {name}: that needs role admin for all that {name} is or was granted")]
    NotAllowed {
        /// Who asked.
        by: String,
        /// About whom.
        name: String,
    },
}

impl From<UserError> for AdminError {
    fn from(error: UserError) -> AdminError {
        let text = error.to_string();
        match error {
            UserError::Unknown(_) | UserError::NotGranted { .. } => AdminError::NotFound(text),
            UserError::Exists(_) => AdminError::Exists(text),
            UserError::Invalid(_) => AdminError::Invalid(text),
            UserError::CredentialTaken { .. }
            | UserError::FirstMustBeAdmin
            | UserError::LastAdmin
            | UserError::SetByAnother { .. }
            | UserError::NotAllowed { .. } => AdminError::Refused(text),
        }
    }
}

impl Users {
    /// Whether there are none: access control is off.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Those that `by` manages, or all: none asks while access control is off.
    pub fn rows(&self, by: Option<&str>) -> Vec<UserRow> {
        let row = |(name, user): (&String, &User)| UserRow {
            name: name.clone(),
            grants: user.grants.iter().cloned().collect(),
            tokens: user.tokens.len() as u32,
            certificate: user.certificate.as_ref().map(|certificate| certificate.shown.clone()),
        };
        let managed = |(_, user): &(&String, &User)| by.is_none() || self.may_manage(by, Some(*user), None);
        self.0.iter().filter(managed).map(row).collect()
    }

    /// Carries out a change that `by` asks for, none: while access control was off. `true` if anything is other than
    /// before. Who asks is judged by the state that the change meets, wherever it was judged before. A user that is
    /// added gets `number`, which no call had before.
    ///
    /// # Errors
    /// See [`UserError`]; nothing was changed.
    pub fn apply(&mut self, by: Option<&str>, change: &UserChange, number: u64) -> Result<bool, UserError> {
        let name = change.name();
        let before = self.0.get(name);
        let judge = |after: Option<&User>| {
            if self.0.is_empty() || self.may_manage(by, before, after) {
                return Ok(());
            }
            let by = by.unwrap_or("whoever connects without credentials").to_owned();
            Err(UserError::NotAllowed { by, name: name.to_owned() })
        };
        // First without what comes of it: what is wrong with that tells of the user.
        judge(None)?;
        let manager = by.and_then(|by| self.0.get(by)).filter(|manager| !manager.is_admin_of_all());
        let after = changed(before, change, number, manager.map(|manager| manager.number))?;
        judge(after.as_ref())?;
        if before == after.as_ref() {
            return Ok(false);
        }
        if let Some(user) = &after {
            self.check_credentials(name, user)?;
            let granted = user.grants.iter().filter(|grant| before.is_none_or(|before| !before.grants.contains(grant)));
            if !granted.clone().all(|grant| self.could_be_granted(user, grant)) {
                return Err(UserError::SetByAnother { name: name.to_owned() });
            }
            if self.0.is_empty() && (!user.is_admin_of_all() || user.tokens.is_empty()) {
                return Err(UserError::FirstMustBeAdmin);
            }
        }
        let mut users = self.0.clone();
        match after {
            Some(user) => users.insert(name.to_owned(), user),
            None => users.remove(name),
        };
        if !users.values().any(|user| user.is_admin_of_all() && user.has_credential()) {
            return Err(UserError::LastAdmin);
        }
        let users = Users(users);
        if postcard::to_stdvec(&users).map_or(true, |bytes| bytes.len() > USERS_BYTES_MAX) {
            let text = format!("all users together may take {USERS_BYTES_MAX} bytes: remove some, or shorten prefixes");
            return Err(UserError::Invalid(text));
        }
        *self = users;
        Ok(true)
    }

    /// Whether `by` may turn the user `before` into `after`: an admin for all keys always, one for a prefix if neither
    /// has a grant beyond it. A user that has none now may have had any, and may get it back.
    fn may_manage(&self, by: Option<&str>, before: Option<&User>, after: Option<&User>) -> bool {
        let Some(manager) = by.and_then(|by| self.0.get(by)) else { return false };
        let within = |grant: &Grant| manager.may_grant(grant);
        manager.is_admin_of_all() || {
            let is_admin = manager.grants.iter().any(|own| own.role == Role::Admin);
            let is_parked = before.is_some_and(|user| user.grants.is_empty()) && !mutant!(parked_are_anybodys);
            is_admin && !is_parked && before.into_iter().chain(after).flat_map(|user| &user.grants).all(within)
        }
    }

    /// Whether all who set a credential of `user` could have given it this grant themselves.
    fn could_be_granted(&self, user: &User, grant: &Grant) -> bool {
        let set_by = user.tokens.iter().map(|token| token.set_by);
        let mut set_by = set_by.chain(user.certificate.iter().map(|certificate| certificate.set_by)).flatten();
        let could = |number| self.0.values().any(|admin| admin.number == number && admin.may_grant(grant));
        set_by.all(could) || mutant!(planted_tokens_inherit)
    }

    /// A credential stands for one user.
    fn check_credentials(&self, name: &str, user: &User) -> Result<(), UserError> {
        for (other, theirs) in self.0.iter().filter(|(other, _)| *other != name) {
            let taken = |what: &str| UserError::CredentialTaken { what: what.to_owned(), name: other.clone() };
            if user.tokens.iter().any(|token| theirs.has_token(&token.shown)) {
                return Err(taken("token"));
            }
            if user.certificate.as_ref().is_some_and(|certificate| theirs.has_certificate(&certificate.shown)) {
                return Err(taken("certificate name"));
            }
        }
        Ok(())
    }
}

impl User {
    fn is_admin_of_all(&self) -> bool {
        self.grants.iter().any(|grant| grant.role == Role::Admin && grant.prefix.is_empty())
    }

    fn may_grant(&self, grant: &Grant) -> bool {
        self.grants.iter().any(|own| own.role == Role::Admin && grant.prefix.starts_with(&own.prefix))
    }

    fn has_token(&self, token: &TokenHash) -> bool {
        self.tokens.iter().any(|own| own.shown == *token)
    }

    fn has_certificate(&self, name: &str) -> bool {
        self.certificate.as_ref().is_some_and(|own| own.shown == name)
    }

    fn has_credential(&self) -> bool {
        !self.tokens.is_empty() || self.certificate.is_some()
    }
}

/// Whether the names and the prefix of a change are within their limits, whatever users there are.
///
/// # Errors
/// [`UserError::Invalid`]: which one is not.
pub fn check(change: &UserChange) -> Result<(), UserError> {
    check_name(change.name())?;
    match change {
        UserChange::Add { grant, certificate, .. } => {
            if certificate.as_ref().is_some_and(|name| !is_certificate_name(name)) {
                let text = format!("a certificate's name has 1 to {CERTIFICATE_BYTES_MAX} printable ASCII characters");
                return Err(UserError::Invalid(text));
            }
            check_grant(grant)
        }
        UserChange::Grant { grant, .. } | UserChange::Revoke { grant, .. } => check_grant(grant),
        UserChange::Token { .. } | UserChange::Remove { .. } => Ok(()),
    }
}

/// What a change makes of its user; none: nothing is left. What is set is set by the admin for a prefix of that number.
fn changed(
    before: Option<&User>,
    change: &UserChange,
    number: u64,
    set_by: Option<u64>,
) -> Result<Option<User>, UserError> {
    check(change)?;
    let known = || before.cloned().ok_or_else(|| UserError::Unknown(change.name().to_owned()));
    match change {
        UserChange::Add { name, grant, token, certificate } => {
            let made = User {
                grants: BTreeSet::from([grant.clone()]),
                tokens: token.iter().map(|&shown| Credential { shown, set_by }).collect(),
                certificate: certificate.clone().map(|shown| Credential { shown, set_by }),
                number: before.map_or(number, |before| before.number),
            };
            if !made.has_credential() {
                return Err(UserError::Invalid(format!("{name} needs a token or the name of a certificate")));
            }
            match before {
                Some(before) if *before != made => Err(UserError::Exists(name.clone())),
                _ => Ok(Some(made)),
            }
        }
        UserChange::Grant { grant, .. } => {
            let mut user = known()?;
            user.grants.insert(grant.clone());
            if user.grants.len() > GRANTS_MAX {
                return Err(UserError::Invalid(format!("a user may have {GRANTS_MAX} grants")));
            }
            Ok(Some(user))
        }
        UserChange::Revoke { name, grant } => {
            let mut user = known()?;
            if !user.grants.remove(grant) {
                return Err(UserError::NotGranted { name: name.clone(), role: grant.role });
            }
            Ok(Some(user))
        }
        UserChange::Token { token, keep, .. } => {
            let mut user = known()?;
            if user.tokens.first().is_none_or(|first| first.shown != *token) {
                user.tokens.truncate(usize::from(*keep));
                user.tokens.insert(0, Credential { shown: *token, set_by });
            } else if !keep {
                user.tokens.truncate(1);
            }
            Ok(Some(user))
        }
        UserChange::Remove { .. } => known().map(|_| None),
    }
}

fn check_name(name: &str) -> Result<(), UserError> {
    let right = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let first = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    if first && name.len() <= NAME_BYTES_MAX && name.bytes().all(right) {
        return Ok(());
    }
    Err(UserError::Invalid(format!(
        "a user's name has 1 to {NAME_BYTES_MAX} letters, digits, `.`, `_` and `-`, a letter or digit first"
    )))
}

fn check_grant(grant: &Grant) -> Result<(), UserError> {
    if grant.prefix.len() <= KEY_BYTES_MAX {
        return Ok(());
    }
    Err(UserError::Invalid(format!("a prefix has at most {KEY_BYTES_MAX} bytes, as a key")))
}

fn is_certificate_name(name: &str) -> bool {
    (1..=CERTIFICATE_BYTES_MAX).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Name in a client certificate that was verified against the cluster's authority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateName(pub String);

/// By what a connection shows whom it acts for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Credentials {
    /// Hash of the token in its `Hello`: if there is one it alone counts.
    pub token: Option<TokenHash>,
    /// Its certificate's.
    pub certificate: Option<CertificateName>,
}

/// Why nobody is known by some credentials: for the asker, and for the log. The token itself is in neither.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stranger {
    /// Access control is on, and the connection shows nothing.
    #[error("this cluster lets in users only, and no token and no client certificate came with the connection")]
    NoCredentials,
    /// No user has this token.
    #[error("no user has the token that came with the connection: it was mistyped, replaced or removed")]
    UnknownToken,
    /// No user has a certificate with this name.
    #[error("no user has a certificate with the name {0}")]
    UnknownCertificate(String),
}

/// The users as a node knows them. Never changed: another one takes its place.
#[derive(Debug)]
pub struct Access {
    users: Users,
    rights: BTreeMap<String, Arc<Rights>>,
    /// Of whoever connects while there are no users.
    of_everybody: Arc<Rights>,
}

impl Default for Access {
    fn default() -> Access {
        Access::new(Users::default())
    }
}

impl Access {
    /// What these users make of a node.
    pub fn new(users: Users) -> Access {
        let rights =
            |(name, user): (&String, &User)| (name.clone(), Arc::new(Rights::of_user(name, user.number, &user.grants)));
        let rights = users.0.iter().map(rights).collect();
        Access { users, rights, of_everybody: Arc::new(Rights::everything()) }
    }

    /// Of a node of a cluster whose users it does not know yet: nobody gets at data, and `init` may be repeated.
    pub fn unknown() -> Access {
        Access { of_everybody: Arc::new(Rights::while_forming()), ..Access::default() }
    }

    /// Whether users are asked who they are.
    pub fn is_on(&self) -> bool {
        !self.users.is_empty()
    }

    pub fn users(&self) -> &Users {
        &self.users
    }

    /// What a connection with these credentials may do.
    ///
    /// # Errors
    /// They stand for nobody.
    pub fn rights(&self, credentials: &Credentials) -> Result<&Arc<Rights>, Stranger> {
        if !self.is_on() {
            return Ok(&self.of_everybody);
        }
        let user = match credentials {
            Credentials { token: Some(token), .. } => {
                self.by(|user| user.has_token(token)).ok_or(Stranger::UnknownToken)?
            }
            Credentials { certificate: Some(CertificateName(name)), .. } => {
                self.by(|user| user.has_certificate(name)).ok_or_else(|| Stranger::UnknownCertificate(name.clone()))?
            }
            _ => return Err(Stranger::NoCredentials),
        };
        self.rights.get(user).ok_or(Stranger::NoCredentials)
    }

    /// Whether a verb that `by` asked for may still be carried out, by the users of this moment. None: who asked came
    /// without credentials, which counts while there are no users.
    pub fn still_allows(&self, by: Option<&str>, verb: &AdminRequest) -> bool {
        let rights = match by {
            Some(user) => self.rights.get(user),
            None => (!self.is_on()).then_some(&self.of_everybody),
        };
        rights.is_some_and(|rights| rights.verb(verb)) || mutant!(verbs_judged_once)
    }

    /// What a connection that was let in with the rights `before` may do from now on.
    ///
    /// # Errors
    /// Why it ends: it acts for nobody, or may do less than it was let in for. What it has under way is not
    /// looked through for what it may not have.
    pub fn rights_again(&self, credentials: &Credentials, before: &Arc<Rights>) -> Result<Arc<Rights>, String> {
        if mutant!(rights_checked_at_hello_only) {
            return Ok(Arc::clone(before));
        }
        match self.rights(credentials) {
            Ok(rights) if rights.include(before) => Ok(Arc::clone(rights)),
            Ok(_) => Err("the rights of this user were changed: connect again".into()),
            Err(stranger) => Err(stranger.to_string()),
        }
    }

    fn by(&self, is_theirs: impl Fn(&User) -> bool) -> Option<&str> {
        self.users.0.iter().find(|(_, user)| is_theirs(user)).map(|(name, _)| name.as_str())
    }
}
