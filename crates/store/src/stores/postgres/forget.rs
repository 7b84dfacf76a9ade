//! Deleting expired rows.
//!
//! There is no index on the expiry: it would cost every publish a second insert. Instead a walk goes through all
//! dedupe records and markers in the order of their keys, a slice per call, and starts over at the end. Each slice is
//! one statement, which checks again what it deletes.
//!
//! Shards are locked only if events change: to purge dead letters and discarded events.

use std::sync::{Arc, PoisonError};

use redrive_core::Moment;
use redrive_core::queue_entry::{Seq, StreamId};
use sqlx::Row;
use sqlx::postgres::PgRow;

use super::database::{Database, TxFuture};
use super::faults::Step;
use super::tx::{OwnTx, one, rows};
use crate::error::StoreError;
use crate::stores::rows::retention::FORGOTTEN_MAX;
use crate::stores::shared::numbers::{bits, column, from_moment};
use crate::stores::shared::tracked::states;

/// How many rows one call reads: some milliseconds.
pub(super) const LOOKED_AT_MAX: i64 = 4096;

/// The positions of the walks.
#[derive(Debug, Clone)]
pub(super) struct Cursor {
    dedupe: (String, i64),
    marker: (String, String),
    pub(super) group: (i64, i64),
}

impl Default for Cursor {
    fn default() -> Self {
        Self { dedupe: Default::default(), marker: Default::default(), group: (-1, i64::MIN) }
    }
}

/// A slice of a walk.
struct Slice {
    gone: usize,
    looked_at: i64,
    next: (String, String),
}

impl Slice {
    /// Reads a row: how many were deleted, how many were read, and the last position.
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

impl Database {
    /// Deletes a slice of everything that has expired.
    pub(super) async fn forget(self: &Arc<Self>, now: Moment) -> Result<usize, StoreError> {
        self.clock.advance(now);
        self.forget_nodes().await?;
        let mut gone = self.write(|tx| -> TxFuture<'_, usize> { tx.enforce_retention(now) }).await?;
        gone += self.write(|tx| -> TxFuture<'_, usize> { Box::pin(tx.forget_records(now)) }).await?;
        gone += self.write(|tx| -> TxFuture<'_, usize> { Box::pin(tx.forget_dedupe_records(now)) }).await?;
        gone += self.write(|tx| -> TxFuture<'_, usize> { Box::pin(tx.forget_discarded(now)) }).await?;
        gone += self.write(|tx| -> TxFuture<'_, usize> { Box::pin(tx.forget_markers(now)) }).await?;
        gone += self.write(|tx| -> TxFuture<'_, usize> { Box::pin(tx.forget_groups(now)) }).await?;
        if self.commit_ids.are_to_be_swept() {
            self.write(|tx| -> TxFuture<'_, usize> { Box::pin(tx.forget_numbers()) }).await?;
        }
        Ok(gone)
    }

    fn cursor(&self) -> Cursor {
        self.cache.cursor.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn move_cursor(&self, to: impl FnOnce(&mut Cursor)) {
        to(&mut self.cache.cursor.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl OwnTx {
    /// Dedupe records whose events are gone.
    async fn forget_dedupe_records(&mut self, now: Moment) -> Step<usize> {
        loop {
            let (id, stream) = self.db.cursor().dedupe;
            let from_start = id.is_empty() && stream == 0;
            let found = rows!(
                self,
                "WITH slice AS MATERIALIZED (SELECT id, stream, seq, until FROM redrive.dedupe \
                 WHERE (id, stream) > ($1, $2) ORDER BY id, stream LIMIT $3), \
                 over AS MATERIALIZED (SELECT * FROM slice WHERE until < $4 \
                 AND NOT EXISTS (SELECT 1 FROM redrive.fresh WHERE fresh.seq = slice.seq AND fresh.id = slice.id) \
                 AND NOT EXISTS (SELECT 1 FROM redrive.tracked WHERE tracked.seq = slice.seq AND tracked.id = slice.id) \
                 ORDER BY id, stream LIMIT $5), \
                 gone AS (DELETE FROM redrive.dedupe USING over WHERE dedupe.id = over.id \
                 AND dedupe.stream = over.stream AND dedupe.seq = over.seq AND dedupe.until < $4 \
                 RETURNING dedupe.seq, dedupe.state), \
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
            self.db.move_cursor(|cursor| {
                let (id, stream) = slice.next;
                cursor.dedupe =
                    if at_end { Default::default() } else { (id, stream.parse().unwrap_or_default()) };
            });
            // The walk reached the end and found nothing: there may be expired rows before the position where it
            // began.
            if !(at_end && gone == 0) || from_start {
                return Ok(gone);
            }
        }
    }

    /// Discarded events that can no longer be restored: each is deleted with its dedupe record, because it would be a
    /// second event if the identity were published anew.
    async fn forget_discarded(&mut self, now: Moment) -> Step<usize> {
        let over = concat!(
            "SELECT dedupe.stream, dedupe.id, dedupe.seq FROM redrive.tracked JOIN redrive.dedupe \
                    ON dedupe.id = tracked.id AND dedupe.stream = tracked.stream WHERE tracked.state = ",
            states!(Discarded),
            " \
                    AND dedupe.seq = tracked.seq AND dedupe.until < $1 LIMIT $2"
        );
        if rows!(self, over, from_moment(now), 1_i64)?.is_empty() {
            return Ok(0);
        }
        self.lock_shards().await?;
        let found = rows!(self, over, from_moment(now), column(FORGOTTEN_MAX as u64))?;
        for row in &found {
            let stream = StreamId(u32::try_from(row.try_get::<i64, _>(0)?).unwrap_or_default());
            let (id, seq): (String, Seq) = (row.try_get(1)?, Seq(bits(row.try_get(2)?)));
            self.delete_dedupe_at(stream, &id, seq).await?;
            self.delete_tracked(seq).await?;
        }
        Ok(found.len())
    }

    async fn forget_markers(&mut self, now: Moment) -> Step<usize> {
        loop {
            let (handler, id) = self.db.cursor().marker;
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
            self.db.move_cursor(|cursor| {
                cursor.marker = if at_end { Default::default() } else { slice.next };
            });
            if !(at_end && gone == 0) || from_start {
                return Ok(gone);
            }
        }
    }

    /// Deletes groups that have had no dead letters for as long as their queue remembers identities.
    async fn forget_groups(&mut self, now: Moment) -> Step<usize> {
        let (stream, cause) = self.db.cursor().group;
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
        self.db.move_cursor(|cursor| cursor.group = next);
        if gone > 0 {
            self.db.cache.causes.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
        Ok(gone)
    }
}
