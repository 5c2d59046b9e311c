//! What the nodes of the model hold: partitions, and sessions as protocol.md 6 has them. One of these answers a command
//! once, however often it is asked.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use coppice_btree::{Edit, Op, OpResult, Tree, Undo, Update, Value};
use coppice_client::wire::*;

#[derive(Clone, Debug, Default)]
pub struct SessionRow {
    pub lowest: u64,
    pub replies: BTreeMap<u64, (Position, Vec<u8>)>,
}

#[derive(Clone, Debug)]
pub struct ModelPartition {
    pub id: PartitionId,
    pub low: Bytes,
    pub high: Option<Bytes>,
    pub leader: u32,
    pub data: BTreeMap<Vec<u8>, Vec<u8>>,
    pub sessions: BTreeMap<SessionId, SessionRow>,
    pub instance: u64,
    pub version: u64,
}

/// What one execution did.
#[derive(Clone, Debug, PartialEq)]
pub struct Execution {
    pub position: Position,
    pub result: Vec<u8>,
}

pub fn contains(partition: &ModelPartition, key: &[u8]) -> bool {
    key >= &partition.low[..] && partition.high.as_ref().is_none_or(|high| key < &high[..])
}

/// Executes a pack as protocol.md 6 says; `false`: its session is not open.
pub fn execute_pack(
    partition: &mut ModelPartition,
    executions: &mut BTreeMap<Vec<u8>, Vec<Execution>>,
    instance: u64,
    pack: &Pack<'_>,
    answer: &mut BytesMut,
) -> bool {
    let Some(mut row) = partition.sessions.remove(&pack.session()) else { return false };
    row.lowest = row.lowest.max(pack.lowest_unacknowledged());
    let lowest = row.lowest;
    row.replies.retain(|&number, _| number >= lowest);
    let mut reply = PackReply::new(answer, partition.id, instance, 0);
    for (index, (number, command)) in pack.commands().enumerate() {
        if let Some((position, result)) = row.replies.get(&number) {
            reply.repeated(*position, result);
            continue;
        }
        if number < row.lowest {
            reply.refused(CommandRefusal::Forgotten);
            continue;
        }
        let (low, high) = (partition.low.clone(), partition.high.clone());
        if !command.is_within(&low, high.as_deref()) {
            let version = MapVersion(partition.version);
            reply.refused(CommandRefusal::WrongPartition { version });
            continue;
        }
        let mark = match command {
            Command::Op(op) => {
                reply.result(&execute(&mut partition.data, op));
                mark_of(&op)
            }
            Command::Many(many) => {
                let results: Vec<OpResult> = many.iter().map(|op| execute(&mut partition.data, op)).collect();
                assert_eq!(many.guards(), 0, "not drawn");
                reply.many(results.iter());
                many.iter().next().and_then(|op| mark_of(&op))
            }
            Command::Load(load) => {
                match load.iter().position(|(key, _)| partition.data.contains_key(key)) {
                    Some(present) => reply.not_loaded(present as u64),
                    None => {
                        partition.data.extend(load.iter().map(|(key, value)| (key.to_vec(), value.to_vec())));
                        reply.loaded(load.len() as u64);
                    }
                }
                load.iter().next().map(|(_, value)| value.to_vec())
            }
        };
        let result = reply.last_result().to_vec();
        let position = Position { partition: partition.id, instance, index: index as u32 };
        row.replies.insert(number, (position, result.clone()));
        if let Some(mark) = mark {
            executions.entry(mark).or_default().push(Execution { position, result });
        }
    }
    reply.finish();
    partition.sessions.insert(pack.session(), row);
    true
}

/// The unique value that names the command.
fn mark_of(op: &Op<'_>) -> Option<Vec<u8>> {
    match op {
        Op::Put { value, .. } | Op::Insert { value, .. } | Op::Cas { value, .. } => Some(value.to_vec()),
        Op::Update { terms, .. } => match Update::read(terms).expect("terms").edit {
            Edit::Set(value) | Edit::Append(value) => Some(value.to_vec()),
            _ => None,
        },
        Op::Delete { .. } | Op::Get { .. } | Op::Look { .. } | Op::Move { .. } => None,
    }
}

fn execute(data: &mut BTreeMap<Vec<u8>, Vec<u8>>, op: Op<'_>) -> OpResult {
    let owned = |value: &Vec<u8>| Value::from(&value[..]);
    match op {
        Op::Put { key, value } => {
            OpResult::Put { previous: data.insert(key.to_vec(), value.to_vec()).as_ref().map(owned) }
        }
        Op::Insert { key, value } => {
            let present = data.get(key).map(owned);
            if present.is_none() {
                data.insert(key.to_vec(), value.to_vec());
            }
            OpResult::Insert { present }
        }
        Op::Delete { key } => OpResult::Delete { previous: data.remove(key).as_ref().map(owned) },
        Op::Cas { key, expected, value } => {
            let current = data.get(key).map(owned);
            let done = current.as_ref().is_some_and(|current| **current == *expected);
            if done {
                data.insert(key.to_vec(), value.to_vec());
            }
            OpResult::Cas { done, current }
        }
        Op::Get { key } => OpResult::Get { value: data.get(key).map(owned) },
        // The model is one of sessions: what these do is the tree's to say.
        Op::Update { .. } | Op::Look { .. } | Op::Move { .. } => {
            let mut tree = Tree::from_sorted(data.iter()).expect("in order");
            let result = tree.execute(op, &mut Undo::new());
            *data = tree.iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
            result
        }
    }
}

/// What a look finds where this value is.
pub fn look(value: Option<&[u8]>) -> OpResult {
    OpResult::Look { exists: value.is_some(), length: value.map_or(0, <[u8]>::len) as u32, remaining: None }
}
