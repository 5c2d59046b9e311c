//! The RESP port of real nodes: what a socket says and hears.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::support::{Cluster, eventually, patience};

/// Nodes with a RESP port each, two partitions: ..m and m...
fn cluster(nodes: usize) -> Cluster {
    limited(nodes, &[])
}

fn limited(nodes: usize, flags: &[&str]) -> Cluster {
    Cluster::formed_with(nodes, "m", &[&["--listen-resp", "127.0.0.1:0"], flags].concat())
}

/// A request as programs write it.
fn array(words: &[&str]) -> String {
    let strings = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len()));
    std::iter::once(format!("*{}\r\n", words.len())).chain(strings).collect()
}

fn port(cluster: &Cluster, index: usize) -> u16 {
    let text = std::fs::read_to_string(cluster.data_dir(index).join("endpoints.json")).expect("it is written");
    let json: serde_json::Value = serde_json::from_str(&text).expect("json");
    let address = json["resp"].as_str().expect("an address");
    address.rsplit_once(':').expect("a port").1.parse().expect("a port")
}

struct Client(TcpStream);

impl Client {
    fn connect(port: u16) -> Client {
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
        stream.set_read_timeout(Some(patience())).expect("a timeout");
        Client(stream)
    }

    /// Types lines and reads as many bytes as are expected.
    #[track_caller]
    fn says(&mut self, typed: &str, wanted: &str) {
        self.0.write_all(typed.replace('|', "\r\n").as_bytes()).expect("it takes requests");
        self.0.write_all(b"\r\n").expect("it takes requests");
        let wanted = wanted.replace(' ', "\r\n") + "\r\n";
        let mut read = vec![0; wanted.len()];
        self.0.read_exact(&mut read).expect("it answers");
        assert_eq!(String::from_utf8_lossy(&read), wanted, "{typed}");
    }

    /// One line of an answer, without its end.
    fn line(&mut self, typed: &str) -> String {
        self.0.write_all(format!("{typed}\r\n").as_bytes()).expect("it takes requests");
        let (mut line, mut byte) = (Vec::new(), [0]);
        while !line.ends_with(b"\r\n") {
            self.0.read_exact(&mut byte).expect("it answers");
            line.push(byte[0]);
        }
        String::from_utf8_lossy(&line[..line.len() - 2]).into_owned()
    }

    #[track_caller]
    fn is_closed(&mut self) {
        let mut rest = Vec::new();
        assert!(self.0.read_to_end(&mut rest).is_ok() && rest.is_empty(), "{}", String::from_utf8_lossy(&rest));
    }
}

#[test]
fn any_node_takes_any_key_and_answers_in_order() {
    let cluster = cluster(3);
    let mut clients: Vec<Client> = (0..3).map(|index| Client::connect(port(&cluster, index))).collect();
    for (client, value) in clients.iter_mut().zip(["1", "2", "3"]) {
        client.says(
            &format!("SET a {value}|SET z {value}|GET a|INCR z"),
            &format!("+OK +OK $1 {value} :{}", value.parse::<u32>().expect("a number") + 1),
        );
    }
    clients[0].says("GET a|GET z|DBSIZE|KEYS *", "$1 3 $1 4 :2 *2 $1 a $1 z");
    clients[1].says("MULTI|INCR a|INCR a|EXEC", "+OK +QUEUED +QUEUED *2 :4 :5");
    assert!(clients[2].line("MSET a 1 z 1").starts_with("-CROSSPARTITION keys a (p1) and z (p2)"));
    clients[2].says("MGET a z none a", "*4 $1 5 $1 4 $-1 $1 5");
    // The native port has the same keys.
    assert_eq!(cluster.run(&["get", "a"]).out, "5");
    // A thousand requests at once.
    let many: Vec<String> = (0..1_000).map(|n| format!("SET k{n} {n}")).collect();
    clients[0].says(&many.join("|"), &["+OK"; 1_000].join(" "));
    clients[1].says("GET k999|STRLEN k999", "$3 999 :3");
    clients[0].says("QUIT", "+OK");
    clients[0].is_closed();
    let metrics = cluster.page(0, "/metrics");
    assert!(metrics.contains("coppice_resp_commands_total{result=\"ok\"} 10"), "{metrics}");
}

#[test]
fn a_key_expires_by_itself() {
    let cluster = cluster(1);
    let mut client = Client::connect(port(&cluster, 0));
    client.says("SET a 1 PX 300|SET b 1 EX 1000|EXPIRE c 5", "+OK +OK :0");
    eventually("it expires", || client.line("EXISTS a") == ":0");
    client.says("PERSIST b|TTL b|TTL a|PERSIST b", ":1 :-1 :-2 :0");
    client.says("EXPIRE b 100 LT|EXPIRE b 1000 LT|EXPIRE b 1000 XX", ":1 :0 :1");
}

/// How many places the logs of the two partitions have given out.
fn decided(cluster: &Cluster) -> Vec<u64> {
    let status: serde_json::Value = serde_json::from_str(&cluster.run(&["status", "-o", "json"]).out).expect("json");
    let partitions = status["partitions"].as_array().expect("partitions");
    let data = partitions.iter().filter(|partition| partition["partition"] != "p0");
    data.map(|partition| partition["decided_upto"].as_u64().expect("a number")).collect()
}

/// Looks are reads: they see what was answered before, and take no place in a log.
#[test]
fn lifetimes_are_read_without_a_place_in_the_log() {
    let cluster = cluster(3);
    let mut clients: Vec<Client> = (0..3).map(|index| Client::connect(port(&cluster, index))).collect();
    clients[0].says("SET a 12345|SET z 1", "+OK +OK");
    let before = decided(&cluster);
    for client in &mut clients {
        client.says("EXISTS a z none a|TOUCH z a|EXISTS none|STRLEN a|TYPE z|TYPE none", ":3 :2 :0 :5 +string +none");
        client.says("TTL a|PTTL none|EXPIRETIME z|PEXPIRETIME a", ":-1 :-2 :-1 :-1");
    }
    assert_eq!(decided(&cluster), before, "only what is written is logged");
    for (at, seconds) in [(0, 100), (1, 200), (2, 300)] {
        clients[at].says(&format!("EXPIRE a {seconds}"), ":1");
        for client in &mut clients {
            let left: u64 = client.line("PTTL a")[1..].parse().expect("a number");
            let all = seconds * 1_000;
            assert!((all - 60_000..=all).contains(&left), "{left} of {all} ms");
        }
    }
    let ttl = cluster.run(&["ttl", "a"]);
    assert!(ttl.code == 0 && ttl.out.contains('s'), "{ttl:?}");
    clients[0].says("MULTI|PERSIST a|TTL a|EXISTS a b|EXEC|TTL a", "+OK +QUEUED +QUEUED +QUEUED *3 :1 :-1 :1 :-1");
}

#[test]
fn a_user_shows_its_token_and_is_held_to_its_role() {
    let cluster = cluster(1);
    let admin = cluster.run(&["user", "add", "root", "--role", "admin"]).out.trim().to_owned();
    let file = cluster.scratch.path("root.token");
    std::fs::write(&file, &admin).expect("a file");
    let token_file = file.to_str().expect("a path");
    let reader = cluster.run(&["--token-file", token_file, "user", "add", "ann", "--role", "read", "--prefix", "a"]);
    let reader = reader.out.trim().to_owned();
    let mut client = Client::connect(port(&cluster, 0));
    assert_eq!(client.line("GET a"), "-NOAUTH Authentication required: AUTH with a user's token");
    assert!(client.line("AUTH wrong").starts_with("-WRONGPASS"));
    client.says(&format!("AUTH root {admin}|SET a 1|SET b 1"), "+OK +OK +OK");
    client.says(&format!("AUTH {reader}|GET a|MGET a ab"), "+OK $1 1 *2 $1 1 $-1");
    // Whoever may read may ask how long a key stays.
    client.says(
        "TTL a|PTTL ab|EXPIRETIME a|EXISTS a|EXISTS a ab|TOUCH a a|TYPE a|STRLEN a",
        ":-1 :-2 :-1 :1 :1 :2 +string :1",
    );
    for denied in ["TTL b", "EXISTS b", "EXISTS a b", "STRLEN b"] {
        assert!(client.line(denied).starts_with("-NOPERM user ann does not have role read for key b"), "{denied}");
    }
    assert!(client.line("GET b").starts_with("-NOPERM user ann does not have role read for key b"));
    assert!(client.line("SET a 2").starts_with("-NOPERM user ann does not have role write"));
    // It says nothing any more, and is closed.
    assert_eq!(cluster.run(&["--token-file", token_file, "user", "remove", "ann"]).code, 0);
    client.is_closed();
    // Tokens are tried one at a time, and each costs its connection time.
    let mut client = Client::connect(port(&cluster, 0));
    let begun = Instant::now();
    client.0.write_all("AUTH wrong\r\n".repeat(50).as_bytes()).expect("taken");
    for tried in 1..=3 {
        assert!(client.line("").starts_with("-WRONGPASS"));
        assert!(begun.elapsed() >= tried * Duration::from_millis(450), "{tried} in {:?}", begun.elapsed());
    }
}

#[test]
fn those_that_were_silent_longest_make_way() {
    let cluster = limited(1, &["--limits-connections=100"]);
    let port = port(&cluster, 0);
    let mut all: Vec<Client> = Vec::new();
    for _ in 0..300 {
        let mut client = Client::connect(port);
        client.says("PING", "+PONG");
        all.push(client);
    }
    all[0].is_closed();
    all[299].says("SET a 1", "+OK");
    // Clients of the native port come in as well.
    assert_eq!(cluster.run(&["get", "a"]).out, "1");
}

#[test]
fn who_does_not_read_is_not_read_and_harms_nobody() {
    let cluster = cluster(1);
    let mut client = Client::connect(port(&cluster, 0));
    client.0.write_all(array(&["SET", "large", &"x".repeat(1_000_000)]).as_bytes()).expect("taken");
    client.says("", "+OK");
    let many = ["large"; 256].join(" ");
    assert!(client.line(&format!("MGET {many}")).starts_with("-ERR too large"));
    // Answers of 1 MB and more without end, of which none is read; scans; requests that never come whole.
    let part = format!("*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1048576\r\n{}", "y".repeat(100_000));
    let kinds = ["GET large\r\n".repeat(20_000), format!("MGET {many}\r\n").repeat(50), part];
    let greedy: Vec<TcpStream> = kinds
        .iter()
        .cycle()
        .take(24)
        .map(|requests| {
            let greedy = TcpStream::connect(("127.0.0.1", port(&cluster, 0))).expect("it listens");
            greedy.set_nonblocking(true).expect("a socket");
            let mut rest = requests.as_bytes();
            eventually("it is not read any more", || match (&greedy).write(rest) {
                Ok(count) => {
                    rest = &rest[count..];
                    rest.is_empty()
                }
                Err(_) => true,
            });
            greedy
        })
        .collect();
    let mut others: Vec<Client> = (0..20).map(|_| Client::connect(port(&cluster, 0))).collect();
    for (client, count) in others.iter_mut().zip(1..) {
        client.says("INCR n|STRLEN large", &format!(":{count} :1000000"));
    }
    drop(greedy);
    let metrics = cluster.page(0, "/metrics");
    let resident = metrics.lines().find_map(|line| line.strip_prefix("process_resident_memory_bytes "));
    let resident: f64 = resident.expect("a metric").parse().expect("a number");
    assert!(resident < 600e6, "{resident} bytes");
}

#[test]
fn a_protocol_error_is_told_and_ends_the_connection() {
    let cluster = cluster(1);
    for (typed, said) in [
        ("*1\r\n:1", "-ERR Protocol error: expected '$', got ':'"),
        ("*9999999", "-ERR Protocol error: invalid multibulk length"),
        ("POST / HTTP/1.1", "-ERR Protocol error: this port speaks RESP, not HTTP"),
    ] {
        let mut client = Client::connect(port(&cluster, 0));
        assert_eq!(client.line(typed), said);
        client.is_closed();
    }
    // One that claims much and sends nothing holds nothing, and ends with its client.
    let mut client = Client::connect(port(&cluster, 0));
    client.0.write_all(b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$536870912\r\n").expect("taken");
    drop(client);
    Client::connect(port(&cluster, 0)).says("PING", "+PONG");
}

/// What a client was told of one count: the number, or why there is none.
fn count(stream: &mut Option<BufReader<TcpStream>>, port: u16) -> Result<i64, String> {
    let open = match stream {
        Some(open) => open,
        None => {
            let socket = TcpStream::connect(("127.0.0.1", port)).map_err(|_| "NOQUORUM nobody listens".to_owned())?;
            socket.set_read_timeout(Some(patience())).expect("a timeout");
            stream.insert(BufReader::new(socket))
        }
    };
    let mut line = String::new();
    let asked = open.get_mut().write_all(b"INCR counter\r\n").and_then(|()| open.read_line(&mut line));
    match (asked, line.trim_end().split_at_checked(1)) {
        (Ok(1..), Some((":", number))) => Ok(number.parse().expect("a number")),
        (Ok(1..), Some(("-", error))) => Err(error.to_owned()),
        _ => {
            *stream = None;
            Err("OUTCOMEUNKNOWN the connection is gone".to_owned())
        }
    }
}

/// A counter is linearizable if every number is given once, and each is larger than all that were given before it was
/// asked for. Clients of all nodes count while nodes are killed.
#[test]
fn a_counter_loses_nothing_and_counts_nothing_twice_while_nodes_are_killed() {
    let mut cluster = cluster(3);
    let ports: Vec<AtomicUsize> = (0..3).map(|index| AtomicUsize::new(usize::from(port(&cluster, index)))).collect();
    let (ended, largest, unknown) = (AtomicBool::new(false), AtomicI64::new(0), AtomicI64::new(0));
    let given = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for client in 0..6 {
            let (ports, ended, largest, unknown, given) = (&ports, &ended, &largest, &unknown, &given);
            scope.spawn(move || {
                let (mut stream, mut at) = (None, client);
                while !ended.load(Ordering::Relaxed) {
                    let before = largest.load(Ordering::SeqCst);
                    let port = ports[at % 3].load(Ordering::Relaxed) as u16;
                    match count(&mut stream, port) {
                        Ok(number) => {
                            assert!(number > before, "{number} was given after {before}");
                            largest.fetch_max(number, Ordering::SeqCst);
                            given.lock().expect("no panic").push(number);
                        }
                        Err(error) => {
                            unknown.fetch_add(i64::from(error.starts_with("OUTCOMEUNKNOWN")), Ordering::SeqCst);
                            (stream, at) = (None, at + 1);
                            std::thread::sleep(std::time::Duration::from_millis(20));
                        }
                    }
                }
            });
        }
        let reached = |more: i64| {
            let wanted = largest.load(Ordering::SeqCst) + more;
            eventually("they count on", || largest.load(Ordering::SeqCst) >= wanted);
        };
        for victim in [0, 1, 2] {
            reached(50);
            cluster.kill(victim);
            reached(50);
            cluster.start(victim, "ready");
            ports[victim].store(usize::from(port(&cluster, victim)), Ordering::Relaxed);
            cluster.healthy();
        }
        ended.store(true, Ordering::Relaxed);
    });
    let mut given = given.into_inner().expect("no panic");
    let answered = given.len() as i64;
    given.sort_unstable();
    given.dedup();
    assert_eq!(given.len() as i64, answered, "a number was given twice");
    let last: i64 = Client::connect(port(&cluster, 0)).line("INCR counter")[1..].parse().expect("a number");
    let counted = last - 1;
    let most = answered + unknown.load(Ordering::SeqCst);
    assert!((answered..=most).contains(&counted), "{counted} counted, {answered} answered, at most {most}");
}
