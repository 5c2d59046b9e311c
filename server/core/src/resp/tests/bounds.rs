//! What one connection may take of the node.

use coppice_client::Operation;
use coppice_client::wire::MANY_OPERATIONS_MAX;

use super::*;

const WIDE: Limits = Limits { requests: 1_024, bytes: 16 << 20 };

const LARGE: usize = 1_000_000;

impl Client {
    fn put(&mut self, key: &str, bytes: usize) {
        self.tree.execute(Operation::put(key, vec![b'v'; bytes]).op(), &mut Undo::default());
    }

    /// Takes all that is written, and what is written then.
    fn takes_all(&mut self) -> usize {
        let mut taken = 0;
        while !self.connection.output().is_empty() || self.connection.is_cut() {
            taken += self.connection.output().split().len();
            self.step(None);
        }
        taken
    }
}

#[test]
fn values_are_asked_for_as_far_as_there_is_room() {
    let mut client = Client::with(Access::default(), WIDE);
    (0..200).for_each(|n| client.put(&format!("a{n}"), LARGE));
    // That many small answers came does not say that the next one is small.
    client.says(&["GET nothing"; 100].join("|"));
    client.types(&(0..200).map(|n| format!("GET a{n}")).collect::<Vec<_>>().join("|"));
    let (mut taken, mut most) = (0, client.asked.len());
    assert!((1..=64).contains(&most), "{most}");
    let mut answered = 0;
    while !client.asked.is_empty() {
        client.answer(None);
        answered += 1;
    }
    assert!(answered <= 64 + 16 && !client.connection.wants_input(), "{answered}");
    most = 0;
    while taken < 200 * LARGE {
        taken += client.takes_all();
        most = most.max(client.asked.len());
        assert!(client.connection.bytes() < WIDE.bytes + 4 * LARGE, "{}", client.connection.bytes());
        while !client.asked.is_empty() {
            client.answer(None);
        }
    }
    assert!((8..=17).contains(&most), "{most}");
    client.takes_all();
    assert!(client.connection.is_idle());
}

#[test]
fn answers_are_written_as_the_client_takes_them() {
    let mut client = Client::with(Access::default(), WIDE);
    client.put("a", LARGE);
    client.types(&["GET a"; 8].join("|"));
    while !client.asked.is_empty() {
        client.answer(None);
    }
    let written = client.connection.output().len();
    assert!((LARGE..3 * LARGE).contains(&written), "{written}");
    assert!(client.connection.bytes() >= 8 * LARGE);
    assert!(client.takes_all() >= 8 * LARGE && client.connection.bytes() < 1_000);
}

#[test]
fn what_a_transaction_queues_is_counted_whatever_it_is() {
    let mut client = Client::with(Access::default(), WIDE);
    client.says("MULTI");
    (0..MANY_OPERATIONS_MAX / 8).for_each(|_| _ = client.says(&["PING"; 8].join("|")));
    assert!(client.says("PING").starts_with("-ERR a transaction has at most"));
    assert_eq!(client.says("EXEC"), "-EXECABORT Transaction discarded because of previous errors.");
    client.says("MULTI");
    let echo = format!("*2\r\n$4\r\nECHO\r\n${LARGE}\r\n{}\r\n", "e".repeat(LARGE));
    for _ in 0..8 {
        client.bytes.extend_from_slice(echo.as_bytes());
        client.step(None);
    }
    assert!(client.connection.bytes() < 3 * LARGE, "{}", client.connection.bytes());
    assert!(client.says("EXEC").ends_with("because of previous errors."));
}

#[test]
fn a_length_takes_nothing_before_its_bytes_are_here() {
    let mut client = Client::new();
    client.bytes.extend_from_slice(b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1048576\r\nxyz");
    client.step(None);
    assert_eq!((client.connection.bytes(), client.connection.wants_input()), (0, true));
    assert!(client.bytes.capacity() < 1 << 10, "{}", client.bytes.capacity());
}

#[test]
fn strangers_send_little_and_try_one_token_at_a_time() {
    let token = Token::generate().expect("random bits");
    for large in ["*3\r\n$3\r\nSET\r\n$1\r\na\r\n$9000\r\n", "*129\r\n"] {
        let mut client = Client::with(access(&token), LIMITS);
        client.bytes.extend_from_slice(large.as_bytes());
        client.step(None);
        assert!(client.reads().starts_with("-ERR Protocol error: before AUTH a request has at most 128 strings"));
        assert!(client.connection.is_closing());
    }
    let mut client = Client::with(access(&token), LIMITS);
    client.types(&["AUTH x"; 20].join("|"));
    assert_eq!((client.strangers.len(), client.connection.is_cut()), (1, true));
    client.step(None);
    assert_eq!(client.strangers.len(), 2);
    // Whoever is let in may go on at once.
    let mut client = Client::with(access(&token), LIMITS);
    let value = "v".repeat(20_000);
    client.bytes.extend_from_slice(format!("AUTH {}\r\n", token.reveal()).as_bytes());
    client.bytes.extend_from_slice(format!("*3\r\n$3\r\nSET\r\n$1\r\na\r\n$20000\r\n{value}\r\n").as_bytes());
    assert_eq!(client.says("STRLEN a"), "+OK +OK :20000");
}

#[test]
fn a_transaction_needs_a_node_that_serves() {
    let mut client = Client::new();
    client.says("MULTI|SET a 1");
    client.loading = Some("40 %");
    assert_eq!(client.says("EXEC|WATCH a"), "-LOADING this node starts: 40 % -LOADING this node starts: 40 %");
    client.loading = None;
    assert_eq!(client.says("EXEC|GET a"), "-ERR EXEC without MULTI $-1");
}
