//! Every interleaving of the mailbox with up to three threads: nothing put in is lost, nothing is taken twice, a
//! waiting worker thread is always woken, a full queue gives the input back. Run with `--features loom`.
#![cfg(feature = "loom")]

use coppice_server::mailbox::{Priority, mailbox};

#[test]
fn a_waiting_worker_gets_every_input_of_two_senders() {
    loom::model(|| {
        let (sender, receiver) = mailbox::<u32>(4);
        let other = sender.clone();
        let first = loom::thread::spawn(move || sender.push(Priority::Client, 1).unwrap());
        let second = loom::thread::spawn(move || other.push(Priority::Consensus, 2).unwrap());
        let mut taken = Vec::new();
        while taken.len() < 2 {
            match receiver.pop() {
                Some(input) => taken.push(input),
                None => receiver.wait_blocking(),
            }
        }
        taken.sort_unstable();
        assert_eq!(taken, [1, 2]);
        assert_eq!(receiver.pop(), None);
        first.join().unwrap();
        second.join().unwrap();
    });
}

#[test]
fn a_full_queue_gives_the_input_back_and_takes_it_later() {
    loom::model(|| {
        let (sender, receiver) = mailbox::<u32>(1);
        sender.push(Priority::Client, 1).unwrap();
        let thread = loom::thread::spawn(move || match sender.push(Priority::Client, 2) {
            Ok(()) => 1,
            Err(input) => {
                assert_eq!(input, 2);
                0
            }
        });
        let mut taken = 0;
        while receiver.pop().is_some() {
            taken += 1;
        }
        let accepted = thread.join().unwrap();
        while receiver.pop().is_some() {
            taken += 1;
        }
        assert_eq!(taken, 1 + accepted);
    });
}

#[test]
fn consensus_is_taken_before_clients() {
    loom::model(|| {
        let (sender, receiver) = mailbox::<u32>(2);
        sender.push(Priority::Client, 1).unwrap();
        sender.push(Priority::Consensus, 2).unwrap();
        assert_eq!((receiver.pop(), receiver.pop()), (Some(2), Some(1)));
    });
}
