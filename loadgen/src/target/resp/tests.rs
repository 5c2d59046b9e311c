//! Against a small server in a thread.

use std::io::{Read, Write};
use std::net::TcpListener;

use super::*;

/// Answers each command with the next of `replies`; an empty one closes the connection.
fn server(replies: Vec<&'static [u8]>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let mut replies = replies.into_iter();
        while let Ok((mut stream, _)) = listener.accept() {
            let mut buffer = [0; 4_096];
            'connection: while let Ok(count) = stream.read(&mut buffer) {
                let commands = buffer[..count].windows(4).filter(|w| *w == b"*2\r\n").count();
                for _ in 0..commands {
                    match replies.next() {
                        None | Some(b"") => break 'connection,
                        Some(reply) => stream.write_all(reply).unwrap(),
                    }
                }
                if count == 0 {
                    break;
                }
            }
        }
    });
    address
}

fn connect(address: String) -> Resp {
    Resp::connect(&options(address), Instant::now()).unwrap()
}

/// How long anything may take that does not take for ever, on any machine, however busy.
const PATIENCE: Duration = Duration::from_secs(120);

fn options(address: String) -> Options {
    let timeout = PATIENCE;
    Options { endpoints: vec![address], connections: 1, timeout, pack: false, wait_replicas: 0 }
}

fn ends(target: &mut Resp, count: usize) -> Vec<(u32, End, u32)> {
    let mut done = Vec::new();
    let deadline = target.now() + PATIENCE.as_nanos() as u64;
    while done.len() < count && target.now() < deadline {
        target.poll(target.now() + 20_000_000, &mut done);
    }
    done.iter().map(|done| (done.slot, done.end, done.found)).collect()
}

#[test]
fn replies_end_requests_in_order_and_by_kind() {
    let address = server(vec![b"$1\r\nx\r\n", b"$-1\r\n", b"-ERR no\r\n", b"-OVERLOADED retry in 5 ms\r\n"]);
    let mut target = connect(address);
    (0..4).for_each(|slot| target.submit(slot, &Request::Get(u64::from(slot))));
    let expected = [(0, End::Ok, 1), (1, End::Ok, 0), (2, End::Failed, 0), (3, End::Busy, 0)];
    assert_eq!(ends(&mut target, 4), expected);
    assert_eq!(target.first_error().as_deref(), Some("ERR no"));
}

#[test]
fn what_ended_before_does_not_keep_the_next_end_from_being_heard() {
    let address = server(vec![b"$1\r\nx\r\n", b"$-1\r\n"]);
    let timeout = Duration::from_secs(10);
    let mut target = Resp::connect(&Options { timeout, ..options(address) }, Instant::now()).unwrap();
    let mut done = Vec::new();
    for slot in 0..2 {
        target.submit(slot, &Request::Get(u64::from(slot)));
        while done.len() <= slot as usize {
            target.poll(target.now() + 20_000_000, &mut done);
        }
    }
    assert!(done.iter().all(|done| done.end == End::Ok), "{done:?}");
}

#[test]
fn a_lost_connection_leaves_outcomes_unknown_and_is_made_again() {
    let address = server(vec![b"+OK\r\n", b"", b"+OK\r\n"]);
    let mut target = connect(address);
    (0..3).for_each(|slot| target.submit(slot, &Request::Delete(1)));
    let expected = [(0, End::Ok, 0), (1, End::Unknown, 0), (2, End::Unknown, 0)];
    assert_eq!(ends(&mut target, 3), expected);
    assert_eq!(after_reconnection(&mut target, &Request::Delete(1)), 0);
}

/// What a request finds once its connection is made again; until then it is refused without sending.
fn after_reconnection(target: &mut Resp, request: &Request) -> u32 {
    let begun = Instant::now();
    loop {
        assert!(begun.elapsed() < PATIENCE, "the connection is never made again");
        target.submit(8, request);
        match ends(target, 1)[..] {
            [(8, End::Ok, found)] => return found,
            [(8, End::Failed, 0)] => std::thread::sleep(Duration::from_millis(5)),
            ref other => panic!("{other:?}"),
        }
    }
}

#[test]
fn silence_ends_as_unknown() {
    // The listener's backlog takes the connection; nobody answers.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let options = Options { timeout: Duration::from_millis(300), ..options(address) };
    let mut target = Resp::connect(&options, Instant::now()).unwrap();
    target.submit(0, &Request::Get(1));
    assert_eq!(ends(&mut target, 1), [(0, End::Unknown, 0)]);
    assert!(target.first_error().unwrap().contains("no reply in 300 ms"));
}

#[test]
fn nobody_there_is_an_error_at_once() {
    // The port of tcpmux, which nobody serves.
    let address = "127.0.0.1:1";
    assert!(Resp::connect(&options(address.to_owned()), Instant::now()).is_err());
    assert!(ask(address, &["PING"]).is_err());
}

#[test]
fn a_write_that_waits_for_replicas_ends_with_the_second_reply_and_the_first_error() {
    // The server counts commands of two words: a DEL is one, the WAIT behind it goes unanswered until it says both.
    let address = server(vec![b":1\r\n:1\r\n", b"-ERR full\r\n:2\r\n", b":1\r\n", b"$1\r\nx\r\n"]);
    let timeout = Duration::from_secs(3);
    let mut target = Resp::connect(&Options { wait_replicas: 1, timeout, ..options(address) }, Instant::now()).unwrap();
    target.submit(0, &Request::Delete(1));
    assert_eq!(ends(&mut target, 1), [(0, End::Ok, 1)]);
    target.submit(1, &Request::Delete(1));
    assert_eq!(ends(&mut target, 1), [(1, End::Failed, 1)], "a replica's word does not undo the error");
    target.submit(2, &Request::Delete(1));
    assert_eq!(ends(&mut target, 1), [(2, End::Unknown, 0)], "no word of a replica");
    assert_eq!(after_reconnection(&mut target, &Request::Get(1)), 1, "reads do not wait");
}
