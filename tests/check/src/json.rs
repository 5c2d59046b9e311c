//! A scanner for the JSON of one line: no tree, no allocation but for escaped strings. It knows JSON, not histories.

use super::event::Text;

/// What was expected, and at which byte of the line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Syntax {
    /// Byte offset in the line, from 0.
    pub at: usize,
    /// In words.
    pub what: &'static str,
}

type Result<T> = std::result::Result<T, Syntax>;

/// How deep values may nest where they are skipped.
const DEPTH_MAX: u32 = 32;

/// A position in one line.
pub struct Scanner<'a> {
    line: &'a [u8],
    at: usize,
}

impl<'a> Scanner<'a> {
    /// At the start of `line`.
    pub fn new(line: &'a [u8]) -> Scanner<'a> {
        Scanner { line, at: 0 }
    }

    /// An error at the present byte.
    pub fn error<T>(&self, what: &'static str) -> Result<T> {
        Err(Syntax { at: self.at, what })
    }

    /// The next byte that is not white space, not taken; 0 at the end.
    #[inline]
    pub fn peek(&mut self) -> u8 {
        while let Some(&byte) = self.line.get(self.at) {
            if !matches!(byte, b' ' | b'\t' | b'\r' | b'\n') {
                return byte;
            }
            self.at += 1;
        }
        0
    }

    /// Takes `byte` if it is next.
    #[inline]
    pub fn take(&mut self, byte: u8) -> bool {
        let found = self.peek() == byte;
        self.at += usize::from(found);
        found
    }

    /// Takes `byte`, which must be next.
    #[inline]
    pub fn need(&mut self, byte: u8, what: &'static str) -> Result<()> {
        if self.take(byte) { Ok(()) } else { self.error(what) }
    }

    /// Nothing but white space may follow.
    pub fn end(&mut self) -> Result<()> {
        if self.peek() == 0 && self.at >= self.line.len() { Ok(()) } else { self.error("nothing after the object") }
    }

    /// Visits the fields of an object: `field(scanner, name)` must take the value.
    pub fn object(&mut self, mut field: impl FnMut(&mut Scanner<'a>, &[u8]) -> Result<()>) -> Result<()> {
        self.need(b'{', "an object")?;
        if self.take(b'}') {
            return Ok(());
        }
        loop {
            let name = self.text()?;
            self.need(b':', "a colon")?;
            field(self, &name)?;
            if !self.take(b',') {
                return self.need(b'}', "a comma or the end of the object");
            }
        }
    }

    /// Visits the elements of an array: `element` must take each.
    #[inline]
    pub fn array(&mut self, mut element: impl FnMut(&mut Scanner<'a>) -> Result<()>) -> Result<()> {
        self.need(b'[', "an array")?;
        if self.take(b']') {
            return Ok(());
        }
        loop {
            element(self)?;
            if !self.take(b',') {
                return self.need(b']', "a comma or the end of the array");
            }
        }
    }

    /// A string; borrowed unless it has escapes.
    #[inline]
    pub fn text(&mut self) -> Result<Text<'a>> {
        self.need(b'"', "a string")?;
        let start = self.at;
        loop {
            match self.line.get(self.at) {
                Some(b'"') => {
                    let text = &self.line[start..self.at];
                    self.at += 1;
                    return Ok(Text::Borrowed(text));
                }
                Some(b'\\') => return self.escaped(start),
                Some(_) => self.at += 1,
                None => return self.error("the end of the string"),
            }
        }
    }

    fn escaped(&mut self, start: usize) -> Result<Text<'a>> {
        let mut text = self.line[start..self.at].to_vec();
        loop {
            let Some(&byte) = self.line.get(self.at) else { return self.error("the end of the string") };
            self.at += 1;
            match byte {
                b'"' => return Ok(Text::Owned(text)),
                b'\\' => {
                    let letter = self.line.get(self.at).copied().unwrap_or(0);
                    self.at += 1;
                    match letter {
                        b'"' | b'\\' | b'/' => text.push(letter),
                        b'n' => text.push(b'\n'),
                        b't' => text.push(b'\t'),
                        b'r' => text.push(b'\r'),
                        b'b' => text.push(8),
                        b'f' => text.push(12),
                        b'u' => {
                            let letter = self.unicode()?;
                            text.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
                        }
                        _ => return self.error("a known escape"),
                    }
                }
                _ => text.push(byte),
            }
        }
    }

    fn unicode(&mut self) -> Result<char> {
        let first = self.hex4()?;
        if !(0xd800..0xdc00).contains(&first) {
            return char::from_u32(first).map_or_else(|| self.error("a character"), Ok);
        }
        if self.line.get(self.at..self.at + 2) != Some(b"\\u") {
            return self.error("the second half of a surrogate pair");
        }
        self.at += 2;
        let second = self.hex4()?;
        if !(0xdc00..0xe000).contains(&second) {
            return self.error("the second half of a surrogate pair");
        }
        let letter = 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00);
        char::from_u32(letter).map_or_else(|| self.error("a character"), Ok)
    }

    fn hex4(&mut self) -> Result<u32> {
        let digits = self.line.get(self.at..self.at + 4).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u32::from_str_radix(digits, 16).ok()) {
            Some(letter) => {
                self.at += 4;
                Ok(letter)
            }
            None => self.error("four hexadecimal digits"),
        }
    }

    /// A number without sign, fraction or exponent, below 2^64.
    #[inline]
    pub fn number(&mut self) -> Result<u64> {
        self.peek();
        let start = self.at;
        let mut number: u64 = 0;
        while let Some(digit) = self.line.get(self.at).map(|byte| byte.wrapping_sub(b'0')).filter(|digit| *digit < 10) {
            number = match number.checked_mul(10).and_then(|number| number.checked_add(u64::from(digit))) {
                Some(number) => number,
                None => return self.error("a number below 2^64"),
            };
            self.at += 1;
        }
        if start == self.at || matches!(self.line.get(self.at), Some(b'.' | b'e' | b'E')) {
            return self.error("a number without sign or fraction");
        }
        Ok(number)
    }

    /// A number below 2^32.
    #[inline]
    pub fn small(&mut self) -> Result<u32> {
        let number = self.number()?;
        u32::try_from(number).or_else(|_| self.error("a number below 2^32"))
    }

    fn word(&mut self, word: &'static [u8], what: &'static str) -> Result<()> {
        self.peek();
        if self.line[self.at.min(self.line.len())..].starts_with(word) {
            self.at += word.len();
            return Ok(());
        }
        self.error(what)
    }

    /// `true` or `false`.
    #[inline]
    pub fn bool(&mut self) -> Result<bool> {
        if self.peek() == b't' {
            return self.word(b"true", "true or false").map(|()| true);
        }
        self.word(b"false", "true or false").map(|()| false)
    }

    /// `null`, or what `value` takes.
    #[inline]
    pub fn or_null<T>(&mut self, value: impl FnOnce(&mut Scanner<'a>) -> Result<T>) -> Result<Option<T>> {
        if self.peek() == b'n' {
            return self.word(b"null", "null").map(|()| None);
        }
        value(self).map(Some)
    }

    /// Takes any value: fields of later versions are skipped.
    pub fn skip(&mut self) -> Result<()> {
        self.skip_to(DEPTH_MAX)
    }

    fn skip_to(&mut self, depth: u32) -> Result<()> {
        if depth == 0 {
            return self.error("a value that nests less deeply");
        }
        match self.peek() {
            b'{' => self.object(|scanner, _| scanner.skip_to(depth - 1)),
            b'[' => self.array(|scanner| scanner.skip_to(depth - 1)),
            b'"' => self.text().map(|_| ()),
            b't' | b'f' => self.bool().map(|_| ()),
            b'n' => self.word(b"null", "null"),
            _ => {
                let start = self.at;
                while matches!(self.line.get(self.at), Some(b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E')) {
                    self.at += 1;
                }
                if start == self.at { self.error("a value") } else { Ok(()) }
            }
        }
    }
}
