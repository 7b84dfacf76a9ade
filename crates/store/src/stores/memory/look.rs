//! Looking: what is known of identities, pages and numbers; and forgetting it.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use redrive_core::Moment;
use redrive_core::entry::Seq;
use redrive_core::event::State as Where;

use super::state::{Receipt, Row, State};
use crate::found::{Count, Found, Listed, Query};

/// How many events are on a page where nobody says.
const PAGE: usize = 100;
/// How many receipts and how many markers are forgotten in one call, so that it stays short.
const SLICE: usize = 1000;

impl State {
    pub(super) fn found(&self, seq: Seq) -> Option<Found> {
        match self.rows.get(&seq) {
            Some(row) => Some(self.living(row)),
            None => self.receipts.get(&seq).map(|receipt| ended(seq, receipt)),
        }
    }

    fn living(&self, row: &Row) -> Found {
        let progress = &row.entry.progress;
        let state = self.place_of(row, self.seen);
        Found {
            rev: row.entry.rev,
            due: row.death.is_none().then_some(progress.due),
            ended: row.death.as_ref().map(|death| death.at),
            attempts: progress.attempts,
            reason: row.death.as_ref().map(|death| death.reason),
            story: progress.story.clone(),
            holds: row.death.as_ref().is_some_and(|death| death.holds),
            ..Found::new(row.entry.seq, state, row.entry.published)
        }
    }

    fn place_of(&self, row: &Row, now: Moment) -> Where {
        if row.death.is_some() {
            Where::Dead
        } else if self.is_parked(row) {
            Where::Parked
        } else if self.is_runnable(row) && row.entry.progress.due <= now {
            Where::Ready
        } else {
            Where::Waiting
        }
    }

    pub(super) fn list(&self, query: &Query) -> Listed {
        let limit = if query.limit == 0 { PAGE } else { query.limit };
        let after = query.after.map_or(Bound::Unbounded, Bound::Excluded);
        let rows = self.rows.range((after, Bound::Unbounded)).map(|(_, row)| row);
        let event = |row: &Row| Arc::clone(&row.entry.event);
        let asked = rows.filter(|row| {
            query.filter.queue.as_ref().is_none_or(|queue| *queue == row.entry.event.queue)
                && query.filter.tenant.as_ref().is_none_or(|tenant| *tenant == row.entry.event.tenant)
        });
        let found = asked.map(|row| (event(row), self.living(row)));
        let mut found = found.filter(|(_, found)| query.state.is_none_or(|state| state == found.state));
        let events: Vec<_> = found.by_ref().take(limit).collect();
        let last = events.last().map(|(_, found)| found.seq);
        Listed { next: found.next().and(last), events, damaged: Vec::new() }
    }

    pub(super) fn count(&self, now: Moment) -> Vec<Count> {
        let mut counts: BTreeMap<(&str, Where), u64> = BTreeMap::new();
        for (_, row) in self.rows.iter() {
            *counts.entry((&row.entry.event.queue, self.place_of(row, now))).or_default() += 1;
        }
        let named = counts.into_iter().map(|((queue, state), events)| (queue.to_owned(), state, events));
        named.map(|(queue, state, events)| Count { queue, state, events }).collect()
    }

    /// Forgets a slice of what need not be remembered any more.
    pub(super) fn forget(&mut self, now: Moment) -> usize {
        let over = self.fading.range(..(now, Seq(0))).take(SLICE).map(|((_, seq), ())| *seq);
        let receipts: Vec<_> = over.collect();
        receipts.iter().for_each(|seq| self.forget_receipt(*seq));
        let over = self.markers.iter().filter(|(_, until)| **until < now).take(SLICE);
        let markers: Vec<_> = over.map(|(marker, _)| marker.clone()).collect();
        markers.iter().for_each(|marker| self.markers.remove(marker));
        receipts.len() + markers.len()
    }

    pub(super) fn forget_receipt(&mut self, seq: Seq) {
        let Some(Receipt { identity, until, .. }) = self.receipts.get(&seq).cloned() else { return };
        self.identities.remove(&identity);
        self.receipts.remove(&seq);
        self.fading.remove(&(until, seq));
    }
}

fn ended(seq: Seq, receipt: &Receipt) -> Found {
    let end = receipt.end.as_ref();
    let state = end.map_or(Where::Done, |end| end.state);
    Found {
        ended: end.map(|end| end.at),
        // What left nothing behind was done at the first attempt.
        attempts: end.map_or(1, |end| end.attempts),
        story: end.and_then(|end| end.story.clone()),
        result: end.and_then(|end| end.result.clone()),
        ..Found::new(seq, state, receipt.published)
    }
}
