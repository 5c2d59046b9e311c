//! A client that speaks RESP2, as programs for Redis do: what tests say to the RESP port, and what they hear. It has
//! one connection and repeats nothing.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// `+OK`
    Simple(String),
    /// A code and a sentence.
    Error(String),
    /// `:1`
    Integer(i64),
    /// Bytes, or nil.
    Bulk(Option<Vec<u8>>),
    /// Answers, or nil.
    Array(Option<Vec<Reply>>),
}

/// A command: its name and its arguments.
pub type Request = Vec<Vec<u8>>;

/// A command of words.
pub fn request<W: AsRef<[u8]>>(words: impl IntoIterator<Item = W>) -> Request {
    words.into_iter().map(|word| word.as_ref().to_vec()).collect()
}

/// A connection.
#[derive(Debug)]
pub struct Client(BufReader<TcpStream>);

impl Client {
    /// Connects; no read and no write of a socket takes longer than `timeout`.
    ///
    /// # Errors
    /// Nobody listens.
    pub fn connect(address: SocketAddr, timeout: Duration) -> io::Result<Client> {
        let stream = TcpStream::connect_timeout(&address, timeout)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        Ok(Client(BufReader::new(stream)))
    }

    /// Sends all of them at once.
    ///
    /// # Errors
    /// The connection is gone, or holds no more.
    pub fn send<'a>(&mut self, requests: impl IntoIterator<Item = &'a Request>) -> io::Result<()> {
        let mut bytes = Vec::new();
        for words in requests {
            write!(bytes, "*{}\r\n", words.len())?;
            for word in words {
                write!(bytes, "${}\r\n", word.len())?;
                bytes.extend_from_slice(word);
                bytes.extend_from_slice(b"\r\n");
            }
        }
        self.0.get_mut().write_all(&bytes)
    }

    /// The next answer.
    ///
    /// # Errors
    /// The connection is gone or says nothing, or what comes is no answer.
    pub fn receive(&mut self) -> io::Result<Reply> {
        let mut line = Vec::new();
        self.0.read_until(b'\n', &mut line)?;
        let wrong = || io::Error::new(io::ErrorKind::InvalidData, line.escape_ascii().to_string());
        let Some([kind, text @ ..]) = line.strip_suffix(b"\r\n") else { return Err(wrong()) };
        let text = std::str::from_utf8(text).map_err(|_| wrong())?;
        let number = || text.parse::<i64>().map_err(|_| wrong());
        Ok(match kind {
            b'+' => Reply::Simple(text.to_owned()),
            b'-' => Reply::Error(text.to_owned()),
            b':' => Reply::Integer(number()?),
            b'$' => Reply::Bulk(match usize::try_from(number()?) {
                Ok(length) => {
                    let mut bytes = vec![0; length + 2];
                    self.0.read_exact(&mut bytes)?;
                    bytes.truncate(length);
                    Some(bytes)
                }
                Err(_) => None,
            }),
            b'*' => Reply::Array(match number()? {
                count @ 0.. => Some((0..count).map(|_| self.receive()).collect::<io::Result<_>>()?),
                _ => None,
            }),
            _ => return Err(wrong()),
        })
    }
}
