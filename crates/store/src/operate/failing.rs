//! Events that failed and are retried: an outage, before any event dies.
//!
//! Dead letters are counted at every death. Counting every failure in the same way would cost each retry another row,
//! so groups of retrying events are counted on request, over a bounded number of events.

use std::collections::{BTreeMap, HashMap};

use redrive_core::Moment;
use redrive_core::event::AttemptHistory;
use redrive_core::triage::{CauseId, cause};

/// A query for groups of retrying events.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FailingQuery {
    /// Only of this queue.
    pub queue: Option<String>,
    /// Only of this tenant.
    pub tenant: Option<String>,
    /// Only with this cause.
    pub cause: Option<CauseId>,
    /// How many groups, at most, the largest first; 0 for 100.
    pub limit: usize,
}

impl FailingQuery {
    /// Whether the query includes a queue and a tenant.
    pub(crate) fn is_of(&self, queue: &str, tenant: &str) -> bool {
        let is = |wanted: &Option<String>, is: &str| wanted.as_deref().is_none_or(|wanted| wanted == is);
        is(&self.queue, queue) && is(&self.tenant, tenant)
    }
}

/// Retrying events whose last failures have the same cause.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailingGroup {
    /// Their cause. Dead letters with the same text have another number.
    pub cause: CauseId,
    /// The cause without numbers and ids.
    pub title: String,
    /// Their queues, and how many in each.
    pub queues: Vec<(String, u64)>,
    /// How many there are.
    pub events: u64,
    /// How many of them have a key, and hold up its later events, if there are any.
    pub keyed: u64,
    /// When the first attempt of the oldest of them began.
    pub since: Moment,
    /// When the last of their attempts began.
    pub last: Moment,
    /// When the next of them is due by itself. It is past if an attempt waits for the retry budget, or is under way.
    pub next: Moment,
    /// The largest number of attempts of one of them.
    pub attempts: u32,
    /// How many retrying events were sampled for all groups together, if not all of them: the counts are then counts
    /// of the sample.
    pub looked: Option<u64>,
}

/// How many events of a queue are retrying.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retrying {
    /// The queue.
    pub queue: String,
    /// How many failed at least once and have not ended.
    pub events: u64,
    /// When the first attempt of the oldest of them began.
    pub since: Moment,
}

/// How many groups a call returns by default.
const GROUPS: usize = 100;
/// How many events are sampled: some ten milliseconds.
pub(crate) const LOOKED_MAX: usize = 10_000;

/// The fields of an event that a group needs.
pub(crate) struct Failed<'a> {
    pub(crate) queue: &'a str,
    pub(crate) is_ordered: bool,
    pub(crate) history: Option<&'a AttemptHistory>,
    pub(crate) started: Moment,
    pub(crate) due: Moment,
    pub(crate) attempts: u32,
}

/// Retrying events in groups.
pub(crate) struct Failings<'a> {
    query: &'a FailingQuery,
    groups: HashMap<CauseId, (FailingGroup, BTreeMap<String, u64>)>,
    looked: usize,
    /// Whether there are more than were sampled.
    is_cut: bool,
}

impl<'a> Failings<'a> {
    pub(crate) fn of(query: &'a FailingQuery) -> Self {
        Self { query, groups: HashMap::new(), looked: 0, is_cut: false }
    }

    /// How many more may be sampled.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) const fn room(&self) -> usize {
        LOOKED_MAX - self.looked
    }

    /// Counts an event of the sample; `false` if the sample is full.
    pub(crate) const fn may_look(&mut self) -> bool {
        self.is_cut = self.looked == LOOKED_MAX;
        if !self.is_cut {
            self.looked += 1;
        }
        !self.is_cut
    }

    pub(crate) fn add(&mut self, failed: &Failed<'_>) {
        let (id, title) = cause::of_failing(failed.history);
        if self.query.cause.is_some_and(|wanted| wanted != id) {
            return;
        }
        let last = failed.history.and_then(|history| history.records().next_back());
        let last =
            last.map_or(failed.started, |record| Moment::from_nanos(record.at_ms.saturating_mul(1_000_000)));
        let (group, queues) = self.groups.entry(id).or_insert_with(|| {
            let group = FailingGroup {
                cause: id,
                title,
                queues: Vec::new(),
                events: 0,
                keyed: 0,
                since: failed.started,
                last,
                next: failed.due,
                attempts: 0,
                looked: None,
            };
            (group, BTreeMap::new())
        });
        group.events += 1;
        group.keyed += u64::from(failed.is_ordered);
        group.since = group.since.min(failed.started);
        group.last = group.last.max(last);
        group.next = group.next.min(failed.due);
        group.attempts = group.attempts.max(failed.attempts);
        *queues.entry(failed.queue.to_owned()).or_default() += 1;
    }

    /// The groups, the largest first.
    pub(crate) fn end(self) -> Vec<FailingGroup> {
        let looked = self.is_cut.then_some(self.looked as u64);
        let whole = |(group, queues): (FailingGroup, BTreeMap<String, u64>)| FailingGroup {
            queues: queues.into_iter().collect(),
            looked,
            ..group
        };
        let mut groups: Vec<FailingGroup> = self.groups.into_values().map(whole).collect();
        groups.sort_by(|a, b| {
            b.events.cmp(&a.events).then(a.since.cmp(&b.since)).then_with(|| a.title.cmp(&b.title))
        });
        groups.truncate(if self.query.limit == 0 { GROUPS } else { self.query.limit });
        groups
    }
}
