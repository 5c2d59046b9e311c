//! Simulator, seed 330: a node told its map, and beside it who had led a partition before that was moved. Clients asked
//! that node from then on, which sent them away, for ever: it knew nothing newer than they.

mod script;

use coppice_client::session::Input;
use coppice_client::wire::{Kind, MapVersion, NodeId, Refusal};
use script::{PARTITION, hello, map, start};

#[test]
fn who_is_no_replica_by_the_map_is_not_followed() {
    let bench = start(&[1], NodeId(2));
    let addresses: Vec<&str> = bench.dialled.iter().map(|(_, address)| address.as_str()).collect();
    assert_eq!(addresses, ["n1:1"]);
}

/// The other half: whoever has not got the partition does not lead it, whatever the map and others say.
#[test]
fn who_has_not_got_the_partition_is_not_followed() {
    let mut bench = start(&[1, 2], NodeId(1));
    let (connection, _) = bench.dialled.remove(0);
    bench.step(Input::Connected(connection));
    bench.step(Input::Frame { connection, frame: hello(1) });
    let asked = bench.asks(Kind::Read);
    assert_eq!(asked.0, connection, "it leads, it is said");
    let entries = map(&[1, 2]).partitions;
    let refusal = Refusal::WrongPartition { partition: PARTITION, version: MapVersion(7), entries };
    bench.answer(asked, |out, stream| refusal.encode(out, stream));
    assert_ne!(bench.asks(Kind::Read).0, connection, "the other one may lead");
}
