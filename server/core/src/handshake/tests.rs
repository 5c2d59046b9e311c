use coppice_client::map::{Addresses, NodeInfo};
use coppice_client::wire::MapVersion;

use super::*;
use crate::incarnation::claim::PAST_BOOT_IDS_MAX;

const OURS: ClusterId = ClusterId(1);
const THEIRS: ClusterId = ClusterId(2);

fn presence(cluster: ClusterId, node: u32) -> Presence {
    Presence { cluster, node: NodeId(node), claim: IncarnationClaim::new(3, 77, &[76, 75], 5) }
}

fn hello(purpose: Purpose, from: Option<Presence>, to: Option<u32>) -> PeerHello {
    PeerHello { protocol: PEER_PROTOCOL, purpose, from, to: to.map(NodeId) }
}

fn map(version: u64, nodes: &[(u32, NodeState)]) -> PartitionMap {
    let node = |&(id, state): &(u32, NodeState)| NodeInfo {
        id: NodeId(id),
        name: String::new(),
        addresses: Addresses::default(),
        state,
    };
    let nodes = nodes.iter().map(node).collect();
    PartitionMap { cluster: OURS, version: MapVersion(version), nodes, ..PartitionMap::default() }
}

fn decoded(bytes: &[u8]) -> Frame {
    let mut decoder = FrameDecoder::new(HELLO_BYTES_MAX);
    decoder.feed(bytes);
    decoder.next_frame().expect("good").expect("whole")
}

#[test]
fn only_a_node_of_the_cluster_that_means_this_one_is_let_in() {
    let own = presence(OURS, 2);
    let known = map(4, &[(1, NodeState::Member), (2, NodeState::Member), (5, NodeState::Removed)]);
    let cases = [
        (Purpose::Messages, Some(presence(OURS, 1)), Some(2), Ok(())),
        (Purpose::Question, Some(presence(OURS, 1)), None, Ok(())),
        (Purpose::Messages, Some(presence(THEIRS, 1)), Some(2), Err("you belong to cluster")),
        (Purpose::Question, Some(presence(THEIRS, 1)), Some(2), Err("you belong to cluster")),
        (Purpose::Snapshot, Some(presence(THEIRS, 1)), Some(2), Err("you belong to cluster")),
        (Purpose::Messages, None, Some(2), Err("you belong to no cluster")),
        (Purpose::Messages, Some(presence(OURS, 1)), Some(3), Err("you mean n3, this is n2")),
        (Purpose::Messages, Some(presence(OURS, 2)), Some(2), Err("so is this node")),
        (Purpose::Messages, Some(presence(OURS, 5)), Some(2), Err("n5 was removed")),
        (Purpose::Snapshot, Some(presence(OURS, 6)), Some(2), Err("n6 is not in the map")),
        (Purpose::Question, Some(presence(OURS, 5)), Some(2), Ok(())),
        (Purpose::Forming, Some(presence(THEIRS, 1)), None, Ok(())),
        (Purpose::Forming, None, None, Ok(())),
    ];
    for (purpose, from, to, wanted) in cases {
        let found = admit(&hello(purpose, from, to), Some(&own), &known);
        match wanted {
            Ok(()) => assert_eq!(found, Ok(()), "{purpose:?} {from:?} {to:?}"),
            Err(words) => assert!(found.as_ref().is_err_and(|text| text.contains(words)), "{words}: {found:?}"),
        }
    }
    let first = hello(Purpose::Messages, Some(presence(OURS, 1)), Some(2));
    assert_eq!(admit(&first, Some(&own), &PartitionMap::default()), Ok(()), "before the first map");
    assert!(admit(&first, None, &PartitionMap::default()).is_err(), "a node without a cluster serves nobody");
}

#[test]
fn only_who_is_meant_is_believed() {
    let to_second = hello(Purpose::Question, Some(presence(OURS, 1)), Some(2));
    let to_any = hello(Purpose::Question, Some(presence(OURS, 1)), None);
    let forming = hello(Purpose::Forming, None, None);
    let believed = |hello: &PeerHello, from| {
        let welcome = PeerWelcome { protocol: PEER_PROTOCOL, from };
        read_welcome(hello, &decoded(&frame_of(peer_frame::WELCOME, &welcome))).is_ok()
    };
    assert!(believed(&to_second, Some(presence(OURS, 2))));
    assert!(!believed(&to_second, Some(presence(OURS, 3))));
    assert!(!believed(&to_second, Some(presence(THEIRS, 2))));
    assert!(!believed(&to_second, None));
    assert!(believed(&to_any, Some(presence(OURS, 3))));
    assert!(!believed(&to_any, Some(presence(THEIRS, 3))));
    assert!(believed(&forming, Some(presence(THEIRS, 3))) && believed(&forming, None));
}

/// A level that a program does not know: it refuses, and is refused.
#[test]
fn each_feature_level_has_a_protocol_and_all_that_are_known_are_spoken() {
    assert_eq!([1, 2].map(peer_protocol), [14, 15]);
    for level in 1..=FEATURE_LEVEL {
        let said = PeerHello { protocol: peer_protocol(level), ..hello(Purpose::Forming, None, None) };
        assert_eq!(read_hello(&decoded(&frame_of(peer_frame::HELLO, &said))), Ok(said));
    }
    let newer = PeerHello { protocol: PEER_PROTOCOL + 1, ..hello(Purpose::Forming, None, None) };
    assert!(read_hello(&decoded(&frame_of(peer_frame::HELLO, &newer))).is_err());
}

#[test]
fn the_longest_greeting_fits_and_other_versions_and_garbage_are_named() {
    let most = Presence {
        cluster: ClusterId(u128::MAX),
        node: NodeId(u32::MAX),
        claim: IncarnationClaim::new(u64::MAX, u64::MAX, &[u64::MAX; PAST_BOOT_IDS_MAX], u64::MAX),
    };
    let longest = hello(Purpose::Forming, Some(most), Some(u32::MAX));
    let frame = frame_of(peer_frame::HELLO, &longest);
    assert!(frame.len() <= HELLO_BYTES_MAX);
    assert_eq!(read_hello(&decoded(&frame)), Ok(longest.clone()));
    let older = PeerHello { protocol: PEER_PROTOCOL_OLDEST - 1, ..longest };
    let said = read_hello(&decoded(&frame_of(peer_frame::HELLO, &older)));
    assert!(said.is_err_and(|text| text.contains("peer protocol")));
    for body in [&[][..], &[PEER_PROTOCOL as u8], &[PEER_PROTOCOL as u8, 9], &[0xff; 80]] {
        assert!(read_hello(&decoded(&peer_frame::frame(peer_frame::HELLO, body))).is_err(), "{body:?}");
    }
    let said = read_hello(&decoded(&peer_frame::frame(peer_frame::MESSAGES, &[])));
    assert!(said.is_err_and(|text| text.contains("does not open a connection between nodes")));
}

#[test]
fn a_certificate_is_that_of_the_node_that_shows_it() {
    let says = |node: Option<u32>| hello(Purpose::Messages, node.map(|node| presence(OURS, node)), Some(2));
    let of_node = Names::new(vec![NodeId(1)], None);
    let of_client = Names::new(Vec::new(), Some("alice".into()));
    assert_eq!(certified(&says(Some(1)), None), Ok(()), "in the clear");
    assert_eq!(certified(&says(Some(1)), Some(&of_node)), Ok(()));
    assert_eq!(certified(&says(None), Some(&of_node)), Ok(()), "it belongs to no cluster yet");
    let refused = |hello: &PeerHello, names: &Names| certified(hello, Some(names)).expect_err("a refusal");
    let sentence = "your certificate is for node.n1, and you say that you are n3";
    assert_eq!(refused(&says(Some(3)), &of_node), sentence);
    assert!(refused(&says(Some(1)), &of_client).starts_with("your certificate is for client.alice"));
    assert_eq!(refused(&says(None), &of_client), "your certificate is for client.alice, not for a node");
}

#[cfg(feature = "mutants")]
#[test]
fn a_certificate_that_is_not_compared_is_caught() {
    let test = "handshake::tests::a_certificate_is_that_of_the_node_that_shows_it";
    planted::assert_caught("certificate_not_compared", test);
}
