//! A range that is compared with what its reader holds.

use std::sync::Arc;

use super::{Range, RangeStream};
use crate::error::{Error, Reason, Result};
use crate::handle::Handle;
use crate::wire::{Position, Stretch, Ticket};

/// What is read of a range that is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read<'a> {
    /// A pair.
    Pair(&'a [u8], &'a [u8]),
    /// The pairs of the stretch with this number, from 0, as the reader holds them.
    Same(usize),
    /// No more of the partition before, if there was one: what follows is of the next one.
    Partition,
}

/// A range that is being read and compared: see [`Client::compare`](crate::Client::compare). What it gives, with the
/// pairs of the stretches that are the same, is the range in key order. Dropping it ends the reading.
#[derive(Debug)]
pub struct ComparedRange {
    stream: RangeStream,
    stretches: Arc<[Stretch]>,
    /// Number of the first stretch of which nothing was said.
    next: usize,
    /// Partitions that have begun.
    partitions: usize,
}

impl ComparedRange {
    pub(crate) async fn begin(handle: Handle, range: Range, stretches: Arc<[Stretch]>) -> Result<ComparedRange> {
        let ascend = |pair: &[Stretch]| pair[0].high.as_ref().is_some_and(|high| *high <= pair[1].low);
        let is_some = |stretch: &Stretch| stretch.high.as_ref().is_none_or(|high| stretch.low < *high);
        if !(stretches.windows(2).all(ascend) && stretches.iter().all(is_some)) {
            return Err(Error::failed(Reason::Invalid));
        }
        let held = (!stretches.is_empty()).then(|| Arc::clone(&stretches));
        let stream = RangeStream::begin(handle, range, held).await?;
        Ok(ComparedRange { stream, stretches, next: 0, partitions: 0 })
    }

    /// What comes next, or none at the end. Without an answer from the server this ends within the timeout.
    ///
    /// # Errors
    /// As [`RangeStream::next`].
    pub async fn next(&mut self) -> Result<Option<Read<'_>>> {
        loop {
            let partitions = std::mem::replace(&mut self.partitions, self.stream.positions().len());
            if partitions < self.partitions {
                return Ok(Some(Read::Partition));
            }
            let Some(compared) = self.stream.compared.take() else {
                if self.stream.is_at_hand() {
                    break;
                }
                if !self.stream.next_chunk().await? {
                    return Ok(None);
                }
                continue;
            };
            let number = usize::try_from(compared.number).unwrap_or(usize::MAX);
            let stretch = self.stretches.get(number).filter(|_| number >= self.next);
            // One that is not the same may lie behind the reader: its server heard of it late, and had sent its pairs.
            let is_behind = |stretch: &Stretch| self.stream.any && self.stream.last[..] >= stretch.low[..];
            let Some(stretch) = stretch.filter(|stretch| !(compared.same && is_behind(stretch))) else {
                return Err(Error::failed(Reason::Incompatible("a node compared what it was not told".into())));
            };
            self.next = number + 1;
            if compared.same {
                // What follows lies behind it.
                self.stream.last.clear();
                self.stream.last.extend_from_slice(&stretch.low);
                self.stream.any = true;
                return Ok(Some(Read::Same(number)));
            }
        }
        Ok(self.stream.pair_at_hand()?.map(|(key, value)| Read::Pair(key, value)))
    }

    /// As [`RangeStream::positions`].
    pub fn positions(&self) -> &[Position] {
        self.stream.positions()
    }

    /// As [`RangeStream::ticket`].
    pub fn ticket(&self) -> Option<Ticket> {
        self.stream.ticket()
    }
}
