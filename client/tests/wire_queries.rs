//! The messages of queries over several partitions (protocol.md 4): both ways over random contents, and what is
//! refused.

use bytes::{BufMut, Bytes, BytesMut};
use coppice_client::wire::validate::RangeVersion;
use coppice_client::wire::*;
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;

fn only_frame(bytes: &[u8]) -> Frame {
    let mut decoder = FrameDecoder::default();
    decoder.feed(bytes);
    let frame = decoder.next_frame().expect("our own frame").expect("a whole frame");
    assert_eq!(decoder.held_bytes(), 0);
    frame
}

fn framed(write: impl FnOnce(&mut BytesMut)) -> Frame {
    let mut out = BytesMut::new();
    write(&mut out);
    only_frame(&out)
}

fn request(kind: Kind, body: &[u8]) -> Result<Request, WireError> {
    let body = Bytes::copy_from_slice(body);
    Request::decode(&Frame { kind: kind as u8, flags: 0, stream: 9, body })
}

fn ticket() -> Ticket {
    Ticket { round: 3, replica: ReplicaId(1), n: 57 }
}

fn query(low: &[u8], high: Option<&[u8]>) -> QueryRequest {
    QueryRequest {
        query: 5,
        low: Bytes::copy_from_slice(low),
        high: high.map(Bytes::copy_from_slice),
        scan: ScanOptions::default(),
        from_leaders: false,
        spread: false,
        credit: 1,
    }
}

/// A cut between `bounds`, of which the last may be missing; partition `i` is on node `i + 10`.
fn cut(bounds: &[Vec<u8>], open: bool) -> QueryPlan {
    let count = bounds.len() - usize::from(!open);
    let parts = (0..count)
        .map(|at| SubRange {
            partition: PartitionId(at as u32 + 1),
            low: Bytes::copy_from_slice(&bounds[at]),
            high: bounds.get(at + 1).map(|high| Bytes::copy_from_slice(high)),
            node: NodeId(at as u32 + 10),
        })
        .collect();
    QueryPlan { ticket: ticket(), version: MapVersion(8), parts }
}

fn collect_request(parts: u32) -> CollectRequest {
    CollectRequest {
        parts: (1..=parts).map(|n| (PartitionId(n), n.to_be_bytes()[..].into())).collect(),
        high: Some(b"zucchini"[..].into()),
        scan: ScanOptions { reverse: true, keys_only: false, count_only: true, pairs_max: 300, bytes_max: 1 << 40 },
        credit: 65_536,
    }
}

fn any_bound() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..40)
}

fn validated() -> RangeVersion<'static> {
    let version = Version { replica: ReplicaId(2), incarnation: 300, began: 1 << 40, changes: 70_000 };
    RangeVersion { version, low: b"apple", high: Some(b"melon") }
}

proptest! {
    #[test]
    fn a_query_comes_back(
        number: u32, bounds in btree_set(vec(any::<u8>(), 0..40), 2), open: bool, flags: [bool; 5], pairs_max: u64,
        bytes_max: u64, credit: u32,
    ) {
        let bounds: Vec<Bytes> = bounds.into_iter().map(Bytes::from).collect();
        let [reverse, keys_only, count_only, from_leaders, spread] = flags;
        let scan = ScanOptions { reverse, keys_only, count_only, pairs_max, bytes_max };
        let query = QueryRequest {
            query: number, low: bounds[0].clone(), high: (!open).then(|| bounds[1].clone()), scan,
            from_leaders, spread, credit,
        };
        let frame = framed(|out| query.encode(out, 6));
        prop_assert_eq!((frame.kind, frame.stream), (Kind::RangeQuery as u8, 6));
        prop_assert_eq!(Request::decode(&frame), Ok(Request::Query(query)));
    }

    #[test]
    fn a_collect_comes_back(
        lows in btree_set(vec(any::<u8>(), 0..40), 1..65), high in proptest::option::of(any_bound()), flags: [bool; 3],
        partition: u32, pairs_max: u64, bytes_max: u64, credit: u32,
    ) {
        let [reverse, keys_only, count_only] = flags;
        let scan = ScanOptions { reverse, keys_only, count_only, pairs_max, bytes_max };
        let part = |(n, low): (u32, Vec<u8>)| (PartitionId(partition.wrapping_add(n)), low[..].into());
        let parts = (0..).zip(lows).map(part).collect();
        let high = high.map(|high| high[..].into());
        let collect_request = CollectRequest { parts, high, scan, credit };
        let frame = framed(|out| collect_request.encode(out, 6));
        prop_assert_eq!((frame.kind, frame.stream), (Kind::Collect as u8, 6));
        prop_assert_eq!(Request::decode(&frame), Ok(Request::Collect(collect_request)));
    }

    #[test]
    fn a_cut_comes_back(
        bounds in btree_set(vec(any::<u8>(), 0..40), 2..20), open: bool, at: (u64, u64),
    ) {
        let (round, n) = at;
        let mut cut = cut(&bounds.into_iter().collect::<Vec<_>>(), open);
        cut.ticket = Ticket { round, replica: ReplicaId(2), n };
        let frame = framed(|out| cut.encode(out, 6).unwrap());
        prop_assert_eq!((frame.kind, frame.stream), (Kind::QueryPlan as u8, 6));
        prop_assert_eq!(QueryPlan::decode(&frame.body), Ok(cut));
        let frame = framed(|out| QueryCompleted { ticket: Ticket { round, replica: ReplicaId(9), n } }.encode(out, 8));
        prop_assert_eq!((frame.kind, frame.stream), (Kind::QueryCompleted as u8, 8));
        let ticket = Ticket { round, replica: ReplicaId(9), n };
        prop_assert_eq!(QueryCompleted::decode(&frame.body), Ok(QueryCompleted { ticket }));
    }

    #[test]
    fn validations_come_back(
        ranges in vec((any_bound(), proptest::option::of(any_bound()), any::<[u64; 3]>()), 1..20),
        partition: u32, replica: u32, anywhere: bool, unchanged in vec(any::<bool>(), 1..20),
    ) {
        let replica = ReplicaId(replica);
        let asked: Vec<RangeVersion<'_>> = ranges.iter().map(|(low, high, [incarnation, began, changes])| {
            let version = Version { replica, incarnation: *incarnation, began: *began, changes: *changes };
            RangeVersion { version, low, high: high.as_deref() }
        }).collect();
        let (partition, ranges) = ((PartitionId(partition), anywhere), asked.iter().copied());
        let frame = framed(|out| ValidateRequest::encode(out, 6, partition, ranges));
        prop_assert_eq!((frame.kind, frame.stream), (Kind::Validate as u8, 6));
        let Ok(Request::Validate(found)) = Request::decode(&frame) else { panic!("another request") };
        prop_assert_eq!(((found.partition, found.anywhere), found.len()), (partition, asked.len()));
        prop_assert!(found.ranges().eq(asked));
        // And the answer.
        let mut answer = BytesMut::new();
        let mut reply = PackReply::read(&mut answer, partition.0, 8, 0);
        unchanged.iter().for_each(|unchanged| reply.validated(*unchanged));
        reply.finish();
        let frame = framed(|out| {
            let mut replies = RepliesWriter::new(out);
            replies.answer(6, &answer).unwrap();
            replies.finish();
        });
        let section = Replies::new(&frame.body).next().unwrap().unwrap();
        let told = section.results().map(|(_, result)| result == ResultRef::Unchanged);
        prop_assert!(section.read && told.eq(unchanged));
    }

    #[test]
    fn credit_and_cancelling_name_the_attempt_in_the_stream(query: u32, partition: u32, bytes: u32) {
        let partition = PartitionId(partition);
        let frame = framed(|out| encode_part_credit(out, query, partition, bytes));
        prop_assert_eq!((frame.kind, frame.stream), (Kind::PartCredit as u8, query));
        prop_assert_eq!(Request::decode(&frame), Ok(Request::PartCredit { query, partition, bytes }));
        let frame = framed(|out| encode_part_cancel(out, query));
        prop_assert_eq!((frame.kind, frame.stream), (Kind::PartCancel as u8, query));
        prop_assert_eq!(Request::decode(&frame), Ok(Request::PartCancel { query }));
    }

    #[test]
    fn no_message_is_understood_that_is_cut_off_or_too_long(at: prop::sample::Index, more: u8) {
        let bounds = [b"a".to_vec(), b"melon".to_vec(), b"pear".to_vec()];
        let frames = [
            framed(|out| query(b"apple", Some(b"melon")).encode(out, 1)),
            framed(|out| ValidateRequest::encode(out, 1, (PartitionId(300), false), [validated()].into_iter())),
            framed(|out| collect_request(3).encode(out, 1)),
            framed(|out| encode_part_credit(out, 1, PartitionId(300), 1)),
            framed(|out| encode_part_cancel(out, 1)),
        ];
        for mut frame in frames {
            let whole = frame.body.clone();
            if !whole.is_empty() {
                frame.body = whole.slice(..at.index(whole.len()));
                prop_assert_eq!(Request::decode(&frame), Err(WireError::Truncated));
            }
            frame.body = [&whole[..], &[more]].concat().into();
            prop_assert_eq!(Request::decode(&frame), Err(WireError::Trailing(1)));
        }
        let whole = framed(|out| cut(&bounds, true).encode(out, 1).unwrap()).body;
        prop_assert_eq!(QueryPlan::decode(&whole.slice(..at.index(whole.len()))), Err(WireError::Truncated));
        prop_assert_eq!(QueryPlan::decode(&[&whole[..], &[more]].concat().into()), Err(WireError::Trailing(1)));
        let whole = framed(|out| QueryCompleted { ticket: ticket() }.encode(out, 1)).body;
        prop_assert_eq!(QueryCompleted::decode(&whole[..at.index(whole.len())]), Err(WireError::Truncated));
        prop_assert_eq!(QueryCompleted::decode(&[&whole[..], &[more]].concat()), Err(WireError::Trailing(1)));
    }
}

#[test]
fn a_query_with_bounds_that_enclose_nothing_or_flags_of_the_future_is_refused() {
    for high in [&b"melon"[..], b"apple"] {
        let frame = framed(|out| query(b"melon", Some(high)).encode(out, 1));
        assert_eq!(Request::decode(&frame), Err(WireError::Order("bounds")));
    }
    let mut body = framed(|out| query(b"a", None).encode(out, 1)).body.to_vec();
    body[0] = 64;
    assert!(matches!(request(Kind::RangeQuery, &body), Err(WireError::Unknown { what: "query flag", value: 64 })));
    let frame = framed(|out| query(&[0; KEY_BYTES_MAX + 2], None).encode(out, 1));
    assert!(matches!(Request::decode(&frame), Err(WireError::Limit { what: "bound length", .. })));
    // The first key behind the longest key is a legal bound.
    let frame = framed(|out| query(&[0; KEY_BYTES_MAX + 1], None).encode(out, 1));
    assert!(matches!(Request::decode(&frame), Ok(Request::Query(_))));
}

#[test]
fn a_cut_whose_parts_do_not_ascend_or_that_names_a_partition_twice_is_refused() {
    let mut wrong = cut(&[b"a".to_vec(), b"m".to_vec(), b"c".to_vec()], false);
    let body = |cut: &QueryPlan| framed(|out| cut.encode(out, 1).unwrap()).body;
    assert_eq!(QueryPlan::decode(&body(&wrong)), Err(WireError::Order("bounds")));
    wrong = cut(&[b"a".to_vec(), b"c".to_vec(), b"m".to_vec()], true);
    wrong.parts[2].partition = PartitionId(1);
    assert!(matches!(QueryPlan::decode(&body(&wrong)), Err(WireError::Limit { what: "parts of one partition", .. })));
    // Among many, too: the first again as the last, and two of the last.
    for (first, again) in [(0, 39), (38, 39), (17, 20)] {
        wrong = cut(&(0..40).map(|at| vec![at]).collect::<Vec<_>>(), true);
        assert_eq!(QueryPlan::decode(&body(&wrong)), Ok(wrong.clone()));
        wrong.parts[again].partition = wrong.parts[first].partition;
        assert!(matches!(
            QueryPlan::decode(&body(&wrong)),
            Err(WireError::Limit { what: "parts of one partition", .. })
        ));
    }
    let mut none = BytesMut::new();
    none.put_slice(&[0, 3, 1, 57, 8, 0, 0]);
    assert_eq!(QueryPlan::decode(&none.freeze()), Err(WireError::Empty("parts")));
    let mut flagged = body(&cut(&[b"a".to_vec()], true)).to_vec();
    flagged[0] = 4;
    assert!(matches!(QueryPlan::decode(&flagged.into()), Err(WireError::Unknown { what: "plan flag", value: 4 })));
}

#[test]
fn a_cut_that_announces_more_parts_than_it_has_gets_no_memory_for_them() {
    let mut body = BytesMut::new();
    body.put_slice(&[0, 3, 1, 57, 8]);
    put_varint(&mut body, u64::from(u32::MAX));
    body.put_slice(&[0]);
    assert_eq!(QueryPlan::decode(&body.freeze()), Err(WireError::Truncated));
}

#[test]
fn a_cut_that_fits_no_frame_is_an_error_and_writes_nothing() {
    let bound = |at: u16| [&at.to_be_bytes()[..], &[7; KEY_BYTES_MAX - 2]].concat();
    let bounds: Vec<_> = (0..1_100).map(bound).collect();
    let mut out = BytesMut::from(&b"before"[..]);
    assert!(matches!(cut(&bounds, true).encode(&mut out, 1), Err(WireError::Limit { what: "plan bytes", .. })));
    assert_eq!(&out[..], b"before");
}

#[test]
fn what_the_coordinator_says_is_no_request() {
    for kind in [Kind::QueryPlan, Kind::QueryCompleted] {
        assert!(matches!(request(kind, &[]), Err(WireError::Unknown { what: "request kind", .. })));
    }
}

#[test]
fn a_validation_of_nothing_of_too_much_or_with_flags_of_the_future_is_refused() {
    let validate = |ranges: &[RangeVersion<'_>]| {
        let frame = framed(|out| ValidateRequest::encode(out, 1, (PartitionId(1), true), ranges.iter().copied()));
        Request::decode(&frame)
    };
    assert_eq!(validate(&[]), Err(WireError::Empty("ranges")));
    assert!(validate(&[validated(); VALIDATE_RANGES_MAX]).is_ok());
    let (value, max) = (VALIDATE_RANGES_MAX as u64 + 1, VALIDATE_RANGES_MAX as u64);
    let refused = validate(&[validated(); VALIDATE_RANGES_MAX + 1]);
    assert_eq!(refused, Err(WireError::Limit { what: "ranges", value, max }));
    let long = vec![0; KEY_BYTES_MAX + 2];
    let refused = validate(&[RangeVersion { high: Some(&long), ..validated() }]);
    assert!(matches!(refused, Err(WireError::Limit { what: "bound length", .. })), "{refused:?}");
    let mut body =
        framed(|out| ValidateRequest::encode(out, 1, (PartitionId(1), true), [validated()].into_iter())).body.to_vec();
    body[0] = 2;
    let refused = request(Kind::Validate, &body);
    assert_eq!(refused, Err(WireError::Unknown { what: "validate flag", value: 2 }));
}

#[test]
fn a_gather_of_nothing_of_too_much_or_with_flags_of_the_future_is_refused() {
    let whole = framed(|out| collect_request(2).encode(out, 1)).body;
    assert!(request(Kind::Collect, &whole).is_ok());
    let sent = |parts| Request::decode(&framed(|out| collect_request(parts).encode(out, 1)));
    assert_eq!(sent(0), Err(WireError::Empty("parts")));
    assert!(sent(COLLECT_PARTS_MAX as u32).is_ok());
    let (value, max) = (COLLECT_PARTS_MAX as u64 + 1, COLLECT_PARTS_MAX as u64);
    assert_eq!(sent(value as u32), Err(WireError::Limit { what: "parts", value, max }));
    let mut flags = whole.to_vec();
    flags[0] |= 16;
    let refused = request(Kind::Collect, &flags);
    assert!(matches!(refused, Err(WireError::Unknown { what: "collect flag", .. })), "{refused:?}");
    let long = CollectRequest { high: Some(vec![0; KEY_BYTES_MAX + 2][..].into()), ..collect_request(2) };
    let refused = Request::decode(&framed(|out| long.encode(out, 1)));
    assert!(matches!(refused, Err(WireError::Limit { what: "bound length", .. })), "{refused:?}");
}
