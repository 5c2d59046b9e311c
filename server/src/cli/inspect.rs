//! `inspect`: what the files of a data directory hold, offline and unchanged, one object per line.

use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use clap::Subcommand;
use coppice_btree::{Condition, Edit, Expiry, Op, Update};
use coppice_client::wire::{Command, Pack, PartitionId};
use coppice_core::ids;
use coppice_core::machine::entry::{Entry as Part, entries};
use coppice_core::machine::partition::BoundaryChange;
use coppice_core::multicast::PartitionQuery;
use coppice_core::replay::Entry;
use coppice_ordering::multicast::{Place, Work};
use coppice_ordering::{Batch, Record};
use serde_json::{Map, Value, json};

use super::failure::{Exit, Failure};
use super::output::Output;
use super::shape_args::partition;
use super::words::quote;
use crate::checkpoint::{CheckpointOptions, Checkpoints};
use crate::log::LogError;
use crate::text::Coding;

/// `inspect`
#[derive(Debug, Clone, Subcommand)]
pub enum InspectVerb {
    /// Print every record of the acceptor log, the commands in it included
    Log {
        /// The data directory
        dir: PathBuf,
        /// Only records of this partition, such as p2
        #[arg(long, value_parser = partition, value_name = "PARTITION")]
        partition: Option<PartitionId>,
    },
    /// Read every checkpoint back, and print what it says of itself
    Checkpoint {
        /// The data directory
        dir: PathBuf,
    },
}

/// Carries out one of the verbs.
///
/// # Errors
/// That of stdout; damage and unreadable directories are returned with their four lines.
pub fn run(verb: &InspectVerb, output: &mut Output<'_>) -> io::Result<Result<Exit, Failure>> {
    match verb {
        InspectVerb::Log { dir, partition } => log(dir, *partition, output),
        InspectVerb::Checkpoint { dir } => checkpoints(dir, output),
    }
}

fn log(dir: &Path, wanted: Option<PartitionId>, output: &mut Output<'_>) -> io::Result<Result<Exit, Failure>> {
    let coding = output.style.coding;
    let mut printed = Ok(());
    let read = crate::log::reader::read(&dir.join("log"), |line| {
        let group = line.entry.group();
        if printed.is_err() || (wanted.is_some() && group != wanted) {
            return;
        }
        let mut fields = Map::new();
        fields.insert("v".into(), 1.into());
        fields.insert("lsn".into(), line.lsn.into());
        fields.insert("p".into(), group.map(|group| group.to_string()).into());
        if line.carried {
            fields.insert("carried".into(), true.into());
        }
        describe(&line.entry, coding, &mut fields);
        printed = writeln!(output.data, "{}", Value::Object(fields));
    });
    printed?;
    match read {
        Ok(None) => Ok(Ok(Exit::Done)),
        Ok(Some(cut)) => {
            let (file, offset, reason) = (cut.file, cut.offset, cut.reason);
            output.note(&format!("torn tail, never answered for: {file} at byte {offset}: {reason}"))?;
            Ok(Ok(Exit::Done))
        }
        Err(error) => Ok(Err(log_failure(dir, &error))),
    }
}

fn describe(entry: &Entry, coding: Coding, fields: &mut Map<String, Value>) {
    let mut put = |name: &str, value: Value| _ = fields.insert(name.to_owned(), value);
    match entry {
        Entry::Group { record, .. } => describe_record(record, coding, fields),
        Entry::Created { replica, .. } => {
            put("kind", "created".into());
            put("replica", replica.to_string().into());
        }
        Entry::Removed { replica, .. } => {
            put("kind", "removed".into());
            put("replica", replica.to_string().into());
        }
        Entry::Trimmed { upto, .. } => {
            put("kind", "trimmed".into());
            put("upto", upto.0.into());
        }
        Entry::Kept { segment } => {
            put("kind", "kept".into());
            put("segment", (*segment).into());
        }
    }
}

fn describe_record(record: &Record, coding: Coding, fields: &mut Map<String, Value>) {
    let mut put = |name: &str, value: Value| _ = fields.insert(name.to_owned(), value);
    match record {
        Record::Promise { ballot } => {
            put("kind", "promise".into());
            put("ballot", ballot.to_string().into());
        }
        Record::Accept { instance, ballot, decided_upto, batch } => {
            put("kind", "accept".into());
            put("instance", instance.0.into());
            put("ballot", ballot.to_string().into());
            put("decided_upto", decided_upto.0.into());
            put("batch", describe_batch(batch, coding));
        }
        Record::Learned { instance, ballot, batch } => {
            put("kind", "learned".into());
            put("instance", instance.0.into());
            put("ballot", ballot.to_string().into());
            put("batch", describe_batch(batch, coding));
        }
        Record::Decided { upto } => {
            put("kind", "decided".into());
            put("upto", upto.0.into());
        }
        Record::Lease { duration } => {
            put("kind", "lease".into());
            put("ns", u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX).into());
        }
    }
}

fn describe_batch(batch: &Batch, coding: Coding) -> Value {
    match batch {
        Batch::NoOp => json!("noop"),
        Batch::Configuration(configuration) => json!({ "configuration": configuration.to_string() }),
        Batch::Commands(commands) => {
            let parts: Vec<Value> =
                commands.parts().iter().flat_map(|part: &Bytes| describe_part(part, coding)).collect();
            json!(parts)
        }
    }
}

fn describe_part(part: &[u8], coding: Coding) -> Vec<Value> {
    let mut values = Vec::new();
    for entry in entries(part) {
        match entry {
            Part::Pack { pack, .. } => describe_pack(&pack, coding, &mut values),
            Part::Open(open) => values.push(json!({ "do": "open", "client": open.client.to_string() })),
            Part::Directory(command) => values.push(json!({ "do": "directory", "command": format!("{command:?}") })),
            Part::Place(place) => values.push(describe_place(&place, coding)),
            Part::Limits(limits) => values.push(json!({
                "do": "limits", "session_expiry": limits.expiry_instances, "sessions_max": limits.sessions_max,
                "session_bytes_max": limits.bytes_max, "table_bytes_max": limits.table_bytes_max,
            })),
            Part::Expire(_, due) => {
                let mut fields = Map::new();
                fields.insert("do".into(), "expire".into());
                fields.insert("time_ms".into(), due.time.into());
                fields.insert("keys".into(), due.keys.len().into());
                values.push(Value::Object(fields));
            }
            Part::Unknown => values.push(json!({ "do": "unknown" })),
        }
    }
    values
}

/// A ticket, and what it is for. Whether it counts depends on what stands before it (protocol.md 4, step 3): a log that
/// was trimmed does not tell.
fn describe_place(place: &Place, coding: Coding) -> Value {
    let mut fields = Map::new();
    fields.insert("do".into(), "place".into());
    fields.insert("tk".into(), place.ticket.to_string().into());
    fields.insert("prev".into(), place.prev.map(|prev| prev.to_string()).into());
    match &place.work {
        Work::Nothing => {}
        Work::Queries(queries) => {
            let queries = queries.iter().map(|sub| describe_share(&sub.bytes, coding)).collect();
            fields.insert("queries".into(), queries);
        }
        Work::Change { id, payload } => {
            fields.insert("map_version".into(), id.0.into());
            let boundary = postcard::from_bytes::<BoundaryChange>(payload).ok();
            fields.insert("boundary".into(), boundary.map(|change| format!("{:?}", change.step)).into());
        }
    }
    Value::Object(fields)
}

fn describe_share(bytes: &Bytes, coding: Coding) -> Value {
    let Ok(share) = PartitionQuery::decode(bytes) else { return json!({ "do": "unknown" }) };
    let mut fields = Map::new();
    fields.insert("client".into(), share.client.to_string().into());
    fields.insert("query".into(), share.query.into());
    fields.insert("replica".into(), ids::wire_replica(share.replica).to_string().into());
    coding.put_field(&mut fields, "lo", Some(&share.low));
    coding.put_field(&mut fields, "hi", share.high.as_deref());
    Value::Object(fields)
}

fn describe_pack(pack: &Pack<'_>, coding: Coding, values: &mut Vec<Value>) {
    let session = pack.session().to_string();
    for (number, command) in pack.commands() {
        let mut fields = Map::new();
        fields.insert("do".into(), "cmd".into());
        fields.insert("s".into(), session.clone().into());
        fields.insert("n".into(), number.into());
        match command {
            Command::Op(op) => describe_op(&op, coding, &mut fields),
            Command::Many(operations) => {
                let of = |op: Op<'_>| {
                    let mut fields = Map::new();
                    describe_op(&op, coding, &mut fields);
                    Value::Object(fields)
                };
                fields.insert("op".into(), "many".into());
                if operations.guards() > 0 {
                    fields.insert("guards".into(), operations.guards().into());
                }
                fields.insert("ops".into(), operations.iter().map(of).collect());
            }
            Command::Load(pairs) => {
                fields.insert("op".into(), "load".into());
                fields.insert("pairs".into(), pairs.iter().count().into());
            }
        }
        values.push(Value::Object(fields));
    }
}

fn describe_op(op: &Op<'_>, coding: Coding, fields: &mut Map<String, Value>) {
    fields.insert("op".into(), op.name().into());
    coding.put_field(fields, "k", Some(op.key()));
    for (name, bytes) in [("old", op.expected()), ("v", op.value()), ("to", op.other_key())] {
        if bytes.is_some() {
            coding.put_field(fields, name, bytes);
        }
    }
    if let Op::Update { terms, .. } = op
        && let Some(update) = Update::read(terms)
    {
        describe_update(&update, coding, fields);
    }
}

fn describe_update(update: &Update<'_>, coding: Coding, fields: &mut Map<String, Value>) {
    let (edit, operand) = match update.edit {
        Edit::Keep => ("keep", None),
        Edit::Set(value) => ("set", Some(value)),
        Edit::Append(value) => ("append", Some(value)),
        Edit::SetRange { offset, bytes } => {
            fields.insert("offset".into(), offset.into());
            ("set range", Some(bytes))
        }
        Edit::Add(number) => {
            fields.insert("add".into(), number.into());
            ("add", None)
        }
        Edit::AddFloat(number) => ("add float", Some(number)),
        Edit::Remove => ("remove", None),
    };
    fields.insert("edit".into(), edit.into());
    if operand.is_some() {
        coding.put_field(fields, "v", operand);
    }
    match update.condition {
        Condition::Always => {}
        Condition::Absent => _ = fields.insert("if".into(), "absent".into()),
        Condition::Present => _ = fields.insert("if".into(), "present".into()),
        Condition::Equals(expected) => coding.put_field(fields, "old", Some(expected)),
    }
    match update.expiry {
        Expiry::Keep => {}
        Expiry::Clear => _ = fields.insert("expires".into(), Value::Null),
        Expiry::After { milliseconds, .. } => _ = fields.insert("expires".into(), milliseconds.into()),
    }
}

fn checkpoints(dir: &Path, output: &mut Output<'_>) -> io::Result<Result<Exit, Failure>> {
    let found = dir.join("checkpoints");
    let all = match Checkpoints::existing(&found, CheckpointOptions::default()).and_then(|checkpoints| {
        let partitions = checkpoints.partitions()?;
        Ok((checkpoints, partitions))
    }) {
        Ok(all) => all,
        Err(error) => return Ok(Err(unreadable("inspect checkpoint", dir, &error.to_string()))),
    };
    let (checkpoints, partitions) = all;
    let mut bad = 0;
    for partition in partitions {
        let instances = match checkpoints.instances(partition) {
            Ok(instances) => instances,
            Err(error) => return Ok(Err(unreadable("inspect checkpoint", dir, &error.to_string()))),
        };
        for instance in instances {
            let fields = match checkpoints.inspect(partition, instance) {
                Ok(manifest) => json!({
                    "v": 1, "p": partition.to_string(), "instance": instance.0, "ok": true, "pairs": manifest.pairs,
                    "bytes": manifest.bytes, "chunks": manifest.chunks, "map_version": manifest.head.map_version.0,
                    "digest": format!("{:016x}", manifest.digest.0),
                }),
                Err(error) => {
                    bad += 1;
                    json!({ "v": 1, "p": partition.to_string(), "instance": instance.0, "ok": false,
                        "error": error.to_string() })
                }
            };
            writeln!(output.data, "{fields}")?;
        }
    }
    Ok(Ok(if bad == 0 { Exit::Done } else { Exit::Failed }))
}

fn log_failure(dir: &Path, error: &LogError) -> Failure {
    match error {
        LogError::Io(error) => unreadable("inspect log", dir, &error.to_string()),
        error => Failure {
            exit: Exit::Failed,
            code: "damaged",
            what: format!("inspect log: {error}"),
            place: dir.display().to_string(),
            cause: "files were damaged or changed; what stands above is proven good".to_owned(),
            next: format!("coppice inspect checkpoint {}", quote(&dir.display().to_string())),
        },
    }
}

fn unreadable(verb: &str, dir: &Path, error: &str) -> Failure {
    Failure {
        exit: Exit::Usage,
        code: "data_dir",
        what: format!("{verb}: {error}"),
        place: dir.display().to_string(),
        cause: "it is no data directory of a node, or this user may not read it".to_owned(),
        next: "coppice config show --origin".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use coppice_client::wire::ClientId;
    use coppice_core::machine::entry;
    use coppice_core::machine::partition::BoundaryStep;
    use coppice_core::sessions::SessionLimits;
    use coppice_ordering::multicast::SubQuery;
    use coppice_ordering::{Ballot, QueryId, ReplicaId, Ticket};

    use super::*;

    fn ticket(n: u64) -> Ticket {
        Ticket { ballot: Ballot::new(3, 1), n }
    }

    fn described(entry: &[u8]) -> Value {
        json!(describe_part(entry, Coding::Plain))
    }

    #[test]
    fn a_ticket_is_printed_with_what_it_is_for() {
        let share = PartitionQuery {
            client: ClientId(9),
            query: 4,
            replica: ReplicaId(2),
            low: Bytes::from("a"),
            high: None,
            scan: Default::default(),
            credit: 0,
        };
        let asked = |bytes| Work::Queries(vec![SubQuery { query: QueryId(1), bytes }]);
        let place = |prev, work| entry::place(&Place { ticket: ticket(7), prev, work });
        let query = json!({
            "client": ClientId(9).to_string(), "query": 4, "replica": ids::wire_replica(ReplicaId(2)).to_string(),
            "lo": "a", "hi": null,
        });
        let printed = described(&place(Some(ticket(6)), asked(share.encode())));
        assert_eq!(printed, json!([{ "do": "place", "tk": "~3.7", "prev": "~3.6", "queries": [query] }]));
        let printed = described(&place(None, asked(Bytes::from("rot"))));
        assert_eq!(printed, json!([{ "do": "place", "tk": "~3.7", "prev": null, "queries": [{ "do": "unknown" }] }]));
        assert_eq!(described(&place(None, Work::Nothing)), json!([{ "do": "place", "tk": "~3.7", "prev": null }]));
    }

    #[test]
    fn a_change_of_boundaries_and_limits_of_sessions_are_printed() {
        let version = coppice_client::wire::MapVersion(5);
        let step =
            BoundaryStep::Split { parent: PartitionId(1), child: PartitionId(2), at: "m".into(), replicas: vec![] };
        let change = postcard::to_stdvec(&BoundaryChange { version, step }).expect("plain data");
        let work = Work::Change { id: coppice_ordering::ChangeId(5), payload: change.into() };
        let printed = described(&entry::place(&Place { ticket: ticket(1), prev: None, work }));
        let boundary = printed[0]["boundary"].as_str().expect("a boundary");
        assert!(printed[0]["map_version"] == 5 && boundary.starts_with("Split"), "{printed}");
        let limits = SessionLimits { sessions_max: 3, ..SessionLimits::default() };
        let printed = described(&entry::limits(&limits));
        assert_eq!((&printed[0]["do"], &printed[0]["sessions_max"]), (&json!("limits"), &json!(3)), "{printed}");
    }
}
