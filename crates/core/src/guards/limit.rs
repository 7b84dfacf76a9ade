//! A concurrency limit (bulkhead): of fixed width, or adaptive.
//!
//! A full limit does not queue, because a queue in front of a slow downstream causes time-outs. It refuses
//! the attempt immediately as *overload, not executed*, and the policy decides whether to retry later. The
//! refusal counts as an attempt, so a limit that stays full ends like any lasting overload: by the attempts
//! or the budget, and immediately without a budget.
//!
//! The adaptive limit uses additive increase and multiplicative decrease, as TCP does: a full window of
//! successes at the limit widens it by one, an overload or a time-out narrows it by a tenth. It judges by
//! outcomes and not by latency, so it needs no clock. Width and use share one word, so a permit is one
//! compare-and-set and the limit is never exceeded.

use crate::policy::PolicyError;
use crate::sync::{Arc, AtomicU64, Ordering, change};

/// The settings of a [`Limit`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct LimitSettings {
    /// The smallest width, at which an adaptive limit starts; at least 1.
    pub least: u32,
    /// The largest width; equal to `least` for a fixed limit, and at most [`WIDEST`].
    pub most: u32,
}

/// The largest width of a limit: about half a million concurrent calls from one process.
pub const WIDEST: u32 = 1 << 19;

/// A limit on how many attempts run at once, shared by cloning.
///
/// ```
/// use redrive_core::Limit;
///
/// let limit = Limit::fixed(1)?;
/// let permit = limit.acquire().expect("free");
/// assert!(limit.acquire().is_none());
/// drop(permit);
/// assert!(limit.acquire().is_some());
/// # Ok::<(), redrive_core::PolicyError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Limit(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    settings: LimitSettings,
    /// Upper half: the width in steps of 1/4096. Lower half: the permits in use.
    word: AtomicU64,
}

/// What an attempt says about the downstream's load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadSignal {
    /// The downstream coped.
    Fine,
    /// The downstream reported overload or did not answer in time.
    TooMuch,
    /// The attempt says nothing about load: it was abandoned, or failed for another reason.
    Unsaid,
}

const STEP: u64 = 1 << 12;

const fn pack(width: u64, used: u64) -> u64 {
    width << 32 | used
}

const fn unpack(word: u64) -> (u64, u64) {
    (word >> 32, word & 0xffff_ffff)
}

impl Limit {
    /// Exactly `width` at once.
    ///
    /// # Errors
    /// Refuses a width of zero or above [`WIDEST`].
    pub fn fixed(width: u32) -> Result<Self, PolicyError> {
        Self::from_settings(LimitSettings { least: width, most: width })
    }

    /// Between `least` and `most` at once. It starts at `least` and widens while the downstream copes.
    ///
    /// ```
    /// use redrive_core::limit::{Limit, LoadSignal};
    ///
    /// let limit = Limit::adaptive(1, 100)?;
    /// limit.acquire().unwrap().settle(LoadSignal::Fine);
    /// assert_eq!(limit.width(), 2);
    /// limit.acquire().unwrap().settle(LoadSignal::TooMuch);
    /// assert_eq!(limit.width(), 1);
    /// # Ok::<(), redrive_core::PolicyError>(())
    /// ```
    ///
    /// # Errors
    /// Refuses a width of zero or above [`WIDEST`], and `most` below `least`.
    pub fn adaptive(least: u32, most: u32) -> Result<Self, PolicyError> {
        Self::from_settings(LimitSettings { least, most })
    }

    /// As [`adaptive`](Self::adaptive), from settings.
    ///
    /// # Errors
    /// As [`adaptive`](Self::adaptive).
    pub fn from_settings(settings: LimitSettings) -> Result<Self, PolicyError> {
        let LimitSettings { least, most } = settings;
        if least == 0 || most < least || most > WIDEST {
            return Err(PolicyError::Limit { least, most });
        }
        let word = AtomicU64::new(pack(u64::from(least) * STEP, 0));
        Ok(Self(Arc::new(Inner { settings, word })))
    }

    /// A permit, if one is free.
    #[must_use]
    pub fn acquire(&self) -> Option<Permit> {
        change(&self.0.word, |word| {
            let (width, used) = unpack(word);
            if used < width / STEP { Ok((pack(width, used + 1), ())) } else { Err(()) }
        })
        .ok()
        .map(|()| Permit(Some(self.clone())))
    }

    /// How many attempts may run at once now.
    #[must_use]
    pub fn width(&self) -> u64 {
        unpack(self.0.word.load(Ordering::Relaxed)).0 / STEP
    }

    /// How many attempts run now.
    #[must_use]
    pub fn used(&self) -> u64 {
        unpack(self.0.word.load(Ordering::Relaxed)).1
    }

    /// The settings of this limit.
    #[must_use]
    pub fn settings(&self) -> &LimitSettings {
        &self.0.settings
    }

    fn release(&self, load: LoadSignal) {
        let LimitSettings { least, most } = self.0.settings;
        let (least, most) = (u64::from(least) * STEP, u64::from(most) * STEP);
        let _: Result<(), ()> = change(&self.0.word, |word| {
            let (width, used) = unpack(word);
            let width = match load {
                // Widen only while at least half of it is in use; otherwise an idle night would open it fully.
                LoadSignal::Fine if used * 2 >= width / STEP => {
                    (width + (STEP * STEP / width).max(1)).min(most)
                }
                LoadSignal::TooMuch => (width - width / 10).max(least),
                LoadSignal::Fine | LoadSignal::Unsaid => width,
            };
            Ok((pack(width, used.saturating_sub(1)), ()))
        });
    }
}

/// Permission for one attempt to run. Dropping it frees it; [`settle`](Self::settle) also reports how the
/// attempt went.
#[derive(Debug)]
#[must_use = "a permit that is dropped at once limits nothing"]
pub struct Permit(Option<Limit>);

impl Permit {
    /// Frees the permit and reports how the attempt went.
    pub fn settle(mut self, load: LoadSignal) {
        if let Some(limit) = self.0.take() {
            limit.release(load);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(limit) = self.0.take() {
            limit.release(LoadSignal::Unsaid);
        }
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_more_than_its_width_at_once_from_many_threads() {
        let limit = Limit::fixed(3).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        if let Some(permit) = limit.acquire() {
                            assert!(limit.used() <= 3);
                            permit.settle(LoadSignal::Fine);
                        }
                    }
                });
            }
        });
        assert_eq!((limit.used(), limit.width()), (0, 3));
    }

    #[test]
    fn an_adaptive_limit_widens_under_success_and_narrows_under_overload() {
        let limit = Limit::adaptive(2, 50).unwrap();
        for _ in 0..2_000 {
            let permits: Vec<_> = std::iter::from_fn(|| limit.acquire()).collect();
            permits.into_iter().for_each(|permit| permit.settle(LoadSignal::Fine));
        }
        assert_eq!(limit.width(), 50);
        for _ in 0..100 {
            if let Some(permit) = limit.acquire() {
                permit.settle(LoadSignal::TooMuch);
            }
        }
        assert_eq!(limit.width(), 2);
    }

    #[test]
    fn a_wide_one_widens_on() {
        let limit = Limit::adaptive(5_000, 5_002).unwrap();
        for _ in 0..6 {
            let permits: Vec<_> = std::iter::from_fn(|| limit.acquire()).collect();
            permits.into_iter().for_each(|permit| permit.settle(LoadSignal::Fine));
        }
        assert_eq!(limit.width(), 5_002);
    }

    #[test]
    fn an_idle_limit_does_not_widen() {
        let limit = Limit::adaptive(10, 100).unwrap();
        for _ in 0..10_000 {
            limit.acquire().unwrap().settle(LoadSignal::Fine);
        }
        assert_eq!(limit.width(), 10);
    }

    #[test]
    fn nonsense_is_refused() {
        for (least, most) in [(0, 1), (5, 4), (1, WIDEST + 1)] {
            assert!(Limit::adaptive(least, most).is_err(), "{least}..{most}");
        }
    }
}
