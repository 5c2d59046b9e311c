//! A range as a stream, with the adapters of `futures`; and the same as an iterator of the blocking client.
//!
//! `cargo run -p coppice-client --example streams [HOST:PORT ..]`

use std::future::ready;

use coppice_client::{Client, Error, Range, blocking};
use futures_util::TryStreamExt;

/// What the example does, with a cluster behind `endpoints`; returns how many words are long, and how many there are.
///
/// # Errors
/// See [`Error`].
pub async fn run(endpoints: Vec<String>) -> Result<(usize, usize), Error> {
    let client = Client::connect(endpoints).await?;
    for word in ["fig", "apple", "pear", "strawberry"] {
        client.put(format!("word/{word}"), word.len().to_string()).await?;
    }
    // Pairs arrive while the first ones are judged: a range of any length takes bounded memory.
    let words = client.range(Range::prefix("word/")).await?.pairs();
    let is_long = |length: &[u8]| std::str::from_utf8(length).is_ok_and(|text| text.parse().is_ok_and(|n: u32| n > 4));
    let long: Vec<_> = words.try_filter(|(_, length)| ready(is_long(length))).try_collect().await?;

    let all = client.range(Range::prefix("word/").keys_only()).await?.pairs();
    let count = all.try_fold(0, |count, _| ready(Ok(count + 1))).await?;
    Ok((long.len(), count))
}

/// The same without `async`; returns the words backward.
///
/// # Errors
/// See [`Error`].
pub fn backward(endpoints: Vec<String>) -> Result<Vec<String>, Error> {
    let client = blocking::Client::connect(endpoints)?;
    let words = client.range(Range::prefix("word/").reverse())?;
    words.into_iter().map(|pair| Ok(String::from_utf8_lossy(&pair?.0).into_owned())).collect()
}

/// Runs the example.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut endpoints: Vec<String> = std::env::args().skip(1).collect();
    if endpoints.is_empty() {
        endpoints.push("127.0.0.1:7400".into());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (long, all) = runtime.block_on(run(endpoints.clone()))?;
    println!("{long} of {all} words are long: {:?}", backward(endpoints)?);
    Ok(())
}
