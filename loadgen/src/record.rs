//! `--record`: the history of a run as JSON lines (hazards.md 3.1), for `coppice-check history`. Each worker writes
//! its own lines; one thread puts them into the file. It knows the format, not what a legal history is.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

use crate::units::Nanos;
use crate::workload::{Request, Update, Value};

/// Lines go to the file in pieces of about this size.
const PIECE_BYTES: usize = 64 * 1024;

/// Pieces that wait for the file; a worker that is ahead of the disk waits, and its clients with it.
const PIECES_MAX: usize = 64;

/// A place in a partition's log: partition, instance, index.
pub type Position = (u32, u64, u32);

/// A ticket: round, replica, number.
pub type Ticket = (u64, u32, u64);

/// What came back, in the bytes that came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Out {
    /// Of a get, put, insert, delete: the value that was there, none.
    Value(Option<Vec<u8>>),
    /// Of a range: pairs in key order.
    Pairs(Vec<(Vec<u8>, Vec<u8>)>),
    /// Of several: one value or none each.
    List(Vec<Option<Vec<u8>>>),
}

/// The file of a run.
#[derive(Debug)]
pub struct History {
    pieces: SyncSender<Vec<u8>>,
    writer: JoinHandle<std::io::Result<()>>,
}

impl History {
    /// Creates the file and writes its head; `state` is the whole map at the start.
    pub fn create(path: &Path, commit: &str, seed: u64, state: &[(Vec<u8>, Vec<u8>)]) -> std::io::Result<History> {
        let mut file = BufWriter::with_capacity(1 << 20, File::create(path)?);
        let mut head = Vec::new();
        let _ = write!(head, "{{\"e\":\"head\",\"v\":1,\"commit\":");
        text(&mut head, commit.as_bytes());
        let _ = write!(head, ",\"seed\":\"{seed}\",\"clock\":\"mono_ns\",\"state\":");
        pairs(&mut head, state);
        head.extend_from_slice(b"}\n");
        file.write_all(&head)?;
        let (pieces, take) = sync_channel::<Vec<u8>>(PIECES_MAX);
        let writer = std::thread::spawn(move || {
            for piece in take {
                file.write_all(&piece)?;
            }
            file.flush()
        });
        Ok(History { pieces, writer })
    }

    /// A recorder for worker `worker` of `workers`.
    pub fn recorder(&self, worker: u64, workers: u64) -> Recorder {
        Recorder { pieces: self.pieces.clone(), buffer: Vec::new(), next: worker, step: workers }
    }

    /// Waits for the last line; every recorder must be gone.
    pub fn finish(self) -> std::io::Result<()> {
        drop(self.pieces);
        self.writer.join().unwrap_or_else(|_| Err(std::io::Error::other("the history's thread ended early")))
    }
}

/// Writes the lines of one worker.
#[derive(Debug)]
pub struct Recorder {
    pieces: SyncSender<Vec<u8>>,
    buffer: Vec<u8>,
    next: u64,
    step: u64,
}

impl Recorder {
    /// An operation begins; must be called before its first byte is sent. `client` and `number` name it in the logs.
    /// Returns the id for its answer.
    pub fn invoke(&mut self, at: Nanos, client: u64, number: u64, request: &Request, stale: bool) -> u64 {
        let id = self.next;
        self.next += self.step;
        // Writing to a Vec never fails, here and below.
        let _ = write!(self.buffer, "{{\"e\":\"inv\",\"id\":{id},\"at\":{at},\"c\":{client},\"n\":{number},\"op\":");
        call(&mut self.buffer, request);
        let reads = matches!(request, Request::Get(_) | Request::Range { .. });
        self.buffer.extend_from_slice(if stale && reads { b",\"stale\":true}\n" } else { b"}\n" });
        self.hand_over(PIECE_BYTES);
        id
    }

    /// The whole answer has been read.
    pub fn answered(&mut self, id: u64, at: Nanos, out: &Out, positions: &[Position], ticket: Option<Ticket>) {
        let _ = write!(self.buffer, "{{\"e\":\"ret\",\"id\":{id},\"at\":{at},\"st\":\"ok\",\"out\":");
        match out {
            Out::Value(value) => value_or_null(&mut self.buffer, value.as_deref()),
            Out::Pairs(list) => pairs(&mut self.buffer, list),
            Out::List(list) => list_of(&mut self.buffer, list, |out, value| value_or_null(out, value.as_deref())),
        }
        self.buffer.extend_from_slice(b",\"pos\":");
        list_of(&mut self.buffer, positions, |out, (p, i, x)| drop(write!(out, "[{p},{i},{x}]")));
        if let Some((round, replica, number)) = ticket {
            let _ = write!(self.buffer, ",\"tk\":[{round},{replica},{number}]");
        }
        self.buffer.extend_from_slice(b"}\n");
        self.hand_over(PIECE_BYTES);
    }

    /// Every sending ended in a sure error.
    pub fn refused(&mut self, id: u64, at: Nanos) {
        let _ =
            writeln!(self.buffer, "{{\"e\":\"ret\",\"id\":{id},\"at\":{at},\"st\":\"no\",\"out\":null,\"pos\":[]}}");
        self.hand_over(PIECE_BYTES);
    }

    fn hand_over(&mut self, above: usize) {
        if self.buffer.len() > above {
            // A writer that is gone has left its error for `History::finish`.
            let _ = self.pieces.send(std::mem::take(&mut self.buffer));
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.hand_over(0);
    }
}

/// Bytes as they are when they are UTF-8, else `0x` and hexadecimal digits.
fn text(out: &mut Vec<u8>, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) => serde_json::to_writer(out, text).expect("a Vec takes any text"),
        Err(_) => {
            out.extend_from_slice(b"\"0x");
            bytes.iter().for_each(|byte| drop(write!(out, "{byte:02x}")));
            out.push(b'"');
        }
    }
}

fn value_or_null(out: &mut Vec<u8>, value: Option<&[u8]>) {
    match value {
        Some(value) => text(out, value),
        None => out.extend_from_slice(b"null"),
    }
}

fn list_of<T>(out: &mut Vec<u8>, list: &[T], mut one: impl FnMut(&mut Vec<u8>, &T)) {
    out.push(b'[');
    for (index, element) in list.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        one(out, element);
    }
    out.push(b']');
}

fn pairs(out: &mut Vec<u8>, list: &[(Vec<u8>, Vec<u8>)]) {
    list_of(out, list, |out, (key, value)| {
        out.push(b'[');
        text(out, key);
        out.push(b',');
        text(out, value);
        out.push(b']');
    });
}

/// The fields of a request behind `"op":`.
fn call(out: &mut Vec<u8>, request: &Request) {
    let keyed = |out: &mut Vec<u8>, name: &str, key: u64, value: Option<&Value>| {
        let _ = write!(out, "\"{name}\",\"k\":");
        text(out, &key.to_be_bytes());
        if let Some(value) = value {
            out.extend_from_slice(b",\"v\":");
            text(out, &value.to_vec());
        }
    };
    match request {
        Request::Get(key) => keyed(out, "get", *key, None),
        Request::Put(key, value) | Request::ReadModifyWrite(key, value) => keyed(out, "put", *key, Some(value)),
        Request::Insert(key, value) => keyed(out, "insert", *key, Some(value)),
        Request::Delete(key) => keyed(out, "delete", *key, None),
        Request::Range { low, high, .. } => {
            out.extend_from_slice(b"\"range\",\"lo\":");
            text(out, &low.to_be_bytes());
            out.extend_from_slice(b",\"hi\":");
            value_or_null(out, high.map(u64::to_be_bytes).as_ref().map(|high| high.as_slice()));
        }
        Request::Many(updates) => {
            out.extend_from_slice(b"\"many\",\"ops\":");
            let list: Vec<Update> = updates.iter().collect();
            list_of(out, &list, |out, update| {
                out.extend_from_slice(b"{\"op\":");
                match update {
                    Update::Insert(key, value) => keyed(out, "insert", *key, Some(value)),
                    Update::Delete(key) => keyed(out, "delete", *key, None),
                }
                out.push(b'}');
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Rng;
    use crate::workload::{KeySpace, Updates, ValueForm};

    const KEY: u64 = u64::from_be_bytes(*b"abcdefgh");

    fn history(name: &str, write: impl FnOnce(&mut Recorder)) -> Vec<String> {
        let path = std::env::temp_dir().join(format!("coppice-load-{name}-{}", std::process::id()));
        let state = [(b"k".to_vec(), vec![0xff, 0])];
        let history = History::create(&path, "c0ffee", 7, &state).unwrap();
        let mut recorder = history.recorder(1, 2);
        write(&mut recorder);
        drop(recorder);
        history.finish().unwrap();
        let lines = std::fs::read_to_string(&path).unwrap().lines().map(str::to_owned).collect();
        std::fs::remove_file(&path).unwrap();
        lines
    }

    #[test]
    fn lines_are_those_of_the_format() {
        let value = Value { client: 3, number: 41, form: ValueForm::Text };
        let lines = history("format", |recorder| {
            let put = recorder.invoke(5, 9, 1, &Request::Put(KEY, value), true);
            recorder.answered(put, 8, &Out::Value(Some(b"2.9".to_vec())), &[(4, 8_801, 2)], None);
            let range = Request::Range { low: u64::MAX, high: None, limit: 0 };
            let range = recorder.invoke(9, 9, 0, &range, false);
            let pairs = vec![(b"a7".to_vec(), b"3.41".to_vec())];
            recorder.answered(range, 10, &Out::Pairs(pairs), &[(4, 8_803, 0), (6, 512, 3)], Some((2, 1, 57)));
            let keys = KeySpace::new([(b"abcdefgh".as_slice(), None)]).unwrap();
            let updates = Updates { part: keys.part(0), keys: 1, count: 2, draws: Rng::new(1, 0), value };
            let many = recorder.invoke(11, 9, 2, &Request::Many(updates), false);
            recorder.refused(many, 12);
            let get = recorder.invoke(13, 9, 0, &Request::Get(KEY), true);
            recorder.answered(get, 14, &Out::List(vec![None]), &[], None);
        });
        assert_eq!(
            lines,
            [
                r#"{"e":"head","v":1,"commit":"c0ffee","seed":"7","clock":"mono_ns","state":[["k","0xff00"]]}"#,
                r#"{"e":"inv","id":1,"at":5,"c":9,"n":1,"op":"put","k":"abcdefgh","v":"3.41"}"#,
                r#"{"e":"ret","id":1,"at":8,"st":"ok","out":"2.9","pos":[[4,8801,2]]}"#,
                r#"{"e":"inv","id":3,"at":9,"c":9,"n":0,"op":"range","lo":"0xffffffffffffffff","hi":null}"#,
                concat!(
                    r#"{"e":"ret","id":3,"at":10,"st":"ok","out":[["a7","3.41"]],"#,
                    r#""pos":[[4,8803,0],[6,512,3]],"tk":[2,1,57]}"#
                ),
                concat!(
                    r#"{"e":"inv","id":5,"at":11,"c":9,"n":2,"op":"many","#,
                    r#""ops":[{"op":"insert","k":"abcdefgh","v":"3.41"},{"op":"delete","k":"abcdefgh"}]}"#
                ),
                r#"{"e":"ret","id":5,"at":12,"st":"no","out":null,"pos":[]}"#,
                r#"{"e":"inv","id":7,"at":13,"c":9,"n":0,"op":"get","k":"abcdefgh","stale":true}"#,
                r#"{"e":"ret","id":7,"at":14,"st":"ok","out":[null],"pos":[]}"#,
            ]
        );
    }

    #[test]
    fn every_line_of_a_long_history_arrives() {
        let lines = history("long", |recorder| {
            for n in 0..20_000 {
                recorder.invoke(n, 1, n, &Request::Delete(n), false);
            }
        });
        assert_eq!(lines.len(), 20_001);
    }
}
