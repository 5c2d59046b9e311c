//! Two keys that lie far apart, read as of one moment: a writer changes first the one and then the other, and no reader
//! sees the second ahead of the first, or more than one behind.
//!
//! `cargo run -p coppice-client --example one_moment [HOST:PORT ..]`

use coppice_client::blocking::Client;
use coppice_client::{Error, Value};

const FIRST: &str = "answers/asked";
const SECOND: &str = "zebra/answered";

fn number(value: Option<Value>) -> i64 {
    value.and_then(|text| std::str::from_utf8(&text).ok()?.parse().ok()).unwrap_or(0)
}

/// What the example does, with a cluster behind `endpoints`; returns the greatest distance that a reader saw.
///
/// # Errors
/// See [`Error`].
pub fn run(endpoints: Vec<String>) -> Result<i64, Error> {
    let client = Client::connect(endpoints)?;
    for key in [FIRST, SECOND] {
        client.put(key, "0")?;
    }
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for n in 1..=50 {
                for key in [FIRST, SECOND] {
                    client.put(key, n.to_string())?;
                }
            }
            Ok::<(), Error>(())
        });
        let mut greatest = 0;
        while !writer.is_finished() {
            // Two gets in a row might find the second key ahead: it is written between them.
            let values: [Option<Value>; 2] = client.get_many([FIRST, SECOND])?.try_into().unwrap_or_default();
            let [first, second] = values.map(number);
            assert!(second <= first, "{second} were answered, and {first} asked");
            greatest = greatest.max(first - second);
        }
        writer.join().expect("the writer does not panic")?;
        Ok(greatest)
    })
}

/// Runs the example.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut endpoints: Vec<String> = std::env::args().skip(1).collect();
    if endpoints.is_empty() {
        endpoints.push("127.0.0.1:7400".into());
    }
    println!("the second key was {} behind the first at most", run(endpoints)?);
    Ok(())
}
