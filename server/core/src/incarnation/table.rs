//! What a node remembers of the others ([`super::claim`]), and the file that holds it: it changes whenever a start of
//! another node is met for the first time, before that node is let in.

use std::collections::BTreeMap;

use coppice_client::wire::NodeId;

use super::claim::{ClaimError, IncarnationClaim, Judgement, KnownIncarnation};

/// First bytes of the file: its format.
const FORMAT: &[u8; 8] = b"COPPWIT\x01";

/// What is remembered of every node that was met.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IncarnationTable(BTreeMap<NodeId, KnownIncarnation>);

impl IncarnationTable {
    /// What the file says, and whether it is damaged; none: there is none. One that is damaged says nothing, and is
    /// written anew.
    pub fn read(file: Option<&[u8]>) -> (IncarnationTable, bool) {
        let read = file.filter(|_| !mutant!(incarnation_table_forgotten)).map(decode);
        let is_damaged = matches!(read, Some(None));
        (read.flatten().unwrap_or_default(), is_damaged)
    }

    /// What the file is to say.
    pub fn file(&self) -> Vec<u8> {
        let body = postcard::to_stdvec(&self.0).expect("plain data");
        [&FORMAT[..], &crc32c::crc32c(&body).to_le_bytes(), &body].concat()
    }

    /// Whether `node` may talk, which claims this. If it is a start that was not met before, returns what is to be
    /// remembered, durably, before it is let in.
    ///
    /// # Errors
    /// Refuse it.
    pub fn judge(&self, node: NodeId, claim: &IncarnationClaim) -> Result<Option<IncarnationTable>, ClaimError> {
        let known = self.0.get(&node).copied().unwrap_or_default();
        Ok(match known.judge(claim)? {
            Judgement::Known => None,
            Judgement::New(met) => {
                let mut newer = self.clone();
                newer.0.insert(node, met);
                Some(newer)
            }
        })
    }

    /// Takes over what `newer` says of `node`, and of no other: they may have been heard since `newer` was made.
    pub fn take(&mut self, node: NodeId, mut newer: IncarnationTable) {
        if let Some(met) = newer.0.remove(&node) {
            self.0.insert(node, met);
        }
    }

    /// `node` said how far its log is durable, on a connection that was let in.
    pub fn raise_durable(&mut self, node: NodeId, durable_lsn: u64) {
        if let Some(met) = self.0.get_mut(&node) {
            met.raise_durable(durable_lsn);
        }
    }

    /// Whether this is the newest start of `node` that was let in; none was: yes.
    pub fn is_newest(&self, node: NodeId, boot_id: u64) -> bool {
        self.0.get(&node).is_none_or(|met| met.has_boot_id(boot_id))
    }

    /// Whether nobody was met.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn decode(bytes: &[u8]) -> Option<IncarnationTable> {
    let (crc, body) = bytes.strip_prefix(FORMAT)?.split_at_checked(4)?;
    if crc != crc32c::crc32c(body).to_le_bytes() {
        return None;
    }
    postcard::from_bytes(body).ok().map(IncarnationTable)
}
