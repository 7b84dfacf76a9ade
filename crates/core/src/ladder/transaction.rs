//! The transaction loop: run the whole body again when the database rolled it back because of a concurrent one.
//!
//! A serialisation failure, a deadlock and a busy file are definite: nothing is committed, and the *whole* body runs
//! again, reads included. A COMMIT whose answer was lost is not: the body runs again only if it begins by writing its
//! own number, so that a second commit is impossible; otherwise the outcome is unknown.
//!
//! *The trap:* an effect outside the database inside the body happens once a run, not once a commit. Put it into the
//! outbox.

use std::time::Duration;

use crate::disposition::Fault;
use crate::random::RandomSource;
use crate::{Backoff, Jitter};

/// How often, and how fast.
#[derive(Debug, Clone, PartialEq)]
pub struct TransactionSettings {
    /// How many runs of the body at most. Default: 30.
    pub runs: u32,
    /// The waits between them. Default: from 20 ms, doubling, up to 1 s: transactions that met should be further apart
    /// than they take.
    pub backoff: Backoff,
    /// Default: full, so that transactions that met do not meet again.
    pub jitter: Jitter,
}

impl Default for TransactionSettings {
    fn default() -> Self {
        let backoff = Backoff::exponential(Duration::from_millis(20), 2.0, Duration::from_secs(1));
        Self { runs: 30, backoff, jitter: Jitter::Full }
    }
}

/// How a run of the body ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BodyEnd {
    /// It is committed.
    Committed,
    /// It failed before COMMIT was sent, so nothing is committed; `None` if the error is the caller's own.
    Failed(Option<Fault>),
    /// COMMIT failed; the fault says whether it may have been committed.
    CommitFailed(Fault),
}

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BodyNext {
    /// It is committed.
    Done,
    /// Wait this long, then run the whole body again.
    Again(Duration),
    /// The bound is reached, and nothing is committed.
    GaveUp,
    /// Another run will not help, and nothing is committed.
    Failed,
    /// It cannot be determined whether it is committed.
    Unknown,
}

/// One transaction on its way through conflicts.
///
/// ```
/// use redrive_core::ladder::transaction::{BodyEnd, BodyNext, TransactionRun, TransactionSettings};
/// use redrive_core::{Fault, SeededRandom};
///
/// let (settings, mut random) = (TransactionSettings::default(), SeededRandom::new(1));
/// let mut run = TransactionRun::new(&settings, false);
/// let conflict = BodyEnd::Failed(Some(Fault::transient().not_executed()));
/// assert!(matches!(run.ended(conflict, &mut random), BodyNext::Again(_)));
/// assert_eq!(run.ended(BodyEnd::CommitFailed(Fault::transient()), &mut random), BodyNext::Unknown);
/// ```
#[derive(Debug)]
pub struct TransactionRun<'a> {
    settings: &'a TransactionSettings,
    /// Whether the body begins by writing its own number.
    numbered: bool,
    runs: u32,
    waited: Duration,
    in_doubt: bool,
}

impl<'a> TransactionRun<'a> {
    /// The first run is about to begin.
    #[must_use]
    pub const fn new(settings: &'a TransactionSettings, numbered: bool) -> Self {
        Self { settings, numbered, runs: 1, waited: Duration::ZERO, in_doubt: false }
    }

    /// Runs so far, including the present one.
    #[must_use]
    pub const fn runs(&self) -> u32 {
        self.runs
    }

    /// A run ended.
    pub fn ended(&mut self, end: BodyEnd, random: &mut impl RandomSource) -> BodyNext {
        match end {
            BodyEnd::Committed => BodyNext::Done,
            BodyEnd::Failed(Some(Fault::Retry(again))) => self.again(again.not_before, random),
            BodyEnd::Failed(_) if self.in_doubt => BodyNext::Unknown,
            BodyEnd::Failed(_) => BodyNext::Failed,
            BodyEnd::CommitFailed(fault) => self.commit_failed(fault, random),
        }
    }

    fn commit_failed(&mut self, fault: Fault, random: &mut impl RandomSource) -> BodyNext {
        use crate::disposition::Executed;
        let (executed, not_before) = match fault {
            Fault::Retry(again) => (again.executed, again.not_before),
            Fault::Permanent(Executed::No) if self.in_doubt => return BodyNext::Unknown,
            Fault::Permanent(Executed::No) => return BodyNext::Failed,
            Fault::Permanent(executed) => (executed, None),
        };
        if executed == Executed::Unknown {
            if !self.numbered {
                return BodyNext::Unknown;
            }
            self.in_doubt = true;
        }
        self.again(not_before, random)
    }

    fn again(&mut self, not_before: Option<Duration>, random: &mut impl RandomSource) -> BodyNext {
        if self.runs >= self.settings.runs {
            return if self.in_doubt { BodyNext::Unknown } else { BodyNext::GaveUp };
        }
        let TransactionSettings { backoff, jitter, .. } = self.settings;
        let floor = not_before.unwrap_or_default();
        self.waited = jitter.draw_from(floor, backoff, self.runs, self.waited, random);
        self.runs += 1;
        BodyNext::Again(self.waited)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SeededRandom;

    const CONFLICT: BodyEnd = BodyEnd::Failed(Some(Fault::transient().not_executed()));
    const OWN: BodyEnd = BodyEnd::Failed(None);
    const CUT: BodyEnd = BodyEnd::CommitFailed(Fault::transient());
    const LATE_CONFLICT: BodyEnd = BodyEnd::CommitFailed(Fault::transient().not_executed());

    #[test]
    fn a_cut_commit_is_unknown_unless_the_body_is_numbered() {
        for (numbered, ends, want) in [
            (false, &[BodyEnd::Committed][..], "done"),
            (false, &[CONFLICT, BodyEnd::Committed], "done"),
            (false, &[CONFLICT, LATE_CONFLICT], "again"),
            (false, &[CUT], "unknown"),
            (false, &[OWN], "failed"),
            (false, &[CONFLICT, CONFLICT, CONFLICT], "gave up"),
            (true, &[CUT], "again"),
            (true, &[CUT, BodyEnd::Committed], "done"),
            (true, &[CUT, OWN], "unknown"),
            (true, &[CUT, CONFLICT, CONFLICT], "unknown"),
        ] {
            let settings = TransactionSettings { runs: 3, ..TransactionSettings::default() };
            let (mut run, mut random) = (TransactionRun::new(&settings, numbered), SeededRandom::new(1));
            let last = ends.iter().map(|end| run.ended(*end, &mut random)).last().unwrap();
            let got = match last {
                BodyNext::Done => "done",
                BodyNext::Again(_) => "again",
                BodyNext::GaveUp => "gave up",
                BodyNext::Failed => "failed",
                BodyNext::Unknown => "unknown",
            };
            assert_eq!(got, want, "{numbered} {ends:?}");
        }
    }
}
