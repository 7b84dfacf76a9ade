//! The engine's metrics.

use std::time::Duration;

use metrics::{Counter, Histogram, counter, gauge, histogram};
use redrive_core::event::check_queue_name;
use redrive_core::names::{label, metric};
use redrive_core::queue_entry::{EventChange, EventProgress};
use redrive_core::scheduler::{EndedAttempt, SettledEvent};
use redrive_core::{Event, Executed};
use redrive_store::{PublishError, Published};

/// The dispositions that are counted separately.
const SAID: [&str; 7] = ["ok", "retry", "permanent", "drop", "unclassified", "timeout", "panic"];

/// The counters of a queue's attempts. The handles are made once, so that an attempt costs no lookup.
pub(in crate::engine) struct Meters {
    lateness: Histogram,
    took: Histogram,
    said: [(&'static str, Counter); 7],
}

impl std::fmt::Debug for Meters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Meters")
    }
}

impl Meters {
    pub(in crate::engine) fn of(queue: &str) -> Self {
        let queue = || (label::QUEUE, queue.to_owned());
        let said = |said: &'static str| {
            (said, counter!(metric::ATTEMPTS, &[queue(), (label::DISPOSITION, said.to_owned())]))
        };
        Self {
            lateness: histogram!(metric::LATENESS_SECONDS, &[queue()]),
            took: histogram!(metric::ATTEMPT_SECONDS, &[queue()]),
            said: SAID.map(said),
        }
    }

    pub(in crate::engine) fn started(&self, late: impl FnOnce() -> Duration) {
        self.lateness.record(late());
    }

    pub(in crate::engine) fn ended(&self, ended: &EndedAttempt) {
        let word = ended.end.as_str();
        if let Some((_, counter)) = self.said.iter().find(|(said, _)| *said == word) {
            counter.increment(1);
            self.took.record(ended.took);
        }
    }
}

/// The name of a queue, kept for after its event is gone.
pub(in crate::engine) type Name = String;

/// The name of an event's queue. An invalid name is not worth a label.
pub(in crate::engine) fn name_of(event: &Event) -> Name {
    check_queue_name(&event.queue).map_or_else(|_| "?".to_owned(), |()| event.queue.clone())
}

pub(in crate::engine) fn published(queue: &Name, answer: &Result<Published, PublishError>) {
    let result = match answer {
        Ok(Published::Accepted(_)) => "accepted",
        Ok(Published::Duplicate(_)) => "duplicate",
        Err(_) => "refused",
    };
    counter!(metric::PUBLISHED, label::QUEUE => queue.clone(), label::RESULT => result).increment(1);
    if result == "duplicate" {
        counter!(metric::DUPLICATES, label::PLACE => "publish").increment(1);
    }
}

/// A former owner's write was refused and changed nothing: its event belongs to the new owner.
pub(in crate::engine) fn fenced() {
    counter!(metric::FENCED).increment(1);
    counter!(metric::DUPLICATES, label::PLACE => "fence").increment(1);
}

/// A handler marked an id in its inbox, for the first time or not.
pub(in crate::engine) fn marked(is_first: bool) {
    if !is_first {
        counter!(metric::DUPLICATES, label::PLACE => "inbox").increment(1);
    }
}

/// How many shards of a shared store this process owns.
pub(in crate::engine) fn owned(owner: &str, shards: usize) {
    let shards = u32::try_from(shards).unwrap_or(u32::MAX);
    gauge!(metric::SHARDS, label::OWNER => owner.to_owned()).set(f64::from(shards));
}

/// How many shards have work and stand still.
pub(in crate::engine) fn stalled_shards(shards: usize) {
    let shards = u32::try_from(shards).unwrap_or(u32::MAX);
    gauge!(metric::STALLED_SHARDS).set(f64::from(shards));
}

/// A shard was taken over from an owner that did not hand it back, or not as clean.
pub(in crate::engine) fn taken_over() {
    counter!(metric::TAKE_OVERS).increment(1);
}

pub(super) fn told(queue: &str, told: &SettledEvent) {
    let queue = queue.to_owned();
    match &told.change {
        EventChange::Retry(progress) => {
            let class = class(progress);
            counter!(metric::RETRIES, label::QUEUE => queue.clone(), label::CLASS => class).increment(1);
            histogram!(metric::RETRY_DELAY_SECONDS, label::QUEUE => queue).record(progress.previous);
        }
        EventChange::DoneWith { attempts, .. } if *attempts > 1 => {
            counter!(metric::SUCCESS_AFTER_RETRY, label::QUEUE => queue).increment(1);
        }
        EventChange::Dead { reason, progress, .. } => {
            let reason = reason.as_str();
            if class(progress) == "unknown" {
                counter!(metric::DEAD_UNKNOWN, label::QUEUE => queue.clone()).increment(1);
            }
            counter!(metric::DEAD, label::QUEUE => queue, label::REASON => reason).increment(1);
        }
        EventChange::Dropped { .. } => counter!(metric::DROPPED, label::QUEUE => queue).increment(1),
        EventChange::Expired { .. } => counter!(metric::EXPIRED, label::QUEUE => queue).increment(1),
        _ => {}
    }
}

/// Why a retry may help: `unknown` if the previous attempt may have had its effect.
fn class(progress: &EventProgress) -> &'static str {
    let last = progress.history.as_deref().and_then(|history| history.records().next_back());
    match last.and_then(|record| record.executed) {
        Some(Executed::Unknown) => "unknown",
        _ => "transient",
    }
}

#[cfg(test)]
mod tests {
    use metrics_util::debugging::DebuggingRecorder;

    use super::*;

    #[test]
    fn a_fenced_settle_is_a_duplicate_too() {
        let recorder = DebuggingRecorder::new();
        let snapshotter = recorder.snapshotter();
        metrics::with_local_recorder(&recorder, fenced);
        let counters = snapshotter.snapshot().into_vec();
        let names: Vec<_> = counters.iter().map(|(key, ..)| key.key().to_string()).collect();
        assert!(names.iter().any(|name| name.contains("redrive_fenced_total")), "{names:?}");
        assert!(
            names.iter().any(|name| name.contains("duplicates_total") && name.contains("fence")),
            "{names:?}"
        );
    }
}
