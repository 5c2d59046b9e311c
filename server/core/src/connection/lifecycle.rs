//! Whom a connection acts for, whether it is read, and when it ends.

use std::sync::Arc;

use coppice_client::wire::{ClientId, Refusal};

use super::Pending;
use crate::access::{Access, Credentials, Rights};

/// One connection, from its first byte to its end.
pub struct Lifecycle {
    /// Who said hello.
    client: Option<ClientId>,
    /// What it may do; nothing before its hello.
    rights: Arc<Rights>,
    /// Why: judged again when the users change.
    credentials: Credentials,
    /// It showed wrong credentials, or may do less than it was let in for: nothing more is read.
    is_stranger: bool,
    /// Why it ends as soon as no verb waits.
    reason: Option<String>,
    /// No more is read; what is queued is still written.
    closing: bool,
    /// It ends as soon as nothing waits on it: the certificates that it began with have been replaced.
    retiring: bool,
}

/// What a connection has yet to write.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unwritten {
    /// Answers that are in no frame yet.
    pub answers: bool,
    /// Frames that the socket has not taken.
    pub frames: bool,
}

impl Default for Lifecycle {
    fn default() -> Lifecycle {
        Lifecycle {
            client: None,
            rights: Arc::new(Rights::while_forming()),
            credentials: Credentials::default(),
            is_stranger: false,
            reason: None,
            closing: false,
            retiring: false,
        }
    }
}

impl Lifecycle {
    /// Who said hello.
    pub fn client(&self) -> Option<ClientId> {
        self.client
    }

    /// What it may do now.
    pub fn rights(&self) -> &Arc<Rights> {
        &self.rights
    }

    /// It acts for this client from now on.
    pub fn let_in(&mut self, client: ClientId, rights: Arc<Rights>, credentials: Credentials) {
        (self.client, self.rights, self.credentials) = (Some(client), rights, credentials);
    }

    /// It showed wrong credentials.
    pub fn turn_away(&mut self) {
        self.is_stranger = true;
    }

    /// It ends after what is queued is written.
    pub fn close(&mut self) {
        self.closing = true;
    }

    /// It ends as soon as nothing waits on it.
    pub fn retire(&mut self) {
        self.retiring = true;
    }

    /// Whether it ends after what is queued is written.
    pub fn is_closing(&self) -> bool {
        self.closing
    }

    /// Whether more is read of it.
    pub fn may_read(&self) -> bool {
        !self.closing && !self.is_stranger
    }

    /// Goes by other users: what its client hears last if it acts for nobody, or may do less than it was let in for.
    pub fn follow<T>(&mut self, access: &Access, pending: &mut Pending<T>) -> Option<Refusal> {
        // Who has not greeted is judged then.
        if self.client.is_none() || self.closing || self.reason.is_some() {
            return None;
        }
        match access.rights_again(&self.credentials, &self.rights) {
            Ok(rights) => {
                self.rights = rights;
                return None;
            }
            Err(reason) => self.reason = Some(reason),
        }
        self.rights = Arc::new(Rights::while_forming());
        self.is_stranger = true;
        pending.drop_streams();
        self.farewell(pending)
    }

    /// What its client hears last, and it closes: once, if it lost its rights and no verb waits. Whoever switched
    /// access control on, or took the own role, hears the answer to that first.
    pub fn farewell<T>(&mut self, pending: &Pending<T>) -> Option<Refusal> {
        if pending.has_control() {
            return None;
        }
        let text = self.reason.take()?;
        self.closing = true;
        Some(Refusal::Unauthenticated { text })
    }

    /// Whether it is over, at a node that `is_draining` or not.
    pub fn is_over<T>(&self, is_draining: bool, pending: &Pending<T>, unwritten: Unwritten) -> bool {
        let leaves = is_draining || (self.retiring && !pending.has_parts());
        let waits = unwritten.answers || !pending.is_empty();
        !unwritten.frames && (self.closing || (leaves && !waits))
    }
}

#[cfg(test)]
mod tests {
    use coppice_client::wire::{CollectRequest, ScanOptions};

    use super::*;
    use crate::access::Users;
    use crate::cost::Account;
    use crate::request::Origin;
    use crate::worker::Input;

    const WRITTEN: Unwritten = Unwritten { answers: false, frames: false };

    fn greeted() -> Lifecycle {
        let mut lifecycle = Lifecycle::default();
        lifecycle.let_in(ClientId(7), Arc::new(Rights::everything()), Credentials::default());
        lifecycle
    }

    /// With one request, or none.
    fn pending(waits: bool) -> Pending<()> {
        let mut pending = Pending::new(8);
        let range = CollectRequest { parts: Vec::new(), high: None, scan: ScanOptions::default(), credit: 0 };
        let input = Input::Collect { origin: Origin::Nobody, range };
        assert!(!waits || pending.admit((1, 1), &Account::unbounded(), input, ()).is_ok());
        pending
    }

    #[test]
    fn a_connection_ends_when_it_is_closed_or_has_nothing_to_wait_for_and_leaves() {
        let [answers, frames] = [(true, false), (false, true)].map(|(answers, frames)| Unwritten { answers, frames });
        let (idle, busy, mut lifecycle) = (pending(false), pending(true), greeted());
        assert!(!lifecycle.is_over(false, &idle, WRITTEN) && lifecycle.is_over(true, &idle, WRITTEN));
        assert!(!lifecycle.is_over(true, &busy, WRITTEN) && !lifecycle.is_over(true, &idle, answers));
        lifecycle.retire();
        assert!(lifecycle.is_over(false, &idle, WRITTEN) && !lifecycle.is_over(false, &busy, WRITTEN));
        assert!(!lifecycle.is_over(false, &idle, frames) && lifecycle.may_read());
        lifecycle.close();
        assert!(lifecycle.is_over(false, &busy, answers) && !lifecycle.is_over(false, &busy, frames));
        assert!(!lifecycle.may_read());
    }

    #[test]
    fn who_loses_rights_is_not_read_and_hears_why_behind_the_answers_to_its_verbs() {
        let (same, fewer) = (Access::new(Users::default()), Access::unknown());
        let (mut lifecycle, mut pending) = (greeted(), pending(false));
        assert!(Lifecycle::default().follow(&fewer, &mut pending).is_none(), "it has not greeted");
        assert!(lifecycle.follow(&same, &mut pending).is_none() && lifecycle.may_read());
        assert!(pending.control_begins() && lifecycle.follow(&fewer, &mut pending).is_none());
        assert!(!lifecycle.may_read() && !lifecycle.is_closing() && lifecycle.rights().is_forming());
        pending.control_ends();
        assert!(matches!(lifecycle.farewell(&pending), Some(Refusal::Unauthenticated { .. })));
        assert!(lifecycle.is_closing() && lifecycle.farewell(&pending).is_none());
    }
}
