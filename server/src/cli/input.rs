//! Keys and values of the command line: as written, from stdin (`-`) or from a file (`@FILE`).

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::failure::{Exit, Failure};
use crate::text::Coding;

/// More than the largest value in any coding: reading stops there, so that a wrong file cannot fill the memory.
const INPUT_BYTES_MAX: u64 = 4 << 20;

/// Reads the arguments of one verb; stdin can be used once.
pub struct Inputs<'a> {
    verb: &'static str,
    coding: Coding,
    stdin: Option<&'a mut dyn Read>,
}

impl<'a> Inputs<'a> {
    /// For one command line.
    pub fn new(verb: &'static str, coding: Coding, stdin: &'a mut dyn Read) -> Self {
        Self { verb, coding, stdin: Some(stdin) }
    }

    /// The bytes of an argument named `name` in messages.
    ///
    /// # Errors
    /// The file cannot be read, stdin was used up, or the text does not fit the coding.
    pub fn bytes(&mut self, name: &str, argument: &OsStr) -> Result<Vec<u8>, Failure> {
        let raw = match argument.as_bytes() {
            b"-" => self.read_stdin(name)?,
            [b'@', file @ ..] => self.read_file(name, Path::new(OsStr::from_bytes(file)))?,
            text => text.to_vec(),
        };
        self.coding.decode(&raw).map_err(|expected| Failure {
            place: name.to_owned(),
            ..Failure::usage(
                format!("{}: {name} must be {expected}", self.verb),
                "the flag says how keys and values are written",
                self.help(),
            )
        })
    }

    /// An argument as it is written, without `-` and `@`.
    #[must_use]
    pub fn plain(argument: &OsString) -> &[u8] {
        argument.as_bytes()
    }

    fn read_stdin(&mut self, name: &str) -> Result<Vec<u8>, Failure> {
        let Some(stdin) = self.stdin.take() else {
            return Err(Failure::usage(
                format!("{}: stdin can be only one argument, and {name} is the second", self.verb),
                "`-` stands for stdin twice",
                self.help(),
            ));
        };
        read_bounded(stdin).map_err(|reason| self.unreadable(name, "stdin".to_owned(), &reason))
    }

    fn read_file(&self, name: &str, path: &Path) -> Result<Vec<u8>, Failure> {
        let read =
            std::fs::File::open(path).map_err(|error| error.to_string()).and_then(|mut file| read_bounded(&mut file));
        read.map_err(|reason| self.unreadable(name, path.display().to_string(), &reason))
    }

    fn unreadable(&self, name: &str, place: String, reason: &str) -> Failure {
        Failure {
            exit: Exit::Usage,
            code: "input",
            what: format!("{}: {name} cannot be read: {reason}", self.verb),
            place,
            cause: "an argument that begins with `@` names a file, and `-` is stdin; use --hex for bytes that look like that".to_owned(),
            next: self.help(),
        }
    }

    fn help(&self) -> String {
        format!("coppice {} --help", self.verb)
    }
}

fn read_bounded(source: &mut dyn Read) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    source.take(INPUT_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() as u64 > INPUT_BYTES_MAX {
        Err(format!("it is larger than {INPUT_BYTES_MAX} bytes"))
    } else {
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_come_from_the_line_stdin_or_a_file() {
        let mut stdin: &[u8] = b"from stdin\n";
        let mut inputs = Inputs::new("put", Coding::Plain, &mut stdin);
        assert_eq!(inputs.bytes("KEY", OsStr::new("apple")), Ok(b"apple".to_vec()));
        assert_eq!(inputs.bytes("VALUE", OsStr::new("-")), Ok(b"from stdin\n".to_vec()));
        assert!(inputs.bytes("VALUE", OsStr::new("-")).expect_err("used up").what.contains("only one"));
        let missing = inputs.bytes("VALUE", OsStr::new("@/nowhere/at all")).expect_err("no such file");
        assert_eq!((missing.exit, missing.place.as_str()), (Exit::Usage, "/nowhere/at all"));
        assert_eq!(inputs.bytes("VALUE", OsStr::new("")), Ok(Vec::new()));
    }

    #[test]
    fn what_does_not_fit_the_coding_is_refused() {
        let mut stdin: &[u8] = b"42\n";
        let mut inputs = Inputs::new("get", Coding::Int, &mut stdin);
        assert_eq!(inputs.bytes("KEY", OsStr::new("-")), Ok(42_u64.to_be_bytes().to_vec()));
        let failure = inputs.bytes("KEY", OsStr::new("apple")).expect_err("no number");
        assert!(failure.to_string().starts_with("error: get: KEY must be a number"), "{failure}");
    }

    #[test]
    fn an_endless_input_is_refused() {
        let mut stdin = std::io::repeat(b'x');
        let mut inputs = Inputs::new("put", Coding::Plain, &mut stdin);
        assert!(inputs.bytes("VALUE", OsStr::new("-")).expect_err("endless").what.contains("larger than"));
    }
}
