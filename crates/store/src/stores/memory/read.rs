//! Reading: the status of events, by identity, by page, by number.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use redrive_core::event::State as Where;
use redrive_core::triage::Rule;
use redrive_core::{Event, Moment};

use super::operate::groups::is_meant;
use super::row::{DedupeRecord, Identity, Row};
use super::state::State;
use crate::event_status::{
    EventCount, EventPage, EventQuery, EventStatus, NAMED_MAX, Named, PAGE_BYTES, bytes_of,
};

/// How many events a page has by default.
const PAGE: usize = 100;
/// How many events are read for a page, so that it is quick even if few of them match.
const LOOKED_MAX: usize = 10_000;

impl State {
    pub(super) fn find(&self, identity: &Identity) -> Option<EventStatus> {
        let dedupe_record = self.dedupe_records.get(identity)?;
        Some(self.row_of(dedupe_record).map_or_else(|| ended(dedupe_record), |row| self.kept(row)))
    }

    /// The status of all events with this id.
    pub(super) fn find_by_id(&self, id: &str) -> Vec<Named> {
        let identities = self.dedupe_records.iter().map(|(identity, _)| identity);
        let named = |identity: &Identity| {
            let Identity { tenant, queue, .. } = identity.clone();
            self.find(identity).map(|found| Named { tenant, queue, found })
        };
        identities.filter(|identity| identity.id == id).filter_map(named).take(NAMED_MAX).collect()
    }

    /// The status of an event that lives, is dead, or can be restored.
    fn kept(&self, row: &Row) -> EventStatus {
        let progress = &row.entry.progress;
        let state = self.place_of(row, self.seen);
        let dedupe_record =
            self.dedupe_records.get(&Identity::of(&row.entry.event)).filter(|_| row.discarded);
        let discarded = dedupe_record.and_then(|dedupe_record| dedupe_record.end.as_ref()).map(|end| end.at);
        let leased = row.lease.as_ref().filter(|lease| lease.out).map(|lease| lease.until);
        EventStatus {
            rev: row.entry.rev,
            due: row.lives().then_some(progress.due),
            ended: row.letter().map(|death| death.at).or(discarded),
            attempts: progress.attempts,
            reason: row.letter().map(|death| death.reason),
            history: progress.history.clone(),
            cause: row.cause,
            route: progress.route.as_deref().map(str::to_owned),
            until: dedupe_record.map(|dedupe_record| dedupe_record.until).or(leased),
            holds: row.holds(),
            ..EventStatus::new(row.entry.seq, state, row.entry.published)
        }
    }

    pub(super) fn place_of(&self, row: &Row, now: Moment) -> Where {
        let Event { queue, tenant, .. } = &*row.entry.event;
        if row.discarded {
            Where::Discarded
        } else if row.death.is_some() {
            Where::Dead
        } else if row.is_out() {
            Where::Running
        } else if self.controls().is_quarantined(queue, tenant, now) {
            Where::Quarantined
        } else if self.is_parked(row) {
            Where::Parked
        } else if let Some(rule) = row.chain.as_ref().and_then(|chain| self.withholding(chain)) {
            if matches!(rule, Rule::ParkKey { .. }) { Where::Parked } else { Where::Quarantined }
        } else if self.is_runnable(row) && row.entry.progress.due <= now {
            Where::Ready
        } else {
            Where::Waiting
        }
    }

    pub(super) fn list(&self, query: &EventQuery) -> EventPage {
        let limit = if query.limit == 0 { PAGE } else { query.limit };
        let after = query.after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut rows = self.rows.range((after, Bound::Unbounded)).map(|(_, row)| row);
        let (mut listed, mut last, mut bytes) = (EventPage::default(), None, 0);
        for row in rows.by_ref().take(LOOKED_MAX) {
            last = Some(row.entry.seq);
            let found = self.kept(row);
            let asked = match query.state {
                Some(state) => state == found.state,
                None => !row.discarded,
            };
            if asked && is_meant(&query.filter, row) {
                bytes += bytes_of(&row.entry.event);
                listed.events.push((Arc::clone(&row.entry.event), found));
            }
            if listed.events.len() == limit || bytes >= PAGE_BYTES {
                break;
            }
        }
        listed.next = rows.next().and(last);
        listed
    }

    pub(super) fn count(&self, now: Moment) -> Vec<EventCount> {
        let mut counts: BTreeMap<(&str, Where), u64> = BTreeMap::new();
        for (_, row) in self.rows.iter() {
            *counts.entry((&row.entry.event.queue, self.place_of(row, now))).or_default() += 1;
        }
        let named = counts.into_iter().map(|((queue, state), events)| (queue.to_owned(), state, events));
        named.map(|(queue, state, events)| EventCount { queue, state, events }).collect()
    }

    pub(super) fn oldest_due(&self, now: Moment) -> Vec<(String, Moment)> {
        let mut oldest: BTreeMap<&str, Moment> = BTreeMap::new();
        let due = self.rows.iter().map(|(_, row)| row);
        for row in due.filter(|row| self.place_of(row, now) == Where::Ready) {
            let due = row.entry.progress.due;
            let entry = oldest.entry(&row.entry.event.queue).or_insert(due);
            *entry = due.min(*entry);
        }
        oldest.into_iter().map(|(queue, due)| (queue.to_owned(), due)).collect()
    }
}

fn ended(dedupe_record: &DedupeRecord) -> EventStatus {
    let end = dedupe_record.end.as_ref();
    let state = end.map_or(Where::Done, |end| end.state);
    EventStatus {
        ended: end.map(|end| end.at),
        // An end without a record was a success at the first attempt.
        attempts: end.map_or(1, |end| end.attempts),
        history: end.and_then(|end| end.history.clone()),
        result: end.and_then(|end| end.result.clone()),
        edited_into: end.and_then(|end| end.into.clone()),
        ..EventStatus::new(dedupe_record.seq, state, dedupe_record.published)
    }
}
