//! A client that says anything, in its own sessions, to a whole node.

use super::*;

/// A connection of a client that was greeted, with a session in each partition.
struct Asking {
    stream: TcpStream,
    decoder: FrameDecoder,
    shapes: Vec<Shape>,
    sessions: Vec<SessionId>,
}

impl Asking {
    fn connect(cluster: &Cluster, at: usize, client: u64) -> Option<Asking> {
        let stream = TcpStream::connect(cluster.endpoints()[at]).ok()?;
        stream.set_nodelay(true).ok()?;
        stream.set_read_timeout(Some(patience())).ok()?;
        let mut asking =
            Asking { stream, decoder: FrameDecoder::of_answers(), shapes: Vec::new(), sessions: Vec::new() };
        let mut out = BytesMut::new();
        encode_control(&mut out, Kind::Hello, 1, &coppice_client::wire::Hello { client: ClientId(client), ..hello() });
        for partition in [1, 2] {
            let partition = PartitionId(partition);
            coppice_client::wire::OpenRequest::encode(&mut out, 10 + partition.0, partition, ClientId(client), client);
        }
        encode_frame(&mut out, Kind::Ping, 3, &[]);
        asking.stream.write_all(&out).ok()?;
        let mut sessions = BTreeMap::new();
        let (mut answered, mut pong) = (0, false);
        while answered < 2 || !pong {
            let frame = next_frame(&mut asking.stream, &mut asking.decoder)?;
            pong |= frame.kind == Kind::Pong as u8;
            answered += u32::from(frame.kind == Kind::Refused as u8);
            if frame.kind == Kind::Replies as u8 {
                for (position, result) in Replies::new(&frame.body).flatten().flat_map(|section| section.results()) {
                    answered += 1;
                    if result == ResultRef::Opened {
                        sessions.insert(position.partition, SessionId::at(position));
                    }
                }
            }
        }
        // The keys are those of the first; of the other one all is refused.
        for (partition, times) in [(PartitionId(1), 5), (PartitionId(2), 1)] {
            let session = sessions.get(&partition).copied();
            let session = session.unwrap_or(SessionId { partition, instance: 3, index: 0 });
            (0..times).for_each(|_| asking.shapes.extend(requests_of(partition, session)));
        }
        asking.sessions.extend(sessions.into_values());
        Some(asking)
    }

    /// Whether a request speaks in the session of another client, as without users everybody may: what the other one
    /// is answered then is not wrong.
    fn forges(&self, request: &Request) -> bool {
        match request {
            Request::Commands(pack) => !self.sessions.contains(&pack.session) && pack.session.instance < 1 << 20,
            _ => false,
        }
    }
}

#[test]
fn a_client_that_says_anything_ends_no_node() {
    let (runs, seed, before_panics) = (number("COPPICE_FUZZ_NODE_RUNS", RUNS), seed(), panics());
    let scratch = Scratch::new("hostile-client");
    let cluster = formed(&LocalOptions { partitions: 2, ..LocalOptions::new(&scratch.0) });
    let client = connect(&cluster);
    let serves = |round: u64| {
        // No key that the hostile client is likely to draw.
        let keys = [&b"\x01witness"[..], b"\xf7witness"];
        for key in keys {
            client.put(key, round.to_be_bytes()).expect("it serves");
            assert_eq!(client.get(key).expect("it serves").output.as_deref(), Some(&round.to_be_bytes()[..]));
        }
        let mut range = client.range(coppice_client::Range::between(b"", None)).expect("it serves");
        let mut seen = 0;
        while let Some((key, value)) = range.next().expect("it serves") {
            if keys.contains(&key) {
                assert_eq!(value, round.to_be_bytes());
                seen += 1;
            }
        }
        assert_eq!(seen, 2, "a range without an answered write");
    };
    serves(0);
    let (admins, before) = (admin_requests(), resident_bytes());
    let admins: Vec<Shape> = admins.iter().map(|admin| tagged(Kind::Admin as u8, &plain(admin))).collect();
    let hellos = [tagged(Kind::Hello as u8, &plain(&hello()))];
    let (mut draw, mut outcomes, mut asking) = (Draw::new(seed), Outcomes::default(), None);
    let (begun, mut run, mut round, mut streams) = (Instant::now(), 0, 0, 100_000_u32);
    while run < runs {
        if asking.is_none() || draw.below(40) == 0 {
            let leader = cluster.leader_of(PartitionId(1)).map_or(0, |leader| leader.0 as usize - 1);
            let at = if draw.below(3) == 0 { draw.below(3) as usize } else { leader };
            asking = Asking::connect(&cluster, at, 1 + draw.below(1 << 40));
        }
        let Some(connection) = &mut asking else { continue };
        let mut out = Vec::new();
        for _ in 0..50 {
            let shapes = match draw.below(100) {
                0..2 => &hellos[..],
                2..6 => &admins,
                _ => &connection.shapes,
            };
            let shape = &shapes[draw.below(shapes.len() as u64) as usize];
            let image = match draw.below(4) {
                0 => shape.whole(),
                _ => shape.mutated(shapes, &mut |bound| draw.below(bound)),
            };
            let Some((&kind, body)) = image.split_first() else { continue };
            // Numbers of their own, but for what is about those of before: one that is in use ends the connection.
            let about = [Kind::Credit, Kind::Cancel].map(|kind| kind as u8).contains(&kind) || draw.below(2_000) == 0;
            streams += u32::from(!about);
            let stream = streams.saturating_sub(if about { draw.below(40) as u32 } else { 0 });
            let frame = Frame { kind, flags: 0, stream, body: Bytes::copy_from_slice(body) };
            let request = Request::decode(&frame);
            if matches!(&request, Ok(Request::Admin(admin)) if admin_undoes(admin) || admin_waits(admin)) {
                continue;
            }
            if request.as_ref().is_ok_and(|request| connection.forges(request)) {
                continue;
            }
            // What cannot be read ends the connection, and a second greeting: nothing behind it is heard.
            let ends = request.is_err() || matches!(request, Ok(Request::Hello(_)));
            if ends && draw.below(1_500) > 0 {
                continue;
            }
            let name = Kind::from_u8(kind).map_or("no kind".to_owned(), |kind| format!("{kind:?}"));
            outcomes.note(&name, if request.is_ok() { "handled" } else { "refused: unreadable" });
            let mut framed = kinds::frame(kind, body);
            framed[12..16].copy_from_slice(&stream.to_le_bytes());
            let crc = crc32c::crc32c_append(crc32c::crc32c(&framed[8..16]), body);
            framed[4..8].copy_from_slice(&crc.to_le_bytes());
            // Not its length: the node would wait for what does not come.
            if draw.below(2_000) == 0 {
                framed[4 + draw.below(12) as usize] ^= 1 << draw.below(8);
            }
            out.extend_from_slice(&framed);
            run += 1;
        }
        out.extend_from_slice(&{
            let mut ping = BytesMut::new();
            encode_frame(&mut ping, Kind::Ping, 77_777, &[]);
            ping
        });
        if converse(connection, &out, &mut outcomes).is_none() {
            outcomes.note("connections", "closed");
            asking = None;
        }
        round += 1;
        if round % 200 == 0 || run >= runs {
            serves(run);
            let now = resident_bytes();
            assert!(now < before + GROWTH_BYTES, "run {run}: memory grew from {before} to {now} bytes");
            assert_eq!(panics(), before_panics, "run {run}: a thread of a node ended");
            if round % 2_000 == 0 {
                println!("{run} frames, {:.0} s, {} MiB", begun.elapsed().as_secs_f64(), now >> 20);
            }
        }
    }
    outcomes.print();
    println!("{runs} frames in {:.0} s", begun.elapsed().as_secs_f64());
}

/// Verbs that wait for others for long.
fn admin_waits(admin: &AdminRequest) -> bool {
    matches!(admin, AdminRequest::TransferLeader { .. } | AdminRequest::CheckReplicas)
}

/// Sends frames and reads until the ping behind them is answered; none: the node closed the connection.
fn converse(connection: &mut Asking, out: &[u8], outcomes: &mut Outcomes) -> Option<()> {
    connection.stream.write_all(out).ok()?;
    loop {
        let frame = next_or_hang(connection)?;
        match Kind::from_u8(frame.kind).expect("a node's own frame") {
            Kind::Pong if frame.stream == 77_777 => return Some(()),
            Kind::Refused => {
                let refusal = Refusal::decode(&frame.body).expect("a node's own refusal");
                let said = format!("{refusal:?}");
                let name = said.split([' ', '{']).next().unwrap_or_default();
                outcomes.note("answers", &format!("Refused: {name}"));
            }
            Kind::Replies => {
                for section in Replies::new(&frame.body) {
                    let section = section.expect("a node's own answer");
                    for (_, result) in section.results() {
                        let said = format!("{result:?}");
                        outcomes.note("answers", said.split([' ', '{', '(']).next().unwrap_or_default());
                    }
                }
            }
            kind => outcomes.note("answers", &format!("{kind:?}")),
        }
    }
}

fn next_or_hang(connection: &mut Asking) -> Option<Frame> {
    let begun = Instant::now();
    let frame = next_frame(&mut connection.stream, &mut connection.decoder);
    assert!(frame.is_some() || begun.elapsed() < patience(), "a ping is not answered");
    frame
}
