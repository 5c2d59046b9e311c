//! Requests as bytes: arrays of strings, or a line that a person types. Incremental: a byte is looked at once, however
//! a request is cut up. Nothing is allocated for a length before its bytes are here, and no string is copied: a request
//! stays in the buffer until it is whole.

use std::ops::Range;

use bytes::{Buf, BytesMut};
use coppice_client::wire::{KEY_BYTES_MAX, MANY_OPERATIONS_MAX, VALUE_BYTES_MAX};

/// Strings of one request that are kept: the name, and a key and a value for each operation of a command.
pub const ARGUMENTS_MAX: usize = 2 * MANY_OPERATIONS_MAX + 16;

/// Bytes of one request that are kept: those of the largest command, and what stands around them.
pub const REQUEST_BYTES_MAX: usize = 2 * VALUE_BYTES_MAX;

/// One request of whoever has not shown who it is: a token and names are shorter.
const STRANGER_BYTES_MAX: u64 = 8 << 10;
const STRANGER_ARGUMENTS_MAX: u64 = 128;

/// What a request may claim that is then read and refused: beyond, the connection ends.
const CLAIMED_ARGUMENTS_MAX: u64 = 1 << 20;
const CLAIMED_BYTES_MAX: u64 = 512 << 20;

/// A line: a length, or a request that a person types.
const LINE_BYTES_MAX: usize = 64 << 10;
const LENGTH_LINE_BYTES_MAX: usize = 32;

/// What stands in the bytes so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// So many bytes at the front are a request, of at least one string: [`Parser::take_spans`] says where they stand.
    Request(usize),
    /// The words of a line, at least one.
    Words(Vec<Vec<u8>>),
    /// A request that is larger than any may be. It is read to its end.
    TooLarge(String),
    /// The rest has not come yet.
    Incomplete,
}

/// The bytes are no request, and where the next one begins is not known: the connection ends.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// A length that is no number, negative or absurd.
    #[error("Protocol error: invalid {0}")]
    Length(&'static str),
    /// Something else in place of a string.
    #[error("Protocol error: expected '$', got '{}'", .0.escape_ascii())]
    NoString(u8),
    /// A line without an end.
    #[error("Protocol error: a line of more than {LINE_BYTES_MAX} bytes")]
    Line,
    /// A large request of whoever is not let in.
    #[error(
        "Protocol error: before AUTH a request has at most {STRANGER_ARGUMENTS_MAX} strings and {STRANGER_BYTES_MAX} bytes"
    )]
    Stranger,
    /// A line with an open quote.
    #[error("Protocol error: unbalanced quotes in request")]
    Quotes,
    /// A browser that was led here by a foreign page.
    #[error("Protocol error: this port speaks RESP, not HTTP")]
    Http,
}

/// A buffer of spans that has grown beyond is let go.
const KEPT_SPANS: usize = 64;

/// Reads requests from the bytes of a connection.
#[derive(Debug, Default)]
pub struct Parser {
    /// Strings of the request that are yet to come; 0: between two requests.
    left: u64,
    /// Bytes at the front that were looked at: those of the request so far.
    at: usize,
    /// The string that has begun: the length of what is yet to be looked at, with its end.
    string: Option<u64>,
    /// Where the strings so far stand.
    spans: Vec<Range<usize>>,
    /// Bytes of the strings so far, and of the one that has begun.
    bytes: usize,
    /// Why the request is not kept.
    refusal: Option<String>,
    /// Bytes of the line at the front that hold no end.
    searched: usize,
    /// Nobody knows who asks: requests are small.
    pub is_stranger: bool,
}

impl Parser {
    /// Bytes that the string needs which has begun and is kept, beyond what is here: for the buffer of the reader.
    pub fn wants(&self, buffered: usize) -> usize {
        let string = self.string.filter(|_| self.refusal.is_none()).unwrap_or(0);
        (self.at + string as usize).saturating_sub(buffered)
    }

    /// Where the strings of the request stand that has come.
    pub fn take_spans(&mut self) -> Vec<Range<usize>> {
        std::mem::take(&mut self.spans)
    }

    /// Takes them back, to use their memory again.
    pub fn give_back(&mut self, mut spans: Vec<Range<usize>>) {
        if spans.capacity() <= KEPT_SPANS {
            spans.clear();
            self.spans = spans;
        }
    }

    /// Looks for the next request at the front of `bytes`: whoever calls removes it.
    ///
    /// # Errors
    /// What follows cannot be understood.
    pub fn next(&mut self, bytes: &mut BytesMut) -> Result<Parsed, ProtocolError> {
        loop {
            if self.left == 0 {
                match bytes.first() {
                    None => return Ok(Parsed::Incomplete),
                    Some(b'*') => {
                        let Some(count) = self.length(bytes, "multibulk length", CLAIMED_ARGUMENTS_MAX)? else {
                            return Ok(Parsed::Incomplete);
                        };
                        // Nothing, or null: no request, and no answer.
                        self.left = count.unwrap_or(0);
                        if self.left == 0 {
                            bytes.advance(std::mem::take(&mut self.at));
                        }
                        if self.is_stranger && self.left > STRANGER_ARGUMENTS_MAX {
                            return Err(ProtocolError::Stranger);
                        }
                        if self.left > ARGUMENTS_MAX as u64 {
                            let text = format!("a request of {} strings; one has at most {ARGUMENTS_MAX}", self.left);
                            self.refusal = Some(text);
                        }
                    }
                    Some(_) => match self.line(bytes)? {
                        Some(words) if words.is_empty() => {}
                        Some(words) => return Ok(Parsed::Words(words)),
                        None => return Ok(Parsed::Incomplete),
                    },
                }
                continue;
            }
            let is_whole = self.string(bytes)?;
            if self.refusal.is_some() {
                bytes.advance(std::mem::take(&mut self.at));
            }
            if !is_whole {
                return Ok(Parsed::Incomplete);
            }
            if self.left == 0 {
                self.bytes = 0;
                let length = std::mem::take(&mut self.at);
                return Ok(self.refusal.take().map_or(Parsed::Request(length), Parsed::TooLarge));
            }
        }
    }

    /// Looks at as much as is here of the next string; whether it is whole.
    fn string(&mut self, bytes: &BytesMut) -> Result<bool, ProtocolError> {
        let length = match self.string {
            Some(length) => length,
            None => {
                match bytes.get(self.at) {
                    None => return Ok(false),
                    Some(b'$') => {}
                    Some(&other) => return Err(ProtocolError::NoString(other)),
                }
                let Some(length) = self.length(bytes, "bulk length", CLAIMED_BYTES_MAX)? else { return Ok(false) };
                let length = length.ok_or(ProtocolError::Length("bulk length"))?;
                if self.is_stranger && self.bytes as u64 + length > STRANGER_BYTES_MAX {
                    return Err(ProtocolError::Stranger);
                }
                self.begin(length);
                // Its end is a part of it.
                *self.string.insert(length + 2)
            }
        };
        let here = bytes.len() - self.at;
        if self.refusal.is_some() {
            let here = length.min(here as u64);
            self.at += here as usize;
            self.string = Some(length - here).filter(|&left| left > 0);
        } else if here as u64 >= length {
            let begin = self.at;
            self.at += length as usize;
            if !bytes[begin..self.at].ends_with(b"\r\n") {
                return Err(ProtocolError::Length("bulk length"));
            }
            self.spans.push(begin..self.at - 2);
            self.string = None;
        }
        if self.string.is_none() {
            self.left -= 1;
        }
        Ok(self.string.is_none())
    }

    /// Whether a string of this length is kept.
    fn begin(&mut self, length: u64) {
        let (bytes, longest) = (self.bytes as u64 + length, KEY_BYTES_MAX.max(VALUE_BYTES_MAX) as u64);
        if self.refusal.is_none() && length > longest {
            self.refusal = Some(format!("a string of {length} bytes; a value has at most {longest} bytes"));
        } else if self.refusal.is_none() && bytes > REQUEST_BYTES_MAX as u64 {
            self.refusal = Some(format!("a request of more than {REQUEST_BYTES_MAX} bytes: send several"));
        }
        if self.refusal.is_some() {
            self.spans = Vec::new();
            self.bytes = 0;
        } else {
            self.bytes = bytes as usize;
        }
    }

    /// Looks at a line of a sign and a length; none: it has not come whole; none inside: null.
    fn length(&mut self, bytes: &BytesMut, what: &'static str, max: u64) -> Result<Option<Option<u64>>, ProtocolError> {
        let line = &bytes[self.at..bytes.len().min(self.at + LENGTH_LINE_BYTES_MAX)];
        let Some(end) = line.iter().position(|&byte| byte == b'\n') else {
            return if line.len() == LENGTH_LINE_BYTES_MAX { Err(ProtocolError::Length(what)) } else { Ok(None) };
        };
        let digits = line[1..end].strip_suffix(b"\r").ok_or(ProtocolError::Length(what))?;
        let length = match digits {
            b"-1" => None,
            digits => Some(super::number::unsigned(digits).filter(|&length| length <= max)),
        };
        self.at += end + 1;
        match length {
            Some(None) => Err(ProtocolError::Length(what)),
            Some(length) => Ok(Some(length)),
            None => Ok(Some(None)),
        }
    }

    /// Takes a line that a person typed, in words.
    fn line(&mut self, bytes: &mut BytesMut) -> Result<Option<Vec<Vec<u8>>>, ProtocolError> {
        let end = bytes[self.searched..].iter().position(|&byte| byte == b'\n');
        let Some(end) = end.map(|at| at + self.searched) else {
            self.searched = bytes.len();
            return if bytes.len() > LINE_BYTES_MAX { Err(ProtocolError::Line) } else { Ok(None) };
        };
        self.searched = 0;
        let line = bytes.split_to(end + 1);
        if line.len() > LINE_BYTES_MAX {
            return Err(ProtocolError::Line);
        }
        let line = line[..end].strip_suffix(b"\r").unwrap_or(&line[..end]);
        let words = words(line).ok_or(ProtocolError::Quotes)?;
        let first = words.first().map(|word| word.to_ascii_lowercase());
        if first.is_some_and(|first| first == b"post" || first == b"host:") {
            return Err(ProtocolError::Http);
        }
        Ok(Some(words))
    }
}

/// The words of a line, as a shell quotes them; none: a quote is open, or something follows where it closes.
fn words(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut words = Vec::new();
    let mut rest = line.trim_ascii();
    while let Some(&first) = rest.first() {
        let mut word = Vec::new();
        if first == b'"' || first == b'\'' {
            let mut at = 1;
            loop {
                match rest.get(at..)? {
                    [] => return None,
                    [quote, ..] if *quote == first => break,
                    [b'\\', b'x', high, low, ..]
                        if first == b'"' && high.is_ascii_hexdigit() && low.is_ascii_hexdigit() =>
                    {
                        let digits = [*high, *low];
                        word.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
                        at += 4;
                    }
                    [b'\\', escaped, ..] if first == b'"' => {
                        word.push(match escaped {
                            b'n' => b'\n',
                            b'r' => b'\r',
                            b't' => b'\t',
                            b'b' => 8,
                            b'a' => 7,
                            other => *other,
                        });
                        at += 2;
                    }
                    [b'\\', b'\'', ..] => {
                        word.push(b'\'');
                        at += 2;
                    }
                    [byte, ..] => {
                        word.push(*byte);
                        at += 1;
                    }
                }
            }
            rest = &rest[at + 1..];
            if rest.first().is_some_and(|byte| !byte.is_ascii_whitespace()) {
                return None;
            }
        } else {
            let end = rest.iter().position(u8::is_ascii_whitespace).unwrap_or(rest.len());
            word.extend_from_slice(&rest[..end]);
            rest = &rest[end..];
        }
        words.push(word);
        rest = rest.trim_ascii_start();
    }
    Some(words)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The next request, as if its strings were words; it is removed.
    fn next(parser: &mut Parser, bytes: &mut BytesMut) -> Result<Parsed, ProtocolError> {
        let parsed = parser.next(bytes)?;
        let Parsed::Request(length) = parsed else { return Ok(parsed) };
        let spans = parser.take_spans();
        let words = spans.iter().map(|span| bytes[span.clone()].to_vec()).collect();
        parser.give_back(spans);
        bytes.advance(length);
        Ok(Parsed::Words(words))
    }

    fn all(parser: &mut Parser, bytes: &mut BytesMut) -> Result<Vec<Parsed>, ProtocolError> {
        let mut found = Vec::new();
        loop {
            match next(parser, bytes)? {
                Parsed::Incomplete => return Ok(found),
                parsed => found.push(parsed),
            }
        }
    }

    fn request(words: &[&[u8]]) -> Parsed {
        Parsed::Words(words.iter().map(|word| word.to_vec()).collect())
    }

    fn encode(words: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            bytes.extend_from_slice(word);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes
    }

    #[test]
    fn lines_are_split_as_a_shell_does() {
        let mut bytes =
            BytesMut::from(&b"PING\r\n\r\n  set 'a b' \"c\\x41\\n\\\"\"  \nget ''\n*0\r\n*-1\r\n*1\r\n$0\r\n\r\n"[..]);
        let found = all(&mut Parser::default(), &mut bytes).expect("understood");
        let wanted: [&[&[u8]]; 4] = [&[b"PING"], &[b"set", b"a b", b"cA\n\""], &[b"get", b""], &[b""]];
        assert_eq!(found, wanted.map(request));
    }

    #[test]
    fn what_is_no_request_is_refused_in_words() {
        for (bytes, text) in [
            (&b"*x\r\n"[..], "Protocol error: invalid multibulk length"),
            (b"*1\r\n:5\r\n", "Protocol error: expected '$', got ':'"),
            (b"*1\r\n$-1\r\n", "Protocol error: invalid bulk length"),
            (b"*1\r\n$-5\r\n", "Protocol error: invalid bulk length"),
            (b"*1\r\n$+3\r\nabc\r\n", "Protocol error: invalid bulk length"),
            (b"*1\r\n$3\r\nabcde\r\n", "Protocol error: invalid bulk length"),
            (b"*1048577\r\n", "Protocol error: invalid multibulk length"),
            (b"*00000000000000000000000000000001\r\n", "Protocol error: invalid multibulk length"),
            (b"set \"a\r\n", "Protocol error: unbalanced quotes in request"),
            (b"set 'a'b\r\n", "Protocol error: unbalanced quotes in request"),
            (b"POST / HTTP/1.1\r\n", "Protocol error: this port speaks RESP, not HTTP"),
            (b"*1\n", "Protocol error: invalid multibulk length"),
        ] {
            let error = all(&mut Parser::default(), &mut BytesMut::from(bytes)).expect_err("no request");
            assert_eq!(error.to_string(), text, "{}", bytes.escape_ascii());
        }
        let mut endless = BytesMut::from(&[b'a'; LINE_BYTES_MAX + 1][..]);
        assert_eq!(next(&mut Parser::default(), &mut endless), Err(ProtocolError::Line));
    }

    #[test]
    fn what_is_too_large_is_read_to_its_end_and_kept_nowhere() {
        let mut parser = Parser::default();
        let mut bytes = BytesMut::from(&b"*3\r\n$3\r\nset\r\n$1\r\na\r\n$5000000\r\n"[..]);
        assert_eq!(next(&mut parser, &mut bytes), Ok(Parsed::Incomplete));
        assert_eq!((bytes.len(), parser.wants(0)), (0, 0));
        for _ in 0..5 {
            bytes.extend_from_slice(&[b'x'; 1_000_000]);
            assert_eq!(next(&mut parser, &mut bytes), Ok(Parsed::Incomplete));
            assert!(bytes.is_empty());
        }
        bytes.extend_from_slice(b"\r\nPING\r\n");
        let text = "a string of 5000000 bytes; a value has at most 1048576 bytes".to_owned();
        assert_eq!(next(&mut parser, &mut bytes), Ok(Parsed::TooLarge(text)));
        assert_eq!(next(&mut parser, &mut bytes), Ok(request(&[b"PING"])));

        let many: Vec<Vec<u8>> = (0..ARGUMENTS_MAX + 1).map(|_| b"a".to_vec()).collect();
        let mut bytes = BytesMut::from(&*encode(&many));
        assert!(matches!(next(&mut Parser::default(), &mut bytes), Ok(Parsed::TooLarge(_))));
        assert!(bytes.is_empty());
    }

    proptest! {
        /// However a stream is cut up, the same requests come out of it.
        #[test]
        fn requests_are_read_however_they_are_cut(
            requests in prop::collection::vec(
                prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..6), 1..6
            ),
            cuts in prop::collection::vec(1_usize..30, 1..40),
        ) {
            let stream: Vec<u8> = requests.iter().flat_map(|words| encode(words)).collect();
            let (mut parser, mut bytes, mut found) = (Parser::default(), BytesMut::new(), Vec::new());
            let (mut rest, mut cuts) = (&*stream, cuts.into_iter().cycle());
            while !rest.is_empty() {
                let (now, later) = rest.split_at(cuts.next().unwrap_or(1).min(rest.len()));
                bytes.extend_from_slice(now);
                found.extend(all(&mut parser, &mut bytes).expect("requests"));
                rest = later;
            }
            let wanted: Vec<Parsed> = requests.into_iter().map(Parsed::Words).collect();
            prop_assert_eq!(found, wanted);
        }

        /// Any bytes are understood or refused, and nothing is kept beyond them.
        #[test]
        fn any_bytes_are_read_or_refused(chunks in prop::collection::vec(
            prop_oneof![
                prop::collection::vec(any::<u8>(), 0..30),
                "[*$][0-9]{1,3}\r\n".prop_map(String::into_bytes),
                "[a-z'\" ]{1,9}\r\n".prop_map(String::into_bytes),
            ], 0..30)
        ) {
            let (mut parser, mut bytes, mut given) = (Parser::default(), BytesMut::new(), 0);
            for chunk in chunks {
                given += chunk.len();
                bytes.extend_from_slice(&chunk);
                if all(&mut parser, &mut bytes).is_err() {
                    break;
                }
                prop_assert!(bytes.len() <= given);
            }
        }
    }
}
