//! What goes into a step and what comes out of it, as a number: the hash of a run is over these, so that two runs which
//! differ in one byte of a message or an answer are told apart.

use std::fmt::{self, Debug, Write as _};
use std::hash::{Hash, Hasher};

use coppice_core::controller::{Effect as Wanted, Input as ControllerInput};
use coppice_core::replica;
use coppice_core::request::{Origin, Reply};
use coppice_core::worker::{Effect, Input, Message, Note, Report};

use super::trace::Fingerprint;

/// Takes words in without keeping them.
struct Words<'a>(&'a mut Fingerprint);

impl fmt::Write for Words<'_> {
    fn write_str(&mut self, words: &str) -> fmt::Result {
        self.0.write(words.as_bytes());
        Ok(())
    }
}

/// What a value says of itself.
pub fn words(what: &impl Debug, hash: &mut Fingerprint) {
    // A fingerprint takes everything.
    _ = write!(Words(hash), "{what:?}");
}

/// An input of a worker.
pub fn input(input: &Input) -> u64 {
    let mut hash = Fingerprint::default();
    match input {
        Input::Peers { node, envelopes } => {
            node.hash(&mut hash);
            envelopes.iter().for_each(|it| (it.group, it.to, it.from, &it.message).hash(&mut hash));
        }
        Input::Persisted { group, lsn } => (2_u8, group, lsn).hash(&mut hash),
        Input::Replica(group, input) => (group, of_replica(input)).hash(&mut hash),
        Input::Worker(message) | Input::Undelivered(message) => of_message(message, &mut hash),
        other => hash.write(show_input(other).as_bytes()),
    }
    hash.finish()
}

fn of_replica(input: &replica::Input) -> u64 {
    let mut hash = Fingerprint::default();
    match input {
        replica::Input::Installed { machine, instance, configuration, configured_at, promised } => {
            (3_u8, machine.digest(), instance, configuration, configured_at, promised).hash(&mut hash);
        }
        replica::Input::Absorb(left) => words(&(left.partition, left.seal), &mut hash),
        other => words(other, &mut hash),
    }
    hash.finish()
}

fn of_message(message: &Message, hash: &mut Fingerprint) {
    match message {
        Message::Reply { group, origin, reply } => {
            group.hash(hash);
            answer(*origin, reply, hash);
        }
        other => words(other, hash),
    }
}

/// An input in a trace.
pub fn show_input(input: &Input) -> String {
    match input {
        Input::Tick => "tick".into(),
        Input::TurnEnd => "turn".into(),
        Input::Yielded { is_busy } => format!("yielded, busy {is_busy}"),
        Input::Persisted { group, lsn } => format!("{group} persisted {lsn}"),
        Input::Peers { node, envelopes } => format!("of {node} {envelopes:?}"),
        Input::Multicast { node, messages } => format!("of {node} {messages:?}"),
        Input::Request { group, origin, request } => format!("{group} {origin:?} {request:?}"),
        Input::Query { origin, client, request } => format!("query {origin:?} {client} {request:?}"),
        Input::Collect { origin, range } => format!("collect {origin:?} {range:?}"),
        Input::Unclaimed(part) => format!("unclaimed part of {}", part.ticket),
        Input::Greeted(client) => format!("greeted {client}"),
        Input::Worker(message) => format!("worker: {message:?}"),
        Input::Undelivered(message) => format!("undelivered {message:?}"),
        Input::Start { start, .. } => format!("host {} {}", start.group, start.me),
        Input::Drop(group) => format!("drop {group}"),
        Input::Replica(group, input) => match &**input {
            replica::Input::Installed { instance, .. } => format!("{group} install {instance}"),
            replica::Input::Absorb(left) => format!("{group} absorb {}", left.partition),
            other => format!("{group} {other:?}"),
        },
        Input::Map(map) => format!("map {}", map.version),
        Input::Settings(_) => "settings".into(),
        Input::Leader(group, leader) => format!("{group} is led from {leader:?}"),
        Input::Answers(node, answers) => format!("{node} answers {answers}"),
        Input::Resources(room) => format!("{room:?}"),
        Input::Identity(node, _) => format!("is {node}"),
        Input::MaySpeak(may) => format!("may speak {may}"),
        Input::Heard { heard, .. } => format!("heard {heard:?}"),
        Input::Gone(node) => format!("gone {node}"),
        Input::Storage(_) => "storage".into(),
        Input::Load(load) => format!("{load:?}"),
        Input::CheckpointNow(group) => format!("{group} checkpoint now"),
        Input::Checkpointed { group, number, written } => format!("{group} checkpoint {number} {written:?}"),
        Input::ChildrenSaved { group, splits } => format!("{group} children of {splits} splits are saved"),
        Input::Snapshot(group, loaded) => {
            format!("{group} snapshot {:?}", loaded.as_ref().map(|loaded| (loaded.instance, loaded.machine.digest())))
        }
        Input::Holds { group, asked, .. } => format!("{group} asked {asked} who holds it"),
    }
}

/// What a worker wants.
pub fn effects(effects: &[Effect]) -> u64 {
    let mut hash = Fingerprint::default();
    for effect in effects {
        match effect {
            Effect::Persist { group, lsn, record } => (1_u8, group, lsn, record).hash(&mut hash),
            Effect::Send(to, it) => (2_u8, to, it.group, it.to, it.from, &it.message).hash(&mut hash),
            Effect::Reply { origin, reply, .. } => answer(*origin, reply, &mut hash),
            Effect::Worker(to, message) => {
                to.hash(&mut hash);
                of_message(message, &mut hash);
            }
            Effect::Part(part) => words(&(part.ticket, &part.position, &part.partition_query), &mut hash),
            other => hash.write(show(other).as_bytes()),
        }
    }
    hash.finish()
}

/// An effect in a trace.
pub fn show(effect: &Effect) -> String {
    match effect {
        Effect::Persist { group, lsn, record } => format!("{group} persist {lsn} {record:?}"),
        Effect::Send(to, it) => format!("p{} send {to} {} {:?}", it.group, it.to, it.message),
        Effect::SendMulticast(to, message) => format!("multicast {to} {message:?}"),
        Effect::Reply { group, origin, .. } => format!("{group} reply {origin:?}"),
        Effect::Part(part) => format!("part of {}", part.ticket),
        Effect::Worker(to, message) => format!("to w{to} {message:?}"),
        Effect::Trim(group, upto) => format!("{group} trim {upto}"),
        Effect::Checkpoint { group, number, taken, due } => {
            format!("{group} checkpoint {number} at {} {due:?}", taken.head.instance)
        }
        Effect::Yield => "yield".into(),
        Effect::Full(is_full) => format!("full {is_full}"),
        Effect::Watch => "watch".into(),
        Effect::Controller(report) => show_report(report),
        Effect::Leader(group, leader) => format!("{group} is led from {leader:?}"),
        Effect::Note(group, note) => match note {
            Note::Moved => format!("{group} moved a boundary"),
            note => format!("{group} {note:?}"),
        },
        Effect::QueryEnded { result, .. } => format!("query {result:?}"),
    }
}

/// What a worker tells its controller, in a trace.
fn show_report(report: &Report) -> String {
    match report {
        Report::Led(group, leader) => format!("{group} is led from {leader:?}"),
        Report::Directory(state) => format!("directory {}", state.map.version),
        Report::NeedSnapshot { group, from, instance, .. } => format!("{group} needs snapshot {instance} from {from}"),
        Report::Dismissed(group) => format!("{group} dismissed"),
        Report::Held { asked, group, is_held } => format!("{group} asked {asked}, held {is_held}"),
        Report::Dropped(group) => format!("{group} dropped"),
        Report::Saved(group) => format!("{group} saved"),
        Report::Forked { group, led, .. } => format!("{group} forked, led {led}"),
        Report::Released(version) => format!("released {version}"),
    }
}

/// An input of a controller, in a trace and for its hash.
pub fn show_told(input: &ControllerInput) -> String {
    match input {
        ControllerInput::Tick => "tick".into(),
        ControllerInput::Identity { node, .. } => format!("is {node}"),
        ControllerInput::Map(map) => format!("map {}", map.version),
        ControllerInput::Adopt(state) => format!("adopt {} {:?}", state.map.version, state.settings),
        ControllerInput::Recovered(found) => {
            format!("recovered {} {:?} {:?}", found.group, found.removed, found.created)
        }
        ControllerInput::Restored { seeds, copy } => format!("restored, {seeds} seeds, copy {copy:?}"),
        ControllerInput::LetIn(node) => format!("let in by {node}"),
        ControllerInput::IsCopy { by, text } => format!("copy by {by}: {text}"),
        ControllerInput::Founded(directory) => format!("founded {directory:?}"),
        ControllerInput::Report(report) => show_report(report),
        ControllerInput::CreateDurable(group, me) => format!("{group} {me} is born"),
        ControllerInput::RemovalDurable(group) => format!("{group} is removed"),
        ControllerInput::Offered { fetch, kept, version } => format!("fetch {fetch} offered {kept:?} {version}"),
        ControllerInput::Fetched(fetch, loaded) => {
            format!("fetch {fetch} got {:?}", loaded.as_ref().map(|loaded| (loaded.instance, loaded.machine.digest())))
        }
        ControllerInput::Deleted(group) => format!("{group} deleted"),
        ControllerInput::View(view) => format!("view {view:?}"),
        ControllerInput::Decided(command, reply) => format!("decided {command:?} {reply:?}"),
        ControllerInput::Assigned(node, outcome) => format!("assigned {node} {outcome:?}"),
        ControllerInput::LeadersTold(leaders) => format!("leaders {leaders:?}"),
        ControllerInput::Transfer { partition, to, reached, .. } => {
            format!("transfer {partition} to {to}, reaching {reached:?}")
        }
        ControllerInput::Stop { led, .. } => format!("stop, leading {led:?}"),
        ControllerInput::Verb { request, .. } => format!("verb {request:?}"),
        ControllerInput::Identified(_, found) => format!("identified {found:?}"),
        ControllerInput::Median(_, median) => format!("median {median:?}"),
    }
}

/// What a controller wants, in a trace and for its hash.
pub fn show_wanted(effect: &Wanted) -> String {
    match effect {
        Wanted::Worker(worker, input) => format!("w{worker}: {}", show_input(input)),
        Wanted::MaySpeak(may) => format!("may speak {may}"),
        Wanted::Unreached(nodes) => format!("unreached {nodes:?}"),
        Wanted::WriteCopyMark { by, text } => format!("copy by {by}: {text}"),
        Wanted::Start(start) => format!("start {} {} at {}", start.group, start.me, start.snapshot),
        Wanted::StateLost(group, lost) => format!("{group} state lost {lost:?}"),
        Wanted::Log(entry) => format!("log {entry:?}"),
        Wanted::Removed(group, me) => format!("removed {group} {me}"),
        Wanted::DeleteCheckpoints(group) => format!("delete checkpoints of {group}"),
        Wanted::Map(map) => format!("use map {}", map.version),
        Wanted::Link(node, address) => format!("link {node} at {address}"),
        Wanted::Unlink(node) => format!("unlink {node}"),
        Wanted::ChangeBegun(name, change) => format!("change {name} begins: {change}"),
        Wanted::ChangeEnded(name, outcome) => format!("change {name} has ended: {outcome}"),
        Wanted::FeatureLevel(level) => format!("feature level {level}"),
        Wanted::SettingsUnknown => "settings are unknown".into(),
        Wanted::Access { access, .. } => format!("access on {}", access.is_on()),
        Wanted::AskForMap => "ask for the map".into(),
        Wanted::Fetch { fetch, group, from, least } => format!("fetch {fetch}: {group} at {least} from {from}"),
        Wanted::Admit(fetch, may) => format!("admit {fetch} {may}"),
        Wanted::Survey => "survey".into(),
        Wanted::Leaders(leaders) => format!("leaders {leaders:?}"),
        Wanted::Tell(nodes, state) => format!("tell {nodes:?} of map {}", state.map.version),
        Wanted::Decide(command) => format!("decide {command:?}"),
        Wanted::Configure { leader, partition, configuration, .. } => {
            format!("configure {partition} at {leader} {configuration:?}")
        }
        Wanted::TransferLeader { leader, partition, to } => format!("transfer {partition} from {leader} to {to}"),
        Wanted::TransferEnded(_, outcome) => format!("transfer ended {outcome:?}"),
        Wanted::Stopped => "stopped".into(),
        Wanted::Assign(node, _) => format!("assign {node}"),
        Wanted::Median { partition, leader, .. } => format!("median of {partition} at {leader}"),
        Wanted::Announce { what, reason } => format!("by itself {what}: {reason}"),
        Wanted::Answer(_, reply) => format!("answer {reply:?}"),
        Wanted::Begin(_, command, _) => format!("begin {command:?}"),
        Wanted::Identify { address, .. } => format!("identify {address}"),
    }
}

fn answer(origin: Origin, reply: &Reply, hash: &mut Fingerprint) {
    origin.hash(hash);
    match reply {
        Reply::Pack(bytes) => hash.write(bytes),
        Reply::Opened(session) => words(session, hash),
        Reply::Read { instance, values, left_out, .. } => words(&(instance, values, left_out), hash),
        Reply::Looks { instance, looks, .. } => words(&(instance, looks), hash),
        Reply::Range { instance, range, version, .. } => words(&(instance, range, version), hash),
        Reply::CollectedParts { instance, version, cursors } => words(&(instance, version, cursors.len()), hash),
        Reply::Collected { parts, range } => {
            words(&(parts.iter().map(|(position, _)| *position).collect::<Vec<_>>(), range), hash);
        }
        Reply::Validated { instance, unchanged } => words(&(instance, unchanged), hash),
        Reply::QueryPlan(cut) => words(cut, hash),
        Reply::Completed { ticket } => words(ticket, hash),
        Reply::Aborted { text, .. } => words(text, hash),
        Reply::Directory(reply) => words(reply, hash),
        Reply::Refused(refusal) => words(refusal, hash),
        Reply::Unsure { hint } => words(hint, hash),
    }
}

#[cfg(test)]
mod tests {
    use coppice_client::wire::{NodeId, PartitionId};
    use coppice_core::wire::peer::Envelope;
    use coppice_ordering::message::Preempted;
    use coppice_ordering::{Ballot, Lsn, ReplicaId};

    use super::*;

    #[test]
    fn steps_of_one_shape_are_told_apart_by_what_they_say() {
        let envelope = |round| {
            let message = Preempted { ballot: Ballot::new(round, 1) }.into();
            Envelope { group: 1, to: ReplicaId(2), from: ReplicaId(1), message }
        };
        let heard = |round| input(&Input::Peers { node: NodeId(2), envelopes: vec![envelope(round)] });
        assert_ne!(heard(3), heard(4));
        let persisted = |lsn| input(&Input::Persisted { group: PartitionId(1), lsn: Lsn(lsn) });
        assert_ne!(persisted(1), persisted(2));
        let told = |round| effects(&[Effect::Send(NodeId(2), envelope(round))]);
        assert_ne!(told(3), told(4));
        let (group, origin) = (PartitionId(1), Origin::Client { worker: 0, stream: 1, connection: 1 });
        let answered =
            |bytes: &'static [u8]| effects(&[Effect::Reply { group, origin, reply: Reply::Pack(bytes.into()) }]);
        assert_ne!(answered(b"a"), answered(b"b"));
    }
}
