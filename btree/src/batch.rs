//! Many commands at once, with the results of one by one.
//!
//! Commands on different keys do not see each other, so they may be executed in the order of their keys: neighbours
//! then meet the same nodes while these are near. Commands on one key keep their order.

use crate::op::{Op, OpResult};
use crate::tree::Tree;
use crate::undo::Undo;

impl Tree {
    /// Executes `ops` and appends to `results` one result each, in the order of `ops`. Results, content and what undo
    /// takes back are those of [`Tree::execute`] one by one; the order of the undo records is not.
    pub fn execute_batch(&mut self, ops: &[Op<'_>], results: &mut Vec<OpResult>, undo: &mut Undo) {
        for op in ops {
            results.push(self.execute(*op, undo));
        }
    }
}
