//! RESP2 as a client needs it: commands out, replies in. A reply is measured, not built: the generator wants to know
//! that it came, whether it is an error, and how much it held.

use std::io::Write;

use crate::workload::{Request, Value};

/// A reply of this many bytes or more is not one that we asked for.
const REPLY_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Arrays in arrays, at most.
const DEPTH_MAX: u32 = 4;

/// What a whole reply says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Not an error; `found` counts values that are not null.
    Ok {
        /// Values that are not null.
        found: u32,
    },
    /// `-CODE text`.
    Error(String),
}

/// The peer does not speak RESP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotResp;

/// Appends one command of these words.
pub fn command(out: &mut Vec<u8>, words: &[&[u8]]) {
    // A Vec never refuses; so do all writes below.
    let _ = write!(out, "*{}\r\n", words.len());
    for word in words {
        let _ = write!(out, "${}\r\n", word.len());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}

/// Whether RESP has a command for it.
pub fn has(request: &Request) -> bool {
    !matches!(request, Request::Many(_) | Request::ReadModifyWrite(..))
}

/// Appends the command of a request; `scratch` holds a value meanwhile.
pub fn request(out: &mut Vec<u8>, scratch: &mut Vec<u8>, request: &Request) {
    let mut written = |value: &Value| {
        scratch.clear();
        value.write(scratch);
    };
    match request {
        Request::Get(key) => command(out, &[b"GET", &key.to_be_bytes()]),
        Request::Put(key, value) => {
            written(value);
            command(out, &[b"SET", &key.to_be_bytes(), scratch]);
        }
        Request::Insert(key, value) => {
            written(value);
            command(out, &[b"SET", &key.to_be_bytes(), scratch, b"NX"]);
        }
        Request::Delete(key) => command(out, &[b"DEL", &key.to_be_bytes()]),
        Request::Range { low, high, limit } => {
            let (low, high) = (low.to_be_bytes(), high.map(u64::to_be_bytes));
            let high = high.as_ref().map_or(b"+".as_slice(), |high| high.as_slice());
            match limit {
                0 => command(out, &[b"RANGE", &low, high]),
                limit => command(out, &[b"RANGE", &low, high, b"LIMIT", limit.to_string().as_bytes()]),
            }
        }
        Request::Many(_) | Request::ReadModifyWrite(..) => unreachable!("RESP has no such command; see `has`"),
    }
}

/// The first whole reply in `bytes` and its length; `None`: more bytes are needed.
pub fn reply(bytes: &[u8]) -> Result<Option<(Reply, usize)>, NotResp> {
    let mut found = 0;
    let mut error = None;
    match element(bytes, 0, &mut found, &mut error)? {
        None if bytes.len() >= REPLY_BYTES_MAX => Err(NotResp),
        None => Ok(None),
        Some(length) => Ok(Some((error.map_or(Reply::Ok { found }, Reply::Error), length))),
    }
}

fn line(bytes: &[u8]) -> Option<&[u8]> {
    let end = bytes.iter().position(|&b| b == b'\n')?;
    Some(&bytes[..end + 1])
}

fn number(line: &[u8]) -> Result<i64, NotResp> {
    let digits = line[1..].strip_suffix(b"\r\n").ok_or(NotResp)?;
    std::str::from_utf8(digits).ok().and_then(|text| text.parse().ok()).ok_or(NotResp)
}

/// The length of the element at the front of `bytes`.
fn element(bytes: &[u8], depth: u32, found: &mut u32, error: &mut Option<String>) -> Result<Option<usize>, NotResp> {
    let Some(head) = line(bytes) else { return Ok(None) };
    match head[0] {
        b'+' => Ok(Some(head.len())),
        b':' => {
            *found += u32::from(number(head)? > 0);
            Ok(Some(head.len()))
        }
        b'-' => {
            let text = String::from_utf8_lossy(&head[1..]).trim_end().to_owned();
            error.get_or_insert(text);
            Ok(Some(head.len()))
        }
        b'$' => match number(head)? {
            -1 => Ok(Some(head.len())),
            length => {
                let length = usize::try_from(length).ok().filter(|&l| l <= REPLY_BYTES_MAX).ok_or(NotResp)?;
                let whole = head.len() + length + 2;
                *found += 1;
                Ok((bytes.len() >= whole).then_some(whole))
            }
        },
        b'*' if depth < DEPTH_MAX => {
            let mut at = head.len();
            for _ in 0..number(head)?.max(0) {
                match element(&bytes[at..], depth + 1, found, error)? {
                    Some(length) => at += length,
                    None => return Ok(None),
                }
            }
            Ok(Some(at))
        }
        _ => Err(NotResp),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::ValueForm;

    #[test]
    fn commands_are_arrays_of_bulk_strings() {
        let (mut out, mut scratch) = (Vec::new(), Vec::new());
        let value = Value { client: 1, number: 2, form: ValueForm::Text };
        request(&mut out, &mut scratch, &Request::Insert(u64::from_be_bytes(*b"abcdefgh"), value));
        assert_eq!(out, b"*4\r\n$3\r\nSET\r\n$8\r\nabcdefgh\r\n$3\r\n1.2\r\n$2\r\nNX\r\n");
        out.clear();
        request(&mut out, &mut scratch, &Request::Range { low: 0, high: None, limit: 10 });
        assert_eq!(out, b"*5\r\n$5\r\nRANGE\r\n$8\r\n\0\0\0\0\0\0\0\0\r\n$1\r\n+\r\n$5\r\nLIMIT\r\n$2\r\n10\r\n");
    }

    #[test]
    fn replies_are_measured_whole_and_never_early() {
        let ok = |found| Reply::Ok { found };
        let replies: [(&[u8], Reply); 8] = [
            (b"+OK\r\n", ok(0)),
            (b"$-1\r\n", ok(0)),
            (b"$3\r\na\nb\r\n", ok(1)),
            (b":1\r\n", ok(1)),
            (b":0\r\n", ok(0)),
            (b"*-1\r\n", ok(0)),
            (b"*3\r\n$1\r\na\r\n*1\r\n:5\r\n$-1\r\n", ok(2)),
            (b"-NOQUORUM p2\r\n", Reply::Error("NOQUORUM p2".into())),
        ];
        for (bytes, expected) in replies {
            for cut in 0..bytes.len() {
                assert_eq!(reply(&bytes[..cut]), Ok(None), "{bytes:?} at {cut}");
            }
            let mut more = bytes.to_vec();
            more.extend_from_slice(b"+next\r\n");
            assert_eq!(reply(&more), Ok(Some((expected, bytes.len()))));
        }
    }

    #[test]
    fn what_is_not_resp_is_refused() {
        for bad in [
            b"HTTP/1.1 400\r\n".as_slice(),
            b"$x\r\n",
            b"$-2\r\n",
            b"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n",
            b"$99999999999\r\n",
        ] {
            assert_eq!(reply(bad), Err(NotResp), "{bad:?}");
        }
    }
}
