//! A page of events, put together from two tables and one span of seqs after another.
//!
//! A page begins where the one before ended, in the order of seqs. Dead letters, what was discarded and what is
//! leased have indexes; everything else is a walk through the tables themselves, because an index for it would cost
//! every event. So a page ends where enough was looked at, whatever was found by then, and where it has enough bytes.

use std::sync::Arc;

use redrive_core::Event;
use redrive_core::entry::Seq;
use redrive_core::event::State;
use redrive_core::triage::Subject;

use super::cells::{Cells, Damage};
use super::held::{Held, Stand};
use super::letters::{LOOKED_MAX, died, is_letter, is_meant};
use super::numbers::{bits, column};
use super::rows::{EVENT_COLUMNS, EventRow, Stream};
use crate::found::{Found, Listed, PAGE_BYTES, Query, bytes_of};

/// How many events are on a page where nobody says.
const PAGE: usize = 100;
/// How many events a page may have.
const PAGE_MAX: usize = 10_000;

type Listing = (Arc<Event>, Found);

/// What was found in one table between two places.
#[derive(Default)]
pub(in crate::stores) struct Part {
    found: Vec<Listing>,
    looked: usize,
    bytes: usize,
    /// The last place that was looked at, where that was not the end.
    stop: Option<i64>,
    pub(in crate::stores) damaged: Vec<String>,
}

impl Part {
    pub(in crate::stores) fn push(&mut self, event: Arc<Event>, known: Found) {
        self.bytes += bytes_of(&event);
        self.found.push((event, known));
    }

    /// Another one was looked at. Whether that is enough.
    pub(in crate::stores) fn is_enough(&mut self, seq: i64, room: &Room) -> bool {
        self.looked += 1;
        if self.found.len() >= room.events || self.looked >= room.looks || self.bytes >= room.bytes {
            self.stop = Some(seq);
        }
        self.stop.is_some()
    }
}

/// How much may still be looked at, and found.
pub(in crate::stores) struct Room {
    events: usize,
    looks: usize,
    bytes: usize,
}

/// A page that is being put together.
pub(in crate::stores) struct Page {
    listed: Listed,
    limit: usize,
    after: i64,
    pub(in crate::stores) room: Room,
}

impl Page {
    /// An empty page. None where nothing can be on it: what has ended is not kept.
    pub(in crate::stores) fn new(query: &Query) -> Option<Self> {
        if query.state.is_some_and(|state| state.is_ended() && state != State::Discarded) {
            return None;
        }
        let limit = if query.limit == 0 { PAGE } else { query.limit.min(PAGE_MAX) };
        let after = query.after.map_or(-1, |seq| column(seq.0));
        // One more than asked for, to see whether there is a next page.
        let room = Room { events: limit + 1, looks: LOOKED_MAX, bytes: PAGE_BYTES };
        Some(Self { listed: Listed::default(), limit, after, room })
    }

    /// What is left to look at of a span; none where the page before has it all.
    pub(in crate::stores) fn rest(&self, (first, last): (i64, i64)) -> Option<(i64, i64)> {
        (last > self.after).then(|| (first.max(self.after + 1), last))
    }

    /// Whether the page ends before this span, because enough was looked at.
    pub(in crate::stores) fn ends_before(&mut self, (first, _): (i64, i64)) -> bool {
        if self.room.looks == 0 {
            self.listed.next = Some(Seq(bits(first - 1)));
        }
        self.room.looks == 0
    }

    /// Adds what was found in a span, in both tables. Whether that is the end of the page.
    pub(in crate::stores) fn add(&mut self, live: Part, held: Part) -> bool {
        let (room, listed) = (&mut self.room, &mut self.listed);
        room.looks = room.looks.saturating_sub(live.looked + held.looked);
        let stop = [live.stop, held.stop].into_iter().flatten().min();
        let is_sure = |(_, found): &Listing| stop.is_none_or(|stop| column(found.seq.0) <= stop);
        let mut part: Vec<Listing> = live.found.into_iter().chain(held.found).filter(is_sure).collect();
        listed.damaged.extend(live.damaged.into_iter().chain(held.damaged));
        part.sort_by_key(|(_, found)| found.seq);
        for (event, found) in part {
            // Each of the two has as much as a page may have, so together it may be too much.
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
    pub(in crate::stores) fn end(self) -> Listed {
        self.listed
    }
}

/// Whether an event that never ran is meant.
pub(in crate::stores) fn is_meant_live(query: &Query, row: &EventRow) -> bool {
    let subject =
        Subject { event: &row.event, at: row.published, attempts: 0, cause: None, reason: None, story: None };
    query.filter.matches(subject)
}

/// Whether any other event is meant, by its row.
pub(in crate::stores) fn is_meant_held(
    query: &Query,
    row: &impl Cells,
    stream: &Stream,
) -> Result<bool, Damage> {
    let at = if is_letter(row, EVENT_COLUMNS)? { died(row, EVENT_COLUMNS)? } else { row.number(6)? };
    is_meant(&query.filter, row, EVENT_COLUMNS, at, stream)
}

/// Whether such an event is asked for, in the state that it is in.
pub(in crate::stores) fn is_asked(query: &Query, held: &Held, is: State) -> bool {
    query.state.map_or(held.stand != Stand::Discarded, |state| state == is)
}
