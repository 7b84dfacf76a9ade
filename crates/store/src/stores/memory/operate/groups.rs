//! Dead letters by cause. The counts change with every death, so a caller reads one row for each cause.

use std::collections::{BTreeMap, BTreeSet};

use redrive_core::Moment;
use redrive_core::event::{AttemptHistory, DeadReason};
use redrive_core::queue_entry::StreamId;
use redrive_core::triage::{CauseId, Filter, FilterSubject, cause};

use crate::event_status::FilterMatches;
use crate::operate::{Group, GroupBy, GroupQuery, GroupRedrive};
use crate::stores::memory::row::{RedrivenBy, Row};
use crate::stores::memory::state::State;

/// How many causes of one stream are distinguished. A handler whose every error differs must not fill the store with
/// titles.
const CAUSES_MAX: usize = 10_000;
/// How many groups a call returns by default.
const PAGE: usize = 100;
/// How many keys are listed.
const KEYS_MAX: usize = 20;

/// The dead letters of one stream with the same cause.
#[derive(Debug, Clone)]
pub(in crate::stores::memory) struct Letters {
    pub(in crate::stores::memory) title: String,
    pub(in crate::stores::memory) letters: u64,
    pub(in crate::stores::memory) holding: u64,
    pub(in crate::stores::memory) first: Moment,
    pub(in crate::stores::memory) last: Moment,
    pub(in crate::stores::memory) redrive: Option<(RedrivenBy, GroupRedrive)>,
}

impl State {
    /// The number of a cause, or the number for all others if there are too many.
    pub(in crate::stores::memory) fn cause(
        &self,
        stream: StreamId,
        reason: DeadReason,
        history: Option<&AttemptHistory>,
    ) -> CauseId {
        let (id, _) = cause::of(reason, history);
        let known = self.groups.contains(&(stream, id));
        let of_stream = (stream, CauseId(0))..=(stream, CauseId(u64::MAX));
        // A stream can have this many only if the store does.
        let full = || self.groups.len() >= CAUSES_MAX && self.groups.range(of_stream).count() >= CAUSES_MAX;
        if !known && full() { CauseId::OTHER } else { id }
    }

    /// Counts a dead letter that is added or removed.
    pub(in crate::stores::memory) fn count_letter(&mut self, row: &Row, comes: bool) {
        let Some((death, id)) = row.letter().zip(row.cause) else { return };
        let key = (row.entry.stream, id);
        let mut group = self.groups.get(&key).cloned().unwrap_or_else(|| {
            let title = match id {
                CauseId::OTHER => "other causes".to_owned(),
                _ => cause::of(death.reason, row.entry.progress.history.as_deref()).1,
            };
            Letters { title, letters: 0, holding: 0, first: death.at, last: death.at, redrive: None }
        });
        let held = u64::from(death.holds);
        if comes {
            group.letters += 1;
            group.holding += held;
            group.first = group.first.min(death.at);
            group.last = group.last.max(death.at);
        } else {
            group.letters -= 1;
            group.holding -= held;
        }
        self.groups.put(key, group);
    }

    /// Counts a redriven dead letter, to see later how many of them fail again.
    pub(in crate::stores::memory) fn count_put_back(&mut self, row: &Row, by: RedrivenBy, at: Moment) {
        let Some(group) = row.cause.and_then(|id| self.groups.alter(&(row.entry.stream, id))) else { return };
        let before = group.redrive.filter(|(before, _)| *before == by);
        let (_, mut redriven) = before.unwrap_or((by, GroupRedrive { at, letters: 0, failed: 0 }));
        redriven.letters += 1;
        group.redrive = Some((by, redriven));
    }

    /// Counts an event that dies after it was redriven.
    pub(in crate::stores::memory) fn count_failed_again(&mut self, row: &Row) {
        let Some(by) = row.put_back else { return };
        if let Some(job) = by.job()
            && let Some(job) = self.jobs.alter(&job)
        {
            job.failed += 1;
        }
        let group = row.cause.and_then(|id| self.groups.alter(&(row.entry.stream, id)));
        if let Some((last, redriven)) = group.and_then(|group| group.redrive.as_mut())
            && *last == by
        {
            redriven.failed += 1;
        }
    }

    pub(in crate::stores::memory) fn groups(&self, query: &GroupQuery) -> Vec<Group> {
        if let GroupBy::Type | GroupBy::Key = query.by {
            return page(self.looked_at(query), query.limit);
        }
        let mut merged: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for ((stream, cause), letters) in self.groups.iter().filter(|(_, group)| group.letters > 0) {
            let Some(stream) = self.streams.get(stream) else { continue };
            if !query.is_of(&stream.queue, &stream.tenant) {
                continue;
            }
            let key = match query.by {
                GroupBy::Cause => (Some(*cause), letters.title.clone()),
                GroupBy::Queue => (None, stream.queue.clone()),
                _ => (None, stream.tenant.clone()),
            };
            merged.entry(key).or_default().push((stream.queue.as_str(), letters));
        }
        let merged = merged.into_iter().filter_map(|((cause, title), parts)| merge(cause, title, &parts));
        page(merged.collect(), query.limit)
    }

    /// Groups by properties of the dead letters themselves: this reads all of them and keeps no counts.
    fn looked_at(&self, query: &GroupQuery) -> Vec<Group> {
        let mut merged: BTreeMap<&str, Vec<_>> = BTreeMap::new();
        for row in self.rows.iter().map(|(_, row)| row) {
            let event = &row.entry.event;
            let Some(death) = row.letter().filter(|_| query.is_of(&event.queue, &event.tenant)) else {
                continue;
            };
            let title = if query.by == GroupBy::Key { event.key.as_deref() } else { event.kind() };
            let letter = Letters {
                title: String::new(),
                letters: 1,
                holding: u64::from(death.holds),
                first: death.at,
                last: death.at,
                redrive: None,
            };
            merged.entry(title.unwrap_or_default()).or_default().push((event.queue.as_str(), letter));
        }
        let group = |(title, parts): (&str, Vec<(&str, Letters)>)| {
            let parts: Vec<_> = parts.iter().map(|(queue, letter)| (*queue, letter)).collect();
            merge(None, title.to_owned(), &parts)
        };
        merged.into_iter().filter_map(group).collect()
    }

    pub(in crate::stores::memory) fn matching(&self, filter: &Filter) -> FilterMatches {
        let mut matching = FilterMatches::default();
        let (mut queues, mut keys) = (BTreeMap::<&str, u64>::new(), BTreeSet::new());
        for row in self.rows.iter().map(|(_, row)| row).filter(|row| is_meant_letter(filter, row)) {
            let event = &row.entry.event;
            matching.letters += 1;
            matching.keys_blocked += u64::from(row.holds());
            matching.out_of_order += u64::from(row.is_passed());
            matching.redriven_before += u64::from(row.redriven > 0);
            let unsure = row.entry.progress.history.as_ref().is_some_and(|history| history.is_unsure());
            matching.unsure += u64::from(unsure);
            *queues.entry(&event.queue).or_default() += 1;
            if keys.len() < KEYS_MAX {
                keys.extend(event.key.as_ref());
            }
        }
        matching.queues = queues.into_iter().map(|(queue, letters)| (queue.to_owned(), letters)).collect();
        matching.keys = keys.into_iter().cloned().collect();
        matching
    }
}

/// The largest groups first, earlier ones before later ones.
fn page(mut groups: Vec<Group>, limit: usize) -> Vec<Group> {
    groups.sort_by(|a, b| {
        b.letters.cmp(&a.letters).then(b.last.cmp(&a.last)).then_with(|| a.title.cmp(&b.title))
    });
    groups.truncate(if limit == 0 { PAGE } else { limit });
    groups
}

/// Whether a filter matches an event: a dead letter by its time of death, other events by their time of publishing.
pub(in crate::stores::memory) fn is_meant(filter: &Filter, row: &Row) -> bool {
    let death = row.letter();
    filter.matches(FilterSubject {
        event: &row.entry.event,
        at: death.map_or(row.entry.published, |death| death.at),
        attempts: row.entry.progress.attempts,
        cause: row.cause,
        reason: death.map(|death| death.reason),
        history: row.entry.progress.history.as_deref(),
    })
}

/// Whether it is a dead letter that a filter matches.
pub(in crate::stores::memory) fn is_meant_letter(filter: &Filter, row: &Row) -> bool {
    row.letter().is_some() && is_meant(filter, row)
}

fn merge(cause: Option<CauseId>, title: String, parts: &[(&str, &Letters)]) -> Option<Group> {
    let letters = || parts.iter().map(|(_, letters)| *letters);
    let queues: BTreeSet<_> = parts.iter().map(|(queue, _)| (*queue).to_owned()).collect();
    let redrives = || letters().filter_map(|letters| letters.redrive);
    let last = redrives().max_by_key(|(_, redriven)| redriven.at);
    let redriven = last.map(|(by, GroupRedrive { at, .. })| {
        let same = || redrives().filter(|(other, _)| *other == by).map(|(_, redriven)| redriven);
        let (letters, failed) = (same().map(|part| part.letters).sum(), same().map(|part| part.failed).sum());
        GroupRedrive { at, letters, failed }
    });
    Some(Group {
        cause,
        title,
        queues: queues.into_iter().collect(),
        letters: letters().map(|letters| letters.letters).sum(),
        first: letters().map(|letters| letters.first).min()?,
        last: letters().map(|letters| letters.last).max()?,
        keys_blocked: letters().map(|letters| letters.holding).sum(),
        redriven,
        looked: None,
    })
}
