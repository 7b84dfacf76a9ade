//! What follows an attempt: the engine's own decision, in the words of a source.

use std::sync::Arc;
use std::time::Duration;

use redrive_core::event::DeadReason;
use redrive_core::queue_entry::{EventChange, EventProgress, QueueEntry, Seq, StreamId};
use redrive_core::scheduler::{EndedAttempt, QueuePlan, judge};
use redrive_core::{Event, Moment, RandomSource};

use crate::metadata::Metadata;

/// What follows an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// It is done, or its handler dropped it.
    Done,
    /// Another attempt at `at`.
    Retry {
        /// When.
        at: Moment,
        /// The wait that the policy chose.
        delay: Duration,
        /// The attempts that are charged by now.
        attempts: u32,
    },
    /// It becomes a dead letter.
    Dead {
        /// Why.
        reason: DeadReason,
        /// The attempts made.
        attempts: u32,
    },
    /// Its deadline has passed.
    Expired {
        /// The attempts made.
        attempts: u32,
    },
    /// Nothing: the attempt was abandoned because the process stops.
    Nothing,
}

/// Decides what follows an attempt that began at `began`. A function of its arguments: the same
/// [`judge`] that decides for events in a store.
pub fn decide(
    plan: &QueuePlan,
    metadata: &Metadata,
    began: Moment,
    ended: &EndedAttempt,
    now: Moment,
    random: &mut impl RandomSource,
) -> Decision {
    let entry = entry(plan, metadata, began);
    match judge(plan, &entry, began, ended, now, random) {
        None => Decision::Nothing,
        Some(EventChange::Retry(progress)) => {
            Decision::Retry { at: progress.due, delay: progress.due.since(now), attempts: progress.attempts }
        }
        Some(EventChange::Dead { reason, progress, .. }) => {
            Decision::Dead { reason, attempts: progress.attempts }
        }
        Some(EventChange::Expired { attempts, .. }) => Decision::Expired { attempts },
        Some(_) => Decision::Done,
    }
}

/// The message as an entry of a queue, as far as a decision looks at it.
fn entry(plan: &QueuePlan, metadata: &Metadata, began: Moment) -> QueueEntry {
    let is_first = metadata.attempts == 0;
    QueueEntry {
        seq: Seq(0),
        rev: 0,
        stream: StreamId(0),
        shard: 0,
        published: metadata.first_seen,
        expires: metadata.deadline,
        event: Arc::new(Event::new(&*plan.name, metadata.id.as_str())),
        progress: EventProgress {
            attempts: metadata.attempts,
            mode: metadata.mode,
            started: Some(if is_first { began } else { metadata.first_seen }),
            previous: metadata.delay,
            ..EventProgress::fresh(began)
        },
    }
}
