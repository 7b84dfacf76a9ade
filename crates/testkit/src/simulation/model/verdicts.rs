//! Whether a scheduler's decision follows from the attempt's outcome.

use redrive_core::Disposition;
use redrive_core::Moment;
use redrive_core::disposition::RetryAdvice;
use redrive_core::event::DeadReason;
use redrive_core::observe::Outcome;
use redrive_core::queue_entry::EventChange;
use redrive_core::scheduler::AttemptEnd;

use super::Check;
use crate::simulation::plan::QueueSetup;

/// The outcome of an attempt, and when it ended.
#[derive(Debug, Clone)]
pub(in super::super) struct Word {
    pub(in super::super) end: AttemptEnd,
    pub(in super::super) attempt: u32,
    pub(in super::super) at: Moment,
    pub(in super::super) expires: Option<Moment>,
}

/// Whether a change follows from the attempt's outcome.
pub(in super::super) fn check_verdict(word: &Word, change: &EventChange, setup: &QueueSetup) -> Check {
    let outcome = match word.end {
        AttemptEnd::Outcome(outcome) => outcome,
        AttemptEnd::Panicked => Outcome::from(setup.panics),
        AttemptEnd::Undecodable => {
            let dead = matches!(change, EventChange::Dead { reason: DeadReason::Undecodable, progress, .. }
                if progress.attempts + 1 == word.attempt);
            return is(dead, word, change);
        }
        AttemptEnd::NotKept => {
            let put_off = matches!(change, EventChange::Retry(next)
                if next.attempts + 1 == word.attempt && next.due > word.at && next.crash_count == 0);
            return is(put_off, word, change);
        }
        AttemptEnd::Released => {
            return is(matches!(change, EventChange::Retry(next) if next.suspect), word, change);
        }
        _ => return is(false, word, change),
    };
    let fits = match (outcome, change) {
        (Outcome::Classified(Disposition::Ok), EventChange::Done) => word.attempt == 1,
        (Outcome::Classified(Disposition::Ok), EventChange::DoneWith { attempts, .. })
        | (Outcome::Classified(Disposition::Drop), EventChange::Dropped { attempts, .. }) => {
            *attempts == word.attempt
        }
        (Outcome::Classified(Disposition::Permanent(_)), EventChange::Dead { reason, .. }) => {
            matches!(reason, DeadReason::Permanent | DeadReason::Panicked)
        }
        (Outcome::Unclassified, EventChange::Dead { reason, .. }) => *reason == DeadReason::Unclassified,
        (Outcome::Classified(Disposition::Retry(again)), change) => {
            is_retried(word, Some(again), change, setup)
        }
        (Outcome::TimedOut, change) => is_retried(word, None, change, setup),
        _ => false,
    };
    is(fits, word, change)
}

fn is_retried(word: &Word, again: Option<RetryAdvice>, change: &EventChange, setup: &QueueSetup) -> bool {
    match change {
        EventChange::Retry(next) => {
            let asked = again.and_then(|again| again.not_before).unwrap_or_default();
            next.attempts == word.attempt
                && word.attempt < setup.attempts
                && next.due >= word.at + asked
                && !next.suspect
                && next.crash_count == 0
        }
        EventChange::Expired { .. } => word.expires.is_some(),
        EventChange::Dead { reason, progress, .. } => {
            progress.attempts == word.attempt
                && match reason {
                    DeadReason::AttemptsSpent => word.attempt >= setup.attempts,
                    DeadReason::TimeSpent => setup.time.is_some(),
                    DeadReason::BudgetSpent => again.is_some(),
                    _ => false,
                }
        }
        _ => false,
    }
}

fn is(fits: bool, word: &Word, change: &EventChange) -> Check {
    if fits {
        return Ok(());
    }
    Err(format!("attempt {} said {:?}, and is settled as {change:?}", word.attempt, word.end))
}
