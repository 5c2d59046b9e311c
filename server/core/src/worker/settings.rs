//! What a worker goes by: the cluster's settings, as its replicas and its coordinator use them.

use std::time::Duration;

use coppice_ordering::Settings;
use coppice_ordering::multicast::CoordinatorSettings;
use coppice_ordering::tuning::Limits;

use super::tuning::TuningSettings;
use crate::executor::{ExecutorSettings, STEP_WORK_MAX};
use crate::replica::Replica;
use crate::sessions::SessionLimits;
use crate::settings::ClusterSettings;

/// See the module.
#[derive(Clone, Debug)]
pub struct WorkerSettings {
    /// What nodes may write.
    pub feature_level: u32,
    /// Of each group; the tuning of a group goes on from there.
    pub group: Settings,
    pub tuning: TuningSettings,
    pub executing: ExecutorSettings,
    /// Instances between two digests of a replica.
    pub digest_interval: u64,
    /// None: the directory has not told this node any, and replicas go by what their group agreed on.
    pub sessions: Option<SessionLimits>,
    pub coordinator: CoordinatorSettings,
    /// How long parts of queries wait here for their clients to connect.
    pub responder_connect_timeout: Duration,
}

impl WorkerSettings {
    /// From the cluster's, as the directory has told them, or from the defaults.
    pub fn of(settings: &ClusterSettings, is_told: bool) -> WorkerSettings {
        WorkerSettings {
            feature_level: settings.feature_level,
            group: group_settings(settings),
            tuning: TuningSettings { is_on: settings.auto_tuning, limits: tuning_limits(settings) },
            executing: ExecutorSettings {
                deferred: true,
                step_work_max: STEP_WORK_MAX,
                ..ExecutorSettings::speculating(settings.speculation)
            },
            digest_interval: settings.digest_interval,
            sessions: is_told.then(|| session_limits(settings)),
            coordinator: CoordinatorSettings {
                place_timeout: settings.place_timeout,
                ..CoordinatorSettings::default()
            },
            responder_connect_timeout: settings.responder_connect_timeout,
        }
    }

    pub(super) fn apply(&self, replica: &mut Replica) {
        replica.paxos_mut().set_settings(self.group.clone());
        replica.executor_mut().set_speculation(self.executing.speculation);
        replica.set_digest_interval(self.digest_interval);
        if let Some(limits) = self.sessions {
            replica.set_session_limits(limits);
        }
    }
}

impl Default for WorkerSettings {
    fn default() -> WorkerSettings {
        WorkerSettings::of(&ClusterSettings::default(), false)
    }
}

fn group_settings(settings: &ClusterSettings) -> Settings {
    Settings {
        batch_bytes_max: settings.batch_bytes_max as usize,
        batch_delay_max: settings.batch_delay_max,
        window: settings.window,
        window_bytes_max: settings.window_bytes_max as usize,
        heartbeat_interval: settings.heartbeat_interval,
        quiesce_heartbeat_interval: settings.quiesce_heartbeat_interval,
        election_timeout: settings.election_timeout,
        apply_lag_max: u64::from(settings.apply_lag_max),
        ..Settings::default()
    }
}

/// The limits that `settings` leave: a value that was set stays, the others are chosen (operations.md 3).
fn tuning_limits(settings: &ClusterSettings) -> Limits {
    let (free, standard) = (Limits::default(), ClusterSettings::default());
    let bytes = |set: u64| (set as usize, set as usize);
    Limits {
        batch_bytes: match settings.batch_bytes_max {
            set if set == standard.batch_bytes_max => free.batch_bytes,
            set => bytes(set),
        },
        window: match settings.window {
            set if set == standard.window => free.window,
            set => (set, set),
        },
        window_bytes: match settings.window_bytes_max {
            set if set == standard.window_bytes_max => free.window_bytes,
            set => bytes(set),
        },
        batch_delay_max: settings.batch_delay_max,
    }
}

fn session_limits(settings: &ClusterSettings) -> SessionLimits {
    SessionLimits {
        expiry_instances: settings.session_expiry,
        sessions_max: settings.sessions_max as usize,
        bytes_max: settings.session_bytes_max as usize,
        ..SessionLimits::default()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use coppice_client::wire::PartitionId;
    use coppice_ordering::Time;

    use super::*;
    use crate::request::{Origin, Refusal, Reply, Request};
    use crate::worker::hosting::{begins, leads_alone};
    use crate::worker::{Effect, Input, Worker};

    fn settings(window: u32) -> Input {
        let settings = ClusterSettings { window, place_timeout: Duration::from_secs(9), ..ClusterSettings::default() };
        Input::Settings(Arc::new(WorkerSettings::of(&settings, true)))
    }

    #[test]
    fn replicas_that_are_here_and_those_to_come_go_by_the_settings() {
        let (mut worker, mut effects) = (Worker::new(0, 1), Vec::new());
        let window =
            |worker: &Worker| worker.groups().values().map(|group| group.replica.paxos().settings().window).max();
        worker.step(Time(1), settings(7), &mut effects);
        worker.step(Time(2), begins(PartitionId(1), 3), &mut effects);
        assert_eq!(window(&worker), Some(7));
        worker.step(Time(3), settings(9), &mut effects);
        assert_eq!(window(&worker), Some(9));
    }

    /// A node of an older version would take such an entry of the log for nothing, and its state would differ.
    #[test]
    fn what_old_nodes_do_not_know_is_refused_until_the_feature_level_says_that_there_are_none() {
        let group = PartitionId(1);
        let mut worker = leads_alone(group);
        let mut is_refused = |feature_level: u32| {
            let settings = ClusterSettings { feature_level, ..ClusterSettings::default() };
            let mut effects = Vec::new();
            let now = worker.deadline().unwrap_or_default();
            worker.step(now, Input::Settings(Arc::new(WorkerSettings::of(&settings, true))), &mut effects);
            let origin = Origin::Client { worker: 0, stream: 1, connection: 1 };
            let entry = crate::machine::entry::open(coppice_client::wire::ClientId(1), 1);
            let request = Request::Pack { entry, commands: 1, work: 8, grows: true, known: false, timed: false };
            worker.step(now, Input::Request { group, origin, request }, &mut effects);
            let refused =
                |effect: &Effect| matches!(effect, Effect::Reply { reply: Reply::Refused(Refusal::FeatureLevel), .. });
            effects.iter().any(refused)
        };
        assert!(is_refused(1) && !is_refused(2));
    }

    #[cfg(feature = "mutants")]
    #[test]
    fn a_replica_that_goes_by_the_settings_of_before_is_caught() {
        let test = "worker::settings::tests::replicas_that_are_here_and_those_to_come_go_by_the_settings";
        planted::assert_caught("settings_of_before", test);
    }
}
