//! The same interface as `shared`, on `std::sync::Arc` and without hints: what the unsafe module is measured against.

use std::ops::{Deref, Range};
use std::sync::Arc;

#[derive(Clone, Debug)]
pub(crate) struct Shared<T>(Arc<T>);

impl<T> Shared<T> {
    #[inline]
    pub fn new(value: T) -> Self {
        Self(Arc::new(value))
    }

    #[inline]
    pub fn prefetch(&self, _lines: Range<usize>) {}
}

impl<T: Clone> Shared<T> {
    #[inline]
    pub fn own(&mut self) -> &mut T {
        Arc::make_mut(&mut self.0)
    }

    pub fn into_inner(self) -> T {
        Arc::unwrap_or_clone(self.0)
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}
