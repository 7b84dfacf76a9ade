//! Atomics and shared ownership from `std`, or from loom when a model of the lock-free parts is checked.

#[cfg(loom)]
pub(crate) use loom::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
#[cfg(not(loom))]
pub(crate) use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// Changes a word by compare-and-set until it succeeds. `next` returns the new word, or `Err` to leave it
/// unchanged.
pub(crate) fn change<T, X>(word: &AtomicU64, next: impl Fn(u64) -> Result<(u64, T), X>) -> Result<T, X> {
    let mut seen = word.load(Ordering::Acquire);
    loop {
        let (new, answer) = next(seen)?;
        if new == seen {
            return Ok(answer);
        }
        match word.compare_exchange_weak(seen, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return Ok(answer),
            Err(now) => seen = now,
        }
    }
}
