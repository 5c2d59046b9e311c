//! The model: the tree beside a `BTreeMap` that does everything the slow and obvious way.
#![allow(dead_code)] // Each test binary uses a part.

use std::collections::BTreeMap;

use coppice_btree::{
    Capacity, Condition, Cursor, Digest, Direction, Edit, FixedBuffer, KeyRange, LoadError, Op, OpResult, Returns,
    Run as LeafRun, Snapshot, Tree, Undo, UndoMark, Update, UpdateOutcome, Value,
};
pub use coppice_testkit::random::Random;

/// The content of a tree.
pub type Content = BTreeMap<Vec<u8>, Vec<u8>>;

/// Pairs in the order of a walk.
type Pairlist = Vec<(Vec<u8>, Vec<u8>)>;

/// Which keys and values a run uses.
#[derive(Clone, Copy, Debug)]
pub enum Pairs {
    /// Eight bytes each.
    Words,
    /// Mostly eight bytes, the rest of any length around it, with common prefixes.
    Mixed,
    /// Long keys that share their first bytes.
    Long,
    /// Keys that begin with others, and with long runs of what others begin with.
    Nested,
}

pub const ALL_PAIRS: [Pairs; 4] = [Pairs::Words, Pairs::Mixed, Pairs::Long, Pairs::Nested];

impl Pairs {
    /// Key number `n`; neighbours in number are not always neighbours in order.
    pub fn key(self, n: u64) -> Vec<u8> {
        match self {
            Self::Words => n.to_be_bytes().to_vec(),
            Self::Mixed => match n % 16 {
                0 => n.to_be_bytes()[..(n / 16 % 9) as usize].to_vec(),
                1 => [&(n - 1).to_be_bytes()[..], b"\0"].concat(),
                2 => [&(n - 2).to_be_bytes()[..], &n.to_string().into_bytes()].concat(),
                _ => n.to_be_bytes().to_vec(),
            },
            Self::Long => format!("a common prefix/{n:05}/and some more bytes").into_bytes(),
            Self::Nested => format!("{:b}", n * n).into_bytes(),
        }
    }

    pub fn value(self, random: &mut Random) -> Vec<u8> {
        let n: u64 = random.below(4);
        match self {
            Self::Words => n.to_be_bytes().to_vec(),
            Self::Mixed if random.below(8) > 0 => n.to_be_bytes().to_vec(),
            _ => vec![n as u8; random.below(24) as usize],
        }
    }
}

/// One run: a tree and its model, with undo, snapshots and cursors held while both change.
pub struct Run {
    pub tree: Tree,
    pub model: Content,
    undo: Undo,
    /// Moments to roll back to, with the content of then; ascending.
    marks: Vec<(UndoMark, Content)>,
    snapshots: Vec<(Snapshot, Content)>,
    cursors: Vec<(Cursor, Pairlist)>,
    random: Random,
    pairs: Pairs,
    keys: u64,
}

impl Run {
    pub fn new(seed: u64, pairs: Pairs, keys: u64, capacity: Capacity) -> Self {
        Self {
            tree: Tree::with_capacity_per_node(capacity),
            model: Content::new(),
            undo: Undo::new(),
            marks: Vec::new(),
            snapshots: Vec::new(),
            cursors: Vec::new(),
            random: Random::new(seed),
            pairs,
            keys,
        }
    }

    pub fn steps(&mut self, count: usize) {
        for step in 0..count {
            match self.random.below(100) {
                0..=3 => self.mark(),
                4..=5 => self.roll_back(),
                6 => self.forget(),
                7..=8 => self.hold(),
                9..=11 => self.look_back(),
                12..=13 => self.split_and_join(),
                14..=15 => self.load(),
                16..=18 => self.read_range(),
                19..=25 => self.batch(),
                26..=27 => self.fork(),
                28..=29 => self.settle(),
                _ => {
                    let op = self.op();
                    self.execute(&op);
                }
            }
            if step % 16 == 0 {
                self.compare();
            }
        }
        self.compare();
        while !self.snapshots.is_empty() || !self.cursors.is_empty() {
            self.look_back();
        }
        while !self.marks.is_empty() {
            self.roll_back();
        }
    }

    fn key(&mut self) -> Vec<u8> {
        let n = self.random.below(self.keys);
        self.pairs.key(n)
    }

    fn op(&mut self) -> OwnedOp {
        let (kind, key, value) = (self.random.below(13), self.key(), self.pairs.value(&mut self.random));
        let expected = self.pairs.value(&mut self.random);
        match kind {
            10 => {
                let terms = self.terms(&value, &expected);
                OwnedOp { kind, key, value: terms, expected }
            }
            12 => OwnedOp { kind, key, value: self.key(), expected },
            _ => OwnedOp { kind, key, value, expected },
        }
    }

    /// The terms of any update.
    fn terms(&mut self, operand: &[u8], expected: &[u8]) -> Vec<u8> {
        let number = self.random.below(5) as i64 - 2;
        let edit = match self.random.below(8) {
            0 => Edit::Keep,
            1 => Edit::Set(operand),
            2 | 3 => Edit::Append(operand),
            4 => Edit::SetRange { offset: self.random.below(12) as u32, bytes: operand },
            5 => Edit::Add(number),
            6 => Edit::AddFloat(b"0.25"),
            _ => Edit::Remove,
        };
        let condition = match self.random.below(6) {
            0 => Condition::Absent,
            1 => Condition::Present,
            2 => Condition::Equals(expected),
            _ => Condition::Always,
        };
        let returns = [Returns::Nothing, Returns::Previous, Returns::New][self.random.below(3) as usize];
        let mut terms = Vec::new();
        Update::new(edit).when(condition).returning(returns).write(&mut terms);
        terms
    }

    fn execute(&mut self, op: &OwnedOp) {
        let expected = apply(&mut self.model, op.as_op());
        assert_eq!(self.tree.execute(op.as_op(), &mut self.undo), expected, "{op:?}");
    }

    fn batch(&mut self) {
        let count = self.random.below(70);
        let ops: Vec<OwnedOp> = (0..count).map(|_| self.op()).collect();
        let ops: Vec<Op> = ops.iter().map(OwnedOp::as_op).collect();
        let expected: Vec<OpResult> = ops.iter().map(|op| apply(&mut self.model, *op)).collect();
        let mut results = Vec::new();
        self.tree.execute_batch(&ops, &mut results, &mut self.undo);
        assert_eq!(results, expected, "{ops:?}");
    }

    fn mark(&mut self) {
        self.marks.push((self.undo.mark(), self.model.clone()));
    }

    fn roll_back(&mut self) {
        if self.marks.is_empty() {
            return;
        }
        let at = self.random.below(self.marks.len() as u64) as usize;
        let (mark, content) = self.marks.drain(at..).next().expect("a mark was picked");
        self.tree.undo_to(&mut self.undo, mark);
        self.model = content;
        self.compare();
    }

    fn forget(&mut self) {
        if self.marks.len() > 4 {
            let (mark, _) = self.marks[2];
            self.undo.forget_before(mark);
            self.marks.drain(..2);
        }
    }

    fn hold(&mut self) {
        self.snapshots.push((self.tree.snapshot(), self.model.clone()));
        let (low, high) = (self.key(), self.key());
        let range = KeyRange { low: Value::from(low), high: (self.random.below(4) > 0).then(|| Value::from(high)) };
        let reverse = self.random.below(2) == 0;
        let mut expected = in_range(&self.model, &range);
        if reverse {
            expected.reverse();
        }
        let direction = if reverse { Direction::Reverse } else { Direction::Forward };
        let mut cursor = self.tree.cursor(range, direction);
        take_chunk(&mut cursor, &mut expected, 3);
        self.cursors.push((cursor, expected));
    }

    fn look_back(&mut self) {
        if !self.snapshots.is_empty() {
            let at = self.random.below(self.snapshots.len() as u64) as usize;
            let (snapshot, content) = self.snapshots.swap_remove(at);
            compare(&snapshot, &content);
        }
        if !self.cursors.is_empty() {
            let at = self.random.below(self.cursors.len() as u64) as usize;
            let (mut cursor, mut rest) = self.cursors.swap_remove(at);
            while !cursor.is_done() {
                take_chunk(&mut cursor, &mut rest, 1 + self.random.below(7) as usize);
            }
            assert_eq!(rest, vec![], "the cursor ended early");
        }
    }

    fn split_and_join(&mut self) {
        let key = self.key();
        let right = self.tree.split_off(&key);
        let right_content = self.model.split_off(&key);
        compare(&self.tree, &self.model);
        compare(&right, &right_content);
        if self.random.below(3) == 0 {
            let held = right.snapshot();
            self.tree.join(right);
            compare(&held, &right_content);
        } else {
            self.tree.join(right);
        }
        self.model.extend(right_content);
    }

    /// A tree that starts from a state of this one, and goes on beside it.
    fn fork(&mut self) {
        let (from, mut content) = match self.snapshots.last() {
            Some((snapshot, content)) if self.random.below(2) == 0 => (snapshot.clone(), content.clone()),
            _ => (self.tree.snapshot(), self.model.clone()),
        };
        let (mut tree, mut undo) = (Tree::from(from), Undo::new());
        for _ in 0..self.random.below(30) {
            let (ours, theirs) = (self.op(), self.op());
            self.execute(&ours);
            let expected = apply(&mut content, theirs.as_op());
            assert_eq!(tree.execute(theirs.as_op(), &mut undo), expected, "{theirs:?}");
        }
        compare(&tree, &content);
        self.snapshots.push((tree.snapshot(), content));
    }

    /// Takes over what nobody shares, here and there.
    fn settle(&mut self) {
        let from = self.pairs.key(self.random.below(self.keys));
        let nodes = self.random.below(40) as usize;
        let digest = self.tree.digest();
        let next = self.tree.settle(&from, nodes).next;
        assert!(next.is_none_or(|next| next.as_slice() > from.as_slice()));
        assert_eq!(self.tree.digest(), digest);
    }

    fn load(&mut self) {
        let (count, base) = (self.random.below(40), self.random.below(self.keys));
        let above = self.random.below(2) == 0;
        let mut pairs = Content::new();
        for n in 0..count {
            let key = self.pairs.key(base + n);
            let key = if above { [b"\xff", &key[..]].concat() } else { key };
            pairs.insert(key, self.pairs.value(&mut self.random));
        }
        let present = pairs.keys().position(|key| self.model.contains_key(key));
        let result = self.tree.load(&pairs, &mut self.undo);
        match present {
            Some(index) if self.model.last_key_value().is_some_and(|(last, _)| pairs.keys().next() <= Some(last)) => {
                assert_eq!(result, Err(LoadError::Present { index: index as u64 }));
            }
            _ => {
                assert_eq!(result, Ok(pairs.len() as u64));
                self.model.extend(pairs);
            }
        }
    }

    fn read_range(&mut self) {
        let (low, high) = (self.key(), self.key());
        let range = KeyRange { low: Value::from(low), high: (self.random.below(4) > 0).then(|| Value::from(high)) };
        let mut expected = in_range(&self.model, &range);
        let found: Vec<_> = self.tree.range(&range).map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
        assert_eq!(found, expected, "{range:?}");
        let runs: Vec<_> = self.tree.runs(&range).flat_map(pairs_of).collect();
        assert_eq!(runs, expected, "{range:?}");
        expected.reverse();
        let found: Vec<_> =
            self.tree.range_reverse(&range).map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
        assert_eq!(found, expected, "{range:?}");
        let runs: Vec<_> = self.tree.runs_reverse(&range).flat_map(|run| pairs_of(run).into_iter().rev()).collect();
        assert_eq!(runs, expected, "{range:?}");
    }

    pub fn compare(&mut self) {
        compare(&self.tree, &self.model);
        if let (Some(median), true) = (self.tree.median(), self.model.len() > 1) {
            assert_eq!(self.model.keys().nth(self.model.len() / 2).unwrap(), median.as_slice());
        }
        let key = self.key();
        assert_eq!(self.tree.rank(&key), self.model.range(..key).count() as u64);
    }
}

/// An operation that owns its bytes.
#[derive(Clone, Debug)]
pub struct OwnedOp {
    pub kind: u64,
    pub key: Vec<u8>,
    pub value: Vec<u8>,
    pub expected: Vec<u8>,
}

impl OwnedOp {
    pub fn as_op(&self) -> Op<'_> {
        let Self { key, value, expected, .. } = self;
        match self.kind {
            0..=1 => Op::Put { key, value },
            2..=4 => Op::Insert { key, value },
            5..=7 => Op::Delete { key },
            8 => Op::Cas { key, expected, value },
            10 => Op::Update { key, terms: value },
            11 => Op::Look { key },
            12 => Op::Move { key, to: value, absent: expected.len() > 8 },
            _ => Op::Get { key },
        }
    }
}

/// What the command does to a `BTreeMap`.
pub fn apply(model: &mut Content, op: Op<'_>) -> OpResult {
    let current = model.get(op.key()).map(|value| Value::from(value.as_slice()));
    match op {
        Op::Put { key, value } => {
            model.insert(key.to_vec(), value.to_vec());
            OpResult::Put { previous: current }
        }
        Op::Insert { key, value } => {
            model.entry(key.to_vec()).or_insert_with(|| value.to_vec());
            OpResult::Insert { present: current }
        }
        Op::Delete { key } => {
            model.remove(key);
            OpResult::Delete { previous: current }
        }
        Op::Cas { key, expected, value } => {
            let done = current.as_deref() == Some(expected);
            if done {
                model.insert(key.to_vec(), value.to_vec());
            }
            OpResult::Cas { done, current }
        }
        Op::Get { .. } => OpResult::Get { value: current },
        Op::Update { key, terms } => {
            let update = Update::read(terms).expect("terms");
            let met = match update.condition {
                Condition::Always => true,
                Condition::Absent => current.is_none(),
                Condition::Present => current.is_some(),
                Condition::Equals(expected) => current.as_deref() == Some(expected),
            };
            let outcome = if met { edit(model, key, update.edit) } else { UpdateOutcome::Unmet };
            let value = match update.returns {
                Returns::Nothing => None,
                Returns::Previous => current,
                Returns::New => model.get(key).map(|value| Value::from(value.as_slice())),
            };
            updated(model, key, outcome, value)
        }
        Op::Look { .. } => {
            let length = current.as_ref().map_or(0, |value| value.len()) as u32;
            OpResult::Look { exists: current.is_some(), length, remaining: None }
        }
        Op::Move { key, to, absent } => {
            let outcome = match current {
                None => UpdateOutcome::Missing,
                Some(_) if absent && model.contains_key(to) => UpdateOutcome::Unmet,
                Some(_) => {
                    let value = model.remove(key).expect("it is there");
                    model.insert(to.to_vec(), value);
                    UpdateOutcome::Done
                }
            };
            updated(model, to, outcome, None)
        }
    }
}

fn updated(model: &Content, key: &[u8], outcome: UpdateOutcome, value: Option<Value>) -> OpResult {
    let now = model.get(key);
    OpResult::Update { outcome, exists: now.is_some(), length: now.map_or(0, Vec::len) as u32, value }
}

/// An edit in plain words.
fn edit(model: &mut Content, key: &[u8], edit: Edit<'_>) -> UpdateOutcome {
    let before = model.get(key).cloned();
    let text = before.as_ref().map_or(Some("0"), |value| std::str::from_utf8(value).ok());
    let after = match edit {
        Edit::Keep => return UpdateOutcome::Done,
        Edit::Remove => {
            model.remove(key);
            return UpdateOutcome::Done;
        }
        Edit::Set(value) => value.to_vec(),
        Edit::Append(more) => before.into_iter().flatten().chain(more.iter().copied()).collect(),
        Edit::SetRange { bytes: [], .. } => return UpdateOutcome::Done,
        Edit::SetRange { offset, bytes } => {
            let mut value = before.unwrap_or_default();
            for (at, byte) in (offset as usize..).zip(bytes) {
                while value.len() <= at {
                    value.push(0);
                }
                value[at] = *byte;
            }
            value
        }
        Edit::Add(number) => {
            let digits = |text: &str| text.strip_prefix('-').unwrap_or(text).bytes().all(|byte| byte.is_ascii_digit());
            let Some(before) = text.filter(|text| digits(text)).and_then(|text| text.parse::<i64>().ok()) else {
                return UpdateOutcome::NotInteger;
            };
            if text != Some(&before.to_string()) {
                return UpdateOutcome::NotInteger;
            }
            (before + number).to_string().into_bytes()
        }
        Edit::AddFloat(number) => {
            let number: f64 = std::str::from_utf8(number).expect("digits").parse().expect("a number");
            let Some(before) = text.and_then(|text| text.parse::<f64>().ok()) else { return UpdateOutcome::NotFloat };
            format!("{}", before + number).into_bytes()
        }
    };
    model.insert(key.to_vec(), after);
    UpdateOutcome::Done
}

pub fn in_range(model: &Content, range: &KeyRange) -> Pairlist {
    let pairs = model.iter().filter(|(key, _)| range.contains(key));
    pairs.map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// The pairs of a run, which tells them the same in every way.
fn pairs_of(run: LeafRun<'_>) -> Pairlist {
    assert!(!run.is_empty(), "a walk hands out no empty runs");
    let pair = |at| (run.pair(at).0.to_vec(), run.pair(at).1.to_vec());
    let pairs: Pairlist = (0..run.len()).map(pair).collect();
    match run {
        LeafRun::Fixed(run) => {
            let mut buffer: FixedBuffer = [[0xaa; 16]; _];
            let copied = run.copy_to(&mut buffer).iter().map(|pair| (pair[..8].to_vec(), pair[8..].to_vec()));
            assert!(copied.eq(pairs.iter().cloned()));
        }
        LeafRun::Variable(run) => {
            assert!(run.pairs().map(|(key, value)| (key.to_vec(), value.to_vec())).eq(pairs.iter().cloned()));
        }
    }
    pairs
}

/// Takes the next `count` pairs of the cursor, or what is left.
fn take_chunk(cursor: &mut Cursor, expected: &mut Pairlist, count: usize) {
    let (mut chunk, reverse) = (Vec::new(), cursor.direction() == Direction::Reverse);
    cursor.walk(|run| {
        let mut pairs = pairs_of(run);
        if reverse {
            pairs.reverse();
        }
        pairs.truncate(count - chunk.len());
        let taken = pairs.len();
        chunk.extend(pairs);
        taken
    });
    assert!(chunk.len() <= expected.len(), "the cursor found more than was there");
    let rest = expected.split_off(chunk.len());
    assert!(chunk.len() == count || rest.is_empty(), "the cursor rests before the end");
    assert_eq!(std::mem::replace(expected, rest), chunk);
}

/// The tree holds exactly the model's pairs, and every number about them is right.
pub fn compare(tree: &Snapshot, model: &Content) {
    tree.check().unwrap();
    assert!(tree.iter().map(|(key, value)| (key.to_vec(), value.to_vec())).eq(model.clone()), "contents differ");
    assert_eq!(tree.len(), model.len() as u64);
    assert_eq!(tree.bytes(), model.iter().map(|(key, value)| (key.len() + value.len()) as u64).sum::<u64>());
    let digests = model.iter().map(|(key, value)| Digest::of_pair(key, value));
    assert_eq!(tree.digest(), digests.fold(Digest::default(), Digest::and));
    for (key, value) in model.iter().take(20) {
        assert_eq!(tree.get(key), Some(value.as_slice()));
    }
}
