//! The way of a question to the leader of the directory, from whichever node has it.

use std::ops::ControlFlow;
use std::time::Duration;

use coppice_client::wire::NodeId;

/// Between two tries, while no leader is known or the last one did not answer as was wanted.
const RETRY: Duration = Duration::from_millis(5);

/// Who answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectoryLeader {
    /// This node.
    Here,
    /// Another one.
    On(NodeId),
}

/// Who leads the directory, as node `own` knows.
///
/// # Errors
/// In words: it knows of none.
pub fn directory_leader(own: Option<NodeId>, known: Option<NodeId>) -> Result<DirectoryLeader, String> {
    match known {
        None => Err("no leader of the directory is known: a majority of its nodes must be up".into()),
        leader if leader == own => Ok(DirectoryLeader::Here),
        Some(leader) => Ok(DirectoryLeader::On(leader)),
    }
}

/// The leader did not answer as was wanted: the pause before it is looked for again, or why there is no answer. `left`:
/// until whoever asks waits no longer.
pub fn ask_directory_again(reason: String, left: Duration) -> ControlFlow<String, Duration> {
    if left > RETRY { ControlFlow::Continue(RETRY) } else { ControlFlow::Break(reason) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_leader_of_the_directory_is_asked_wherever_it_is() {
        let (own, other) = (NodeId(1), NodeId(2));
        assert_eq!(directory_leader(Some(own), Some(own)), Ok(DirectoryLeader::Here));
        assert_eq!(directory_leader(Some(own), Some(other)), Ok(DirectoryLeader::On(other)));
        assert_eq!(directory_leader(None, Some(other)), Ok(DirectoryLeader::On(other)));
        assert!(directory_leader(Some(own), None).is_err());
        assert!(directory_leader(None, None).is_err(), "a process without an identity does not lead");
    }

    #[test]
    fn it_is_asked_again_until_the_time_is_over() {
        assert_eq!(ask_directory_again("late".into(), RETRY * 2), ControlFlow::Continue(RETRY));
        assert_eq!(ask_directory_again("late".into(), Duration::ZERO), ControlFlow::Break("late".into()));
    }
}
