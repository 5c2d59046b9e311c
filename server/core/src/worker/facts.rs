//! What a worker has yet to hear of the world: who answers, who leads where, what there is room for.

use std::collections::BTreeMap;

use coppice_client::wire::{NodeId, PartitionId};

use super::{Input, Resources, Worker};

impl Worker {
    /// What of this is news, as inputs. Its driver asks once a turn or more often: no news costs no allocation.
    ///
    /// `answers`: whether each of the other nodes answers on its connection. `leaders`: who leads each group, as far as
    /// this node knows; none: that is as it was when this was asked last.
    pub fn news(
        &self,
        answers: impl Iterator<Item = (NodeId, bool)>,
        leaders: Option<&BTreeMap<PartitionId, NodeId>>,
        resources: Resources,
    ) -> Vec<Input> {
        let (cluster, mut news) = (&self.cluster, Vec::new());
        let changed = answers.filter(|(node, answers)| cluster.answering.contains(node) != *answers);
        news.extend(changed.map(|(node, answers)| Input::Answers(node, answers)));
        if let Some(leaders) = leaders {
            let new = leaders.iter().filter(|(group, leader)| cluster.leaders.get(group) != Some(leader));
            news.extend(new.map(|(&group, &leader)| Input::Leader(group, Some(leader))));
            let gone = cluster.leaders.keys().filter(|group| !leaders.contains_key(group));
            news.extend(gone.map(|&group| Input::Leader(group, None)));
        }
        if resources != *self.admission.known() {
            news.push(Input::Resources(resources));
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use coppice_ordering::Time;

    use super::*;

    #[test]
    fn a_worker_hears_what_has_changed_and_nothing_twice() {
        let (n2, n3, group) = (NodeId(2), NodeId(3), PartitionId(1));
        let mut worker = Worker::new(0, 1);
        let mut tell = |answers: [(NodeId, bool); 2], leaders: Option<&[(PartitionId, NodeId)]>, log_is_stuck| {
            let leaders = leaders.map(|leaders| leaders.iter().copied().collect());
            let resources = Resources { log_is_stuck, ..Resources::default() };
            let news = worker.news(answers.into_iter(), leaders.as_ref(), resources);
            let said = |input: &Input| match input {
                Input::Answers(node, answers) => format!("{node} {answers}"),
                Input::Leader(group, leader) => format!("{group} {leader:?}"),
                Input::Resources(resources) => format!("stuck {}", resources.log_is_stuck),
                _ => "something else".into(),
            };
            let words: Vec<String> = news.iter().map(said).collect();
            news.into_iter().for_each(|input| worker.step(Time(1), input, &mut Vec::new()));
            words
        };
        assert!(tell([(n2, false), (n3, false)], Some(&[]), false).is_empty());
        let all = tell([(n2, true), (n3, false)], Some(&[(group, n2)]), true);
        assert_eq!(all, ["n2 true".to_owned(), format!("{group} {:?}", Some(n2)), "stuck true".into()]);
        assert!(tell([(n2, true), (n3, false)], None, true).is_empty());
        assert_eq!(tell([(n2, false), (n3, false)], Some(&[]), true), ["n2 false".to_owned(), format!("{group} None")]);
    }
}
