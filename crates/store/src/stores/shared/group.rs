//! Groups: dead letters with a common property, counted by stream and cause.

use std::collections::{BTreeSet, HashMap};

use redrive_core::Moment;
use redrive_core::triage::CauseId;

use super::cells::{Cells, Damage};
use super::numbers::{bits, to_moment};
use super::rows::Stream;
use super::tracked::RedrivenBy;
use crate::operate::{Group, GroupBy, GroupQuery, GroupRedrive};

/// How many groups a call returns by default.
const GROUPS: usize = 100;
/// How many causes of a stream are distinguished: some megabytes of titles.
pub(in crate::stores) const CAUSES_MAX: u32 = 10_000;
/// The title of all other causes.
pub(in crate::stores) const OTHER_TITLE: &str = "other causes";

/// How an event ended that a job redrove.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::stores) enum RedriveOutcome {
    Done,
    Failed,
    Other,
}

/// Dead letters of one cause in one stream.
#[derive(Debug, Clone)]
pub(in crate::stores) struct Tally {
    pub(in crate::stores) title: String,
    pub(in crate::stores) letters: u64,
    pub(in crate::stores) holding: u64,
    pub(in crate::stores) first: Moment,
    pub(in crate::stores) last: Moment,
    /// What redrove some of them last, and the result.
    pub(in crate::stores) redriven: Option<(RedrivenBy, GroupRedrive)>,
    #[cfg(feature = "sqlite")]
    pub(in crate::stores) is_changed: bool,
}

impl Tally {
    pub(in crate::stores) const fn new(title: String, at: Moment) -> Self {
        Self {
            title,
            letters: 0,
            holding: 0,
            first: at,
            last: at,
            redriven: None,
            #[cfg(feature = "sqlite")]
            is_changed: false,
        }
    }

    /// Some of its dead letters were redriven. Each command and each job is a redrive of its own.
    pub(in crate::stores) fn count_redriven(&mut self, letters: u64, by: RedrivenBy, at: Moment) {
        match &mut self.redriven {
            Some((last, redriven)) if *last == by => redriven.letters += letters,
            redriven => *redriven = Some((by, GroupRedrive { at, letters, failed: 0 })),
        }
    }

    /// A redriven event died again.
    pub(in crate::stores) fn failed_again(&mut self, by: RedrivenBy) {
        if let Some((last, redriven)) = &mut self.redriven
            && *last == by
        {
            redriven.failed += 1;
        }
    }

    /// Reads a row: title, dead letters, holding, first, last, redrive, redriven_at, redriven_letters, redriven_failed.
    pub(in crate::stores) fn from_row(row: &impl Cells, from: usize) -> Result<Self, Damage> {
        let number = |n: usize| row.number(from + n);
        let redriven = match row.maybe_number(from + 5)? {
            None => None,
            Some(by) => Some((
                RedrivenBy::from_column(by),
                GroupRedrive {
                    at: to_moment(number(6)?),
                    letters: bits(number(7)?),
                    failed: bits(number(8)?),
                },
            )),
        };
        Ok(Self {
            title: row.text(from)?,
            letters: bits(number(1)?),
            holding: bits(number(2)?),
            first: to_moment(number(3)?),
            last: to_moment(number(4)?),
            redriven,
            #[cfg(feature = "sqlite")]
            is_changed: false,
        })
    }
}

/// Several tallies that a caller sees as one group.
pub(in crate::stores) struct Merged {
    group: Group,
    queues: BTreeSet<String>,
    by: Option<RedrivenBy>,
}

/// Tallies, merged into groups.
#[derive(Default)]
pub(in crate::stores) struct Groups(HashMap<(Option<CauseId>, String), Merged>);

impl Groups {
    /// Adds a tally, if the query includes it.
    pub(in crate::stores) fn add(
        &mut self,
        query: &GroupQuery,
        stream: &Stream,
        cause: CauseId,
        tally: &Tally,
    ) {
        if !query.is_of(&stream.queue, &stream.tenant) {
            return;
        }
        let (cause, title) = match query.by {
            GroupBy::Cause => (Some(cause), tally.title.clone()),
            GroupBy::Queue => (None, stream.queue.clone()),
            _ => (None, stream.tenant.clone()),
        };
        // One cause has one title; only titles of truncated lists of causes may differ.
        let name = if cause.is_some() { String::new() } else { title.clone() };
        let into = self.0.entry((cause, name)).or_insert_with(|| Merged::new(cause, title, tally));
        into.add(tally, &stream.queue);
    }

    /// The groups of the query.
    pub(in crate::stores) fn end(self, query: &GroupQuery) -> Vec<Group> {
        page(self.0.into_values().map(Merged::end).collect(), query.limit)
    }
}

/// The largest groups first, earlier ones before later ones.
pub(in crate::stores) fn page(mut groups: Vec<Group>, limit: usize) -> Vec<Group> {
    groups.sort_by(|a, b| {
        b.letters.cmp(&a.letters).then(b.last.cmp(&a.last)).then_with(|| a.title.cmp(&b.title))
    });
    groups.truncate(if limit == 0 { GROUPS } else { limit });
    groups
}

impl Merged {
    pub(in crate::stores) fn new(cause: Option<CauseId>, title: String, first: &Tally) -> Self {
        let group = Group {
            cause,
            title,
            queues: Vec::new(),
            letters: 0,
            first: first.first,
            last: first.last,
            keys_blocked: 0,
            redriven: None,
            looked: None,
        };
        Self { group, queues: BTreeSet::new(), by: None }
    }

    pub(in crate::stores) fn add(&mut self, tally: &Tally, queue: &str) {
        let group = &mut self.group;
        group.letters += tally.letters;
        group.keys_blocked += tally.holding;
        group.first = group.first.min(tally.first);
        group.last = group.last.max(tally.last);
        if !self.queues.contains(queue) {
            self.queues.insert(queue.to_owned());
        }
        let Some((by, more)) = tally.redriven else { return };
        match &mut group.redriven {
            // The same redrive, in another stream.
            Some(redriven) if self.by == Some(by) => {
                redriven.letters += more.letters;
                redriven.failed += more.failed;
                redriven.at = redriven.at.max(more.at);
            }
            Some(redriven) if redriven.at >= more.at => {}
            redriven => (*redriven, self.by) = (Some(more), Some(by)),
        }
    }

    pub(in crate::stores) fn end(self) -> Group {
        Group { queues: self.queues.into_iter().collect(), ..self.group }
    }
}
