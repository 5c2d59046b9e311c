//! The client library against a real cluster: every verb, reads anywhere, ranges both ways, a leader that stops.

mod common;

use std::time::{Duration, Instant};

use common::Scratch;
use common::cluster::{connect, formed, key};
use coppice_btree::OpResult;
use coppice_client::{Operation, Range, ReadMode};
use coppice_server::local::LocalOptions;

#[test]
fn every_verb_answers_what_was_there_before() {
    let directory = Scratch::new("verbs");
    let options = LocalOptions { partitions: 3, ..LocalOptions::new(&directory.0) };
    let cluster = formed(&options);
    let client = connect(&cluster);
    let text = |value: Option<coppice_btree::Value>| value.map(|value| String::from_utf8(value.to_vec()).unwrap());
    assert_eq!(text(client.put("apple", "red").unwrap().output), None);
    assert_eq!(text(client.put("apple", "green").unwrap().output), Some("red".into()));
    assert_eq!(text(client.insert("apple", "blue").unwrap().output), Some("green".into()));
    assert_eq!(text(client.get("apple").unwrap().output), Some("green".into()));
    assert!(!client.cas("apple", "red", "x").unwrap().output.done);
    assert!(client.cas("apple", "green", "x").unwrap().output.done);
    assert_eq!(text(client.delete("apple").unwrap().output), Some("x".into()));
    assert_eq!(text(client.get("apple").unwrap().output), None);
    for mode in [ReadMode::Leader, ReadMode::AnyReplica, ReadMode::Stale] {
        client.put("k", "v").unwrap();
        let read = text(client.get_as("k", mode).unwrap().output);
        assert!(read == Some("v".into()) || mode == ReadMode::Stale, "{mode:?}: {read:?}");
    }
}

#[test]
fn a_range_streams_in_order_both_ways_and_stops_at_its_limits() {
    let directory = Scratch::new("ranges");
    let cluster = formed(&LocalOptions::new(&directory.0));
    let client = connect(&cluster);
    let operations = (0..5_000u64)
        .map(|n| Operation::Put { key: n.to_be_bytes().into(), value: (n * 3).to_be_bytes().into() })
        .collect();
    assert!(client.execute(operations).into_iter().all(|result| result.is_ok()));
    // One value of another length in the middle, and a large one: chunks of both forms.
    client.put(2_500u64.to_be_bytes(), vec![1; 300_000]).unwrap();
    let read = |range: Range| {
        let mut stream = client.range(range).unwrap();
        let mut keys = Vec::new();
        while let Some((key, _)) = stream.next().unwrap() {
            keys.push(u64::from_be_bytes(key.try_into().unwrap()));
        }
        keys
    };
    assert_eq!(read(Range::between(&[], None)), (0..5_000).collect::<Vec<_>>());
    assert_eq!(read(Range::between(&[], None).reverse()), (0..5_000).rev().collect::<Vec<_>>());
    let (low, high) = (10u64.to_be_bytes(), 20u64.to_be_bytes());
    assert_eq!(read(Range::between(&low, Some(&high))), (10..20).collect::<Vec<_>>());
    assert_eq!(read(Range::between(&low, None).limit(3)), [10, 11, 12]);
    assert_eq!(client.range(Range::between(&[], None).count_only()).unwrap().count().unwrap(), 5_000);
}

#[test]
fn acknowledged_writes_survive_leaders_that_stop_and_none_is_executed_twice() {
    let directory = Scratch::new("stops");
    let options = LocalOptions { partitions: 2, ..LocalOptions::new(&directory.0) };
    let mut cluster = formed(&options);
    let client = connect(&cluster);
    let mut longest = Duration::ZERO;
    for n in 0..300u64 {
        if n % 100 == 50 {
            cluster.stop((n / 100) as usize);
        }
        if n % 100 == 80 {
            cluster.restart((n / 100) as usize).unwrap();
        }
        let begun = Instant::now();
        // An insert that had been executed before would find its own value.
        let present = client.insert(key(n), n.to_be_bytes()).unwrap().output;
        assert_eq!(present, None, "insert {n} was executed twice");
        longest = longest.max(begun.elapsed());
    }
    println!("longest write {longest:?}");
    for n in 0..300u64 {
        assert_eq!(client.get(key(n)).unwrap().output.as_deref(), Some(&n.to_be_bytes()[..]), "write {n} is lost");
    }
    let reads = client.execute(vec![Operation::Get { key: 0u64.to_be_bytes().into() }]);
    assert!(matches!(reads[0].as_ref().unwrap().output, OpResult::Get { value: Some(_) }));
}

/// Each node has its partitions on several threads. One writer counts up through all partitions in turn: a range over
/// them shows the same number everywhere, or one more up to where the writer is. Between two rounds of the writer
/// nothing changes, and no ticket is needed, but where a leader has just gone.
#[test]
fn a_range_over_partitions_of_many_threads_is_one_moment() {
    const PARTITIONS: u32 = 5;
    let directory = Scratch::new("threads");
    let mut options = LocalOptions { partitions: PARTITIONS, ..LocalOptions::new(&directory.0) };
    options.node.worker_threads = 3;
    let cluster = formed(&options);
    let (client, map) = (connect(&cluster), common::cluster::map(&cluster));
    let keys: Vec<Vec<u8>> = map.partitions.iter().map(|entry| [&entry.low[..], b"\0"].concat()).collect();
    assert_eq!(keys.len(), PARTITIONS as usize);
    let round = |n: u64| keys.iter().for_each(|key| drop(client.put(key.clone(), n.to_be_bytes()).unwrap()));
    round(0);
    let read = |reader: &coppice_client::blocking::Client, reverse: bool| {
        let range = Range::between(&[], None);
        let mut stream = reader.range(if reverse { range.reverse() } else { range }).unwrap();
        let mut numbers = Vec::new();
        while let Some((_, value)) = stream.next().unwrap() {
            numbers.push(u64::from_be_bytes(value.try_into().unwrap()));
        }
        assert_eq!((numbers.len(), stream.positions().len()), (keys.len(), keys.len()));
        if reverse {
            numbers.reverse();
        }
        (numbers, stream.ticket())
    };
    let mut tickets = 0;
    for n in 1..=20 {
        round(n);
        let (numbers, ticket) = read(&client, n % 2 == 0);
        assert!(numbers.iter().all(|&found| found == n), "{n}: {numbers:?}");
        tickets += usize::from(ticket.is_some());
    }
    assert!(tickets < 10, "{tickets} tickets");
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = connect(&cluster);
        let (read, over) = (&read, &over);
        let reading = scope.spawn(move || {
            let mut ranges = 0;
            while !over.load(std::sync::atomic::Ordering::Relaxed) {
                let (numbers, _) = read(&reader, ranges % 2 == 0);
                let steps = numbers.windows(2).filter(|pair| pair[0] != pair[1]).count();
                let falls = numbers.windows(2).all(|pair| pair[0] == pair[1] || pair[0] == pair[1] + 1);
                assert!(steps <= 1 && falls, "no moment: {numbers:?}");
                ranges += 1;
            }
            ranges
        });
        (21..80).for_each(round);
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(reading.join().unwrap() > 3);
    });
}

/// A writer counts in one partition, and then in another: at any moment the first is as far as the second, or one
/// ahead.
#[test]
fn keys_of_several_partitions_are_read_as_of_one_moment() {
    let directory = Scratch::new("get-many");
    let cluster = formed(&LocalOptions { partitions: 3, ..LocalOptions::new(&directory.0) });
    let client = connect(&cluster);
    let spread = [[0x10; 8], [0xf0; 8]];
    let map = client.map().unwrap();
    assert_ne!(map.position(&spread[0]), map.position(&spread[1]), "{map:?}");
    spread.iter().for_each(|key| drop(client.put(*key, "0").unwrap()));
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 1..400 {
                spread.iter().for_each(|key| drop(client.put(*key, n.to_string()).unwrap()));
            }
            over.store(true, std::sync::atomic::Ordering::SeqCst);
        });
        let mut busy = 0;
        while !over.load(std::sync::atomic::Ordering::SeqCst) {
            let values = client.get_many([&spread[1][..], b"absent", &spread[0]]).unwrap();
            let count = |at: usize| std::str::from_utf8(values[at].as_ref().unwrap()).unwrap().parse::<i64>().unwrap();
            assert!((0..=1).contains(&(count(2) - count(0))) && values[1].is_none(), "{values:?}");
            busy += 1;
        }
        assert!(busy > 0);
    });
    assert_eq!(client.get_many([spread[0], spread[1]]).unwrap(), [Some("399".into()), Some("399".into())]);
    assert_eq!(client.get_many(["a"; 3]).unwrap(), [None, None, None]);
    assert_eq!(client.get_many::<&str>([]).unwrap(), []);
    let error = client.get_many((0..300).map(|n: u32| n.to_string())).unwrap_err();
    assert_eq!(error.to_string(), "too large: at most 256 keys are read as of one moment");
}
