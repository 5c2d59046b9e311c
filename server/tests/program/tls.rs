//! Certificates as operators have them: made by the program, shown at both ports, replaced while everything runs.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use coppice_client::blocking::Client;
use coppice_client::tls::{Files, Own, Tls};
use coppice_client::{Config, wire};

use crate::support::{Cluster, Said, Scratch, demo_beside_others, eventually, patience, run};

/// An authority in a directory, with certificates of `nodes` nodes and of alice.
fn authority(scratch: &Scratch, name: &str, nodes: u32) -> PathBuf {
    let directory = scratch.path(name);
    let path = directory.display().to_string();
    let said = run(&["cert", "ca", "--dir", &path, "--nodes", &nodes.to_string(), "--client", "alice"]);
    assert_eq!(said.code, 0, "{said:?}");
    assert!(!said.out.contains("PRIVATE KEY") && !said.err.contains("PRIVATE KEY"), "{said:?}");
    directory
}

/// The flags that name certificates: of the authority `ca`, and `own` of a directory.
fn flags(ca: &Path, own: Option<(&Path, &str)>) -> Vec<String> {
    let mut flags = vec!["--tls-ca".to_owned(), ca.join("ca.pem").display().to_string()];
    if let Some((directory, name)) = own {
        let file = |kind: &str| directory.join(format!("{name}.{kind}")).display().to_string();
        flags.extend(["--tls-cert".to_owned(), file("pem"), "--tls-key".to_owned(), file("key")]);
    }
    flags
}

fn as_alice(directory: &Path) -> Vec<String> {
    flags(directory, Some((directory, "client-alice")))
}

/// A verb with these certificates.
fn ask(cluster: &Cluster, certificates: &[String], words: &[&str]) -> Said {
    cluster.run(&certificates.iter().map(String::as_str).chain(words.iter().copied()).collect::<Vec<_>>())
}

/// Starts nodes, each with the certificate of its number in `directory`.
fn start(cluster: &mut Cluster, directory: &Path, nodes: usize) {
    for index in 0..nodes {
        let mut command = cluster.command(index);
        command.args(flags(directory, Some((directory, &format!("n{}", index + 1)))));
        cluster.start_as(index, command, "waiting for init");
    }
}

fn form(cluster: &Cluster, certificates: &[String]) {
    eventually("the cluster is formed", || {
        let said = ask(cluster, certificates, &["init", "--if-needed", "--split-keys", "m"]);
        assert!([0, 3, 6].contains(&said.code), "{said:?}");
        said.code == 0
    });
    eventually("the cluster is healthy", || cluster.is_whole(&ask(cluster, certificates, &["status"])));
}

#[test]
fn clients_and_nodes_that_prove_nothing_are_told_what_is_wrong() {
    let scratch = Scratch::new("certs");
    let (ours, foreign) = (authority(&scratch, "ours", 3), authority(&scratch, "foreign", 3));
    let mut cluster = Cluster::stopped(3, &[]);
    start(&mut cluster, &ours, 3);
    // A client needs no certificate; one that it shows is looked at.
    let (alice, nobody) = (as_alice(&ours), flags(&ours, None));
    form(&cluster, &alice);
    assert_eq!(ask(&cluster, &alice, &["put", "apple", "red"]).code, 0);
    assert_eq!(ask(&cluster, &alice, &["put", "zebra", "grey"]).code, 0);
    assert_eq!(ask(&cluster, &nobody, &["scan", "..", "--count"]).out.trim(), "2");
    let refused = |certificates: &[String], why: &str| {
        let said = ask(&cluster, certificates, &["get", "apple", "--timeout", "2s"]);
        assert!([3, 6].contains(&said.code) && said.err.contains(why), "{said:?}, not: {why}");
    };
    refused(&[], "this port speaks TLS");
    refused(&flags(&foreign, None), "is not signed by an authority");
    refused(&flags(&ours, Some((&foreign, "client-alice"))), "does not know the authority");
    // Files that cannot be are found before anybody is asked.
    for wrong in [flags(&scratch.path("nowhere"), None), alice[..4].to_vec()] {
        let said = ask(&cluster, &wrong, &["get", "apple"]);
        assert_eq!((said.code, said.err.lines().count()), (2, 4), "{said:?}");
    }
    // The port of nodes.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let at_peer_port = |own: (&Path, &str)| {
        let (cert, key) = (own.0.join(format!("{}.pem", own.1)), own.0.join(format!("{}.key", own.1)));
        let tls = Tls::load(Files { ca: ours.join("ca.pem"), own: Some(Own { cert, key }) }).expect("good files");
        let port = cluster.peer_port(0);
        let asked = async { tokio::time::timeout(patience(), said_at_peer_port(port, tls)).await };
        runtime.block_on(asked).expect("it answers")
    };
    let said = at_peer_port((&foreign, "n2"));
    assert!(said.contains("does not know the authority"), "{said}");
    let said = at_peer_port((&ours, "client-alice"));
    assert!(said.contains("your certificate is for client.alice"), "{said}");
    let said = at_peer_port((&ours, "n3"));
    assert!(said.contains("your certificate is for node.n3, and you say that you are n2"), "{said}");
    // Nodes without TLS, and clients that expect it of them.
    let plain = Cluster::formed(1, "");
    let said = ask(&plain, &nobody, &["get", "apple", "--timeout", "2s"]);
    assert!(said.code == 3 && said.err.contains("the other end speaks no TLS"), "{said:?}");
    eventually("nothing has harmed the cluster", || cluster.is_whole(&ask(&cluster, &alice, &["status"])));
}

/// What the peer port says to whoever shows this certificate and says that it is node 2 of some cluster.
async fn said_at_peer_port(port: u16, tls: Tls) -> String {
    use coppice_client::channel::Channel;
    use coppice_core::handshake::{PEER_PROTOCOL, PeerHello, Presence, Purpose};
    use coppice_server::net::handshake::dial;
    let stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.expect("it listens");
    let mut channel = match Channel::to_node(stream, Some(&tls), Some(wire::NodeId(1))).await {
        Ok(channel) => channel,
        Err(error) => return error.to_string(),
    };
    let from = Some(Presence { node: wire::NodeId(2), ..Presence::default() });
    let hello = PeerHello { protocol: PEER_PROTOCOL, purpose: Purpose::Messages, from, to: None };
    dial(&mut channel, &hello, |_| Ok(())).await.expect_err("a refusal").to_string()
}

#[test]
fn a_node_is_who_its_certificate_says() {
    let scratch = Scratch::new("certs");
    let ours = authority(&scratch, "ours", 3);
    let alice = as_alice(&ours);
    let mut cluster = Cluster::stopped(2, &[]);
    // The second seed is to become n2, and has the certificate of n3.
    for (index, name) in ["n1", "n3"].into_iter().enumerate() {
        let mut command = cluster.command(index);
        command.args(flags(&ours, Some((&ours, name))));
        cluster.start_as(index, command, "waiting for init");
    }
    let said = ask(&cluster, &alice, &["init"]);
    let sentence = "the certificate is for node.n3, not for node.n2";
    assert!(said.code != 0 && said.err.contains(sentence), "{said:?}");
    // The right one in its place: nothing is started again.
    for kind in ["key", "pem"] {
        std::fs::copy(ours.join(format!("n2.{kind}")), ours.join(format!("n3.{kind}"))).expect("a file");
    }
    eventually("the cluster is formed", || ask(&cluster, &alice, &["init", "--if-needed"]).code == 0);
    eventually("it is healthy", || cluster.is_whole(&ask(&cluster, &alice, &["status"])));
    // A node does not start under another one's certificate.
    cluster.stop(1);
    let mut command = cluster.command(1);
    command.args(flags(&ours, Some((&ours, "n1"))));
    let output = command.output().expect("the program starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && said.contains("is for node.n1, not for node.n2"), "{said}");
}

#[test]
fn a_certificate_stands_for_the_user_who_was_added_with_it() {
    let scratch = Scratch::new("certs");
    let ours = authority(&scratch, "ours", 1);
    let mut cluster = Cluster::stopped(1, &[]);
    start(&mut cluster, &ours, 1);
    let (alice, nobody) = (as_alice(&ours), flags(&ours, None));
    form(&cluster, &nobody);
    let token = scratch.path("root.token").display().to_string();
    let said = ask(&cluster, &nobody, &["user", "add", "root", "--role", "admin"]);
    assert_eq!(said.code, 0, "{said:?}");
    std::fs::write(&token, &said.out).expect("a file");
    let root = [&nobody[..], &["--token-file".to_owned(), token.clone()]].concat();
    let turned_away = |certificates: &[String]| {
        let said = ask(&cluster, certificates, &["get", "a/1", "--timeout", "5s"]);
        assert!(said.code != 0 && said.err.contains("denied"), "{said:?}");
    };
    // A certificate that stands for nobody, and none.
    turned_away(&alice);
    turned_away(&nobody);
    let words = ["user", "add", "shop", "--role", "write", "--prefix", "a/", "--cert", "alice"];
    assert_eq!(ask(&cluster, &root, &words).code, 0);
    eventually("alice is let in", || ask(&cluster, &alice, &["put", "a/1", "red"]).code == 0);
    assert_eq!(ask(&cluster, &alice, &["get", "a/1"]).out.trim(), "red");
    let said = ask(&cluster, &alice, &["put", "z/1", "red"]);
    assert!(said.code != 0 && said.err.contains("shop"), "{said:?}");
    // Whoever shows a token too acts for the token's user.
    let both = [&alice[..], &["--token-file".to_owned(), token]].concat();
    assert_eq!(ask(&cluster, &both, &["put", "z/1", "grey"]).code, 0);
    assert_eq!(ask(&cluster, &root, &["user", "remove", "shop"]).code, 0);
    eventually("alice is out", || ask(&cluster, &alice, &["get", "a/1", "--timeout", "5s"]).err.contains("denied"));
}

#[test]
#[ignore = "long: processes that wait for each other"]
fn certificates_and_their_authority_are_replaced_under_load() {
    let scratch = Scratch::new("certs");
    let (old, new) = (authority(&scratch, "old", 3), authority(&scratch, "new", 3));
    let used = authority(&scratch, "used", 0);
    // What the nodes and the client under load are given; its files are replaced.
    let put = |from: &Path, to: &str, name: &str| {
        for kind in ["key", "pem"] {
            replace(
                &used.join(format!("{to}.{kind}")),
                &std::fs::read(from.join(format!("{name}.{kind}"))).expect("it is there"),
            );
        }
    };
    let names = ["n1", "n2", "n3", "client-alice"];
    let trust = |authorities: &[&PathBuf]| {
        let read = |directory: &&PathBuf| std::fs::read(directory.join("ca.pem")).expect("it is there");
        replace(&used.join("ca.pem"), &authorities.iter().flat_map(read).collect::<Vec<u8>>());
    };
    trust(&[&old]);
    names.iter().for_each(|name| put(&old, name, name));
    let mut cluster = Cluster::stopped(3, &[]);
    start(&mut cluster, &used, 3);
    form(&cluster, &as_alice(&used));
    let (over, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let files = Files {
        ca: used.join("ca.pem"),
        own: Some(Own { cert: used.join("client-alice.pem"), key: used.join("client-alice.key") }),
    };
    let config = Config { timeout: patience(), tls: Some(Tls::load(files).expect("good files")), ..Config::default() };
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|number| {
                let (config, endpoints) = (config.clone(), cluster.endpoints());
                let (over, done) = (&over, &done);
                scope.spawn(move || {
                    let client = Client::connect_with(endpoints.split(','), config).expect("the cluster serves");
                    for round in 0_u64.. {
                        if over.load(Ordering::Relaxed) {
                            return;
                        }
                        let key = format!("{}{number}", if round % 2 == 0 { "a" } else { "z" });
                        client.put(key.as_str(), round.to_string().as_str()).expect("no operation fails");
                        let answer = client.get(key.as_str()).expect("no operation fails");
                        assert_eq!(answer.output.as_deref(), Some(round.to_string().as_bytes()));
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        // However the steps end, the clients end too.
        let stop = Stop(&over);
        let on_each = |what: &str, certificates: &[String]| {
            for index in 0..3 {
                let words: Vec<&str> =
                    certificates.iter().map(String::as_str).chain(["status", "--timeout", "2s"]).collect();
                eventually(what, || cluster.run_at(index, &words).code == 0);
            }
            let now = done.load(Ordering::Relaxed);
            eventually("operations go on", || done.load(Ordering::Relaxed) > now + 20);
        };
        trust(&[&old, &new]);
        on_each("both authorities are known", &flags(&old, Some((&new, "client-alice"))));
        names.iter().for_each(|name| put(&new, name, name));
        on_each("certificates of the new authority are shown", &flags(&new, Some((&new, "client-alice"))));
        trust(&[&new]);
        for index in 0..3 {
            let of_old = flags(&new, Some((&old, "client-alice")));
            let words: Vec<&str> = of_old.iter().map(String::as_str).chain(["status", "--timeout", "2s"]).collect();
            eventually("the old authority is forgotten", || cluster.run_at(index, &words).code != 0);
        }
        on_each("the new authority alone is known", &as_alice(&new));
        // A certificate without its key is not taken up.
        let (good, bad) = (std::fs::read(new.join("n1.pem")), std::fs::read(new.join("n2.pem")));
        replace(&used.join("n1.pem"), &bad.expect("it is there"));
        eventually("it is said", || cluster.log(0).contains("the old ones stay in use"));
        on_each("the old one is shown still", &as_alice(&new));
        replace(&used.join("n1.pem"), &good.expect("it is there"));
        drop(stop);
        clients.into_iter().for_each(|client| client.join().expect("no operation fails"));
    });
    eventually("the cluster is healthy", || cluster.is_whole(&ask(&cluster, &as_alice(&new), &["status"])));
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Replaces a file at once, as whoever renews certificates does.
fn replace(path: &Path, content: &[u8]) {
    let new = path.with_extension("new");
    std::fs::write(&new, content).expect("a file");
    std::fs::rename(new, path).expect("a file");
}

#[test]
#[ignore = "long: processes that wait for each other"]
fn a_demo_inside_tls_is_a_demo() {
    let _beside = demo_beside_others();
    let said = run(&[
        "demo",
        "--tls",
        "--exec",
        "put apple red; get apple; kill n2; put zebra grey; restart n2; wait healthy",
    ]);
    assert_eq!(said.code, 0, "{said:?}");
    assert!(said.out.contains("nodes speak TLS: export COPPICE_TLS_CA=") && said.out.contains("red"), "{said:?}");
}
