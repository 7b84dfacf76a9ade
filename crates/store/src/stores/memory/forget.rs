//! Deleting expired rows, a slice at a time.

use std::collections::BTreeMap;

use redrive_core::Moment;
use redrive_core::event::State as Where;
use redrive_core::planted::{PlantedBug, has};
use redrive_core::triage::{Operator, Rule};

use super::row::{DedupeRecord, End, Identity, Row};
use super::state::State;
use crate::operate::AuditEntry;

/// How many of each kind one call deletes, so that it stays short.
const SLICE: usize = 1000;

impl State {
    /// Deletes a slice of the expired rows.
    pub(super) fn forget(&mut self, now: Moment) -> usize {
        self.lift_ended(now)
            + self.purge(now)
            + self.forget_receipts(now)
            + self.forget_markers(now)
            + self.forget_groups(now)
            + self.forget_records(now)
    }

    fn lift_ended(&mut self, now: Moment) -> usize {
        let over = self.rules.iter().filter(|(_, control)| control.until.is_some_and(|until| until <= now));
        let over: Vec<Rule> = over.take(SLICE).map(|(rule, _)| rule.clone()).collect();
        for rule in &over {
            if self.lift_rule(rule).is_ok() {
                let note = format!("{}: it expired", rule.word());
                let deed = AuditEntry { verb: "lift", target: rule.target(), count: 1, note };
                self.write_line(Operator::engine(), now, deed);
            }
        }
        over.len()
    }

    /// Purges dead letters beyond what their queue keeps. Dead letters that block their key stay.
    fn purge(&mut self, now: Moment) -> usize {
        let over = self.beyond_keep(now);
        let mut purged: BTreeMap<String, u64> = BTreeMap::new();
        for row in &over {
            let progress = &row.entry.progress;
            let end = End::of(Where::Discarded, now, progress.attempts, progress.history.clone());
            self.stamp(&Identity::of(&row.entry.event), now, Some(end));
            self.write(row.entry.seq, None);
            *purged.entry(row.entry.event.queue.clone()).or_default() += 1;
        }
        if !over.is_empty() {
            let queues: Vec<_> =
                purged.iter().map(|(queue, count)| format!("queue {queue}: {count}")).collect();
            let (count, note) =
                (over.len() as u64, "beyond the queue's limit of kept dead letters".to_owned());
            let deed = AuditEntry { verb: "purge", target: queues.join(", "), count, note };
            self.write_line(Operator::engine(), now, deed);
        }
        over.len()
    }

    fn beyond_keep(&self, now: Moment) -> Vec<Row> {
        let mut letters: BTreeMap<&str, Vec<(u64, Moment, &Row)>> = BTreeMap::new();
        for (_, row) in self.rows.iter() {
            if let Some(death) = row.letter().filter(|death| !death.holds) {
                letters.entry(&row.entry.event.queue).or_default().push((death.number, death.at, row));
            }
        }
        let mut over = Vec::new();
        for (queue, mut letters) in letters {
            let Some(queue) = self.queues.get(&queue.to_owned()) else { continue };
            letters.sort_by_key(|(number, ..)| *number);
            let kept =
                queue.keep.count.map_or(usize::MAX, |count| usize::try_from(count).unwrap_or(usize::MAX));
            let beyond = letters.len().saturating_sub(kept);
            let is_old = |at: Moment| queue.keep.time.is_some_and(|time| at + time < now);
            let given_up =
                letters.iter().enumerate().filter(|(place, (_, at, _))| *place < beyond || is_old(*at));
            over.extend(given_up.map(|(_, (.., row))| (*row).clone()));
        }
        over.truncate(SLICE);
        over
    }

    fn forget_receipts(&mut self, now: Moment) -> usize {
        let first = Identity { tenant: String::new(), queue: String::new(), id: String::new() };
        let over = self.fading.range(..(now, first)).take(SLICE).map(|((_, identity), ())| identity.clone());
        let over: Vec<_> = over.collect();
        over.iter().for_each(|identity| self.forget_receipt(identity));
        over.len()
    }

    /// Deletes an identity with its discarded event: restored later, that would be a second event beside a new one.
    pub(super) fn forget_receipt(&mut self, identity: &Identity) {
        let Some(dedupe_record) = self.dedupe_records.get(identity).cloned() else { return };
        let DedupeRecord { seq, until, .. } = dedupe_record;
        let restorable = self.row_of(&dedupe_record).is_some_and(|row| row.discarded);
        if restorable && !has(PlantedBug::RestoreAfterForgetting) {
            self.write(seq, None);
        }
        self.dedupe_records.remove(identity);
        self.fading.remove(&(until, identity.clone()));
    }

    fn forget_markers(&mut self, now: Moment) -> usize {
        let over = self.markers.iter().filter(|(_, until)| **until < now).take(SLICE);
        let over: Vec<_> = over.map(|(marker, _)| marker.clone()).collect();
        over.iter().for_each(|marker| self.markers.remove(marker));
        over.len()
    }

    fn forget_groups(&mut self, now: Moment) -> usize {
        let over = self.groups.iter().filter(|((stream, _), group)| {
            let queue = self.streams.get(stream).and_then(|stream| self.queues.get(&stream.queue));
            let window = queue.map(|queue| queue.window).unwrap_or_default();
            group.letters == 0 && group.last + window < now
        });
        let over: Vec<_> = over.take(SLICE).map(|(key, _)| *key).collect();
        over.iter().for_each(|key| self.groups.remove(key));
        over.len()
    }
}
