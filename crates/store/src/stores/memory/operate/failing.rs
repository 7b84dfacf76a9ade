//! Retrying events: in groups, and counted.

use std::collections::BTreeMap;

use crate::operate::{Failed, FailingGroup, FailingQuery, Failings, Retrying};
use crate::stores::memory::state::State;

impl State {
    pub(in crate::stores::memory) fn failing(&self, query: &FailingQuery) -> Vec<FailingGroup> {
        let mut failings = Failings::of(query);
        for row in self.rows.iter().map(|(_, row)| row).filter(|row| row.is_retrying()) {
            let (event, progress) = (&row.entry.event, &row.entry.progress);
            if !query.is_of(&event.queue, &event.tenant) {
                continue;
            }
            if !failings.may_look() {
                break;
            }
            failings.add(&Failed {
                queue: &event.queue,
                is_ordered: row.chain.is_some(),
                history: progress.history.as_deref(),
                started: progress.started.unwrap_or(progress.due),
                due: progress.due,
                attempts: progress.attempts,
            });
        }
        failings.end()
    }

    pub(in crate::stores::memory) fn retrying(&self) -> Vec<Retrying> {
        let mut queues: BTreeMap<&str, Retrying> = BTreeMap::new();
        for row in self.rows.iter().map(|(_, row)| row) {
            let progress = &row.entry.progress;
            if !row.lives() || progress.attempts == 0 {
                continue;
            }
            let (queue, since) = (&row.entry.event.queue, progress.started.unwrap_or(progress.due));
            let one = Retrying { queue: queue.clone(), events: 0, since };
            let one = queues.entry(queue).or_insert(one);
            one.events += 1;
            one.since = one.since.min(since);
        }
        queues.into_values().collect()
    }
}
