//! A counter that many clients raise at once: read, compare and set, try again if somebody else was quicker.
//!
//! `cargo run -p coppice-client --example compare_and_set [HOST:PORT ..]`

use coppice_client::Error;
use coppice_client::blocking::Client;

const KEY: &str = "counter";

/// Raises the counter by one; returns its new value.
fn raise(client: &Client) -> Result<u64, Error> {
    let mut seen = client.get(KEY)?.output;
    loop {
        let count = seen.as_deref().and_then(|text| std::str::from_utf8(text).ok()?.parse::<u64>().ok()).unwrap_or(0);
        let next = (count + 1).to_string();
        let (done, before) = match seen {
            // Nobody has written it yet: an insert writes only if that is still so.
            None => {
                let before = client.insert(KEY, next.as_str())?.output;
                (before.is_none(), before)
            }
            Some(expected) => {
                let cas = client.cas(KEY, expected, next.as_str())?.output;
                (cas.done, cas.current)
            }
        };
        if done {
            return Ok(count + 1);
        }
        seen = before;
    }
}

/// What the example does, with a cluster behind `endpoints`; returns by how much the counter rose.
///
/// # Errors
/// See [`Error`].
pub fn run(endpoints: Vec<String>) -> Result<u64, Error> {
    let client = Client::connect(endpoints)?;
    let first = raise(&client)?;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let client = client.clone();
                scope.spawn(move || (0..25).try_for_each(|_| raise(&client).map(drop)))
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a thread does not panic"))
    })?;
    Ok(raise(&client)? - first)
}

/// Runs the example.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut endpoints: Vec<String> = std::env::args().skip(1).collect();
    if endpoints.is_empty() {
        endpoints.push("127.0.0.1:7400".into());
    }
    println!("the counter rose by {}", run(endpoints)?);
    Ok(())
}
