//! Well-behaved clients: so many requests a second, half writes and half reads, through the client library; and an
//! operator who asks now and then how the cluster is.

use std::time::Duration;

use coppice_client::{Admin, Client, Config};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

/// A request that takes longer has failed: the cluster hangs for others.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Between two questions of the operator, each over connections of its own.
const OPERATOR_INTERVAL: Duration = Duration::from_millis(500);

/// Keys that they use.
const KEYS: u64 = 1_000;

/// How they were served.
#[derive(Clone, Debug)]
pub struct GuestFigures {
    /// Requests.
    pub asked: u64,
    /// Those without an answer.
    pub failed: u64,
    /// Why the first of those failed.
    pub error: Option<String>,
    /// The p99 of the others, from when each was due.
    pub p99: Duration,
}

/// Asks for so long.
///
/// # Errors
/// There is no runtime.
pub fn ask(endpoints: &[String], rate: u64, length: Duration) -> Result<GuestFigures, String> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())?;
    Ok(runtime.block_on(asked(endpoints.to_vec(), rate, length)))
}

/// Asks like `coppice status` until then: what went wrong first.
async fn operator(endpoints: Vec<String>, end: Instant) -> Result<(), String> {
    loop {
        if Instant::now() >= end {
            return Ok(());
        }
        let admin = Admin::new(endpoints.clone(), Config { timeout: TIMEOUT, ..Config::default() });
        admin.status(false).await.map_err(|error| format!("the operator got no status: {error}"))?;
        tokio::time::sleep(OPERATOR_INTERVAL).await;
    }
}

async fn asked(endpoints: Vec<String>, rate: u64, length: Duration) -> GuestFigures {
    let config = Config { timeout: TIMEOUT, ..Config::default() };
    let operator = tokio::spawn(operator(endpoints.clone(), Instant::now() + length));
    let client = Client::start(endpoints, config);
    let (begun, count) = (Instant::now(), (length.as_secs_f64() * rate as f64) as u64);
    let mut calls = JoinSet::new();
    for number in 0..count {
        let due = begun + Duration::from_secs_f64(number as f64 / rate as f64);
        sleep_until(due).await;
        let client = client.clone();
        calls.spawn(async move {
            let key = format!("guest{:04}", number % KEYS);
            let outcome = match number % 2 {
                0 => client.put(key.as_bytes(), [b'g'; 100].as_slice()).await.map(drop),
                _ => client.get(key.as_bytes()).await.map(drop),
            };
            (due.elapsed(), outcome)
        });
    }
    let (mut times, mut failed, mut error) = (Vec::new(), 0, None);
    while let Some(call) = calls.join_next().await {
        match call {
            Ok((took, Ok(()))) => times.push(took),
            Ok((_, Err(why))) => {
                failed += 1;
                error.get_or_insert(why.to_string());
            }
            // A call does not panic.
            Err(_) => {}
        }
    }
    if let Ok(Err(why)) = operator.await {
        failed += 1;
        error.get_or_insert(why);
    }
    times.sort_unstable();
    let p99 = times.get(times.len() * 99 / 100).or(times.last()).copied().unwrap_or(TIMEOUT);
    GuestFigures { asked: count, failed, error, p99 }
}
