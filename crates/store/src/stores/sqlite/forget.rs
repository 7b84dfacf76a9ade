//! Forgetting what need not be remembered any more.
//!
//! There is no index on when that is: it would cost every publish a second insert. Instead a walk goes through
//! all receipts and markers in the order of their keys, a slice a call, and begins again at the end.

use redrive_core::Moment;
use redrive_core::entry::{Seq, StreamId};
use rusqlite::params;

use super::desk::Desk;
use super::faults::Step;
use super::held::delete_held;
use super::numbers::{bits, from_moment};
use super::receipt::Receipt;

/// How many rows are looked at in a call: some milliseconds.
pub(super) const LOOKED_AT_MAX: u32 = 4096;
/// How many are forgotten in a call: each is a page to write.
pub(super) const FORGOTTEN_MAX: usize = 1000;

/// Before all requests.
pub(super) const REQUESTS: (i64, i64) = (i64::MIN, i64::MIN);

/// Where the walks are.
#[derive(Debug)]
pub(super) struct Cursor {
    receipt: (String, u32),
    marker: (String, String),
    pub(super) group: (u32, i64),
    /// When a request ends, and its row.
    pub(super) request: (i64, i64),
}

impl Default for Cursor {
    fn default() -> Self {
        Self {
            receipt: Default::default(),
            marker: Default::default(),
            group: (0, i64::MIN),
            request: REQUESTS,
        }
    }
}

impl Desk {
    pub(super) fn forget(&mut self, now: Moment) -> Step<usize> {
        self.see(now);
        let ended = self.lift_ended(now)? + self.purge(now)?;
        Ok(ended
            + self.forget_records(now)?
            + self.forget_receipts(now)?
            + self.forget_markers(now)?
            + self.forget_groups(now)?)
    }

    fn forget_receipts(&mut self, now: Moment) -> rusqlite::Result<usize> {
        let (mut id, mut stream) = self.cursor.receipt.clone();
        let from_start = (id.as_str(), stream) == ("", 0);
        let mut over = Vec::new();
        let mut looked_at = 0;
        {
            let mut select = self.conn.prepare_cached(
                "SELECT id, stream, seq, until FROM redrive_receipt WHERE (id, stream) > (?1, ?2) \
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
                    // What can be restored goes with its receipt: it would be a second event beside a new one.
                    over.push((StreamId(stream), id.clone(), remains.map(|_| seq)));
                    if over.len() == FORGOTTEN_MAX {
                        break;
                    }
                }
            }
        }
        for (stream, id, discarded) in &over {
            Receipt::delete(&self.conn, *stream, id)?;
            if let Some(seq) = discarded {
                delete_held(&self.conn, *seq)?;
            }
        }
        let at_end = looked_at < LOOKED_AT_MAX && over.len() < FORGOTTEN_MAX;
        self.cursor.receipt = if at_end { Default::default() } else { (id, stream) };
        // The end came before anything was found: what there is may be before the place where the walk began.
        if at_end && over.is_empty() && !from_start { self.forget_receipts(now) } else { Ok(over.len()) }
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
}
