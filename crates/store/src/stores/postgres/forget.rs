//! Forgetting what need not be remembered any more.
//!
//! There is no index on when that is: it would cost every publish a second insert. Instead a walk goes through
//! all receipts and markers in the order of their keys, a slice a call, and begins again at the end. Each slice is one
//! statement, and what it takes away is looked at again in the statement that does.
//!
//! Shards are locked only where events change: where letters are given up, and for what was discarded.

use std::sync::{Arc, PoisonError};

use redrive_core::Moment;
use redrive_core::entry::{Seq, StreamId};
use sqlx::Row;
use sqlx::postgres::PgRow;

use super::desk::{Desk, one, rows};
use super::faults::Step;
use super::office::{Doing, Office};
use crate::error::StoreError;
use crate::stores::shared::numbers::{bits, column, from_moment};

/// How many rows are looked at in a call: some milliseconds.
pub(super) const LOOKED_AT_MAX: i64 = 4096;
/// How many are forgotten in a call: each is a page to write.
pub(super) const FORGOTTEN_MAX: usize = 1000;

/// Where the walks are.
#[derive(Debug, Clone)]
pub(super) struct Cursor {
    receipt: (String, i64),
    marker: (String, String),
    pub(super) group: (i64, i64),
}

impl Default for Cursor {
    fn default() -> Self {
        Self { receipt: Default::default(), marker: Default::default(), group: (-1, i64::MIN) }
    }
}

/// A slice of a walk.
struct Slice {
    gone: usize,
    looked_at: i64,
    next: (String, String),
}

impl Slice {
    /// Reads a row: how many are gone, how many were looked at, and the last place.
    fn read(rows: &[PgRow]) -> sqlx::Result<Self> {
        let Some(row) = rows.first() else {
            return Ok(Self { gone: 0, looked_at: 0, next: Default::default() });
        };
        let gone = usize::try_from(row.try_get::<i64, _>(0)?).unwrap_or_default();
        let text = |at| row.try_get::<Option<String>, _>(at).map(Option::unwrap_or_default);
        Ok(Self { gone, looked_at: row.try_get(1)?, next: (text(2)?, text(3)?) })
    }

    fn is_at_end(&self) -> bool {
        self.looked_at < LOOKED_AT_MAX && self.gone < FORGOTTEN_MAX
    }
}

impl Office {
    /// Forgets a slice of everything that is over.
    pub(super) async fn forget(self: &Arc<Self>, now: Moment) -> Result<usize, StoreError> {
        self.seen.see(now);
        self.forget_nodes().await?;
        let mut gone = self.write(|desk| -> Doing<'_, usize> { Box::pin(desk.keep_in_order(now)) }).await?;
        gone += self.write(|desk| -> Doing<'_, usize> { Box::pin(desk.forget_records(now)) }).await?;
        gone += self.write(|desk| -> Doing<'_, usize> { Box::pin(desk.forget_receipts(now)) }).await?;
        gone += self.write(|desk| -> Doing<'_, usize> { Box::pin(desk.forget_discarded(now)) }).await?;
        gone += self.write(|desk| -> Doing<'_, usize> { Box::pin(desk.forget_markers(now)) }).await?;
        gone += self.write(|desk| -> Doing<'_, usize> { Box::pin(desk.forget_groups(now)) }).await?;
        if self.numbers.are_to_be_swept() {
            self.write(|desk| -> Doing<'_, usize> { Box::pin(desk.forget_numbers()) }).await?;
        }
        Ok(gone)
    }

    fn cursor(&self) -> Cursor {
        self.cursor.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn move_cursor(&self, to: impl FnOnce(&mut Cursor)) {
        to(&mut self.cursor.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Desk {
    /// Receipts of events that are gone altogether.
    async fn forget_receipts(&mut self, now: Moment) -> Step<usize> {
        loop {
            let (id, stream) = self.office.cursor().receipt;
            let from_start = id.is_empty() && stream == 0;
            let found = rows!(
                self,
                "WITH slice AS MATERIALIZED (SELECT id, stream, seq, until FROM redrive.receipt \
                 WHERE (id, stream) > ($1, $2) ORDER BY id, stream LIMIT $3), \
                 over AS MATERIALIZED (SELECT * FROM slice WHERE until < $4 \
                 AND NOT EXISTS (SELECT 1 FROM redrive.live WHERE live.seq = slice.seq AND live.id = slice.id) \
                 AND NOT EXISTS (SELECT 1 FROM redrive.held WHERE held.seq = slice.seq AND held.id = slice.id) \
                 ORDER BY id, stream LIMIT $5), \
                 gone AS (DELETE FROM redrive.receipt USING over WHERE receipt.id = over.id \
                 AND receipt.stream = over.stream AND receipt.seq = over.seq AND receipt.until < $4 \
                 RETURNING receipt.seq, receipt.state), \
                 ended AS (DELETE FROM redrive.ending WHERE seq IN (SELECT seq FROM gone WHERE state IS NULL)), \
                 last AS (SELECT id, stream FROM (SELECT id, stream FROM slice \
                 WHERE (SELECT count(*) FROM over) < $5 UNION ALL SELECT id, stream FROM over) seen \
                 ORDER BY id DESC, stream DESC LIMIT 1) \
                 SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM slice), (SELECT id FROM last), \
                 (SELECT stream::text FROM last)",
                &id,
                stream,
                LOOKED_AT_MAX,
                from_moment(now),
                column(FORGOTTEN_MAX as u64)
            )?;
            let slice = Slice::read(&found)?;
            let at_end = slice.is_at_end();
            let gone = slice.gone;
            self.office.move_cursor(|cursor| {
                let (id, stream) = slice.next;
                cursor.receipt =
                    if at_end { Default::default() } else { (id, stream.parse().unwrap_or_default()) };
            });
            // The end came before anything was found: what there is may be before the place where the walk began.
            if !(at_end && gone == 0) || from_start {
                return Ok(gone);
            }
        }
    }

    /// What was discarded, and may be restored no longer: it goes with its receipt, beside which it would be a second
    /// event for whoever publishes anew.
    async fn forget_discarded(&mut self, now: Moment) -> Step<usize> {
        let over = "SELECT receipt.stream, receipt.id, receipt.seq FROM redrive.held JOIN redrive.receipt \
                    ON receipt.id = held.id AND receipt.stream = held.stream WHERE held.state = 5 \
                    AND receipt.seq = held.seq AND receipt.until < $1 LIMIT $2";
        if rows!(self, over, from_moment(now), 1_i64)?.is_empty() {
            return Ok(0);
        }
        self.lock_shards().await?;
        let found = rows!(self, over, from_moment(now), column(FORGOTTEN_MAX as u64))?;
        for row in &found {
            let stream = StreamId(u32::try_from(row.try_get::<i64, _>(0)?).unwrap_or_default());
            let (id, seq): (String, Seq) = (row.try_get(1)?, Seq(bits(row.try_get(2)?)));
            self.delete_receipt_at(stream, &id, seq).await?;
            self.delete_held(seq).await?;
        }
        Ok(found.len())
    }

    async fn forget_markers(&mut self, now: Moment) -> Step<usize> {
        loop {
            let (handler, id) = self.office.cursor().marker;
            let from_start = handler.is_empty() && id.is_empty();
            let found = rows!(
                self,
                "WITH slice AS MATERIALIZED (SELECT handler, id, until FROM redrive.inbox \
                 WHERE (handler, id) > ($1, $2) ORDER BY handler, id LIMIT $3), \
                 over AS MATERIALIZED (SELECT * FROM slice WHERE until < $4 ORDER BY handler, id LIMIT $5), \
                 gone AS (DELETE FROM redrive.inbox USING over WHERE inbox.handler = over.handler \
                 AND inbox.id = over.id AND inbox.until < $4 RETURNING 1), \
                 last AS (SELECT handler, id FROM (SELECT handler, id FROM slice \
                 WHERE (SELECT count(*) FROM over) < $5 UNION ALL SELECT handler, id FROM over) seen \
                 ORDER BY handler DESC, id DESC LIMIT 1) \
                 SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM slice), (SELECT handler FROM last), \
                 (SELECT id FROM last)",
                &handler,
                &id,
                LOOKED_AT_MAX,
                from_moment(now),
                column(FORGOTTEN_MAX as u64)
            )?;
            let slice = Slice::read(&found)?;
            let (at_end, gone) = (slice.is_at_end(), slice.gone);
            self.office.move_cursor(|cursor| {
                cursor.marker = if at_end { Default::default() } else { slice.next };
            });
            if !(at_end && gone == 0) || from_start {
                return Ok(gone);
            }
        }
    }

    /// Forgets groups that have had no letters for as long as their queue remembers identities.
    async fn forget_groups(&mut self, now: Moment) -> Step<usize> {
        let (stream, cause) = self.office.cursor().group;
        let found = rows!(
            self,
            "SELECT stream, cause, letters, last FROM redrive.tally WHERE (stream, cause) > ($1, $2) \
             ORDER BY stream, cause LIMIT $3",
            stream,
            cause,
            LOOKED_AT_MAX
        )?;
        let mut gone = 0;
        let mut place = (stream, cause);
        for row in &found {
            place = (row.try_get(0)?, row.try_get(1)?);
            if row.try_get::<i64, _>(2)? != 0 {
                continue;
            }
            let id = StreamId(u32::try_from(place.0).unwrap_or_default());
            let Some(names) = self.stream(id).await? else { continue };
            let last = crate::stores::shared::numbers::to_moment(row.try_get(3)?);
            if last + self.window(&names.queue).await? < now {
                let deleted: i64 = one!(
                    self,
                    "WITH gone AS (DELETE FROM redrive.tally WHERE stream = $1 AND cause = $2 AND letters = 0 \
                     RETURNING 1) SELECT count(*) FROM gone",
                    place.0,
                    place.1
                )?;
                gone += usize::try_from(deleted).unwrap_or_default();
            }
        }
        let at_end = column(found.len() as u64) < LOOKED_AT_MAX;
        let next = if at_end { Cursor::default().group } else { place };
        self.office.move_cursor(|cursor| cursor.group = next);
        if gone > 0 {
            self.office.causes.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
        Ok(gone)
    }
}
