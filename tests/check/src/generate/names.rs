//! Keys by number, in key order. With ladders and tokens, three of four numbers are places of such: behind an ordinary
//! key one step of a ladder, and one place of each kind of token.

use super::super::event::Text;
use super::super::marks::Kind;
use super::Shape;
use super::store::Bytes;

/// Numbers from one ordinary key to the next, with ladders and tokens.
pub const STRIDE: u32 = 4;

impl Shape {
    /// Numbers from one ordinary key to the next.
    pub fn stride(&self) -> u32 {
        if self.marks > 0 { STRIDE } else { 1 }
    }

    /// How many ladders there are, and as many tokens of each kind: each has at least two places, and one client.
    pub fn marks_of_a_kind(&self) -> u32 {
        (self.keys / self.stride() / 2).min(self.clients).max(1)
    }

    /// Places of the ladder or token of a client.
    pub fn places(&self, client: u32) -> usize {
        let (all, marks) = (self.keys / self.stride(), self.marks_of_a_kind());
        (all.saturating_sub(client % marks)).div_ceil(marks) as usize
    }

    /// The number of a place.
    pub fn place(&self, kind: Kind, client: u32, place: usize) -> u32 {
        let marks = self.marks_of_a_kind();
        let kind = Kind::ALL.iter().position(|each| *each == kind).unwrap_or(0) as u32;
        (place as u32 * marks + client % marks) * STRIDE + 1 + kind
    }

    /// A key by its number.
    pub fn key(&self, number: u32) -> Bytes {
        let (base, rest) = (number / self.stride(), number % self.stride());
        let suffix = Kind::ALL.get((rest as usize).wrapping_sub(1)).map_or(String::new(), |kind| {
            let marks = self.marks_of_a_kind();
            kind.suffix(u64::from(base % marks), (base / marks) as usize)
        });
        Text::Owned(format!("k{base:06}{suffix}").into_bytes())
    }

    /// The number of a key.
    pub fn number(&self, key: &Bytes) -> u32 {
        let text = String::from_utf8_lossy(&key[1..]);
        let (base, suffix) = text.split_once('~').unwrap_or((&text, ""));
        let kind = Kind::ALL.iter().position(|kind| suffix.starts_with(kind.letter()));
        base.parse::<u32>().unwrap_or(0) * self.stride() + kind.map_or(0, |kind| kind as u32 + 1)
    }

    /// The key behind a range, unless there is none.
    pub fn bound(&self, number: u32) -> Option<Bytes> {
        (number < self.keys).then(|| self.key(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_are_in_one_order() {
        for marks in [0, 100] {
            let shape = Shape { marks, keys: 80, clients: 3, ..Shape::default() };
            let names: Vec<Bytes> = (0..80).map(|number| shape.key(number)).collect();
            assert!(names.is_sorted(), "{names:?}");
            assert!((0..80).all(|number| shape.number(&names[number as usize]) == number));
        }
        let shape = Shape { marks: 1, keys: 80, clients: 3, ..Shape::default() };
        for (client, kind) in (0..3).flat_map(|client| Kind::ALL.map(|kind| (client, kind))) {
            let name = |place| String::from_utf8_lossy(&shape.key(shape.place(kind, client, place))).into_owned();
            let (base, suffix) = (3 * 2 + client, kind.suffix(u64::from(client), 2));
            assert_eq!(name(2), format!("k{base:06}{suffix}"));
            assert!(shape.places(client) >= 6, "all of them are used");
        }
    }
}
