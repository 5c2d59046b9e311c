//! Steps that the directory has yet to decide.

use crate::machine::directory::DirectoryCommand;

/// Steps that the directory was asked for and that are not decided yet. Asked for again at each look, they stand in the
/// queue behind themselves, and where it decides more slowly than its leader looks, what is next is never reached.
#[derive(Debug, Default)]
pub struct PendingDecisions(Vec<DirectoryCommand>);

impl PendingDecisions {
    /// Whether to ask for this step now: it is not on its way.
    pub fn begin(&mut self, command: &DirectoryCommand) -> bool {
        if self.0.contains(command) && !mutant!(steps_queue_up) {
            return false;
        }
        self.0.push(command.clone());
        true
    }

    /// Whether the directory has yet to answer it.
    pub fn contains(&self, command: &DirectoryCommand) -> bool {
        self.0.contains(command)
    }

    /// It is decided, or was refused, or nobody knows.
    pub fn end(&mut self, command: &DirectoryCommand) {
        if let Some(at) = self.0.iter().position(|asked| asked == command) {
            self.0.remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use coppice_client::wire::PartitionId;

    use super::*;
    use crate::machine::directory::Reshape;

    fn gone(partition: u32) -> DirectoryCommand {
        DirectoryCommand::Reshape(Reshape::Gone { partition: PartitionId(partition) })
    }

    /// Seed 101609: one command in a batch and one batch at a time, each flushed in 60 ms: at every look two steps more
    /// were asked for, and a move waited for its turn behind hundreds of them.
    #[test]
    fn a_step_that_is_not_decided_yet_is_not_asked_for_again() {
        let mut deciding = PendingDecisions::default();
        let begin = |deciding: &mut PendingDecisions, partition| deciding.begin(&gone(partition));
        assert_eq!([1, 1, 2].map(|partition| begin(&mut deciding, partition)), [true, false, true]);
        deciding.end(&gone(1));
        assert_eq!([1, 2].map(|partition| begin(&mut deciding, partition)), [true, false]);
    }

    #[cfg(feature = "mutants")]
    #[test]
    fn a_step_that_is_asked_for_at_every_look_is_caught() {
        let test = "reshape::deciding::tests::a_step_that_is_not_decided_yet_is_not_asked_for_again";
        planted::assert_caught("steps_queue_up", test);
    }
}
