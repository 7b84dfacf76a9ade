//! A page of events, assembled from two tables and one span of seqs after another.
//!
//! A page begins where the previous one ended, in the order of seqs. Dead letters, discarded and leased events have
//! indexes; everything else is a walk through the tables themselves, because an index for it would cost every event.
//! So a page ends after a bounded number of rows, whatever it found, or when it has enough bytes.

use std::sync::Arc;

use redrive_core::Event;
use redrive_core::event::State;
use redrive_core::queue_entry::Seq;
use redrive_core::triage::FilterSubject;

use super::cells::{Cells, Damage};
use super::dead_letter_filter::{LOOKED_MAX, died, is_letter, is_meant};
use super::numbers::{bits, column};
use super::rows::{EVENT_COLUMNS, EventRow, Stream};
use super::tracked::{RowState, TrackedEvent};
use crate::event_status::{EventPage, EventQuery, EventStatus, PAGE_BYTES, bytes_of};

/// How many events a page has by default.
const PAGE: usize = 100;
/// How many events a page may have.
const PAGE_MAX: usize = 10_000;

type Listing = (Arc<Event>, EventStatus);

/// Events of one table between two seqs.
#[derive(Default)]
pub(in crate::stores) struct Part {
    found: Vec<Listing>,
    looked: usize,
    bytes: usize,
    /// The last seq that was read, if that was not the end.
    stop: Option<i64>,
    pub(in crate::stores) damaged: Vec<String>,
}

impl Part {
    pub(in crate::stores) fn push(&mut self, event: Arc<Event>, known: EventStatus) {
        self.bytes += bytes_of(&event);
        self.found.push((event, known));
    }

    /// Counts a row. Returns whether the page has enough.
    pub(in crate::stores) fn is_enough(&mut self, seq: i64, room: &Room) -> bool {
        self.looked += 1;
        if self.found.len() >= room.events || self.looked >= room.looks || self.bytes >= room.bytes {
            self.stop = Some(seq);
        }
        self.stop.is_some()
    }
}

/// How many rows may still be read, and how many events found.
pub(in crate::stores) struct Room {
    events: usize,
    looks: usize,
    bytes: usize,
}

/// A page that is being assembled.
pub(in crate::stores) struct Page {
    listed: EventPage,
    limit: usize,
    after: i64,
    pub(in crate::stores) room: Room,
}

impl Page {
    /// An empty page. `None` if nothing can match: ended events are not kept.
    pub(in crate::stores) fn new(query: &EventQuery) -> Option<Self> {
        if query.state.is_some_and(|state| state.is_ended() && state != State::Discarded) {
            return None;
        }
        let limit = if query.limit == 0 { PAGE } else { query.limit.min(PAGE_MAX) };
        let after = query.after.map_or(-1, |seq| column(seq.0));
        // One more than asked for, to see whether there is a next page.
        let room = Room { events: limit + 1, looks: LOOKED_MAX, bytes: PAGE_BYTES };
        Some(Self { listed: EventPage::default(), limit, after, room })
    }

    /// The rest of a span; `None` if the previous page had all of it.
    pub(in crate::stores) fn rest(&self, (first, last): (i64, i64)) -> Option<(i64, i64)> {
        (last > self.after).then(|| (first.max(self.after + 1), last))
    }

    /// Whether the page ends before this span, because enough rows were read.
    pub(in crate::stores) fn ends_before(&mut self, (first, _): (i64, i64)) -> bool {
        if self.room.looks == 0 {
            self.listed.next = Some(Seq(bits(first - 1)));
        }
        self.room.looks == 0
    }

    /// Adds the events of a span from both tables. Returns whether the page is complete.
    pub(in crate::stores) fn add(&mut self, fresh: Part, tracked: Part) -> bool {
        let (room, listed) = (&mut self.room, &mut self.listed);
        room.looks = room.looks.saturating_sub(fresh.looked + tracked.looked);
        let stop = [fresh.stop, tracked.stop].into_iter().flatten().min();
        let is_sure = |(_, found): &Listing| stop.is_none_or(|stop| column(found.seq.0) <= stop);
        let mut part: Vec<Listing> = fresh.found.into_iter().chain(tracked.found).filter(is_sure).collect();
        listed.damaged.extend(fresh.damaged.into_iter().chain(tracked.damaged));
        part.sort_by_key(|(_, found)| found.seq);
        for (event, found) in part {
            // Each of the two may fill a page, so together they may be too much.
            if room.bytes > 0 {
                room.bytes = room.bytes.saturating_sub(bytes_of(&event));
                listed.events.push((event, found));
            }
        }
        room.events = (self.limit + 1).saturating_sub(listed.events.len());
        if listed.events.len() > self.limit || room.bytes == 0 {
            listed.events.truncate(self.limit);
            listed.next = listed.events.last().map(|(_, found)| found.seq);
            return true;
        }
        if let Some(stop) = stop {
            listed.next = Some(Seq(bits(stop)));
        }
        stop.is_some()
    }

    /// The page.
    pub(in crate::stores) fn end(self) -> EventPage {
        self.listed
    }
}

/// Whether the query matches an event that never ran.
pub(in crate::stores) fn is_meant_fresh(query: &EventQuery, row: &EventRow) -> bool {
    let subject = FilterSubject {
        event: &row.event,
        at: row.published,
        attempts: 0,
        cause: None,
        reason: None,
        history: None,
    };
    query.filter.matches(subject)
}

/// Whether the query matches a tracked event, by its row.
pub(in crate::stores) fn is_meant_tracked(
    query: &EventQuery,
    row: &impl Cells,
    stream: &Stream,
) -> Result<bool, Damage> {
    let at = if is_letter(row, EVENT_COLUMNS)? { died(row, EVENT_COLUMNS)? } else { row.number(6)? };
    is_meant(&query.filter, row, EVENT_COLUMNS, at, stream)
}

/// Whether the query includes such an event, in its present state.
pub(in crate::stores) fn is_asked(query: &EventQuery, tracked: &TrackedEvent, is: State) -> bool {
    query.state.map_or(tracked.state != RowState::Discarded, |state| state == is)
}
