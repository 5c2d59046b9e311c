//! Ranges over several partitions that this node gathers for its clients (`coppice_core::gather`), as the shard that
//! holds the client's connection drives them: requests go to the shards of the partitions, answers come back from
//! there.

use coppice_client::wire::{GatherRequest, PartitionId};
use coppice_core::gather::Act;
use coppice_core::request::{Origin, Reply};
use coppice_ordering::Time;

use super::Shard;

impl Shard {
    /// A client asks for a range over partitions that have replicas here. It is read at the end of the turn.
    pub fn gather(&mut self, origin: Origin, range: GatherRequest) {
        let mut acts = Vec::new();
        self.gathers.begin(self.now(), origin, range, &mut acts);
        self.act_on_gathers(acts);
        self.turn.want();
    }

    /// A replica answers what was asked for gathers.
    pub(super) fn on_gathered(&mut self, request: u64, partition: PartitionId, reply: Reply) {
        let mut acts = Vec::new();
        self.gathers.on_reply(request, partition, reply, &mut acts);
        self.act_on_gathers(acts);
        // Validations leave at the end of the turn, and so does what is read once more.
        self.turn.want();
    }

    /// Reads what came in this turn, and asks whether what was read is still what it was.
    pub(super) fn ask_for_gathers(&mut self) {
        let (now, mut acts) = (self.now(), Vec::new());
        self.gathers.read(now, &mut acts);
        self.act_on_gathers(acts);
        let mut acts = Vec::new();
        self.gathers.validate(now, &mut acts);
        self.act_on_gathers(acts);
    }

    /// Ends gathers that have waited for too long.
    pub(super) fn tick_gathers(&mut self, now: Time) {
        let mut acts = Vec::new();
        self.gathers.expire(now, &mut acts);
        self.act_on_gathers(acts);
    }

    /// Whoever is asked here may answer at once, and so ends up in `on_gathered`, which asks for nothing.
    fn act_on_gathers(&mut self, acts: Vec<Act>) {
        for act in acts {
            match act {
                Act::Ask { partition, origin, request } => self.request(partition, origin, request),
                Act::Answer { partition, origin, reply } => self.reply(partition, origin, reply),
            }
        }
    }
}
