//! What the directory holds for every node: settings, users and the map. A node uses the newest that it hears of,
//! whoever says it.

use std::collections::BTreeMap;
use std::sync::Arc;

use coppice_client::map::PartitionMap;
use serde::{Deserialize, Serialize};

use super::Effect;
use crate::access::{Access, Users};
use crate::machine::directory::DirectoryState;
use crate::settings::ClusterSettings;
use crate::worker::{self, WorkerSettings};

/// What the directory holds for every node, at the version of the map.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterState {
    pub map: PartitionMap,
    /// Those that differ from their defaults.
    pub settings: BTreeMap<String, String>,
    pub users: Users,
}

impl From<&DirectoryState> for ClusterState {
    fn from(state: &DirectoryState) -> ClusterState {
        ClusterState { map: state.map.clone(), settings: state.settings.clone(), users: state.users.clone() }
    }
}

/// The cluster's settings and users, as this node knows them.
#[derive(Debug, Default)]
pub(super) struct Known {
    pub settings: ClusterSettings,
    /// As the directory has them.
    pairs: BTreeMap<String, String>,
    /// The directory, or a node that knows it, has told the settings since this process began.
    is_told: bool,
    /// None: this node has yet to hear whether there are any.
    users: Option<Users>,
}

impl Known {
    /// What the directory holds, as this node with this map knows it.
    pub(super) fn state(&self, map: &PartitionMap) -> ClusterState {
        let users = self.users.clone().unwrap_or_default();
        ClusterState { map: map.clone(), settings: self.pairs.clone(), users }
    }

    /// A process begins that kept this, if anything.
    pub(super) fn begin(&mut self, kept: Option<&ClusterState>, workers: usize, effects: &mut Vec<Effect>) {
        let access = match kept.filter(|kept| kept.map.check().is_ok()) {
            Some(kept) => {
                self.take_settings(&kept.settings, effects);
                self.tell_settings(workers, effects);
                self.users = Some(kept.users.clone());
                Access::new(kept.users.clone())
            }
            None => Access::unknown(),
        };
        effects.push(Effect::Access { access: Arc::new(access), is_followed: false });
    }

    /// The directory holds this.
    pub(super) fn adopt(
        &mut self,
        settings: &BTreeMap<String, String>,
        users: &Users,
        workers: usize,
        effects: &mut Vec<Effect>,
    ) {
        let was_told = std::mem::replace(&mut self.is_told, true);
        if self.take_settings(settings, effects) || !was_told {
            self.tell_settings(workers, effects);
        }
        if self.users.as_ref() != Some(users) {
            self.users = Some(users.clone());
            effects.push(Effect::Access { access: Arc::new(Access::new(users.clone())), is_followed: true });
        }
    }

    /// Whether these differ from those in use. Those of a version that knows more are not used.
    fn take_settings(&mut self, pairs: &BTreeMap<String, String>, effects: &mut Vec<Effect>) -> bool {
        if *pairs == self.pairs {
            return false;
        }
        self.pairs = pairs.clone();
        let Ok(settings) = ClusterSettings::of_pairs(pairs) else {
            effects.push(Effect::SettingsUnknown);
            return false;
        };
        if settings.feature_level > self.settings.feature_level {
            // Before anything that it brings can come.
            effects.push(Effect::FeatureLevel(settings.feature_level));
        }
        let differ = settings != self.settings;
        self.settings = settings;
        differ
    }

    fn tell_settings(&self, workers: usize, effects: &mut Vec<Effect>) {
        let settings = Arc::new(WorkerSettings::of(&self.settings, self.is_told));
        let tell = |worker| Effect::Worker(worker, worker::Input::Settings(Arc::clone(&settings)));
        effects.extend((0..workers).map(tell));
    }
}

#[cfg(test)]
mod tests {
    use coppice_client::wire::{MapVersion, NodeId};
    use coppice_ordering::Time;

    use super::super::{Controller, Input};
    use super::*;

    /// What a controller with one worker wants, in words.
    fn tell(controller: &mut Controller, input: Input) -> Vec<String> {
        let mut effects = Vec::new();
        controller.step(Time(1), input, &mut effects);
        let said = |effect: &Effect| match effect {
            Effect::Worker(_, worker::Input::Settings(settings)) => {
                Some(format!("window {}, told {}", settings.group.window, settings.sessions.is_some()))
            }
            Effect::SettingsUnknown => Some("unknown settings".into()),
            Effect::Access { is_followed, .. } => Some(format!("users, followed {is_followed}")),
            Effect::Map(map) => Some(format!("map {}", map.version)),
            _ => None,
        };
        effects.iter().filter_map(said).collect()
    }

    fn identity(kept: Option<Arc<ClusterState>>) -> Input {
        Input::Identity { node: NodeId(1), kept, seeds: Vec::new() }
    }

    fn state(version: u64, settings: &[(&str, &str)]) -> Arc<ClusterState> {
        let settings = settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let map = PartitionMap { version: MapVersion(version), ..PartitionMap::default() };
        Arc::new(ClusterState { map, settings, users: Users::default() })
    }

    #[test]
    fn settings_and_users_come_before_the_map_and_what_is_kept_counts_as_not_told() {
        let mut node = Controller::new(1);
        let kept = state(3, &[("window", "7")]);
        let begins = tell(&mut node, identity(Some(Arc::clone(&kept))));
        assert_eq!(begins, ["window 7, told false", "users, followed false"]);
        assert_eq!(tell(&mut node, Input::Map(Arc::new(kept.map.clone()))), ["map 3"]);
        assert!(tell(&mut node, Input::Adopt(state(2, &[]))).is_empty(), "it is older");
        assert_eq!(tell(&mut node, Input::Adopt(Arc::clone(&kept))), ["window 7, told true"]);
        assert!(tell(&mut node, Input::Adopt(kept)).is_empty());
        assert_eq!(tell(&mut node, Input::Adopt(state(4, &[("window", "9")]))), ["window 9, told true", "map 4"]);
    }

    #[test]
    fn a_node_that_kept_nothing_knows_no_users_until_it_is_told_that_there_are_none() {
        let mut node = Controller::new(1);
        assert_eq!(tell(&mut node, identity(None)), ["users, followed false"]);
        let first = tell(&mut node, Input::Adopt(state(1, &[("future", "1")])));
        let window = ClusterSettings::default().window;
        assert_eq!(
            first,
            ["unknown settings", &format!("window {window}, told true"), "users, followed true", "map 1"]
        );
        assert_eq!(node.cluster_state(), *state(1, &[("future", "1")]), "passed on as the directory has it");
    }
}
