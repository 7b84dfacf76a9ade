//! Whether what a scheduler decides is what the attempt said.

use redrive_core::Disposition;
use redrive_core::Moment;
use redrive_core::disposition::Again;
use redrive_core::entry::Change;
use redrive_core::event::DeadReason;
use redrive_core::observe::Outcome;
use redrive_core::scheduler::Said;

use super::Check;
use crate::simulation::plan::QueueSetup;

/// What an attempt said, and when.
#[derive(Debug, Clone)]
pub(in super::super) struct Word {
    pub(in super::super) said: Said,
    pub(in super::super) attempt: u32,
    pub(in super::super) at: Moment,
    pub(in super::super) expires: Option<Moment>,
}

/// Whether a change follows from what the attempt said.
pub(in super::super) fn check_verdict(word: &Word, change: &Change, setup: &QueueSetup) -> Check {
    let outcome = match word.said {
        Said::Outcome(outcome) => outcome,
        Said::Panicked => Outcome::from(setup.panics),
        Said::Undecodable => {
            let dead = matches!(change, Change::Dead { reason: DeadReason::Undecodable, progress, .. }
                if progress.attempts + 1 == word.attempt);
            return is(dead, word, change);
        }
        Said::NotKept => {
            let put_off = matches!(change, Change::Again(next)
                if next.attempts + 1 == word.attempt && next.due > word.at && next.strikes == 0);
            return is(put_off, word, change);
        }
        Said::Released => return is(matches!(change, Change::Again(next) if next.suspect), word, change),
        _ => return is(false, word, change),
    };
    let fits = match (outcome, change) {
        (Outcome::Said(Disposition::Ok), Change::Done) => word.attempt == 1,
        (Outcome::Said(Disposition::Ok), Change::DoneWith { attempts, .. })
        | (Outcome::Said(Disposition::Discard), Change::Dropped { attempts, .. }) => {
            *attempts == word.attempt
        }
        (Outcome::Said(Disposition::Permanent(_)), Change::Dead { reason, .. }) => {
            matches!(reason, DeadReason::Permanent | DeadReason::Panicked)
        }
        (Outcome::Unclassified, Change::Dead { reason, .. }) => *reason == DeadReason::Unclassified,
        (Outcome::Said(Disposition::Retry(again)), change) => is_retried(word, Some(again), change, setup),
        (Outcome::TimedOut, change) => is_retried(word, None, change, setup),
        _ => false,
    };
    is(fits, word, change)
}

fn is_retried(word: &Word, again: Option<Again>, change: &Change, setup: &QueueSetup) -> bool {
    match change {
        Change::Again(next) => {
            let asked = again.and_then(|again| again.not_before).unwrap_or_default();
            next.attempts == word.attempt
                && word.attempt < setup.attempts
                && next.due >= word.at + asked
                && !next.suspect
                && next.strikes == 0
        }
        Change::Expired { .. } => word.expires.is_some(),
        Change::Dead { reason, progress, .. } => {
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

fn is(fits: bool, word: &Word, change: &Change) -> Check {
    if fits {
        return Ok(());
    }
    Err(format!("attempt {} said {:?}, and is settled as {change:?}", word.attempt, word.said))
}
