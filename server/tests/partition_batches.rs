//! One partition executes random batches of packs: several sessions, repeats inside one batch and across batches,
//! commands outside its bounds, several operations in one command, bulk loads. Every answer is compared with a model
//! that runs one command at a time, and every third batch is taken back and run again (protocol.md 2.3, 6).

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use coppice_btree::{KeyRange, Op};
use coppice_client::wire::{ClientId, MapVersion, PackWriter, PartitionId, Replies, RepliesWriter, SessionId, frame};
use coppice_core::machine::partition::Partition;
use coppice_core::machine::{Answer, Outcome};
use coppice_ordering::{Batch, Commands, Instance};

const PARTITION: PartitionId = PartitionId(3);
const SESSIONS: usize = 3;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// A command as the test knows it.
#[derive(Clone, Debug)]
enum Planned {
    One(Step),
    Many(Vec<Step>),
    Load(Vec<(Vec<u8>, Vec<u8>)>),
}

#[derive(Clone, Debug)]
struct Step {
    kind: u64,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl Step {
    fn random(random: &mut Random) -> Step {
        // Keys a to p; the partition owns d to m.
        let key = vec![b'a' + random.below(16) as u8];
        Step { kind: random.below(5), key, value: vec![b'0' + random.below(3) as u8] }
    }

    fn op(&self) -> Op<'_> {
        let (key, value) = (self.key.as_slice(), self.value.as_slice());
        match self.kind {
            0 => Op::Put { key, value },
            1 => Op::Insert { key, value },
            2 => Op::Delete { key },
            3 => Op::Cas { key, expected: b"1", value },
            _ => Op::Get { key },
        }
    }
}

type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

/// Runs one operation on the model and prints its result as the wire's results print.
fn run(pairs: &mut Pairs, step: &Step) -> String {
    let before = pairs.get(&step.key).cloned();
    let text = before.as_deref();
    match step.kind {
        0 => {
            let result = format!("Put {{ previous: {text:?} }}");
            pairs.insert(step.key.clone(), step.value.clone());
            result
        }
        1 => {
            pairs.entry(step.key.clone()).or_insert_with(|| step.value.clone());
            format!("Insert {{ present: {text:?} }}")
        }
        2 => {
            let result = format!("Delete {{ previous: {text:?} }}");
            pairs.remove(&step.key);
            result
        }
        3 => {
            let done = text == Some(b"1");
            let result = format!("Cas {{ done: {done}, current: {text:?} }}");
            if done {
                pairs.insert(step.key.clone(), step.value.clone());
            }
            result
        }
        _ => format!("Get {{ value: {text:?} }}"),
    }
}

fn owned(key: &[u8]) -> bool {
    (b"d".as_slice()..b"m".as_slice()).contains(&key)
}

const REFUSED: &str = "Refused";

fn run_command(pairs: &mut Pairs, command: &Planned) -> String {
    match command {
        Planned::One(step) if owned(&step.key) => run(pairs, step),
        Planned::Many(steps) if steps.iter().all(|step| owned(&step.key)) => {
            steps.iter().map(|step| run(pairs, step)).collect::<Vec<_>>().join(";")
        }
        Planned::Load(load) if load.iter().all(|(key, _)| owned(key)) => {
            match load.iter().position(|(key, _)| pairs.contains_key(key)) {
                Some(present) => format!("NotLoaded {{ present: {present} }}"),
                None => {
                    pairs.extend(load.iter().cloned());
                    format!("Loaded {{ pairs: {} }}", load.len())
                }
            }
        }
        _ => REFUSED.to_owned(),
    }
}

#[derive(Default)]
struct Client {
    id: Option<SessionId>,
    next_number: u64,
    /// The commands of every pack sent, under their numbers.
    sent: Vec<Vec<(u64, Planned)>>,
    /// What each executed number came to.
    results: BTreeMap<u64, String>,
}

impl Client {
    fn new_pack(&mut self, random: &mut Random) -> Vec<(u64, Planned)> {
        let mut pack = Vec::new();
        for _ in 0..=random.below(12) {
            self.next_number += 1 + random.below(2);
            let planned = match random.below(24) {
                0 => {
                    let low = b'c' + random.below(8) as u8;
                    Planned::Load((low..low + 2).map(|key| (vec![key, b'x'], vec![b'9'])).collect())
                }
                1..4 => Planned::Many((0..=random.below(3)).map(|_| Step::random(random)).collect()),
                _ => Planned::One(Step::random(random)),
            };
            pack.push((self.next_number, planned));
        }
        self.sent.push(pack.clone());
        pack
    }

    fn encode(&self, pack: &[(u64, Planned)]) -> Bytes {
        let mut writer = PackWriter::new(Vec::new(), self.id.unwrap(), 1, false, 1 << 16);
        for (number, planned) in pack {
            match planned {
                Planned::One(step) => writer.push(*number, step.op()).unwrap(),
                Planned::Many(steps) => writer.push_many(*number, steps.iter().map(Step::op)).unwrap(),
                Planned::Load(load) => {
                    let pairs = load.iter().map(|(key, value)| (key.as_slice(), value.as_slice()));
                    writer.push_load(*number, pairs).unwrap();
                }
            }
        }
        // Behind the frame's header and the partition stands the entry.
        writer.finish(PARTITION, 0).unwrap().slice(frame::HEADER_BYTES + 1..)
    }
}

/// The results of an answer, printed.
fn results(answer: &Answer) -> Vec<String> {
    let Outcome::Pack(bytes) = &answer.outcome else { panic!("not a pack's answer: {answer:?}") };
    let mut out = BytesMut::new();
    let mut frames = RepliesWriter::new(&mut out);
    frames.answer(1, bytes).unwrap();
    frames.finish();
    let mut all = Vec::new();
    for section in Replies::new(&out[frame::HEADER_BYTES..]) {
        for (_, result) in section.unwrap().results() {
            use coppice_client::wire::ResultRef;
            all.push(match result {
                ResultRef::Refused(_) => REFUSED.to_owned(),
                ResultRef::Many(many) => many.iter().map(|one| format!("{one:?}")).collect::<Vec<_>>().join(";"),
                one => format!("{one:?}"),
            });
        }
    }
    all
}

/// The commands of one batch: which client, and its pack.
fn plan(clients: &mut [Client], random: &mut Random) -> Vec<(usize, Vec<(u64, Planned)>)> {
    let mut packs: Vec<(usize, Vec<(u64, Planned)>)> = Vec::new();
    for _ in 0..=random.below(9) {
        let at = random.below(SESSIONS as u64) as usize;
        let client = &mut clients[at];
        let pack = match random.below(4) {
            // A pack that was sent before, perhaps in this very batch.
            0 if !client.sent.is_empty() => client.sent[random.below(client.sent.len() as u64) as usize].clone(),
            _ => client.new_pack(random),
        };
        packs.push((at, pack));
    }
    packs
}

#[test]
fn a_batch_answers_as_if_its_commands_ran_one_by_one() {
    let (mut repeats, mut executed, mut refused) = (0, 0, 0);
    for seed in 1..=300u64 {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut partition = Partition::new(PARTITION, KeyRange::new(b"d", b"m"), MapVersion(1));
        let mut clients: Vec<Client> = (0..SESSIONS).map(|_| Client::default()).collect();
        let mut pairs = Pairs::new();
        let mut answers = Vec::new();
        for (at, client) in clients.iter_mut().enumerate() {
            let open = coppice_core::machine::entry::open(ClientId(at as u64), 1);
            let instance = Instance(at as u64 + 1);
            partition.execute(instance, &Batch::Commands(Commands::new(1, open)), &mut answers);
            client.id = Some(SessionId { partition: PARTITION, instance: instance.0, index: 0 });
        }
        for instance in 10..22 {
            let packs = plan(&mut clients, &mut random);
            let mut bytes = BytesMut::new();
            for (at, pack) in &packs {
                bytes.extend_from_slice(&clients[*at].encode(pack));
            }
            let count: u32 = packs.iter().map(|(_, pack)| pack.len() as u32).sum();
            let batch = Batch::Commands(Commands::new(count, bytes.freeze()));
            answers.clear();
            let before = partition.digest();
            let mark = partition.execute(Instance(instance), &batch, &mut answers);
            if random.below(3) == 0 {
                let (digest, first) = (partition.digest(), answers.clone());
                partition.undo(&mark);
                assert_eq!(partition.digest(), before, "seed {seed}, instance {instance}: undo left something");
                answers.clear();
                partition.execute(Instance(instance), &batch, &mut answers);
                assert_eq!((partition.digest(), &answers), (digest, &first), "seed {seed}: another result after undo");
            }
            assert_eq!(answers.len(), packs.len());
            for ((at, pack), answer) in packs.iter().zip(&answers) {
                let found = results(answer);
                assert_eq!(found.len(), pack.len());
                for ((number, planned), found) in pack.iter().zip(found) {
                    let client = &mut clients[*at];
                    if let Some(first) = client.results.get(number) {
                        repeats += 1;
                        assert_eq!(&found, first, "seed {seed}: number {number} was answered in two ways");
                        continue;
                    }
                    let expected = run_command(&mut pairs, planned);
                    assert_eq!(found, expected, "seed {seed}, instance {instance}, {planned:?}");
                    if expected == REFUSED {
                        refused += 1;
                    } else {
                        executed += 1;
                        client.results.insert(*number, expected);
                    }
                }
            }
            let content: Pairs =
                partition.tree().iter().map(|(key, value)| (key.as_slice().into(), value.into())).collect();
            assert_eq!(content, pairs, "seed {seed}, instance {instance}");
        }
    }
    println!("{executed} executed, {refused} refused, {repeats} repeated");
    assert!(executed > 10_000 && refused > 1_000 && repeats > 5_000, "{executed} {refused} {repeats}");
}
