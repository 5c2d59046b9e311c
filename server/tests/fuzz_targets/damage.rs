//! Damage that knows how our formats write numbers: what it changes is often still whole, and absurd.

use bytes::BytesMut;
use coppice_client::wire::put_varint;

/// The ends of ranges, and one beside them.
pub const NUMBERS: &[u64] = &[
    0,
    1,
    127,
    128,
    (1 << 14) - 1,
    1 << 20,
    (1 << 31) - 1,
    1 << 31,
    u32::MAX as u64,
    1 << 32,
    1 << 62,
    1 << 63,
    u64::MAX - 2,
    u64::MAX - 1,
    u64::MAX,
];

/// Changes `bytes` in one place; `other` is another image, `below` draws.
pub fn damage(bytes: &mut Vec<u8>, other: &[u8], below: &mut dyn FnMut(u64) -> u64) {
    let mut at = |length: usize| below(length as u64 + 1) as usize;
    let start = at(bytes.len());
    let length = at((bytes.len() - start).min(40));
    match below(12) {
        0 if start < bytes.len() => bytes[start] ^= 1 << below(8),
        1 if start < bytes.len() => bytes[start] = [0, 1, 0x7f, 0x80, 0xff][below(5) as usize],
        2 => bytes.truncate(start),
        3 => drop(bytes.drain(start..start + length)),
        4 => bytes.splice(start..start, (0..length).map(|_| below(256) as u8).collect::<Vec<_>>()).for_each(drop),
        5 => bytes.splice(start..start, bytes[start..start + length].to_vec()).for_each(drop),
        6 => {
            let from = below(other.len() as u64 + 1) as usize;
            let until = from + below((other.len() - from).min(64) as u64 + 1) as usize;
            bytes.splice(start..start + length, other[from..until].to_vec()).for_each(drop);
        }
        7 => {
            let width = [1, 2, 4, 8][below(4) as usize].min(bytes.len() - start);
            bytes[start..start + width].copy_from_slice(&drawn(below).to_le_bytes()[..width]);
        }
        8 => bytes[start..start + length].fill(below(256) as u8),
        // The varint that may begin here becomes another one.
        _ => {
            let more = bytes[start..].iter().take(9).take_while(|byte| **byte >= 0x80).count();
            let until = (start + more + 1).min(bytes.len());
            let mut number = BytesMut::new();
            put_varint(&mut number, drawn(below));
            bytes.splice(start..until, number).for_each(drop);
        }
    }
}

fn drawn(below: &mut dyn FnMut(u64) -> u64) -> u64 {
    NUMBERS[below(NUMBERS.len() as u64) as usize]
}
