//! Images as trees of their fields: what changes one is not any byte but a number, a length, a part, and everything
//! around it is written to fit, so that it gets past the door and into the branches behind it.

use super::damage::{NUMBERS, damage};

/// How a number is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Varint,
    /// So many bytes, little-endian.
    Fixed(u8),
}

/// What stands in front of the parts of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefix {
    Nothing,
    /// How many parts follow. An option is a group of one part or none, counted in one byte.
    Count(Form),
    /// How many bytes follow.
    Length(Form),
}

#[derive(Clone, Debug)]
enum Field {
    Number(u128, Form),
    Bytes(Vec<u8>),
    Group(Prefix),
}

#[derive(Clone, Debug)]
struct Node {
    field: Field,
    /// Behind the last node that belongs to this one.
    end: usize,
}

/// An image as its fields, each group in front of its parts.
#[derive(Clone, Debug, Default)]
pub struct Shape {
    nodes: Vec<Node>,
}

impl Shape {
    pub fn number(&mut self, value: u128, form: Form) {
        let end = self.nodes.len() + 1;
        self.nodes.push(Node { field: Field::Number(value, form), end });
    }

    pub fn bytes(&mut self, bytes: &[u8]) {
        let end = self.nodes.len() + 1;
        self.nodes.push(Node { field: Field::Bytes(bytes.to_vec()), end });
    }

    /// Begins a group; what comes until [`Shape::close`] is part of it.
    pub fn open(&mut self, prefix: Prefix) -> usize {
        self.nodes.push(Node { field: Field::Group(prefix), end: 0 });
        self.nodes.len() - 1
    }

    pub fn close(&mut self, group: usize) {
        self.nodes[group].end = self.nodes.len();
    }

    /// All of `other`, as a part of the group that is open.
    pub fn append(&mut self, other: &Shape) {
        let base = self.nodes.len();
        self.nodes.extend(other.nodes.iter().map(|node| Node { end: node.end + base, ..node.clone() }));
    }

    /// The fields in the byte string `content`, wherever it stands, are those of `inside`.
    pub fn graft(self, content: &[u8], inside: &Shape) -> Shape {
        let mut grafted = Shape::default();
        self.graft_into(0..self.nodes.len(), (content, inside), &mut grafted);
        grafted
    }

    fn graft_into(&self, range: std::ops::Range<usize>, new: (&[u8], &Shape), out: &mut Shape) {
        let mut at = range.start;
        while at < range.end {
            let node = &self.nodes[at];
            match &node.field {
                Field::Bytes(bytes) if bytes == new.0 => {
                    let group = out.open(Prefix::Nothing);
                    out.append(new.1);
                    out.close(group);
                }
                Field::Group(prefix) => {
                    let group = out.open(*prefix);
                    self.graft_into(at + 1..node.end, new, out);
                    out.close(group);
                }
                _ => out.nodes.push(Node { end: out.nodes.len() + 1, ..node.clone() }),
            }
            at = node.end;
        }
    }

    /// The image.
    pub fn whole(&self) -> Vec<u8> {
        self.with(&[])
    }

    fn with(&self, edits: &[(usize, Edit<'_>)]) -> Vec<u8> {
        let mut writer = Writer { out: Vec::with_capacity(256), edits, cut: false };
        writer.parts(self, 0..self.nodes.len(), true);
        writer.out
    }

    /// The image with a few fields changed, most often such that all others fit; `others` lend parts.
    pub fn mutated(&self, others: &[Shape], below: &mut dyn FnMut(u64) -> u64) -> Vec<u8> {
        let mut out = match below(10) {
            0 => self.whole(),
            _ => {
                let edits: Vec<(usize, Edit<'_>)> =
                    (0..1 + below(3)).filter_map(|_| self.draw_edit(others, below)).collect();
                self.with(&edits)
            }
        };
        // What no writer of ours would write: bytes out of place.
        if below(5) == 0 {
            let other = others[below(others.len() as u64) as usize].whole();
            for _ in 0..1 + below(3) {
                damage(&mut out, &other, below);
            }
        }
        out
    }

    fn draw_edit<'s>(&'s self, others: &'s [Shape], below: &mut dyn FnMut(u64) -> u64) -> Option<(usize, Edit<'s>)> {
        let at = below(self.nodes.len() as u64) as usize;
        let edit = match &self.nodes[at].field {
            Field::Number(value, _) => match below(10) {
                0 => self.part_like(at, others, below)?,
                1 => Edit::Twice,
                2 => Edit::Drop,
                _ => Edit::Number(self.draw_number(*value, others, below)),
            },
            Field::Bytes(bytes) => match below(8) {
                0 => Edit::Content(Vec::new()),
                1 => Edit::Content([&bytes[..], &bytes[..]].concat()),
                2 => Edit::Content([&bytes[..], &[0]].concat()),
                3 => Edit::Content(vec![0xff; 1 << below(13)]),
                4 => Edit::Content(bytes[..below(bytes.len() as u64 + 1) as usize].to_vec()),
                5 | 6 => self.part_like(at, others, below)?,
                _ => {
                    let mut bytes = bytes.clone();
                    if !bytes.is_empty() {
                        let at = below(bytes.len() as u64) as usize;
                        bytes[at] ^= 1 << below(8);
                    }
                    Edit::Content(bytes)
                }
            },
            Field::Group(prefix) => match below(8) {
                0 | 1 => Edit::Drop,
                2 | 3 => Edit::Twice,
                4 => Edit::Cut,
                5 if *prefix != Prefix::Nothing => Edit::Lie(self.draw_number(1, others, below)),
                _ => self.part_like(at, others, below)?,
            },
        };
        Some((at, edit))
    }

    /// A part of the same kind from elsewhere, here or in another image.
    fn part_like<'s>(&'s self, at: usize, others: &'s [Shape], below: &mut dyn FnMut(u64) -> u64) -> Option<Edit<'s>> {
        let kind = std::mem::discriminant(&self.nodes[at].field);
        (0..8).find_map(|_| {
            let other = if below(2) == 0 { self } else { &others[below(others.len() as u64) as usize] };
            let from = below(other.nodes.len() as u64) as usize;
            (std::mem::discriminant(&other.nodes[from].field) == kind).then_some(Edit::Other(other, from))
        })
    }

    fn draw_number(&self, value: u128, others: &[Shape], below: &mut dyn FnMut(u64) -> u64) -> u128 {
        match below(8) {
            0 => value.wrapping_add(1),
            1 => value.wrapping_sub(1) & u128::from(u64::MAX),
            2 => u128::from(below(8)),
            3 => value ^ (1 << below(33)),
            4 | 5 => {
                let other = if below(2) == 0 { self } else { &others[below(others.len() as u64) as usize] };
                match other.nodes[below(other.nodes.len() as u64) as usize].field {
                    Field::Number(found, _) => found,
                    _ => value.wrapping_add(2),
                }
            }
            _ => u128::from(NUMBERS[below(NUMBERS.len() as u64) as usize]),
        }
    }
}

enum Edit<'s> {
    Number(u128),
    Content(Vec<u8>),
    /// In front of what is there stands another count, or another length.
    Lie(u128),
    Drop,
    Twice,
    Other(&'s Shape, usize),
    /// The image ends here; what stands around it fits.
    Cut,
}

struct Writer<'e> {
    out: Vec<u8>,
    edits: &'e [(usize, Edit<'e>)],
    cut: bool,
}

impl Writer<'_> {
    /// Writes the parts in `range`; how many.
    fn parts(&mut self, shape: &Shape, range: std::ops::Range<usize>, edited: bool) -> u64 {
        let (mut at, mut count) = (range.start, 0);
        while at < range.end && !self.cut {
            count += self.part(shape, at, edited);
            at = shape.nodes[at].end;
        }
        count
    }

    fn part(&mut self, shape: &Shape, at: usize, edited: bool) -> u64 {
        let edits = self.edits;
        match edits.iter().filter(|_| edited).find(|(place, _)| *place == at).map(|(_, edit)| edit) {
            Some(Edit::Drop) => return 0,
            Some(Edit::Cut) => {
                self.cut = true;
                return 0;
            }
            Some(Edit::Twice) => {
                (0..2).for_each(|_| self.plain(shape, at, (edited, None)));
                return 2;
            }
            Some(Edit::Other(other, from)) => self.plain(other, *from, (false, None)),
            Some(Edit::Content(bytes)) => self.out.extend_from_slice(bytes),
            Some(Edit::Number(value)) => match shape.nodes[at].field {
                Field::Number(_, form) => self.number(*value, form),
                _ => unreachable!("numbers take the place of numbers"),
            },
            Some(Edit::Lie(value)) => self.plain(shape, at, (edited, Some(*value))),
            None => self.plain(shape, at, (edited, None)),
        }
        1
    }

    fn plain(&mut self, shape: &Shape, at: usize, (edited, lie): (bool, Option<u128>)) {
        let node = &shape.nodes[at];
        match &node.field {
            Field::Number(value, form) => self.number(*value, *form),
            Field::Bytes(bytes) => self.out.extend_from_slice(bytes),
            Field::Group(prefix) => {
                let start = self.out.len();
                let count = self.parts(shape, at + 1..node.end, edited);
                let (value, form) = match prefix {
                    Prefix::Nothing => return,
                    Prefix::Count(form) => (u128::from(count), form),
                    Prefix::Length(form) => ((self.out.len() - start) as u128, form),
                };
                let behind = self.out.len();
                self.number(lie.unwrap_or(value), *form);
                let prefix_bytes = self.out.len() - behind;
                self.out[start..].rotate_right(prefix_bytes);
            }
        }
    }

    fn number(&mut self, value: u128, form: Form) {
        match form {
            Form::Fixed(width) => self.out.extend_from_slice(&value.to_le_bytes()[..usize::from(width)]),
            Form::Varint => {
                let mut left = value;
                while left >= 0x80 {
                    self.out.push(left as u8 | 0x80);
                    left >>= 7;
                }
                self.out.push(left as u8);
            }
        }
    }
}

/// Reads `bytes` by a grammar of one letter a field:
///
/// ```text
/// v          a varint                     b 2 4 8    a number of so many bytes
/// l L Q      bytes behind their length, a varint, four bytes or eight; with (...) the length of these fields
/// c(...)     a varint, and so often these C(...)     the same counted in four bytes
/// o(...)     these, or not                *(...)     these again and again, to the end
/// ?<1:..|2:..|_:..>  a byte, and what it stands for
/// K          eight bytes                  .          what is left
/// ```
///
/// # Panics
/// If they do not follow it: the grammar is wrong.
pub fn parse(grammar: &str, bytes: &[u8]) -> Shape {
    let (mut shape, mut rest) = (Shape::default(), bytes);
    let group = shape.open(Prefix::Nothing);
    fields(grammar, &mut rest, &mut shape);
    shape.close(group);
    assert!(rest.is_empty(), "{grammar}: {} bytes are left of {bytes:02x?}", rest.len());
    assert_eq!(shape.whole(), bytes, "{grammar}");
    shape
}

fn fields(grammar: &str, rest: &mut &[u8], shape: &mut Shape) {
    let mut grammar = grammar;
    while let Some(letter) = grammar.chars().next() {
        grammar = &grammar[1..];
        let mut inside = || match grammar.starts_with('(') {
            true => {
                let (inside, behind) = enclosed(grammar);
                grammar = behind;
                Some(inside)
            }
            false => None,
        };
        match letter {
            ' ' => {}
            'v' => shape.number(u128::from(varint(rest)), Form::Varint),
            'b' => shape.number(fixed(rest, 1), Form::Fixed(1)),
            '2' | '4' | '8' => {
                let width = letter as u8 - b'0';
                shape.number(fixed(rest, width), Form::Fixed(width));
            }
            'K' => shape.bytes(rest.split_off(..8).expect("eight bytes")),
            '.' => shape.bytes(std::mem::take(rest)),
            'l' | 'L' | 'Q' => {
                let form = match letter {
                    'l' => Form::Varint,
                    'L' => Form::Fixed(4),
                    _ => Form::Fixed(8),
                };
                let length = number(rest, form) as usize;
                let mut content = rest.split_off(..length).expect("so many bytes");
                let group = shape.open(Prefix::Length(form));
                match inside() {
                    None => shape.bytes(content),
                    Some(inside) => {
                        fields(inside, &mut content, shape);
                        assert!(content.is_empty(), "{inside}: {} bytes are left", content.len());
                    }
                }
                shape.close(group);
            }
            'c' | 'C' | 'o' => {
                let form = match letter {
                    'c' => Form::Varint,
                    'C' => Form::Fixed(4),
                    _ => Form::Fixed(1),
                };
                let count = number(rest, form);
                let group = shape.open(Prefix::Count(form));
                let inside = inside().expect("what is counted");
                (0..count).for_each(|_| one(inside, rest, shape));
                shape.close(group);
            }
            '*' => {
                let inside = inside().expect("what is repeated");
                while !rest.is_empty() {
                    one(inside, rest, shape);
                }
            }
            '?' => {
                let (choices, behind) = enclosed(grammar);
                grammar = behind;
                let tag = fixed(rest, 1);
                shape.number(tag, Form::Fixed(1));
                let name = tag.to_string();
                let choices = split(choices).into_iter().map(|choice| choice.split_once(':').expect("a choice"));
                let chosen = choices.filter(|(key, _)| *key == name || *key == "_").map(|(_, inside)| inside);
                fields(chosen.into_iter().next().unwrap_or_else(|| panic!("no choice {tag}")), rest, shape);
            }
            other => panic!("{other} is no field"),
        }
    }
}

/// Fields that belong together.
fn one(inside: &str, rest: &mut &[u8], shape: &mut Shape) {
    let group = shape.open(Prefix::Nothing);
    fields(inside, rest, shape);
    shape.close(group);
}

/// What the bracket at the start of `grammar` encloses, and what comes behind it.
fn enclosed(grammar: &str) -> (&str, &str) {
    let mut depth = 0;
    for (at, letter) in grammar.char_indices() {
        match letter {
            '(' | '<' => depth += 1,
            ')' | '>' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return (&grammar[1..at], &grammar[at + 1..]);
        }
    }
    panic!("{grammar}: a bracket is not closed")
}

/// The choices between bars.
fn split(choices: &str) -> Vec<&str> {
    let (mut depth, mut from, mut found) = (0, 0, Vec::new());
    for (at, letter) in choices.char_indices() {
        match letter {
            '(' | '<' => depth += 1,
            ')' | '>' => depth -= 1,
            '|' if depth == 0 => {
                found.push(choices[from..at].trim());
                from = at + 1;
            }
            _ => {}
        }
    }
    found.push(choices[from..].trim());
    found
}

fn number(rest: &mut &[u8], form: Form) -> u128 {
    match form {
        Form::Varint => u128::from(varint(rest)),
        Form::Fixed(width) => fixed(rest, width),
    }
}

fn fixed(rest: &mut &[u8], width: u8) -> u128 {
    let bytes = rest.split_off(..usize::from(width)).expect("a number");
    bytes.iter().rev().fold(0, |value, byte| value << 8 | u128::from(*byte))
}

fn varint(rest: &mut &[u8]) -> u64 {
    let mut reader = coppice_client::wire::Reader::new(rest);
    let value = reader.varint().expect("a varint");
    *rest = reader.rest();
    value
}

#[test]
fn changed_fields_leave_the_others_whole() {
    let image = [3, 2, b'a', b'b', 1, 9, 1, 7];
    let shape = parse("v l o(b) c(v)", &image);
    let with = |at, edit| shape.with(&[(at, edit)]);
    // 0 all, 1 v, 2 l, 3 its bytes, 4 o, 5 6 its byte, 7 c, 8 9 its number.
    assert_eq!(with(1, Edit::Number(300)), [0xac, 2, 2, b'a', b'b', 1, 9, 1, 7]);
    assert_eq!(with(3, Edit::Content(vec![1; 200]))[..3], [3, 200, 1]);
    assert_eq!(with(5, Edit::Drop), [3, 2, b'a', b'b', 0, 1, 7]);
    assert_eq!(with(8, Edit::Twice), [3, 2, b'a', b'b', 1, 9, 2, 7, 7]);
    assert_eq!(with(7, Edit::Lie(5)), [3, 2, b'a', b'b', 1, 9, 5, 7]);
    assert_eq!(with(4, Edit::Cut), [3, 2, b'a', b'b']);
    assert_eq!(with(3, Edit::Other(&shape, 7)), [3, 2, 1, 7, 1, 9, 1, 7]);
}
