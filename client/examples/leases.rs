//! Workers that share jobs: each job has a lock that expires by itself, counters are raised in one step, and a job is
//! handed over only if its lock is still held.
//!
//! `cargo run -p coppice-client --example leases [HOST:PORT ..]`

use std::time::Duration;

use coppice_client::blocking::Client;
use coppice_client::{Condition, Edit, Error, Expiry, ExpiryCondition, ManyIf, Operation, Update, UpdateOutcome};

const LOCK: &str = "jobs/7/lock";
const STATE: &str = "jobs/7/state";
const DONE: &str = "jobs/done";

/// Takes the lock for `worker`, if nobody holds it; it goes by itself unless it is renewed.
fn take(client: &Client, worker: &str, lease: Duration) -> Result<bool, Error> {
    let expiry = Expiry::After { milliseconds: lease.as_millis() as u64, only: ExpiryCondition::Always };
    let take = Update::new(Edit::Set(worker.as_bytes())).when(Condition::Absent).expiring(expiry);
    Ok(client.update(LOCK, take)?.output.outcome == UpdateOutcome::Done)
}

/// Says that the job is done, if `worker` still holds its lock: together, or not at all.
fn finish(client: &Client, worker: &str) -> Result<bool, Error> {
    let guards = [Operation::check(LOCK, Condition::Equals(worker.as_bytes()))];
    let count = Operation::update(DONE, Update::new(Edit::Add(1)));
    let finished = [Operation::put(STATE, "done"), count, Operation::delete(LOCK)];
    Ok(matches!(client.many_if(guards, finished)?.output, ManyIf::Done(_)))
}

/// What the example does, with a cluster behind `endpoints`; returns how many jobs were done.
///
/// # Errors
/// See [`Error`].
pub fn run(endpoints: Vec<String>) -> Result<i64, Error> {
    let client = Client::connect(endpoints)?;
    client.delete_range(coppice_client::Range::prefix(b"jobs/"))?;
    assert!(take(&client, "ann", Duration::from_millis(300))?, "nobody holds it");
    assert!(!take(&client, "bob", Duration::from_secs(60))?, "ann holds it");
    println!("ann holds the job for {:?}", client.ttl(LOCK)?.output);
    // Ann falls asleep, and her lock expires. Nobody has to notice: it is gone for all of them at one moment.
    while !take(&client, "bob", Duration::from_secs(60))? {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(!finish(&client, "ann")?, "she wakes up too late, and nothing is changed");
    assert!(finish(&client, "bob")?);
    client.append("jobs/journal", "7 done by bob\n")?.output.expect("it is short");
    let read = client.get_many([STATE, LOCK])?;
    assert_eq!((read[0].as_deref(), read[1].as_deref()), (Some(&b"done"[..]), None));
    Ok(client.increment(DONE, 0)?.output.expect("a counter"))
}

/// Runs the example.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut endpoints: Vec<String> = std::env::args().skip(1).collect();
    if endpoints.is_empty() {
        endpoints.push("127.0.0.1:7400".into());
    }
    println!("{} jobs are done", run(endpoints)?);
    Ok(())
}
