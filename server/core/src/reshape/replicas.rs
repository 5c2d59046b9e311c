//! Another number of replicas, as an operator asks for it: the plan with its warnings, and how far it is. What is done
//! about it step by step, `plan` decides.

use coppice_client::wire::control::AdminError;
use coppice_client::wire::{PartitionId, Reshaped};

use super::placements;
use super::verbs::{Judge, Verdict};
use crate::machine::directory::DirectoryCommand;
use crate::settings::ClusterSettings;
use crate::status::{ReplicaCounts, listed};

/// The setting.
const KEY: &str = "replicas";

impl Judge<'_> {
    /// `asked`: so many from now on; none: the default.
    pub(super) fn set_replicas(&self, asked: Option<u32>) -> Result<Verdict, AdminError> {
        let mut settings = ClusterSettings::default();
        let value = asked.map(|count| count.to_string());
        if let Some(value) = &value {
            settings.set(KEY, value)?;
        }
        let (before, after) = (self.replicas, settings.replicas as usize);
        let counts = ReplicaCounts::of(&self.state.map, after, self.view.nodes());
        if value.as_ref().map_or_else(|| !self.state.settings.contains_key(KEY), |_| before == after) {
            let left = counts.left();
            let all = format!("{KEY} = {after}, as many as each group has");
            let text = Some(counts.sentences().join("; ")).filter(|text| !text.is_empty());
            let text = text.map_or(all, |text| format!("{KEY} = {after}; {text}"));
            return Ok(Verdict::Progress(self.so_far(left == 0, left, text)));
        }
        let steps = self.steps_to(before, after, &counts);
        let plan = Reshaped { begun: false, ..self.reshaped(false, counts.left(), steps) };
        let key = KEY.to_owned();
        let command = match value {
            Some(value) => DirectoryCommand::Set { key, value },
            None => DirectoryCommand::Unset { key },
        };
        Ok(Verdict::Begin { command: Box::new(command), plan })
    }

    /// The plan, and what an operator should know before saying yes.
    fn steps_to(&self, before: usize, after: usize, counts: &ReplicaCounts) -> Vec<String> {
        let mut steps = vec![format!("{KEY} = {after}, was {before}")];
        if !counts.to_come.is_empty() {
            let come = ReplicaCounts::sentence("come", &counts.to_come);
            steps.push(format!("{come}; each catches up as a learner, then votes"));
        }
        if !counts.to_go.is_empty() {
            let go = ReplicaCounts::sentence("go", &counts.to_go);
            steps.push(format!("{go}; one of a group at a time, a leader hands over before its own goes"));
        }
        let survives = |count: usize| count.saturating_sub(1) / 2;
        let nodes = |count: usize| match count {
            0 => "no node".to_owned(),
            1 => "1 node".to_owned(),
            _ => format!("{count} nodes"),
        };
        if survives(after) < survives(before) {
            let (now, then) = (nodes(survives(before)), nodes(survives(after)));
            steps.push(format!("warning: each group survives the loss of {then} afterwards, instead of {now}"));
        }
        if after.is_multiple_of(2) {
            let (same, odd) = (nodes(survives(after)), after - 1);
            steps.push(format!("warning: {after} is even: it survives the loss of {same}, as {odd} does"));
        }
        if !counts.unmet.is_empty() {
            let groups = listed(counts.unmet.iter());
            steps.push(format!(
                "warning: too few nodes answer and have room for {after} replicas of {groups}: the others come as nodes \
                 do; coppice node add ADDRESS"
            ));
        }
        let stuck = |group: &PartitionId| {
            let (up, all) = self.view.voters_up(self.state, *group);
            up <= all / 2 && (counts.to_come.contains_key(group) || counts.to_go.contains_key(group))
        };
        let stuck: Vec<PartitionId> = placements(self.state).map(|(group, _)| group).filter(stuck).collect();
        if !stuck.is_empty() {
            let groups = listed(stuck.iter());
            steps.push(format!("warning: {groups} have no quorum, and stay as they are until they do"));
        }
        steps
    }
}
