//! Verbs that move the boundaries between partitions: split and merge (protocol.md 8).

use bytes::Bytes;
use coppice_client::wire::control::AdminError;
use coppice_client::wire::{Boundaries, ChangeId, KEY_BYTES_MAX, PartitionId, Reshaped, SplitPlan};

use super::verbs::{Judge, Verdict, another, decide, refused};
use crate::machine::directory::{Change, ChangeOutcome, Reason, Reshape};
use crate::machine::partition::BoundaryStep;

/// Nobody knows the median of the partition that is to be cut.
pub fn no_median() -> AdminError {
    AdminError::Refused("the partition to be cut has fewer than two keys: say where with --at".into())
}

impl Judge<'_> {
    pub(super) fn split(&self, partition: Option<PartitionId>, at: Option<&[u8]>) -> Result<Verdict, AdminError> {
        let change = self.request.change;
        if let Some(known) = self.split_progress(change, partition) {
            return known.map(Verdict::Progress);
        }
        let known = |id: PartitionId| self.state.map.partitions.iter().any(|entry| entry.partition == id);
        if let Some(partition) = partition.filter(|&id| !known(id)) {
            return Err(AdminError::NotFound(format!("there is no partition {partition} that holds keys")));
        }
        let Some(at) = at else { return self.median(partition) };
        let routed = self.state.map.route(at).map(|entry| entry.partition);
        let Some(partition) = partition.or(routed) else {
            return refused("there is no partition to be cut".into());
        };
        let entry = self.state.map.partitions.iter().find(|entry| entry.partition == partition);
        let Some(entry) = entry else {
            return Err(AdminError::NotFound(format!("there is no partition {partition} that holds keys")));
        };
        if at.len() > KEY_BYTES_MAX {
            let bytes = at.len();
            return refused(format!(
                "a key has at most {KEY_BYTES_MAX} bytes, and no partition begins at one of {bytes}"
            ));
        }
        let boundaries = Boundaries { low: entry.low.clone(), high: entry.high.clone() };
        if self.request.within.as_ref().is_some_and(|planned| *planned != boundaries) {
            return refused(format!(
                "{partition} has other boundaries than in the plan: it was cut or joined meanwhile"
            ));
        }
        if !entry.contains(at) {
            return refused(format!("the key is not one of {partition}'s: {} holds it", routed.unwrap_or_default()));
        }
        if at == &*entry.low {
            return refused(format!("{partition} begins at that key already"));
        }
        if let Some((other, _)) = self.state.change_of(partition) {
            return refused(format!(
                "{partition} is being changed already, by change {other}: ask again when it is done"
            ));
        }
        self.needs_quorum(partition)?;
        for info in &entry.replicas {
            if let Some(why) = self.view.node(info.node).and_then(|local| local.full.as_ref()) {
                return refused(format!("{} is full: {why}", info.node));
            }
        }
        let steps =
            vec![format!("{partition} is cut; the upper part becomes a partition of its own on the same nodes")];
        let at = Bytes::copy_from_slice(at);
        let cut = Some(SplitPlan { at: at.clone(), boundaries });
        let plan = Reshaped { partition: Some(partition), cut, ..self.reshaped(false, 2, steps) };
        decide(Reshape::Split { change, partition, at }, plan)
    }

    /// A split that does not say where is one at the median, of the largest partition if it names none.
    fn median(&self, partition: Option<PartitionId>) -> Result<Verdict, AdminError> {
        let partition = partition.or_else(|| self.view.largest(self.state));
        // Who cannot decide cannot say where its middle is, either.
        partition.map_or(Ok(()), |partition| self.needs_quorum(partition))?;
        let led = partition.and_then(|partition| Some((partition, self.view.led(partition)?.leader)));
        match led {
            Some((partition, leader)) => Ok(Verdict::Median { partition, leader }),
            None => Err(no_median()),
        }
    }

    pub(super) fn merge(&self, partition: PartitionId, into: Option<PartitionId>) -> Result<Verdict, AdminError> {
        let change = self.request.change;
        let known = self.state.changes.get(&change);
        if known
            .is_some_and(|known| !matches!(known, Change::Merge(_)) || !known.groups().any(|group| group == partition))
        {
            return another(change);
        }
        if let Some(Change::Merge(boundary)) = known {
            let [gone, target] = boundary.touched();
            let text = match boundary.step {
                BoundaryStep::Join { .. } => format!("{target} takes {gone} in"),
                BoundaryStep::Split { .. } | BoundaryStep::Seal { .. } => format!("{gone} is being closed"),
            };
            let progress = Reshaped { partition: Some(target), ..self.so_far(false, 1, text) };
            return Ok(Verdict::Progress(progress));
        }
        match self.state.ended(change) {
            Some(ChangeOutcome::Made(target))
                if self.nodes_of(partition).is_empty() && into.is_none_or(|into| into == target) =>
            {
                let text = format!("{target} has taken in its neighbour, on {}", self.place(target));
                return Ok(Verdict::Progress(Reshaped { partition: Some(target), ..self.so_far(true, 0, text) }));
            }
            Some(_) => return another(change),
            None => {}
        }
        let entries = &self.state.map.partitions;
        let Some(at) = entries.iter().position(|entry| entry.partition == partition) else {
            return Err(AdminError::NotFound(format!("there is no partition {partition} that holds keys")));
        };
        let neighbour = entries.get(if at > 0 { at - 1 } else { 1 }).map(|entry| entry.partition);
        let Some(target) = into.or(neighbour) else {
            return refused(format!("{partition} is the only partition: it has no neighbour"));
        };
        let Some(to) = entries.iter().position(|entry| entry.partition == target) else {
            return Err(AdminError::NotFound(format!("there is no partition {target} that holds keys")));
        };
        if at.abs_diff(to) != 1 {
            return refused(Reason::NotNeighbours(partition, target).to_string());
        }
        for id in [partition, target] {
            if let Some((other, _)) = self.state.change_of(id) {
                return refused(format!("{id} is being changed already, by change {other}: ask again when it is done"));
            }
            self.needs_quorum(id)?;
        }
        let apart = self.nodes_of(partition) != self.nodes_of(target);
        if apart && !self.request.dry_run {
            return refused(format!(
                "{partition} is on {} and {target} on {}: coppice partition move {partition} --to {}",
                self.place(partition),
                self.place(target),
                self.place(target).replace(' ', ",")
            ));
        }
        let mut steps = vec![
            format!("{partition} takes no more commands"),
            format!("{target}, beside it on the same nodes, takes its keys and sessions in"),
        ];
        if apart {
            // Nothing is copied by a merge: that is a move, which whoever asks begins first.
            steps.insert(0, format!("{partition} moves to {}, beside {target}", self.place(target)));
        }
        let plan = Reshaped { partition: Some(target), ..self.reshaped(false, 2, steps) };
        decide(Reshape::Merge { change, partition, target }, plan)
    }

    /// How far a split is that was begun.
    fn split_progress(&self, change: ChangeId, partition: Option<PartitionId>) -> Option<Result<Reshaped, AdminError>> {
        match self.state.changes.get(&change) {
            Some(Change::Split(cut)) if partition.is_none_or(|id| cut.touched()[0] == id) => {
                let [parent, child] = cut.touched();
                let text = format!("{parent} is being cut; {child} begins");
                return Some(Ok(Reshaped { partition: Some(child), ..self.so_far(false, 2, text) }));
            }
            Some(_) => return Some(another(change)),
            None => {}
        }
        match self.state.ended(change)? {
            ChangeOutcome::Made(child) if partition != Some(child) => {
                let text = format!("{child} has begun, on {}", self.place(child));
                Some(Ok(Reshaped { partition: Some(child), ..self.so_far(true, 0, text) }))
            }
            _ => Some(another(change)),
        }
    }
}
