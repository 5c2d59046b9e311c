//! Tokens: the secret by which a client shows which user it acts for. A node keeps only the hash of one.
//!
//! A token is 256 random bits, so its hash needs no salt and no slow function: nobody tries 2^255 of them.

use std::fmt;
use std::io::{self, Read};
use std::path::Path;

use serde::{Deserialize, Serialize};

/// What a token begins with: programs that look for leaked secrets know it by that.
const MARK: &str = "coppice-";

/// Random bytes of a token.
const SECRET_BYTES: usize = 32;

/// The longest file that may hold a token: the token, and what editors leave behind it.
const FILE_BYTES_MAX: u64 = 256;

/// A secret. It prints as `Token(..)`; [`Token::reveal`] alone gives its text.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Token(String);

impl Token {
    /// A new token, of random bits of the operating system.
    ///
    /// # Errors
    /// The system gives no random bits.
    pub fn generate() -> io::Result<Token> {
        let mut secret = [0; SECRET_BYTES];
        std::fs::File::open("/dev/urandom")?.read_exact(&mut secret)?;
        Ok(Token(format!("{MARK}{}", hex(&secret))))
    }

    /// Reads the token of a file, which holds nothing else.
    ///
    /// # Errors
    /// The file cannot be read, or holds no token. The error never quotes the file.
    pub fn from_file(path: &Path) -> io::Result<Token> {
        let mut text = String::new();
        std::fs::File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
        Token::parse(text.trim()).ok_or_else(|| {
            let what = format!("it holds no token: `{MARK}` and {} hex digits", 2 * SECRET_BYTES);
            io::Error::new(io::ErrorKind::InvalidData, what)
        })
    }

    /// The token with this text; none: it is not one.
    pub fn parse(text: &str) -> Option<Token> {
        let digits = text.strip_prefix(MARK)?;
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        (digits.len() == 2 * SECRET_BYTES && digits.bytes().all(is_digit)).then(|| Token(text.to_owned()))
    }

    /// The text, to be given to its user once.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// What nodes keep of it.
    pub fn hash(&self) -> TokenHash {
        TokenHash(sha256(self.0.as_bytes()))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// SHA-256 of a token's text. It lets nobody in.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub struct TokenHash([u8; 32]);

impl PartialEq for TokenHash {
    /// Takes as long whatever differs.
    fn eq(&self, other: &TokenHash) -> bool {
        let differing = self.0.iter().zip(&other.0).fold(0, |differing, (a, b)| differing | (a ^ b));
        std::hint::black_box(differing) == 0
    }
}

impl Eq for TokenHash {}

impl fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenHash(..)")
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .filter_map(|digit| char::from_digit(digit.into(), 16))
        .collect()
}

/// Fractional parts of the cube roots of the first 64 primes (FIPS 180-4, 4.2.2).
const ROUND_CONSTANTS: [u32; 64] = [
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98,
    0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786,
    0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8,
    0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13,
    0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819,
    0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a,
    0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
    0xc67178f2,
];

/// SHA-256 (FIPS 180-4).
pub fn sha256(message: &[u8]) -> [u8; 32] {
    let mut state: [u32; 8] =
        [0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19];
    let mut padded = message.to_vec();
    padded.push(0x80);
    padded.resize((padded.len() + 8).next_multiple_of(64) - 8, 0);
    padded.extend_from_slice(&(8 * message.len() as u64).to_be_bytes());
    for block in padded.chunks_exact(64) {
        compress(&mut state, block);
    }
    let mut digest = [0; 32];
    for (bytes, word) in digest.chunks_exact_mut(4).zip(state) {
        bytes.copy_from_slice(&word.to_be_bytes());
    }
    digest
}

fn compress(state: &mut [u32; 8], block: &[u8]) {
    let mut words = [0_u32; 64];
    for (word, bytes) in words.iter_mut().zip(block.chunks_exact(4)) {
        *word = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
    for at in 16..64 {
        let (early, late) = (words[at - 15], words[at - 2]);
        let early = early.rotate_right(7) ^ early.rotate_right(18) ^ (early >> 3);
        let late = late.rotate_right(17) ^ late.rotate_right(19) ^ (late >> 10);
        words[at] = words[at - 16].wrapping_add(early).wrapping_add(words[at - 7]).wrapping_add(late);
    }
    let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = *state;
    for (word, constant) in words.into_iter().zip(ROUND_CONSTANTS) {
        let sum = e.rotate_right(6) ^ e.rotate_right(11) ^ e.rotate_right(25);
        let choice = (e & f) ^ (!e & g);
        let first = h.wrapping_add(sum).wrapping_add(choice).wrapping_add(constant).wrapping_add(word);
        let sum = a.rotate_right(2) ^ a.rotate_right(13) ^ a.rotate_right(22);
        let majority = (a & b) ^ (a & c) ^ (b & c);
        (h, g, f, e) = (g, f, e, d.wrapping_add(first));
        (d, c, b, a) = (c, b, a, first.wrapping_add(sum).wrapping_add(majority));
    }
    for (word, added) in state.iter_mut().zip([a, b, c, d, e, f, g, h]) {
        *word = word.wrapping_add(added);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of FIPS 180-4 and of NIST's test vectors: empty, one block, two blocks, many.
    #[test]
    fn the_hash_is_sha_256() {
        for (message, digest) in [
            ("", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
            ("abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
            (
                "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
                "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1",
            ),
            (&"a".repeat(1_000_000), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"),
        ] {
            assert_eq!(hex(&sha256(message.as_bytes())), digest, "{} bytes", message.len());
        }
    }

    #[test]
    fn a_token_is_read_as_it_was_shown_and_prints_as_nothing() {
        let (one, other) = (Token::generate().expect("random bits"), Token::generate().expect("random bits"));
        assert_eq!(Token::parse(one.reveal()), Some(one.clone()));
        assert_ne!(one, other);
        assert_eq!(one.hash(), one.hash());
        assert_ne!(one.hash(), other.hash());
        assert_eq!(format!("{one:?} {:?}", one.hash()), "Token(..) TokenHash(..)");
        for text in ["", "coppice-", &one.reveal()[8..], &format!("{}0", one.reveal()), &one.reveal().to_uppercase()] {
            assert_eq!(Token::parse(text), None, "{text}");
        }
    }
}
