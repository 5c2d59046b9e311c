//! Whether a user may do what it asks: asked before a request is admitted, so that what is denied costs nothing but its
//! decoding.

use coppice_btree::Op;
use coppice_client::wire::{Command, CommandsRequest, Permission, Request, Role};

use crate::access::{Denial, Needs, Rights};
use crate::multicast::PartitionQuery;

/// Why a request is not admitted.
#[derive(Debug)]
pub enum AdmissionError {
    /// The user may not do that.
    Denied(Denial),
    /// The node does not know yet who may.
    Forming,
}

/// Whether `rights` allow what is asked.
///
/// # Errors
/// Why not.
pub fn check(rights: &Rights, asked: &Request) -> Result<(), AdmissionError> {
    if rights.all_keys(Role::Admin) {
        return Ok(());
    }
    let allowed = |allowed: bool, role: Role, of: Needs<'_>| match allowed {
        true => Ok(()),
        false if rights.is_forming() => Err(AdmissionError::Forming),
        false => Err(AdmissionError::Denied(rights.denial(role, of))),
    };
    let range = |low: &[u8], high: Option<&[u8]>| {
        allowed(rights.range(Role::Read, low, high), Role::Read, Needs::Range(low, high))
    };
    match asked {
        Request::Admin(admin) if rights.verb(admin) => Ok(()),
        Request::Hello(_) | Request::Ping | Request::MapGet(_) | Request::Status(_) => Ok(()),
        // About what was admitted before.
        Request::Credit(_) | Request::Cancel | Request::PartCredit { .. } | Request::PartCancel { .. } => Ok(()),
        Request::Compare(_) | Request::PartCompare { .. } => Ok(()),
        Request::Admin(admin) => {
            let some = admin.properties().permission == Permission::AdminOfSomeKeys;
            allowed(false, Role::Admin, if some { Needs::SomeKeys } else { Needs::AllKeys })
        }
        Request::OpenSession(_) => allowed(rights.some_keys(Role::Write), Role::Write, Needs::SomeKeys),
        Request::Commands(commands) => match denied_key(rights, commands) {
            None => Ok(()),
            Some((role, key)) => allowed(false, role, Needs::Key(key)),
        },
        Request::Read(_) if rights.all_keys(Role::Read) => Ok(()),
        Request::Read(read) => match read.keys().find(|key| !rights.key(Role::Read, key)) {
            None => Ok(()),
            Some(key) => allowed(false, Role::Read, Needs::Key(key)),
        },
        Request::Range(asked) => range(&asked.low, asked.high.as_deref()),
        Request::Validate(asked) => asked.ranges().try_for_each(|asked| range(asked.low, asked.high)),
        Request::Collect(asked) => (0..asked.parts.len()).try_for_each(|part| {
            let (low, high) = asked.bounds(part);
            range(low, high.map(|high| &**high))
        }),
        Request::Query(asked) => range(&asked.low, asked.high.as_deref()),
    }
}

impl Rights {
    /// Whether a part of this query may go to a connection with these rights: it comes unasked, to whom the query
    /// names.
    pub fn part(&self, query: &PartitionQuery) -> bool {
        self.range(Role::Read, &query.low, query.high.as_deref())
    }
}

/// The first key of a pack that `rights` do not allow, and the role that it takes.
fn denied_key<'a>(rights: &Rights, commands: &'a CommandsRequest) -> Option<(Role, &'a [u8])> {
    if rights.all_keys(Role::Write) {
        return None;
    }
    // It was decoded whole: an error would be one of ours, and lets nobody in.
    let Ok(pack) = commands.pack() else { return Some((Role::Admin, &[])) };
    let role = |op: &Op<'_>| if op.is_read() { Role::Read } else { Role::Write };
    let denied = |op: Op<'a>| {
        let keys = [Some(op.key()), op.other_key()];
        let denied = keys.into_iter().flatten().find(|key| !rights.key(role(&op), key));
        denied.map(|key| (role(&op), key))
    };
    pack.commands().find_map(|(_, command)| match command {
        Command::Op(op) => denied(op),
        Command::Many(many) => many.iter().find_map(denied),
        Command::Load(load) => {
            load.iter().map(|(key, _)| key).find(|key| !rights.key(Role::Write, key)).map(|key| (Role::Write, key))
        }
    })
}

#[cfg(test)]
mod tests;
