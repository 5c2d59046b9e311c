//! Answers, and how RESP2 and RESP3 write them.

use bytes::{BufMut, BytesMut};
use coppice_client::Value;

/// Which version of the protocol a connection speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// What every client speaks.
    #[default]
    Resp2,
    /// After `HELLO 3`: maps, and one null.
    Resp3,
}

/// An answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// `+OK` and the like.
    Simple(&'static str),
    /// A code in capitals, and a sentence.
    Error(String),
    /// A number.
    Integer(i64),
    /// Bytes.
    Bulk(Value),
    /// Text for people and for parsers of text.
    Text(String),
    /// No value. In RESP3 `_`, never `$-1`, on which clients hang.
    Nil,
    /// No array: EXEC whose guard failed.
    NilArray,
    /// Several.
    Array(Vec<Reply>),
    /// Pairs; in RESP2 one flat array.
    Map(Vec<(Reply, Reply)>),
    /// Pairs in their order; in RESP2 one flat array, in RESP3 an array of arrays.
    Pairs(Vec<(Value, Value)>),
}

impl Reply {
    /// `+OK`.
    pub const OK: Reply = Reply::Simple("OK");

    /// Bytes of a name.
    pub fn bulk(text: impl AsRef<[u8]>) -> Reply {
        Reply::Bulk(Value::from(text.as_ref()))
    }

    /// The bytes, or nil.
    pub fn maybe(value: Option<Value>) -> Reply {
        value.map_or(Reply::Nil, Reply::Bulk)
    }

    /// An error of the general kind.
    pub fn err(text: impl std::fmt::Display) -> Reply {
        Reply::Error(format!("ERR {text}"))
    }

    /// A number; one beyond what RESP can write is the largest that it can.
    pub fn count(count: impl TryInto<i64>) -> Reply {
        Reply::Integer(count.try_into().unwrap_or(i64::MAX))
    }

    /// Whether it is an error.
    pub fn is_error(&self) -> bool {
        matches!(self, Reply::Error(_))
    }

    /// Bytes that it takes, here and written, roughly.
    pub fn bytes(&self) -> usize {
        let content = match self {
            Reply::Simple(_) | Reply::Integer(_) | Reply::Nil | Reply::NilArray => 0,
            Reply::Error(text) | Reply::Text(text) => text.len(),
            Reply::Bulk(value) => value.len(),
            Reply::Array(items) => items.iter().map(Reply::bytes).sum(),
            Reply::Map(pairs) => pairs.iter().map(|(key, value)| key.bytes() + value.bytes()).sum(),
            Reply::Pairs(pairs) => pairs.iter().map(|(key, value)| key.len() + value.len() + 32).sum(),
        };
        content + size_of::<Reply>()
    }

    /// Writes it.
    pub fn encode(&self, protocol: Protocol, out: &mut BytesMut) {
        let resp3 = protocol == Protocol::Resp3;
        match self {
            Reply::Simple(text) => line(out, b'+', text.as_bytes()),
            // A line ends an error: what a key brings in must not.
            Reply::Error(text) => line(out, b'-', text.replace(['\r', '\n'], " ").as_bytes()),
            Reply::Integer(number) => line(out, b':', Decimal::of(*number).text()),
            Reply::Bulk(value) => string(out, value),
            Reply::Text(text) if resp3 => {
                header(out, b'=', text.len() + 4);
                out.extend_from_slice(b"txt:");
                out.extend_from_slice(text.as_bytes());
                out.extend_from_slice(b"\r\n");
            }
            Reply::Text(text) => string(out, text.as_bytes()),
            Reply::Nil | Reply::NilArray if resp3 => out.extend_from_slice(b"_\r\n"),
            Reply::Nil => out.extend_from_slice(b"$-1\r\n"),
            Reply::NilArray => out.extend_from_slice(b"*-1\r\n"),
            Reply::Array(items) => {
                header(out, b'*', items.len());
                items.iter().for_each(|item| item.encode(protocol, out));
            }
            Reply::Map(pairs) => {
                if resp3 {
                    header(out, b'%', pairs.len());
                } else {
                    header(out, b'*', 2 * pairs.len());
                }
                for (key, value) in pairs {
                    key.encode(protocol, out);
                    value.encode(protocol, out);
                }
            }
            Reply::Pairs(pairs) => {
                header(out, b'*', if resp3 { pairs.len() } else { 2 * pairs.len() });
                for (key, value) in pairs {
                    if resp3 {
                        header(out, b'*', 2);
                    }
                    string(out, key);
                    string(out, value);
                }
            }
        }
    }
}

fn line(out: &mut BytesMut, sign: u8, text: &[u8]) {
    out.reserve(text.len() + 3);
    out.put_u8(sign);
    out.extend_from_slice(text);
    out.extend_from_slice(b"\r\n");
}

fn header(out: &mut BytesMut, sign: u8, length: usize) {
    line(out, sign, Decimal::of(i64::try_from(length).unwrap_or(i64::MAX)).text());
}

fn string(out: &mut BytesMut, bytes: &[u8]) {
    header(out, b'$', bytes.len());
    out.reserve(bytes.len() + 2);
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

/// A number in decimal, without an allocation.
struct Decimal {
    digits: [u8; 20],
    begin: usize,
}

impl Decimal {
    fn of(number: i64) -> Decimal {
        let (mut digits, mut begin, mut left) = ([0; 20], 20, number.unsigned_abs());
        loop {
            begin -= 1;
            digits[begin] = b'0' + (left % 10) as u8;
            left /= 10;
            if left == 0 {
                break;
            }
        }
        if number < 0 {
            begin -= 1;
            digits[begin] = b'-';
        }
        Decimal { digits, begin }
    }

    fn text(&self) -> &[u8] {
        &self.digits[self.begin..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(reply: &Reply) -> [String; 2] {
        [Protocol::Resp2, Protocol::Resp3].map(|protocol| {
            let mut out = BytesMut::new();
            reply.encode(protocol, &mut out);
            out.escape_ascii().to_string()
        })
    }

    #[test]
    fn both_protocols_write_each_answer_as_their_clients_read_it() {
        let pair = || (Value::from("a"), Value::from("1"));
        for (reply, resp2, resp3) in [
            (Reply::OK, r"+OK\r\n", r"+OK\r\n"),
            (Reply::err("no\r\n$3"), r"-ERR no  $3\r\n", r"-ERR no  $3\r\n"),
            (Reply::Integer(i64::MIN), r":-9223372036854775808\r\n", r":-9223372036854775808\r\n"),
            (Reply::Integer(0), r":0\r\n", r":0\r\n"),
            (Reply::bulk("a\0"), r"$2\r\na\x00\r\n", r"$2\r\na\x00\r\n"),
            (Reply::Text("a".into()), r"$1\r\na\r\n", r"=5\r\ntxt:a\r\n"),
            (Reply::Nil, r"$-1\r\n", r"_\r\n"),
            (Reply::NilArray, r"*-1\r\n", r"_\r\n"),
            (Reply::Array(vec![Reply::Nil, Reply::OK]), r"*2\r\n$-1\r\n+OK\r\n", r"*2\r\n_\r\n+OK\r\n"),
            (
                Reply::Map(vec![(Reply::bulk("a"), Reply::Integer(7))]),
                r"*2\r\n$1\r\na\r\n:7\r\n",
                r"%1\r\n$1\r\na\r\n:7\r\n",
            ),
            (Reply::Pairs(vec![pair()]), r"*2\r\n$1\r\na\r\n$1\r\n1\r\n", r"*1\r\n*2\r\n$1\r\na\r\n$1\r\n1\r\n"),
        ] {
            assert_eq!(written(&reply), [resp2, resp3]);
        }
    }
}
