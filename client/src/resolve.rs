//! Connecting by name. Each connection looks the name up, so that a node is found where its name leads at that moment:
//! the address of a container changes with every start. A lookup cannot be ended, and lasts as long as the name service
//! is silent; so one of each name is under way at a time, on a thread of its own, however many attempts wait for it.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::net::TcpStream;
use tokio::sync::watch;

/// What a lookup found; errors cannot be cloned, their kind and text can.
type Found = Result<Vec<SocketAddr>, (io::ErrorKind, String)>;

/// Lookups under way, by what they look up: as many as there are names in use.
static UNDER_WAY: Mutex<BTreeMap<String, watch::Receiver<Option<Found>>>> = Mutex::new(BTreeMap::new());

/// Connects to `host:port`, an address or a name.
///
/// # Errors
/// The resolver's, else that of the last address tried.
pub async fn connect(address: &str) -> io::Result<TcpStream> {
    if let Ok(address) = address.parse::<SocketAddr>() {
        return TcpStream::connect(address).await;
    }
    let found = look_up(address, |address| address.to_socket_addrs().map(Iterator::collect)).await?;
    TcpStream::connect(&found[..]).await
}

/// Waits for the lookup of this address that is under way, or begins one.
async fn look_up(
    address: &str,
    resolve: impl FnOnce(&str) -> io::Result<Vec<SocketAddr>> + Send + 'static,
) -> io::Result<Vec<SocketAddr>> {
    let mut answer = join_or_begin(address, resolve)?;
    match answer.wait_for(Option::is_some).await.as_deref() {
        Ok(Some(Ok(found))) => Ok(found.clone()),
        Ok(Some(Err((kind, text)))) => Err(io::Error::new(*kind, text.clone())),
        Ok(None) | Err(_) => Err(io::Error::other("the lookup of the name was given up")),
    }
}

fn join_or_begin(
    address: &str,
    resolve: impl FnOnce(&str) -> io::Result<Vec<SocketAddr>> + Send + 'static,
) -> io::Result<watch::Receiver<Option<Found>>> {
    let mut under_way = under_way();
    if let Some(answer) = under_way.get(address) {
        return Ok(answer.clone());
    }
    let (answered, answer) = watch::channel(None);
    let name = address.to_owned();
    let look = move || {
        let lookup = Lookup(name);
        let found = resolve(&lookup.0).map_err(|error| (error.kind(), error.to_string()));
        // Whoever asks from here on wants a newer answer.
        drop(lookup);
        answered.send_replace(Some(found));
    };
    std::thread::Builder::new().name("resolve".into()).spawn(look)?;
    under_way.insert(address.to_owned(), answer.clone());
    Ok(answer)
}

fn under_way() -> MutexGuard<'static, BTreeMap<String, watch::Receiver<Option<Found>>>> {
    UNDER_WAY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A lookup under way; it ends with this value.
struct Lookup(String);

impl Drop for Lookup {
    fn drop(&mut self) {
        under_way().remove(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, mpsc};

    use super::*;

    /// Attempts to connect follow each other every 100 ms, and a name service may be silent for 30 s: a thread for
    /// each attempt would pile up.
    #[test]
    fn attempts_share_a_lookup_and_the_next_one_looks_anew() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let lookups = Arc::new(AtomicUsize::new(0));
        let (answer, silent) = mpsc::channel::<()>();
        let silent = Arc::new(Mutex::new(silent));
        let attempt = |number: usize| {
            let (lookups, silent) = (Arc::clone(&lookups), Arc::clone(&silent));
            look_up("n1.attempts.example:7402", move |_| {
                lookups.fetch_add(1, Ordering::Relaxed);
                silent.lock().expect("nobody panics").recv().expect("it is answered");
                Ok(vec![SocketAddr::from(([10, 0, 0, number as u8], 7402))])
            })
        };
        runtime.block_on(async {
            for expected in [1, 2] {
                let mut waiting: Vec<_> = (0..100).map(|_| Box::pin(attempt(expected))).collect();
                std::future::poll_fn(|cx| {
                    assert!(waiting.iter_mut().all(|attempt| attempt.as_mut().poll(cx).is_pending()));
                    std::task::Poll::Ready(())
                })
                .await;
                answer.send(()).expect("it waits");
                for attempt in waiting {
                    let found = attempt.await.expect("an address");
                    assert_eq!(found, [SocketAddr::from(([10, 0, 0, expected as u8], 7402))]);
                }
                assert_eq!(lookups.load(Ordering::Relaxed), expected);
            }
        });
        assert!(under_way().get("n1.attempts.example:7402").is_none());
    }

    #[test]
    fn a_name_that_nobody_knows_is_an_error_and_may_be_asked_for_again() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        for _ in 0..2 {
            let lookup =
                look_up("n1.nobody.example:1", |_| Err(io::Error::new(io::ErrorKind::NotFound, "no such name")));
            let error = runtime.block_on(lookup).expect_err("no address");
            assert_eq!((error.kind(), error.to_string().as_str()), (io::ErrorKind::NotFound, "no such name"));
            // One that ends in a panic, too.
            let lookup = look_up("n1.nobody.example:1", |_| panic!("the test's own"));
            assert!(runtime.block_on(lookup).is_err());
        }
    }
}
