//! Dead letters by what they died of: counted with every change, so that nobody has to look at all of them.

use std::collections::{BTreeMap, BTreeSet};

use redrive_core::Moment;
use redrive_core::entry::StreamId;
use redrive_core::event::{DeadReason, Story};
use redrive_core::triage::{CauseId, Filter, Subject, cause};

use super::row::{PutBack, Row};
use super::state::State;
use crate::found::Matching;
use crate::operate::{Group, GroupBy, GroupQuery, Redriven};

/// How many causes of one stream are told apart. A handler whose every error is another one must not fill the
/// store with titles.
const CAUSES_MAX: usize = 10_000;
/// How many groups are given where nobody says.
const PAGE: usize = 100;
/// How many keys are named.
const KEYS_MAX: usize = 20;

/// The dead letters of one stream that died of the same.
#[derive(Debug, Clone)]
pub(super) struct Letters {
    pub(super) title: String,
    pub(super) letters: u64,
    pub(super) holding: u64,
    pub(super) first: Moment,
    pub(super) last: Moment,
    pub(super) redrive: Option<(PutBack, Redriven)>,
}

impl State {
    /// The number of a cause, or the one for all others where there are too many.
    pub(super) fn cause(&self, stream: StreamId, reason: DeadReason, story: Option<&Story>) -> CauseId {
        let (id, _) = cause::of(reason, story);
        let known = self.groups.contains(&(stream, id));
        let of_stream = (stream, CauseId(0))..=(stream, CauseId(u64::MAX));
        // Only where there are so many in all can there be so many of one stream.
        let full = || self.groups.len() >= CAUSES_MAX && self.groups.range(of_stream).count() >= CAUSES_MAX;
        if !known && full() { CauseId::OTHER } else { id }
    }

    /// Counts a dead letter where it is put in or taken out.
    pub(super) fn count_letter(&mut self, row: &Row, comes: bool) {
        let Some((death, id)) = row.letter().zip(row.cause) else { return };
        let key = (row.entry.stream, id);
        let mut group = self.groups.get(&key).cloned().unwrap_or_else(|| {
            let title = match id {
                CauseId::OTHER => "other causes".to_owned(),
                _ => cause::of(death.reason, row.entry.progress.story.as_deref()).1,
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

    /// Counts a dead letter that is put back, to see later how many of them fail again.
    pub(super) fn count_put_back(&mut self, row: &Row, by: PutBack, at: Moment) {
        let Some(group) = row.cause.and_then(|id| self.groups.alter(&(row.entry.stream, id))) else { return };
        let before = group.redrive.filter(|(before, _)| *before == by);
        let (_, mut redriven) = before.unwrap_or((by, Redriven { at, letters: 0, failed: 0 }));
        redriven.letters += 1;
        group.redrive = Some((by, redriven));
    }

    /// Counts an event that dies after it was put back.
    pub(super) fn count_failed_again(&mut self, row: &Row) {
        let Some(by) = row.put_back else { return };
        if let PutBack::Job(job) = by
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

    pub(super) fn groups(&self, query: &GroupQuery) -> Vec<Group> {
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

    /// By what letters say themselves: all of them are looked at, and nothing is kept for it.
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

    pub(super) fn matching(&self, filter: &Filter) -> Matching {
        let mut matching = Matching::default();
        let (mut queues, mut keys) = (BTreeMap::<&str, u64>::new(), BTreeSet::new());
        for row in self.rows.iter().map(|(_, row)| row).filter(|row| is_meant_letter(filter, row)) {
            let event = &row.entry.event;
            matching.letters += 1;
            matching.keys_blocked += u64::from(row.holds());
            matching.out_of_order += u64::from(row.is_passed());
            matching.redriven_before += u64::from(row.redriven > 0);
            let unsure = row.entry.progress.story.as_ref().is_some_and(|story| story.is_unsure());
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

/// Those with most letters, the first ones first.
fn page(mut groups: Vec<Group>, limit: usize) -> Vec<Group> {
    groups.sort_by(|a, b| {
        b.letters.cmp(&a.letters).then(b.last.cmp(&a.last)).then_with(|| a.title.cmp(&b.title))
    });
    groups.truncate(if limit == 0 { PAGE } else { limit });
    groups
}

/// Whether a filter means an event. A dead letter is looked at as of its death, the others as of their publishing.
pub(super) fn is_meant(filter: &Filter, row: &Row) -> bool {
    let death = row.letter();
    filter.matches(Subject {
        event: &row.entry.event,
        at: death.map_or(row.entry.published, |death| death.at),
        attempts: row.entry.progress.attempts,
        cause: row.cause,
        reason: death.map(|death| death.reason),
        story: row.entry.progress.story.as_deref(),
    })
}

/// Whether it is a dead letter that a filter means.
pub(super) fn is_meant_letter(filter: &Filter, row: &Row) -> bool {
    row.letter().is_some() && is_meant(filter, row)
}

fn merge(cause: Option<CauseId>, title: String, parts: &[(&str, &Letters)]) -> Option<Group> {
    let letters = || parts.iter().map(|(_, letters)| *letters);
    let queues: BTreeSet<_> = parts.iter().map(|(queue, _)| (*queue).to_owned()).collect();
    let redrives = || letters().filter_map(|letters| letters.redrive);
    let last = redrives().max_by_key(|(_, redriven)| redriven.at);
    let redriven = last.map(|(by, Redriven { at, .. })| {
        let same = || redrives().filter(|(other, _)| *other == by).map(|(_, redriven)| redriven);
        let (letters, failed) = (same().map(|part| part.letters).sum(), same().map(|part| part.failed).sum());
        Redriven { at, letters, failed }
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
