//! Ranges: bounds, and the stream that reads them part by part.
//!
//! A range is one moment: inside one partition by protocol.md 7, over several because nothing changed while they were
//! read (`Config::optimistic_scans`) or by a ticket (protocol.md 4). A stale one over several is read partition by
//! partition, each at its own position. What arrives is checked: inside the bounds, in order, in sequence.

mod compared;
mod pairs;

use std::future::poll_fn;
use std::ops::{RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};
use std::sync::Arc;

use bytes::Bytes;
pub use compared::{ComparedRange, Read};
use coppice_btree::Value;
pub use pairs::Pairs;

use crate::command::{RangeCall, ReadMode};
use crate::error::{Error, Reason, Result};
use crate::handle::Handle;
use crate::session::Request;
use crate::shared::Chunk;
use crate::wire::{Compared, Part, PartCursor, PartEnd, Position, ScanOptions, Stretch, Ticket};

/// Which keys to read, and how. Made from any of Rust's ranges of byte strings: `"a".."c"`, `"a"..="c"`, `.."c"`, `..`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    low: Bytes,
    high: Option<Bytes>,
    scan: ScanOptions,
    mode: Option<ReadMode>,
}

/// The first key behind `key`.
fn behind(key: &[u8]) -> Bytes {
    let mut next = Vec::with_capacity(key.len() + 1);
    next.extend_from_slice(key);
    next.push(0);
    Bytes::from(next)
}

impl Range {
    /// A range with these bounds.
    pub fn new(bounds: impl Into<Range>) -> Range {
        bounds.into()
    }

    /// The keys from `low` to before `high`; none: to the end.
    pub fn between(low: &[u8], high: Option<&[u8]>) -> Range {
        let (low, high) = (Bytes::copy_from_slice(low), high.map(Bytes::copy_from_slice));
        Range { low, high, scan: ScanOptions::default(), mode: None }
    }

    /// The keys that begin with `prefix`.
    ///
    /// ```
    /// use coppice_client::Range;
    /// assert_eq!(Range::prefix("user/"), Range::new("user/".."user0"));
    /// ```
    pub fn prefix(prefix: impl AsRef<[u8]>) -> Range {
        let prefix = prefix.as_ref();
        let mut high = prefix.to_vec();
        // The first string that is above all of them: cut the trailing 0xff, count the last byte up.
        while high.last() == Some(&0xff) {
            high.pop();
        }
        match high.last_mut() {
            None => Range::between(prefix, None),
            Some(last) => {
                *last += 1;
                Range::between(prefix, Some(&high))
            }
        }
    }

    /// From the high end down.
    #[must_use]
    pub fn reverse(self) -> Range {
        Range { scan: ScanOptions { reverse: true, ..self.scan }, ..self }
    }

    /// Leaves the values out.
    #[must_use]
    pub fn keys_only(self) -> Range {
        Range { scan: ScanOptions { keys_only: true, ..self.scan }, ..self }
    }

    /// Reads no pairs, only how many there are: [`RangeStream::count`].
    #[must_use]
    pub fn count_only(self) -> Range {
        Range { scan: ScanOptions { count_only: true, ..self.scan }, ..self }
    }

    /// So many pairs at most; 0: no limit.
    #[must_use]
    pub fn limit(self, pairs_max: u64) -> Range {
        Range { scan: ScanOptions { pairs_max, ..self.scan }, ..self }
    }

    /// The most pairs; 0: no limit.
    pub(crate) fn pairs_max(&self) -> u64 {
        self.scan.pairs_max
    }

    /// So many bytes of keys and values at most, though at least one pair; 0: no limit.
    #[must_use]
    pub fn limit_bytes(self, bytes_max: u64) -> Range {
        Range { scan: ScanOptions { bytes_max, ..self.scan }, ..self }
    }

    /// The decided state of replicas drawn at random: no real-time order, none across partitions.
    #[must_use]
    pub fn stale(self) -> Range {
        self.mode(ReadMode::Stale)
    }

    /// Served in this way instead of the client's.
    #[must_use]
    pub fn mode(self, mode: ReadMode) -> Range {
        Range { mode: Some(mode), ..self }
    }

    /// The rest of the range behind `key`, in its direction: for pages. The pages are not one moment.
    #[must_use]
    pub fn after(self, key: impl AsRef<[u8]>) -> Range {
        let key = key.as_ref();
        if self.scan.reverse {
            let high = match &self.high {
                Some(high) if &**high <= key => self.high.clone(),
                _ => Some(Bytes::copy_from_slice(key)),
            };
            return Range { high, ..self };
        }
        let low = behind(key).max(self.low.clone());
        Range { low, ..self }
    }

    /// First key.
    pub fn low(&self) -> &[u8] {
        &self.low
    }

    /// First key beyond; none: the end of the key space.
    pub fn high(&self) -> Option<&[u8]> {
        self.high.as_deref()
    }

    /// Whether the servers count. With a limit of bytes the client does: only with the pairs at hand is it known where
    /// the bytes of several parts reach it.
    fn is_counted(&self) -> bool {
        self.scan.count_only && self.scan.bytes_max == 0
    }

    fn is_empty(&self) -> bool {
        self.high.as_ref().is_some_and(|high| *high <= self.low)
    }
}

impl<K: AsRef<[u8]>> From<std::ops::Range<K>> for Range {
    fn from(range: std::ops::Range<K>) -> Range {
        Range::between(range.start.as_ref(), Some(range.end.as_ref()))
    }
}

impl<K: AsRef<[u8]>> From<RangeInclusive<K>> for Range {
    fn from(range: RangeInclusive<K>) -> Range {
        Range::between(range.start().as_ref(), Some(&behind(range.end().as_ref())))
    }
}

impl<K: AsRef<[u8]>> From<RangeFrom<K>> for Range {
    fn from(range: RangeFrom<K>) -> Range {
        Range::between(range.start.as_ref(), None)
    }
}

impl<K: AsRef<[u8]>> From<RangeTo<K>> for Range {
    fn from(range: RangeTo<K>) -> Range {
        Range::between(&[], Some(range.end.as_ref()))
    }
}

impl<K: AsRef<[u8]>> From<RangeToInclusive<K>> for Range {
    fn from(range: RangeToInclusive<K>) -> Range {
        Range::between(&[], Some(&behind(range.end.as_ref())))
    }
}

impl From<RangeFull> for Range {
    fn from(_: RangeFull) -> Range {
        Range::between(&[], None)
    }
}

/// A range that is being read. Dropping it ends the reading.
pub struct RangeStream {
    handle: Handle,
    /// What is left to read, beyond what `slot` is reading.
    rest: Option<Range>,
    /// What `slot` is reading.
    current: Range,
    /// The reading that is under way.
    slot: Option<u32>,
    /// The chunk that pairs are taken from.
    chunk: Option<PartCursor>,
    /// What the reader holds of it.
    stretches: Option<Arc<[Stretch]>>,
    /// What the last chunk says of a stretch.
    compared: Option<Compared>,
    /// The last key given out.
    last: Vec<u8>,
    any: bool,
    pairs: u64,
    bytes: u64,
    positions: Vec<Position>,
    ticket: Option<Ticket>,
    limited: bool,
}

impl std::fmt::Debug for RangeStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RangeStream")
            .field("current", &self.current)
            .field("pairs", &self.pairs)
            .finish_non_exhaustive()
    }
}

impl RangeStream {
    pub(crate) async fn begin(handle: Handle, range: Range, stretches: Option<Arc<[Stretch]>>) -> Result<RangeStream> {
        let mut stream = RangeStream {
            handle,
            rest: None,
            current: range.clone(),
            slot: None,
            chunk: None,
            stretches,
            compared: None,
            last: Vec::new(),
            any: false,
            pairs: 0,
            bytes: 0,
            positions: Vec::new(),
            ticket: None,
            limited: false,
        };
        if !range.is_empty() {
            stream.rest = Some(range);
            stream.ask().await?;
        }
        Ok(stream)
    }

    /// Begins to read the next piece of what is left.
    async fn ask(&mut self) -> Result<()> {
        let Some(rest) = self.rest.take() else { return Ok(()) };
        let mode = rest.mode.unwrap_or(self.handle.reads());
        let map = self.handle.map().await?;
        let covers = map.cover(&rest.low, rest.high.as_deref());
        let cut_up = covers.len() > 1 && mode == ReadMode::Stale;
        let (mut piece, mut left) = (rest.clone(), None);
        if let (true, Some(entry)) = (cut_up, if rest.scan.reverse { covers.last() } else { covers.first() }) {
            if rest.scan.reverse {
                piece.low = entry.low.clone();
                left = Some(Range { high: Some(entry.low.clone()), ..rest });
            } else if let Some(boundary) = &entry.high {
                piece.high = Some(boundary.clone());
                left = Some(Range { low: boundary.clone(), ..rest });
            }
        }
        let left_of = |limit: u64, used: u64| limit.saturating_sub(if limit > 0 { used } else { 0 });
        let scan = ScanOptions {
            count_only: piece.is_counted(),
            pairs_max: left_of(piece.scan.pairs_max, self.pairs),
            bytes_max: left_of(piece.scan.bytes_max, self.bytes),
            ..piece.scan
        };
        let high = piece.high.as_deref().map(Value::from);
        let stretches = self.stretches.clone();
        let call = RangeCall { low: piece.low[..].into(), high, scan, mode, stretches };
        self.rest = left;
        self.current = piece;
        self.slot = Some(self.handle.shared().range(self.handle.deadline(), Request::Range(call)).await?);
        Ok(())
    }

    /// The next pair, or none at the end. Without an answer from the server this ends within the timeout.
    ///
    /// # Errors
    /// [`Reason::Interrupted`] if the connection was lost after something was given out; [`Range::after`] the last key
    /// goes on, at another moment.
    pub async fn next(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        if self.counts() {
            self.count().await?;
            return Ok(None);
        }
        self.next_pair().await
    }

    async fn next_pair(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        while !self.is_at_hand() {
            if !self.next_chunk().await? {
                return Ok(None);
            }
        }
        self.pair_at_hand()
    }

    /// Whether the next pair, or the end, is known without waiting.
    fn is_at_hand(&self) -> bool {
        self.is_full() || self.chunk.as_ref().is_some_and(|chunk| !chunk.is_done())
    }

    /// The next pair of the chunk that is being read, or none at a limit.
    fn pair_at_hand(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        if self.is_full() {
            self.stop();
            return Ok(None);
        }
        let (reverse, any) = (self.current.scan.reverse, self.any);
        let Some((key, value)) = self.chunk.as_mut().and_then(PartCursor::next_pair) else { return Ok(None) };
        let in_order = !any || if reverse { *key < *self.last } else { *key > *self.last };
        let inside = key >= &*self.current.low && self.current.high.as_ref().is_none_or(|high| key < &**high);
        if !in_order || !inside {
            return Err(Error::failed(Reason::Incompatible("a node sent keys out of order or bounds".into())));
        }
        self.last.clear();
        self.last.extend_from_slice(key);
        self.any = true;
        self.pairs += 1;
        self.bytes += (key.len() + value.len()) as u64;
        Ok(Some((key, value)))
    }

    /// Waits for the next chunk; `false` at the end of everything.
    async fn next_chunk(&mut self) -> Result<bool> {
        loop {
            if let Some(chunk) = self.chunk.take()
                && let Some(slot) = self.slot
            {
                self.handle.shared().credit(slot, chunk.body_bytes() as u32);
            }
            let Some(slot) = self.slot else {
                if self.rest.is_none() {
                    return Ok(false);
                }
                self.ask().await?;
                continue;
            };
            let shared = self.handle.shared().clone();
            match poll_fn(|cx| shared.next_part(slot, cx)).await {
                Ok(part) => {
                    self.take(part)?;
                    return Ok(true);
                }
                Err(end) => {
                    self.slot = None;
                    self.end(end)?;
                }
            }
        }
    }

    fn take(&mut self, (body, as_of): Chunk) -> Result<()> {
        let invalid = |_| Error::failed(Reason::Incompatible("a node sent a part that is none".into()));
        let part = Part::decode(&body).map_err(invalid)?;
        let same = |last: &Position| last.partition == part.position.partition;
        if part.number == 0 || !self.positions.last().is_some_and(same) {
            let position = as_of.unwrap_or(part.position);
            // A part of a query stands exactly at its ticket.
            self.positions.push(if part.ticket.is_some() { position } else { position.whole() });
        }
        if part.end == Some(PartEnd::Limited) {
            self.limited = true;
        }
        if part.ticket.is_some() {
            self.ticket = part.ticket;
        }
        self.compared = part.compared;
        if self.current.is_counted() && part.end.is_some() {
            self.pairs += part.pairs_so_far;
        }
        self.chunk = Some(PartCursor::new(body).map_err(invalid)?);
        Ok(())
    }

    /// Whether a limit is reached. Every part of a query keeps the limits for itself; here they hold for the whole.
    fn is_full(&self) -> bool {
        self.current.scan.is_reached(self.pairs, self.bytes)
    }

    /// A limit ends it here.
    fn stop(&mut self) {
        self.limited = true;
        (self.rest, self.chunk) = (None, None);
        if let Some(slot) = self.slot.take() {
            self.handle.shared().drop_range(slot);
        }
    }

    /// One piece is over.
    fn end(&mut self, end: crate::shared::Outcome) -> Result<()> {
        match end {
            Ok(_) => {
                if self.limited || self.is_full() {
                    self.limited |= self.rest.is_some();
                    self.rest = None;
                }
                Ok(())
            }
            Err(Error::Failed(mut failure)) => {
                let stale = self.current.mode.unwrap_or(self.handle.reads()) == ReadMode::Stale;
                if failure.reason == Reason::SpansPartitions && stale {
                    // A split came in between: cut anew.
                    let (low, high) = (&self.current.low, &self.current.high);
                    let rest = match (&self.rest, self.current.scan.reverse) {
                        (None, _) => self.current.clone(),
                        (Some(rest), false) => Range { low: low.clone(), ..rest.clone() },
                        (Some(rest), true) => Range { high: high.clone(), ..rest.clone() },
                    };
                    self.rest = Some(rest);
                    return Ok(());
                }
                if let Reason::Interrupted { last } = &mut failure.reason {
                    *last = self.any.then(|| Bytes::copy_from_slice(&self.last));
                }
                self.rest = None;
                Err(Error::Failed(failure))
            }
            Err(error) => Err(error),
        }
    }

    /// Reads to the end and returns the number of pairs: of those read, or of a [`Range::count_only`] those counted.
    ///
    /// # Errors
    /// As [`RangeStream::next`].
    pub async fn count(&mut self) -> Result<u64> {
        while self.next_pair().await?.is_some() {}
        if self.current.scan.pairs_max > 0 {
            self.pairs = self.pairs.min(self.current.scan.pairs_max);
        }
        Ok(self.pairs)
    }

    /// The pairs that are left as a [`futures_core::Stream`], each with a key and a value of its own: for the adapters
    /// of `futures` and `tokio-stream`. Strings of more than 15 bytes cost an allocation, which [`RangeStream::next`]
    /// does not need.
    ///
    /// ```no_run
    /// # async fn example(client: coppice_client::Client) -> coppice_client::error::Result<()> {
    /// use futures_util::TryStreamExt;
    /// let fruit = client.range("a".."n").await?.pairs();
    /// let red: Vec<_> = fruit.try_filter(|(_, colour)| std::future::ready(colour == "red")).try_collect().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn pairs(self) -> Pairs {
        Pairs::new(self)
    }

    /// Whether it counts instead of giving pairs out.
    fn counts(&self) -> bool {
        self.current.scan.count_only
    }

    /// Where it was read: one position per partition so far, in the order of reading. None of the partitions that a
    /// limit left unread.
    pub fn positions(&self) -> &[Position] {
        &self.positions
    }

    /// The ticket that makes the positions one moment (protocol.md 4); none: none was needed, since nothing changed
    /// while they were read or it lies in one partition, or it is stale, or gave nothing out yet.
    pub fn ticket(&self) -> Option<Ticket> {
        self.ticket
    }

    /// Whether a limit ended it: there may be more [`Range::after`] [`RangeStream::last_key`].
    pub fn is_limited(&self) -> bool {
        self.limited
    }

    /// The last key given out.
    pub fn last_key(&self) -> Option<&[u8]> {
        self.any.then_some(&*self.last)
    }
}

impl Drop for RangeStream {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            self.handle.shared().drop_range(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounds(range: &Range) -> (&[u8], Option<&[u8]>) {
        (range.low(), range.high())
    }

    #[test]
    fn bounds_mean_what_rust_ranges_mean() {
        assert_eq!(bounds(&Range::new("a".."c")), (&b"a"[..], Some(&b"c"[..])));
        assert_eq!(bounds(&Range::new("a"..="c")), (&b"a"[..], Some(&b"c\0"[..])));
        assert_eq!(bounds(&Range::new("a"..)), (&b"a"[..], None));
        assert_eq!(bounds(&Range::new(.."c")), (&b""[..], Some(&b"c"[..])));
        assert_eq!(bounds(&Range::new(..="c")), (&b""[..], Some(&b"c\0"[..])));
        assert_eq!(bounds(&Range::new(..)), (&b""[..], None));
        assert_eq!(bounds(&Range::prefix(b"ab")), (&b"ab"[..], Some(&b"ac"[..])));
        assert_eq!(bounds(&Range::prefix(b"a\xff")), (&b"a\xff"[..], Some(&b"b"[..])));
        assert_eq!(bounds(&Range::prefix(b"\xff\xff")), (&b"\xff\xff"[..], None));
        assert_eq!(bounds(&Range::prefix(b"")), (&b""[..], None));
    }

    #[test]
    fn a_page_goes_on_behind_the_last_key_in_its_direction() {
        assert_eq!(bounds(&Range::new("a".."c").after(b"b")), (&b"b\0"[..], Some(&b"c"[..])));
        assert_eq!(bounds(&Range::new("a".."c").reverse().after(b"b")), (&b"a"[..], Some(&b"b"[..])));
        assert_eq!(bounds(&Range::new("b".."c").after(b"a")), (&b"b"[..], Some(&b"c"[..])));
        assert_eq!(bounds(&Range::new("a".."c").reverse().after(b"d")), (&b"a"[..], Some(&b"c"[..])));
    }
}
