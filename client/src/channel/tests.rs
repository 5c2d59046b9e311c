//! Both kinds of channel over real sockets.

use std::future::Future;
use std::path::Path;
use std::task::{Context, Waker};

use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use tokio::net::TcpListener;

use super::*;
use crate::tls::{CertificateRefresh, Files, Own};
use crate::wire::{FrameDecoder, Kind, encode_frame};

/// An authority that signs for a test, in a directory of its own.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    directory: std::path::PathBuf,
}

impl Drop for Authority {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(&self.directory);
    }
}

impl Authority {
    fn new(name: &str) -> Authority {
        let directory = std::env::temp_dir().join(format!("coppice-channel-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let ca = params.self_signed(&key).expect("a certificate");
        std::fs::write(directory.join("ca.pem"), ca.pem()).expect("a file");
        Authority { issuer: Issuer::new(params, key), directory }
    }

    /// Writes a certificate and its key.
    fn sign(&self, file: &str, names: &[&str], change: impl FnOnce(&mut CertificateParams)) {
        let key = KeyPair::generate().expect("a key");
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("names");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        change(&mut params);
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        put(&self.directory.join(format!("{file}.pem")), certificate.pem().as_bytes());
        put(&self.directory.join(format!("{file}.key")), key.serialize_pem().as_bytes());
    }

    fn files(&self, own: Option<&str>) -> Files {
        let file = |name: &str, kind: &str| self.directory.join(format!("{name}.{kind}"));
        let own = own.map(|own| Own { cert: file(own, "pem"), key: file(own, "key") });
        Files { ca: self.directory.join("ca.pem"), own }
    }

    fn tls(&self, own: Option<&str>) -> Tls {
        Tls::load(self.files(own)).expect("good files")
    }

    fn node(&self, number: u32) -> Tls {
        let (file, name) = (format!("n{number}"), format!("node.n{number}"));
        self.sign(&file, &[&name, "127.0.0.1"], |_| {});
        self.tls(Some(&file))
    }
}

/// Puts a file in another one's place.
fn put(path: &Path, content: &[u8]) {
    let new = path.with_extension("new");
    std::fs::write(&new, content).expect("a file");
    std::fs::rename(new, path).expect("a file");
}

async fn sockets() -> (TcpStream, TcpStream, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    let far = TcpStream::connect(&address).await.expect("it listens");
    (far, listener.accept().await.expect("it is accepted").0, address)
}

/// The words in which an attempt ends at the dialling end, with the first read, and at the listening one.
async fn ends(dialled: io::Result<Channel>, accepted: Result<Channel, HandshakeError>) -> (String, String) {
    let said = match dialled {
        Err(error) => error.to_string(),
        // Nobody would ever write.
        Ok(_) if accepted.is_ok() => "no error".into(),
        Ok(mut channel) => match channel.read_some(&mut BytesMut::new()).await {
            Ok(_) => "no error".into(),
            Err(error) => error.to_string(),
        },
    };
    (said, accepted.map_or_else(|error| io::Error::from(error).to_string(), |_| "no error".into()))
}

async fn at_client_port(server: &Tls, client: &Tls) -> (String, String) {
    let (far, near, address) = sockets().await;
    let accepted = async { Channel::accept_client(near, Some(server)).await };
    let (dialled, accepted) = tokio::join!(Channel::to_server(far, &address, Some(client)), accepted);
    ends(dialled, accepted).await
}

async fn at_peer_port(server: &Tls, client: &Tls, node: Option<NodeId>) -> (String, String) {
    let (far, near, _) = sockets().await;
    let accepted = async { Channel::accept_node(near, Some(server)).await };
    let (dialled, accepted) = tokio::join!(Channel::to_node(far, Some(client), node), accepted);
    ends(dialled, accepted).await
}

/// A pair inside TLS, or in the clear: the dialling end, and the one of a node that showed its certificate.
async fn pair(authority: Option<&Authority>) -> (Channel, Channel) {
    let (far, near, _) = sockets().await;
    let Some(authority) = authority else { return (Channel::Plain(far), Channel::Plain(near)) };
    let (one, two) = (authority.node(1), authority.node(2));
    let accepted = async { Channel::accept_node(near, Some(&one)).await };
    let (far, near) = tokio::join!(Channel::to_node(far, Some(&two), Some(NodeId(1))), accepted);
    let (far, near) = (far.expect("good certificates"), near.expect("good certificates"));
    assert!(near.names().is_some_and(|names| names.is_node(NodeId(2)) && !names.is_node(NodeId(1))));
    (far, near)
}

fn frames(count: usize, bytes: usize) -> BytesMut {
    let mut out = BytesMut::new();
    (0..count).for_each(|_| encode_frame(&mut out, Kind::Ping, 1, &vec![7; bytes]));
    out
}

/// Reads until so many frames have come, with each wait for the socket; how many reads that took.
async fn take(channel: &Channel, decoder: &mut FrameDecoder, frames: usize) -> usize {
    let (mut taken, mut reads) = (0, 0);
    while taken < frames {
        channel.readable().await.expect("it is open");
        match channel.read(decoder.space()) {
            Ok(bytes) => assert!(bytes > 0, "an end"),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
        }
        reads += 1;
        while decoder.next_frame().expect("our own frames").is_some() {
            taken += 1;
        }
    }
    reads
}

fn is_readable(channel: &Channel) -> bool {
    let mut readable = std::pin::pin!(channel.readable());
    matches!(readable.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(_))
}

#[tokio::test]
async fn a_message_alone_takes_one_read_and_nothing_is_missed() {
    let authority = Authority::new("alone");
    for authority in [None, Some(&authority)] {
        let (mut far, near) = pair(authority).await;
        let mut decoder = FrameDecoder::default();
        for _ in 0..3 {
            far.write_all(&frames(1, 100)).await.unwrap();
            assert_eq!(take(&near, &mut decoder, 1).await, 1);
            assert!(!is_readable(&near));
        }
        // More than a buffer holds.
        let many = frames(3_000, 1_000);
        let (written, _) = tokio::join!(far.write_all(&many), take(&near, &mut decoder, 3_000));
        written.unwrap();
        // An end that comes together with the last bytes.
        far.write_all(&frames(1, 100)).await.unwrap();
        drop(far);
        take(&near, &mut decoder, 1).await;
        near.readable().await.unwrap();
        assert_eq!(near.read(decoder.space()).unwrap(), 0);
    }
}

#[tokio::test]
async fn what_nobody_reads_is_taken_up_to_a_bound() {
    let authority = Authority::new("bound");
    let (far, mut near) = pair(Some(&authority)).await;
    let piece = vec![7; 1 << 20];
    let mut taken = 0;
    let refused = loop {
        match far.write_vectored(&[IoSlice::new(&piece), IoSlice::new(&piece)]) {
            Ok(bytes) => {
                assert!((1..=UNSENT_BYTES_MAX).contains(&bytes), "{bytes} at once");
                taken += bytes;
            }
            Err(error) => break error,
        }
    };
    assert_eq!((refused.kind(), far.is_unsent()), (io::ErrorKind::WouldBlock, true));
    // What was taken arrives once somebody reads.
    let (mut read, mut into) = (0, BytesMut::new());
    while read < taken {
        tokio::select! {
            bytes = near.read_some(&mut into) => read += bytes.unwrap(),
            ready = far.writable(), if far.is_unsent() => {
                ready.unwrap();
                far.try_flush().unwrap();
            }
        }
        into.clear();
    }
    assert_eq!((read, far.is_unsent()), (taken, false));
}

#[tokio::test]
async fn a_channel_goes_to_another_thread_with_what_it_has_read() {
    let authority = Authority::new("moves");
    let (mut far, mut near) = pair(Some(&authority)).await;
    far.write_all(b"one").await.unwrap();
    let mut into = BytesMut::new();
    near.read_some(&mut into).await.unwrap();
    far.write_all(b"two").await.unwrap();
    let parked = near.park().unwrap();
    let thread = std::thread::spawn(move || {
        let mut near = parked.blocking(Duration::from_secs(60)).unwrap();
        let mut into = BytesMut::new();
        near.read_some(&mut into).unwrap();
        near.write_all(&into).unwrap();
        near.write_all(&[9; 100_000]).unwrap();
    });
    let mut back = BytesMut::new();
    while back.len() < 100_003 {
        assert!(far.read_some(&mut back).await.unwrap() > 0);
    }
    assert_eq!((&into[..], &back[..4]), (&b"one"[..], &b"two\x09"[..]));
    thread.join().unwrap();
}

#[tokio::test]
async fn certificates_that_prove_nothing_are_refused_in_words() {
    let (ours, foreign) = (Authority::new("ours"), Authority::new("foreign"));
    let (one, two, none) = (ours.node(1), ours.node(2), ours.tls(None));
    ours.sign("alice", &["client.alice"], |_| {});
    let alice = ours.tls(Some("alice"));
    ours.sign("old", &["node.n3", "127.0.0.1"], |params| {
        params.not_before = rcgen::date_time_ymd(2001, 1, 1);
        params.not_after = rcgen::date_time_ymd(2002, 1, 1);
    });
    let old = ours.tls(Some("old"));
    ours.sign("elsewhere", &["node.n4", "n4.example"], |_| {});
    let elsewhere = ours.tls(Some("elsewhere"));
    let theirs = foreign.node(1);
    let said = |ends: (String, String), dialling: &str, listening: &str| {
        assert!(ends.0.contains(dialling) && ends.1.contains(listening), "{ends:?}, not {dialling}, {listening}");
    };
    // The client port: a certificate is optional, and looked at if it is there.
    let closed = "no error";
    said(at_client_port(&one, &theirs).await, "not signed by an authority", "does not know the authority");
    said(at_client_port(&theirs, &none).await, "not signed by an authority", "does not know the authority");
    said(at_client_port(&old, &none).await, "its certificate has expired", "has expired");
    said(at_client_port(&one, &old).await, "this end's certificate has expired", "its certificate has expired");
    said(at_client_port(&elsewhere, &none).await, "is for node.n4, n4.example, not for 127.0.0.1", "refuses");
    let (far, near, address) = sockets().await;
    let accepted = async { Channel::accept_client(near, Some(&one)).await };
    let (dialled, accepted) = tokio::join!(Channel::to_server(far, &address, Some(&alice)), accepted);
    assert_eq!(accepted.unwrap().names().and_then(Names::client), Some("alice"));
    drop(dialled);
    // The peer port.
    said(at_peer_port(&one, &none, None).await, "asks for a certificate", "shows no certificate");
    said(at_peer_port(&one, &theirs, None).await, "not signed by an authority", "does not know the authority");
    said(at_peer_port(&one, &old, None).await, "this end's certificate has expired", "its certificate has expired");
    said(at_peer_port(&one, &two, Some(NodeId(3))).await, "is for node.n1, not for node.n3", "");
    said(at_peer_port(&alice, &two, None).await, "is for client.alice, not for a node", "");
    // Another host's name is none of the peer port's business.
    let (far, near, _) = sockets().await;
    let accepted = async { Channel::accept_node(near, Some(&elsewhere)).await };
    let (dialled, accepted) = tokio::join!(Channel::to_node(far, Some(&two), Some(NodeId(4))), accepted);
    assert!(dialled.is_ok() && accepted.is_ok(), "{closed}");
}

#[tokio::test]
async fn who_speaks_no_tls_is_told_so_and_the_reverse() {
    let authority = Authority::new("clear");
    let one = authority.node(1);
    let (mut far, near, _) = sockets().await;
    tokio::io::AsyncWriteExt::write_all(&mut far, &frames(1, 100)).await.unwrap();
    let accepted = Channel::accept_client(near, Some(&one)).await;
    assert!(matches!(accepted, Err(HandshakeError::NoTls(_))), "{accepted:?}");
    let (far, mut near, address) = sockets().await;
    let answering = async {
        tokio::io::AsyncWriteExt::write_all(&mut near, &frames(1, 100)).await.unwrap();
        near
    };
    let none = authority.tls(None);
    let (dialled, _near) = tokio::join!(Channel::to_server(far, &address, Some(&none)), answering);
    assert_eq!(dialled.unwrap_err().to_string(), "the other end speaks no TLS");
}

#[tokio::test]
async fn files_that_change_count_for_new_connections_and_bad_ones_do_not() {
    let authority = Authority::new("reload");
    let one = authority.node(1);
    let (_, near) = pair(Some(&authority)).await;
    assert_eq!((one.refresh(None), one.generation()), (CertificateRefresh::Changed, 1), "it was signed again");
    assert_eq!(one.refresh(None), CertificateRefresh::Same);
    assert!(near.is_outdated(Some(&one)));
    let key = authority.directory.join("n1.key");
    let good = std::fs::read(&key).unwrap();
    authority.sign("other", &["node.n1"], |_| {});
    put(&key, &std::fs::read(authority.directory.join("other.key")).unwrap());
    let CertificateRefresh::Unusable(text) = one.refresh(None) else { panic!("the key of another certificate") };
    assert!(text.contains("n1.pem") && text.contains("key of another certificate"), "{text}");
    assert_eq!((one.refresh(None), one.last_error()), (CertificateRefresh::Same, Some(text)));
    put(&key, &good);
    assert_eq!(one.refresh(Some(NodeId(1))), CertificateRefresh::Changed);
    authority.sign("n1", &["node.n7"], |_| {});
    let CertificateRefresh::Unusable(text) = one.refresh(Some(NodeId(1))) else {
        panic!("the certificate of another node")
    };
    assert!(text.contains("is for node.n7, not for node.n1"), "{text}");
    for (content, what) in [("", "no certificate is in it"), ("-----BEGIN CERTIFICATE-----\n!", "PEM")] {
        std::fs::write(authority.directory.join("n1.pem"), content).unwrap();
        let error = Tls::load(authority.files(Some("n1"))).expect_err("no certificate").to_string();
        assert!(error.contains("n1.pem") && error.contains(what), "{error}");
    }
    assert!(Tls::load(Files { ca: Path::new("/nowhere").into(), own: None }).is_err());
}

/// In a process of its own, as every planted bug (hazards.md 6).
#[cfg(feature = "mutants")]
#[test]
fn a_peer_that_answers_under_any_name_is_caught() {
    let test = "channel::tests::certificates_that_prove_nothing_are_refused_in_words";
    let mut command = std::process::Command::new(std::env::current_exe().expect("this program"));
    let output = command.args([test, "--exact"]).env("COPPICE_MUTANT", "peers_answer_under_any_name").output();
    let output = output.expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("running 1 test") && !output.status.success(), "the planted bug survived");
}
