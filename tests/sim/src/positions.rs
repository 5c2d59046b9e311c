//! How far answers have seen each partition: no read that is asked later sees less (I17 of hazards.md 4).

use std::collections::BTreeMap;

use coppice_client::wire::{PartitionId, Position};

use super::found::{Found, broken};

/// The highest answered place of each partition.
#[derive(Clone, Debug, Default)]
pub struct Positions(BTreeMap<PartitionId, (u64, u32)>);

impl Positions {
    /// Something was answered there.
    pub fn raise(&mut self, answered: &[Position]) {
        for at in answered {
            let highest = self.0.entry(at.partition).or_default();
            *highest = (*highest).max((at.instance, at.index));
        }
    }

    /// A read that was asked when these were the highest is answered there. `exactly`: as of a ticket's place; else the
    /// read saw all of the instance.
    pub fn allow(&self, answered: &[Position], exactly: bool) -> Found {
        for at in answered {
            let seen = (at.instance, if exactly { at.index } else { u32::MAX });
            if let Some(highest) = self.0.get(&at.partition).filter(|highest| **highest > seen) {
                let what = format!("a read is answered at {at}, and {highest:?} was answered before it was asked");
                return broken("I17 a read goes back", what);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_below_what_was_answered_before_it_is_found() {
        let at = |instance, index| [Position { partition: PartitionId(2), instance, index }];
        let mut positions = Positions::default();
        positions.raise(&at(7, 3));
        positions.raise(&at(6, 9));
        assert!(positions.allow(&at(6, 9), false).is_err());
        assert!(positions.allow(&at(7, 0), false).is_ok(), "it saw all of its instance");
        assert!(positions.allow(&at(7, 0), true).is_err(), "a part is as of its ticket");
        assert!(positions.allow(&at(7, 4), true).is_ok());
        assert!(positions.allow(&[Position { partition: PartitionId(1), instance: 1, index: 0 }], true).is_ok());
    }
}
