//! A write whose answer is lost is either executed or not, and the client cannot know which: the error says so, and
//! carries a token. The same command under this token is executed at most once, by this process or a later one.
//!
//! `cargo run -p coppice-client --example unknown_outcome [HOST:PORT ..]`

use std::time::{Duration, Instant};

use coppice_client::blocking::Client;
use coppice_client::{Answer, Error, Operation, Output};

/// Executes `operation` exactly once, or fails with certainty, or gives up after `limit`.
///
/// # Errors
/// A sure error ([`Error::is_sure`]): it was not executed. An unknown one: it may have been.
pub fn exactly_once(client: &Client, operation: &Operation, limit: Duration) -> Result<Answer<Output>, Error> {
    let until = Instant::now() + limit;
    let mut wait = Duration::from_millis(1);
    let mut error = match client.command(operation.clone()) {
        Ok(answer) => return Ok(answer),
        Err(error) => error,
    };
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(error);
        }
        // No token: the outcome cannot be learned. A sure error: nothing was executed.
        let Some(token) = error.resume_token().copied() else { return Err(error) };
        // What was too slow once gets twice the time.
        wait *= 2;
        match client.with_timeout(wait.min(left)).resume(token, operation.clone()) {
            Ok(answer) => return Ok(answer),
            // That says only that the repetition had no effect: the first sending is as unknown as before.
            Err(again) if again.is_sure() => std::thread::sleep(Duration::from_millis(100)),
            Err(again) => error = again,
        }
    }
}

/// What the example does, with a cluster behind `endpoints`; returns how many of its writes are there.
///
/// # Errors
/// See [`Error`].
pub fn run(endpoints: Vec<String>) -> Result<usize, Error> {
    let client = Client::connect(endpoints)?;
    // So short that some answers do not come in time.
    let hasty = client.with_timeout(Duration::from_micros(300));
    let writes = 200;
    for n in 0..writes {
        let insert = Operation::insert(format!("once/{n:03}").as_bytes(), "written");
        match exactly_once(&hasty, &insert, Duration::from_secs(10)) {
            Ok(_) => {}
            Err(error) if error.is_sure() => {
                client.command(insert)?;
            }
            Err(error) => return Err(error),
        }
    }
    let mut there = 0;
    for n in 0..writes {
        there += usize::from(client.get(format!("once/{n:03}").as_bytes())?.output.is_some());
    }
    Ok(there)
}

/// Runs the example.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut endpoints: Vec<String> = std::env::args().skip(1).collect();
    if endpoints.is_empty() {
        endpoints.push("127.0.0.1:7400".into());
    }
    println!("{} writes are there", run(endpoints)?);
    Ok(())
}
