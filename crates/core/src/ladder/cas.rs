//! Compare and set: load, change, store if unchanged, and start again on a conflict.
//!
//! A conflict is definite: another writer was faster, and nothing was written. A lost answer is not, and three rules
//! decide what follows it:
//!
//! - **The target remembers operations** (a row, a value or a server keeps the operation's id, and later writers
//!   preserve it): the same store is repeated. It answers "already", or stores, or meets a conflict that is definite.
//! - **It forgets, and versions are monotonic**: the same store is repeated. If it succeeds, the lost one did not
//!   happen and never will, because its version is gone. A conflict is [`CasNext::Unknown`]: the lost store or another
//!   writer may have caused it.
//! - **It forgets, and versions are opaque**: the outcome is unknown at once. A version may return (ABA), so a store
//!   that succeeds proves nothing about the lost one.
//!
//! *What a weaker rule breaks:* A writes 6 over 5 and its answer is lost, B writes 7, A meets a conflict, loads 7 and
//! writes 8. A's increment took effect twice.

use std::time::Duration;

use crate::disposition::{Executed, Fault};
use crate::random::RandomSource;
use crate::{Backoff, Jitter};

/// What the versions of a target promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Versions {
    /// A version never returns, not even after the value was deleted and inserted again.
    Monotonic,
    /// Versions can only be compared for equality, and one may return: ETags, hashes of the content.
    Opaque,
}

/// What a target promises about lost answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CasPromise {
    /// What its versions promise.
    pub versions: Versions,
    /// Whether it remembers the ids of operations, in the commit that applies them, and longer than callers repeat
    /// them.
    pub remembers: bool,
}

/// The answer to a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CasAnswer {
    /// It is written.
    Written,
    /// The target remembers that this operation was applied before, and wrote nothing.
    Already,
    /// The version is another one, and nothing was written.
    Conflict,
    /// The store failed; the fault says whether it may have been written.
    Failed(Fault),
}

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CasNext {
    /// The change is applied, once.
    Applied,
    /// Wait this long, then load, change and store.
    Reload(Duration),
    /// Wait this long, then repeat the same store: same version, same value, same operation.
    Repeat(Duration),
    /// The bound is reached, and the change is certainly not applied.
    GaveUp,
    /// Another attempt will not help, and the change is certainly not applied.
    Refused,
    /// It cannot be determined whether the change was applied.
    Unknown,
}

/// How often, and how fast: the bound of a loop and its waits.
///
/// ```
/// use redrive_core::ladder::cas::CasSettings;
///
/// let patient = CasSettings { attempts: 200, ..CasSettings::default() };
/// # assert!(patient.attempts > CasSettings::default().attempts);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct CasSettings {
    /// How many loads and stores at most, of either kind. Default: 50, so that ten writers of one value practically
    /// never reach it.
    pub attempts: u32,
    /// The waits between them. Default: from 1 ms, doubling, up to 100 ms: a conflict means that another writer is
    /// done, so a short wait is enough.
    pub backoff: Backoff,
    /// Default: full, so that writers that met do not meet again.
    pub jitter: Jitter,
}

impl Default for CasSettings {
    fn default() -> Self {
        let backoff = Backoff::exponential(Duration::from_millis(1), 2.0, Duration::from_millis(100));
        Self { attempts: 50, backoff, jitter: Jitter::Full }
    }
}

/// One change on its way through conflicts.
///
/// ```
/// use redrive_core::ladder::cas::{CasAnswer, CasNext, CasPromise, CasRun, CasSettings, Versions};
/// use redrive_core::{Fault, SeededRandom};
///
/// let (settings, mut random) = (CasSettings::default(), SeededRandom::new(1));
/// let forgets = CasPromise { versions: Versions::Monotonic, remembers: false };
/// let mut run = CasRun::new(&settings, forgets);
/// let lost = CasAnswer::Failed(Fault::transient());
/// assert!(matches!(run.stored(lost, &mut random), CasNext::Repeat(_)));
/// assert_eq!(run.stored(CasAnswer::Conflict, &mut random), CasNext::Unknown);
/// ```
#[derive(Debug)]
pub struct CasRun<'a> {
    settings: &'a CasSettings,
    promise: CasPromise,
    attempts: u32,
    waited: Duration,
    /// Whether a store whose answer was lost may have been applied, or may still be.
    in_doubt: bool,
}

impl<'a> CasRun<'a> {
    /// The first attempt is about to begin.
    #[must_use]
    pub const fn new(settings: &'a CasSettings, promise: CasPromise) -> Self {
        Self { settings, promise, attempts: 1, waited: Duration::ZERO, in_doubt: false }
    }

    /// Attempts so far, including the present one.
    #[must_use]
    pub const fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Whether a store whose answer was lost may have been applied, or may still be.
    #[must_use]
    pub const fn is_in_doubt(&self) -> bool {
        self.in_doubt
    }

    /// A load failed.
    pub fn load_failed(&mut self, fault: Fault, random: &mut impl RandomSource) -> CasNext {
        match fault {
            Fault::Retry(again) => self.again(again.not_before, random, CasNext::Reload),
            Fault::Permanent(_) if self.in_doubt => CasNext::Unknown,
            Fault::Permanent(_) => CasNext::Refused,
        }
    }

    /// A store was answered, or its answer was lost.
    pub fn stored(&mut self, answer: CasAnswer, random: &mut impl RandomSource) -> CasNext {
        match answer {
            CasAnswer::Written | CasAnswer::Already => CasNext::Applied,
            CasAnswer::Conflict if self.in_doubt && !self.promise.remembers => CasNext::Unknown,
            CasAnswer::Conflict => {
                // The lost store may still be on its way. A monotonic version that is gone keeps it out; an opaque one
                // may return, and then the target applies it, once.
                self.in_doubt &= self.promise.versions == Versions::Opaque;
                self.again(None, random, CasNext::Reload)
            }
            CasAnswer::Failed(fault) => self.failed(fault, random),
        }
    }

    fn failed(&mut self, fault: Fault, random: &mut impl RandomSource) -> CasNext {
        let (executed, retry) = match fault {
            Fault::Retry(again) => (again.executed, Some(again.not_before)),
            Fault::Permanent(executed) => (executed, None),
        };
        if executed == Executed::Unknown {
            self.in_doubt = true;
            let tells = self.promise.remembers || self.promise.versions == Versions::Monotonic;
            if !tells {
                return CasNext::Unknown;
            }
            // A permanent failure of unknown effect is repeated as well: the repetition finds out.
            return self.again(retry.flatten(), random, CasNext::Repeat);
        }
        match retry {
            Some(not_before) => self.again(not_before, random, CasNext::Repeat),
            None if self.in_doubt => CasNext::Unknown,
            None => CasNext::Refused,
        }
    }

    /// Another attempt after a wait, within the bound.
    fn again(
        &mut self,
        not_before: Option<Duration>,
        random: &mut impl RandomSource,
        next: impl FnOnce(Duration) -> CasNext,
    ) -> CasNext {
        if self.attempts >= self.settings.attempts {
            return if self.in_doubt { CasNext::Unknown } else { CasNext::GaveUp };
        }
        let CasSettings { backoff, jitter, .. } = self.settings;
        let floor = not_before.unwrap_or_default();
        self.waited = jitter.draw_from(floor, backoff, self.attempts, self.waited, random);
        self.attempts += 1;
        next(self.waited)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SeededRandom;

    const LOST: CasAnswer = CasAnswer::Failed(Fault::transient());
    const DOWN: CasAnswer = CasAnswer::Failed(Fault::transient().not_executed());
    const BAD: CasAnswer = CasAnswer::Failed(Fault::permanent().not_executed());
    use CasAnswer::{Already, Conflict, Written};

    /// What follows these answers, without the waits.
    fn after(versions: Versions, remembers: bool, answers: &[CasAnswer]) -> &'static str {
        let settings = CasSettings { attempts: 4, ..CasSettings::default() };
        let mut run = CasRun::new(&settings, CasPromise { versions, remembers });
        let mut random = SeededRandom::new(1);
        let mut last = CasNext::Reload(Duration::ZERO);
        for answer in answers {
            assert!(matches!(last, CasNext::Reload(_) | CasNext::Repeat(_)), "ended before {answer:?}");
            last = run.stored(*answer, &mut random);
        }
        match last {
            CasNext::Applied => "applied",
            CasNext::Reload(_) => "reload",
            CasNext::Repeat(_) => "repeat",
            CasNext::GaveUp => "gave up",
            CasNext::Refused => "refused",
            CasNext::Unknown => "unknown",
        }
    }

    #[test]
    fn a_conflict_after_a_lost_answer_is_unknown_unless_the_operation_is_remembered() {
        use Versions::{Monotonic, Opaque};
        for (versions, remembers, answers, want) in [
            (Monotonic, false, &[Written][..], "applied"),
            (Monotonic, false, &[Conflict, Written], "applied"),
            (Monotonic, false, &[Conflict], "reload"),
            (Monotonic, false, &[LOST], "repeat"),
            (Monotonic, false, &[LOST, Written], "applied"),
            (Monotonic, false, &[LOST, Conflict], "unknown"),
            (Monotonic, false, &[LOST, DOWN, Conflict], "unknown"),
            (Monotonic, true, &[LOST, Conflict], "reload"),
            (Monotonic, true, &[LOST, Already], "applied"),
            (Monotonic, true, &[LOST, Conflict, Conflict], "reload"),
            (Opaque, false, &[Conflict, Written], "applied"),
            (Opaque, false, &[LOST], "unknown"),
            (Opaque, true, &[LOST], "repeat"),
            (Opaque, true, &[LOST, Already], "applied"),
            (Opaque, true, &[LOST, Conflict], "reload"),
            (Monotonic, false, &[DOWN], "repeat"),
            (Monotonic, false, &[BAD], "refused"),
            (Monotonic, false, &[LOST, BAD], "unknown"),
        ] {
            assert_eq!(after(versions, remembers, answers), want, "{versions:?} {remembers} {answers:?}");
        }
    }

    #[test]
    fn the_bound_ends_it_and_says_whether_the_outcome_is_known() {
        use Versions::Monotonic;
        assert_eq!(after(Monotonic, false, &[Conflict; 4]), "gave up");
        assert_eq!(after(Monotonic, false, &[DOWN; 4]), "gave up");
        assert_eq!(after(Monotonic, false, &[LOST; 4]), "unknown");
        assert_eq!(after(Monotonic, true, &[LOST, LOST, LOST, Conflict]), "gave up");
        assert_eq!(after(Versions::Opaque, true, &[LOST, Conflict, Conflict, Conflict]), "unknown");
    }

    #[test]
    fn waits_are_spread_and_never_shorter_than_asked_for() {
        let settings = CasSettings::default();
        let promise = CasPromise { versions: Versions::Monotonic, remembers: true };
        let mut random = SeededRandom::new(7);
        let mut run = CasRun::new(&settings, promise);
        let waits: Vec<_> = (0..20)
            .map(|_| match run.stored(Conflict, &mut random) {
                CasNext::Reload(wait) => wait,
                other => panic!("{other:?}"),
            })
            .collect();
        assert!(waits.windows(2).filter(|pair| pair[0] != pair[1]).count() > 15, "{waits:?}");
        let asked = Fault::overload().not_before(Duration::from_secs(3));
        let CasNext::Reload(wait) = run.load_failed(asked, &mut random) else { panic!("not again") };
        assert!(wait >= Duration::from_secs(3));
    }
}
