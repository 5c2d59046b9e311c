//! The pairs of a range that own their bytes, as a stream.

use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use coppice_btree::Value;
use futures_core::Stream;
use futures_core::stream::FusedStream;

use super::RangeStream;
use crate::error::Result;

/// The pairs of a range, each with a key and a value of its own: see [`RangeStream::pairs`]. It ends behind the last
/// pair or behind an error. Dropping it ends the reading.
#[derive(Debug)]
pub struct Pairs(State);

/// Gives the range back, and whether there is a chunk.
type Waiting = Pin<Box<dyn Future<Output = (Box<RangeStream>, Result<bool>)> + Send>>;

/// Who has the range.
enum State {
    /// This stream does: the next pair may be at hand.
    Here(Box<RangeStream>),
    /// The next chunk is waited for, and the range comes back with it; `false`: there is none.
    Waits(Waiting),
    /// Nobody: all pairs were given out, or an error was.
    Over,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            State::Here(range) => f.debug_tuple("Here").field(range).finish(),
            State::Waits(_) => f.write_str("Waits"),
            State::Over => f.write_str("Over"),
        }
    }
}

impl Pairs {
    pub(super) fn new(range: RangeStream) -> Pairs {
        Pairs(State::Here(Box::new(range)))
    }

    /// What is known without waiting: a pair, an error, or the end; none: a chunk has to come.
    fn at_hand(range: &mut RangeStream) -> Option<Result<Option<(Value, Value)>>> {
        // A range that counts gives no pairs out.
        let counts = range.counts();
        while range.is_at_hand() {
            match range.pair_at_hand() {
                Ok(Some(_)) if counts => {}
                pair => return Some(pair.map(|pair| pair.map(|(key, value)| (key.into(), value.into())))),
            }
        }
        None
    }
}

impl Stream for Pairs {
    type Item = Result<(Value, Value)>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            match &mut self.0 {
                State::Over => return Poll::Ready(None),
                State::Here(range) => match Pairs::at_hand(range) {
                    Some(Ok(Some(pair))) => return Poll::Ready(Some(Ok(pair))),
                    Some(end) => {
                        self.0 = State::Over;
                        return Poll::Ready(end.transpose());
                    }
                    None => {
                        let State::Here(mut range) = mem::replace(&mut self.0, State::Over) else { continue };
                        self.0 = State::Waits(Box::pin(async move {
                            let more = range.next_chunk().await;
                            (range, more)
                        }));
                    }
                },
                State::Waits(chunk) => {
                    let (range, more) = ready!(chunk.as_mut().poll(cx));
                    self.0 = State::Over;
                    match more {
                        Ok(true) => self.0 = State::Here(range),
                        Ok(false) => {}
                        Err(error) => return Poll::Ready(Some(Err(error))),
                    }
                }
            }
        }
    }
}

impl FusedStream for Pairs {
    fn is_terminated(&self) -> bool {
        matches!(self.0, State::Over)
    }
}
