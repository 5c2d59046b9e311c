//! What depends on what is there, as one operation each instead of a loop: counters, a journal, a lock, two accounts.
//!
//! `cargo run -p coppice-client --example updates [HOST:PORT ..]`

use coppice_client::blocking::Client;
use coppice_client::{Condition, Edit, Error, ManyIf, Operation, Range};

/// Moves `amount` between two accounts of one partition, if the first one holds exactly `balance` and both are there.
fn transfer(client: &Client, balance: i64, amount: i64) -> Result<bool, Error> {
    let guards = [
        Operation::check("account/ann", Condition::Equals(balance.to_string().as_bytes())),
        Operation::check("account/bob", Condition::Present),
    ];
    let add = |key: &str, amount| Operation::update(key, coppice_client::Update::new(Edit::Add(amount)));
    let moved = client.many_if(guards, [add("account/ann", -amount), add("account/bob", amount)])?;
    Ok(matches!(moved.output, ManyIf::Done(_)))
}

/// What the example does, with a cluster behind `endpoints`; returns how often its threads were counted, what is left
/// in the first account, and how many keys it removed.
///
/// # Errors
/// See [`Error`].
pub fn run(endpoints: Vec<String>) -> Result<(i64, String, u64), Error> {
    let client = Client::connect(endpoints)?;
    // Counted once each, whatever the network does.
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                let client = client.clone();
                scope.spawn(move || {
                    for _ in 0..25 {
                        client.increment("state/visits", 1)?;
                        client.append("state/journal", format!("{thread} "))?;
                    }
                    Ok::<(), Error>(())
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a thread does not panic"))
    })?;
    let visits = client.increment("state/visits", 0)?.output.unwrap_or(0);
    assert_eq!(client.look("state/journal")?.output.length, Some(200), "two bytes an entry");

    // A lock: taken by whoever finds it absent, released by its holder alone.
    assert_eq!(client.insert("state/lock", "worker 7")?.output, None);
    assert!(!client.delete_if("state/lock", "worker 8")?.output, "it is not theirs");
    assert!(client.delete_if("state/lock", "worker 7")?.output);

    client.put("account/ann", "10")?;
    client.put("account/bob", "0")?;
    assert!(transfer(&client, 10, 3)?);
    assert!(!transfer(&client, 10, 3)?, "the guard does not hold: nothing moves");
    let left = client.get("account/ann")?.output.unwrap_or_default();

    let removed = client.delete_range(Range::prefix("state/"))? + client.delete_range(Range::prefix("account/"))?;
    Ok((visits, String::from_utf8_lossy(&left).into_owned(), removed))
}

/// Runs the example.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut endpoints: Vec<String> = std::env::args().skip(1).collect();
    if endpoints.is_empty() {
        endpoints.push("127.0.0.1:7400".into());
    }
    let (visits, left, removed) = run(endpoints)?;
    println!("{visits} visits, {left} left, {removed} keys removed");
    Ok(())
}
