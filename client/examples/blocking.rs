//! The same client without `async`: clones share their connections, and what many threads send is packed together.
//!
//! `cargo run -p coppice-client --example blocking [HOST:PORT ..]`

use std::thread;

use coppice_client::Error;
use coppice_client::blocking::Client;

const THREADS: usize = 4;
const WRITES: usize = 100;

/// What the example does, with a cluster behind `endpoints`; returns how many keys its threads wrote.
///
/// # Errors
/// See [`Error`].
pub fn run(endpoints: Vec<String>) -> Result<u64, Error> {
    let client = Client::connect(endpoints)?;
    thread::scope(|scope| {
        let writers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let client = client.clone();
                scope.spawn(move || {
                    for write in 0..WRITES {
                        client.put(format!("thread/{thread}/{write:03}").as_bytes(), "done")?;
                    }
                    Ok(())
                })
            })
            .collect();
        writers.into_iter().try_for_each(|writer| writer.join().expect("a writer does not panic"))
    })?;
    let mut keys = client.range(coppice_client::Range::prefix(b"thread/").count_only())?;
    keys.count()
}

/// Runs the example.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut endpoints: Vec<String> = std::env::args().skip(1).collect();
    if endpoints.is_empty() {
        endpoints.push("127.0.0.1:7400".into());
    }
    println!("{} keys", run(endpoints)?);
    Ok(())
}
