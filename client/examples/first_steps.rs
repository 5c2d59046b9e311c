//! Write, read, delete, scan: against `cargo run --release -- demo`, or the addresses given as arguments.
//!
//! `cargo run -p coppice-client --example first_steps [HOST:PORT ..]`

use coppice_client::{Client, Error, Range};

/// What the example does, with a cluster behind `endpoints`; returns the pairs that it found.
///
/// # Errors
/// See [`Error`].
pub async fn run(endpoints: Vec<String>) -> Result<usize, Error> {
    let client = Client::connect(endpoints).await?;

    let put = client.put("fruit/apple", "red").await?;
    println!("fruit/apple was {:?}, written at {}", put.output, put.position);
    client.put("fruit/melon", "ripe").await?;

    let got = client.get("fruit/apple").await?;
    assert_eq!(got.output.as_deref(), Some(&b"red"[..]));

    // One moment of all keys with this prefix, whatever partitions they lie in, in bounded memory.
    let mut pairs = client.range(Range::prefix(b"fruit/")).await?;
    let mut found = 0;
    while let Some((key, value)) = pairs.next().await? {
        println!("{} = {}", String::from_utf8_lossy(key), String::from_utf8_lossy(value));
        found += 1;
    }

    client.delete("fruit/melon").await?;
    Ok(found)
}

/// Runs the example.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut endpoints: Vec<String> = std::env::args().skip(1).collect();
    if endpoints.is_empty() {
        endpoints.push("127.0.0.1:7400".into());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    println!("{} pairs", runtime.block_on(run(endpoints))?);
    Ok(())
}
