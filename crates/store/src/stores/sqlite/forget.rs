//! Deleting expired rows.
//!
//! There is no index on the expiry: it would cost every publish a second insert. Instead a walk goes through all
//! dedupe records and markers in the order of their keys, a slice per call, and starts over at the end.

use redrive_core::Moment;
use redrive_core::queue_entry::{Seq, StreamId};
use rusqlite::params;

use super::events::dedupe::DedupeRecord;
use super::events::tracked::delete_tracked;
use super::faults::Step;
use super::operate::tallies::Tallies;
use super::writer::tx::WriterTx;
use crate::stores::rows::{
    self,
    retention::{FORGOTTEN_MAX, enforce},
};
use crate::stores::shared::numbers::{bits, from_moment, to_moment};

/// How many rows one call reads: some milliseconds.
pub(super) const LOOKED_AT_MAX: u32 = 4096;

/// Before all requests.
pub(super) const REQUESTS: (i64, i64) = (i64::MIN, i64::MIN);

/// The positions of the walks.
#[derive(Debug)]
pub(super) struct Cursor {
    dedupe: (String, u32),
    marker: (String, String),
    group: (u32, i64),
    /// When a request expires, and its row.
    pub(super) request: (i64, i64),
}

impl Default for Cursor {
    fn default() -> Self {
        Self {
            dedupe: Default::default(),
            marker: Default::default(),
            group: (0, i64::MIN),
            request: REQUESTS,
        }
    }
}

impl WriterTx {
    pub(super) fn forget(&mut self, now: Moment) -> Step<usize> {
        self.advance_clock(now);
        self.mark_clock()?;
        let ended = rows::now(enforce(self, now))?;
        Ok(ended
            + self.forget_records(now)?
            + self.forget_dedupe_records(now)?
            + self.forget_markers(now)?
            + self.forget_groups(now)?)
    }

    fn forget_dedupe_records(&mut self, now: Moment) -> rusqlite::Result<usize> {
        let (mut id, mut stream) = self.cursor.dedupe.clone();
        let from_start = (id.as_str(), stream) == ("", 0);
        let mut over = Vec::new();
        let mut looked_at = 0;
        {
            let mut select = self.conn.prepare_cached(
                "SELECT id, stream, seq, until FROM redrive_dedupe WHERE (id, stream) > (?1, ?2) \
                 ORDER BY id, stream LIMIT ?3",
            )?;
            let mut rows = select.query(params![id, stream, LOOKED_AT_MAX])?;
            while let Some(row) = rows.next()? {
                looked_at += 1;
                (id, stream) = (row.get(0)?, row.get(1)?);
                if row.get::<_, i64>(3)? >= from_moment(now) {
                    continue;
                }
                let seq = Seq(bits(row.get(2)?));
                let remains = self.remains(seq, &id)?;
                if remains != Some(false) {
                    // A discarded event is deleted with its dedupe record: restored later, it would be a second event
                    // beside a new one.
                    over.push((StreamId(stream), id.clone(), remains.map(|_| seq)));
                    if over.len() == FORGOTTEN_MAX {
                        break;
                    }
                }
            }
        }
        for (stream, id, discarded) in &over {
            DedupeRecord::delete(&self.conn, *stream, id)?;
            if let Some(seq) = discarded {
                delete_tracked(&self.conn, *seq)?;
            }
        }
        let at_end = looked_at < LOOKED_AT_MAX && over.len() < FORGOTTEN_MAX;
        self.cursor.dedupe = if at_end { Default::default() } else { (id, stream) };
        // The walk reached the end and found nothing: there may be expired rows before the position where it began.
        if at_end && over.is_empty() && !from_start {
            self.forget_dedupe_records(now)
        } else {
            Ok(over.len())
        }
    }

    fn forget_markers(&mut self, now: Moment) -> rusqlite::Result<usize> {
        let (mut handler, mut id) = self.cursor.marker.clone();
        let from_start = handler.is_empty() && id.is_empty();
        let mut over = Vec::new();
        let mut looked_at = 0;
        {
            let mut select = self.conn.prepare_cached(
                "SELECT handler, id, until FROM redrive_inbox WHERE (handler, id) > (?1, ?2) \
                 ORDER BY handler, id LIMIT ?3",
            )?;
            let mut rows = select.query(params![handler, id, LOOKED_AT_MAX])?;
            while let Some(row) = rows.next()? {
                looked_at += 1;
                (handler, id) = (row.get(0)?, row.get(1)?);
                if row.get::<_, i64>(2)? < from_moment(now) {
                    over.push((handler.clone(), id.clone()));
                    if over.len() == FORGOTTEN_MAX {
                        break;
                    }
                }
            }
        }
        for (handler, id) in &over {
            self.conn
                .prepare_cached("DELETE FROM redrive_inbox WHERE handler = ?1 AND id = ?2")?
                .execute([handler, id])?;
        }
        let at_end = looked_at < LOOKED_AT_MAX && over.len() < FORGOTTEN_MAX;
        self.cursor.marker = if at_end { Default::default() } else { (handler, id) };
        if at_end && over.is_empty() && !from_start { self.forget_markers(now) } else { Ok(over.len()) }
    }

    /// Deletes groups that have had no dead letters for as long as their queue remembers identities.
    fn forget_groups(&mut self, now: Moment) -> Step<usize> {
        self.write_numbers()?;
        let (mut stream, mut cause) = self.cursor.group;
        let mut over = Vec::new();
        let mut looked_at = 0;
        let mut rows = Vec::new();
        {
            let mut select = self.conn.prepare_cached(
                "SELECT stream, cause, letters, last FROM redrive_tally WHERE (stream, cause) > (?1, ?2) \
                 ORDER BY stream, cause LIMIT ?3",
            )?;
            let mut found = select.query(params![stream, cause, LOOKED_AT_MAX])?;
            while let Some(row) = found.next()? {
                looked_at += 1;
                (stream, cause) = (row.get(0)?, row.get(1)?);
                if row.get::<_, i64>(2)? == 0 {
                    rows.push((stream, cause, to_moment(row.get(3)?)));
                }
            }
        }
        for (stream, cause, last) in rows {
            let Some(names) = self.names.of(&self.conn, StreamId(stream))? else { continue };
            if last + self.window(&names.queue)? < now {
                over.push((stream, cause));
            }
        }
        for (stream, cause) in &over {
            self.conn
                .prepare_cached("DELETE FROM redrive_tally WHERE stream = ?1 AND cause = ?2")?
                .execute(params![stream, cause])?;
        }
        if !over.is_empty() {
            self.tallies = Tallies::default();
        }
        self.cursor.group = if looked_at < LOOKED_AT_MAX { (0, i64::MIN) } else { (stream, cause) };
        Ok(over.len())
    }
}
