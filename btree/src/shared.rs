//! Counted references to nodes, and hints to the memory system: the crate's only unsafe code (style.md 23).
//!
//! `std::sync::Arc` would do, and does with the feature `safe`. What this adds: whether a node has one owner is one
//! load (`Arc::get_mut` locks the line, which holds up every cache miss of the operations around it), and a node can be
//! asked for before it is needed. `btree/benches/README.md` says what that is worth. Run under Miri:
//! `cargo +nightly miri test -p coppice-btree --lib`.
#![allow(unsafe_code)]

use std::fmt;
use std::ops::{Deref, Range};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering, fence};

/// A counted reference to a value that does not change while it has several owners.
///
/// Invariant: `counted` points to a live allocation of a `Box`, whose `owners` is the number of `Shared` that hold it.
pub(crate) struct Shared<T> {
    counted: NonNull<Counted<T>>,
}

// Aligned to cache lines, which the nodes' layouts rely on for speed.
#[repr(C, align(64))]
struct Counted<T> {
    owners: AtomicUsize,
    value: T,
}

// SAFETY: a `Shared` gives out `&T` on every thread that has one (T: Sync), and the last owner, on whichever thread,
// changes or drops the value (T: Send). The count is atomic.
unsafe impl<T: Send + Sync> Send for Shared<T> {}
// SAFETY: through a `&Shared` a thread can get a `&T` and clones, for which the line above holds.
unsafe impl<T: Send + Sync> Sync for Shared<T> {}

impl<T> Shared<T> {
    #[inline]
    pub fn new(value: T) -> Self {
        let counted = Box::new(Counted { owners: AtomicUsize::new(1), value });
        Self { counted: NonNull::from(Box::leak(counted)) }
    }

    #[inline]
    fn counted(&self) -> &Counted<T> {
        // SAFETY: the allocation lives as long as `self` (invariant), and no `&mut` to it exists: `own` borrows the
        // only owner mutably for as long as its result lives.
        unsafe { self.counted.as_ref() }
    }

    /// Whether nothing else holds the value.
    #[inline]
    fn is_only_owner(&self) -> bool {
        // Acquire: what other owners read before they let go of the value happened before we change it.
        self.counted().owners.load(Ordering::Acquire) == 1
    }

    /// Asks for cache lines of the node, without waiting for them. Line 0 holds the owners' count and the value's first
    /// 56 bytes.
    #[inline]
    pub fn prefetch(&self, lines: Range<usize>) {
        let start = self.counted.as_ptr().cast::<u8>();
        for line in lines {
            prefetch_line(start.wrapping_add(64 * line));
        }
    }
}

impl<T: Clone> Shared<T> {
    /// The value, to be changed: itself if it has no other owner, else a copy (reliability.md ST12).
    #[inline]
    pub fn own(&mut self) -> &mut T {
        if !self.is_only_owner() && !mutant!(cow_in_place) {
            *self = Self::new(T::clone(self));
        }
        // SAFETY: there is one owner, which is `self`, borrowed mutably; so nobody else can reach the value or clone
        // its way to it while the result lives. (The mutant breaks this on purpose; it is never in a released program.)
        unsafe { &mut self.counted.as_mut().value }
    }

    /// The value itself, or a copy if it has other owners.
    pub fn into_inner(self) -> T {
        if !self.is_only_owner() {
            return T::clone(&self);
        }
        let counted = std::mem::ManuallyDrop::new(self).counted;
        // SAFETY: the only owner ends here without its `drop`, so the box is taken over exactly once.
        unsafe { Box::from_raw(counted.as_ptr()).value }
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.counted().value
    }
}

impl<T> Clone for Shared<T> {
    #[inline]
    fn clone(&self) -> Self {
        // Relaxed: the new owner comes from an existing one. Overflow would take 2^63 owners that were forgotten.
        let before = self.counted().owners.fetch_add(1, Ordering::Relaxed);
        assert!(before < isize::MAX as usize, "a reference count overflowed");
        Self { counted: self.counted }
    }
}

impl<T> Drop for Shared<T> {
    #[inline]
    fn drop(&mut self) {
        // Release: what this owner read happened before the last owner frees it. The sole owner needs no locked
        // instruction: nobody is left to clone from.
        let owners = &self.counted().owners;
        if owners.load(Ordering::Acquire) != 1 {
            if owners.fetch_sub(1, Ordering::Release) != 1 {
                return;
            }
            fence(Ordering::Acquire);
        }
        // SAFETY: the count is zero, or one and `self` is that one: nothing else reaches the box, and it is freed once.
        drop(unsafe { Box::from_raw(self.counted.as_ptr()) });
    }
}

impl<T: fmt::Debug> fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        T::fmt(self, f)
    }
}

/// Asks for the cache line at `address`, which need not be valid. No effect where there is no such instruction.
#[inline]
fn prefetch_line(address: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: SSE is part of x86-64; a prefetch has no effect but on caches and never faults.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_value_is_dropped_once_with_its_last_owner() {
        let witness = Arc::new(());
        let first = Shared::new(Arc::clone(&witness));
        let second = first.clone();
        drop(first);
        assert_eq!(Arc::strong_count(&witness), 2);
        drop(second);
        assert_eq!(Arc::strong_count(&witness), 1);
    }

    #[test]
    fn a_sole_owner_changes_in_place_and_others_keep_what_they_had() {
        let mut first = Shared::new(vec![1]);
        let place = first.as_ptr();
        first.own()[0] = 2;
        assert_eq!(first.as_ptr(), place);
        let second = first.clone();
        first.own()[0] = 3;
        assert_eq!((first.as_slice(), second.as_slice()), (&[3][..], &[2][..]));
        let third = second.clone();
        assert_eq!((second.into_inner(), third.into_inner()), (vec![2], vec![2]));
    }

    #[test]
    fn owners_come_and_go_on_many_threads() {
        let mut shared = Shared::new(vec![0_u64; 4]);
        std::thread::scope(|scope| {
            for round in 0..50 {
                let held = shared.clone();
                scope.spawn(move || assert!(held.iter().all(|n| *n == held[0] && *n <= round)));
                shared.own().iter_mut().for_each(|n| *n += 1);
            }
        });
        assert_eq!(shared.into_inner(), [50; 4]);
    }
}
