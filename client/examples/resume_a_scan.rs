//! A scan of everything that goes on where it was interrupted, and one in pages.
//!
//! A scan shows one moment. If its node is lost after some of it was given out, the client does not go on silently at
//! another moment: the caller decides. This one goes on behind the last key.
//!
//! `cargo run -p coppice-client --example resume_a_scan [HOST:PORT ..]`

use coppice_client::blocking::Client;
use coppice_client::error::Reason;
use coppice_client::{Error, Range};

/// Calls `each` with every pair of `range`, in order and once.
fn scan(client: &Client, range: Range, mut each: impl FnMut(&[u8], &[u8])) -> Result<(), Error> {
    let mut rest = range;
    loop {
        let mut pairs = client.range(rest.clone())?;
        let end = loop {
            match pairs.next() {
                Ok(Some((key, value))) => each(key, value),
                Ok(None) => return Ok(()),
                Err(error) => break error,
            }
        };
        match end.reason() {
            Some(Reason::Interrupted { last: Some(last) }) => rest = rest.after(last),
            Some(Reason::Interrupted { last: None }) => {}
            _ => return Err(end),
        }
    }
}

/// What the example does, with a cluster behind `endpoints`; returns the pairs of the scan, and of the pages.
///
/// # Errors
/// See [`Error`].
pub fn run(endpoints: Vec<String>) -> Result<(usize, usize), Error> {
    let client = Client::connect(endpoints)?;
    for n in 0..100 {
        client.put(format!("page/{n:03}").as_bytes(), "text")?;
    }
    let mut scanned = 0;
    scan(&client, Range::prefix(b"page/"), |_, _| scanned += 1)?;

    // Pages are a moment each: what is written between two of them may be seen by the second.
    let (mut paged, mut page) = (0, Range::prefix(b"page/").limit(30));
    loop {
        let mut pairs = client.range(page.clone())?;
        let mut last = Vec::new();
        while let Some((key, _)) = pairs.next()? {
            paged += 1;
            last = key.to_vec();
        }
        if last.is_empty() {
            return Ok((scanned, paged));
        }
        page = page.after(&last);
    }
}

/// Runs the example.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut endpoints: Vec<String> = std::env::args().skip(1).collect();
    if endpoints.is_empty() {
        endpoints.push("127.0.0.1:7400".into());
    }
    let (scanned, paged) = run(endpoints)?;
    println!("{scanned} pairs in one scan, {paged} in pages");
    Ok(())
}
