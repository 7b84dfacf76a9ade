//! Events that change, as rows of PostgreSQL.

use redrive_core::entry::Seq;
use redrive_core::event::{DeadReason, Mode};

use super::desk::{DeskAt, maybe, run};
use super::rows::{Damage, EVENT_COLUMNS, Parts, Stream, event_columns, shard_at};
use crate::stores::shared::cells::Cells;
use crate::stores::shared::columns::{Columns, change_columns};
pub(super) use crate::stores::shared::held::{Held, Mark, PutBack, Stand, plain_columns};
use crate::stores::shared::numbers::{column, stream_of};

/// All columns of the table that are read.
macro_rules! held_columns {
    () => {
        concat!($crate::stores::shared::held::held_columns!(), ", shard")
    };
}
pub(super) use held_columns;

/// How many columns there are before the shard.
const BEFORE_SHARD: usize = EVENT_COLUMNS + 25;

/// Reads a row of [`held_columns`].
pub(super) fn read_held(row: &impl Cells, stream: &Stream) -> Result<Held, Damage> {
    let mut held = Held::read(row, stream)?;
    held.row.shard = shard_at(row, BEFORE_SHARD)?;
    Ok(held)
}

/// Binds the columns that change, in their order, behind what a statement has already.
macro_rules! bind_changes {
    ($query:expr, $columns:expr, $seq:expr) => {{
        let columns: &Columns = $columns;
        $query
            .bind(i64::from(columns.attempts > 0 || columns.mode != Mode::Live))
            .bind(columns.rev)
            .bind(columns.state)
            .bind(columns.due)
            .bind(columns.attempts)
            .bind(columns.mode.as_str())
            .bind(columns.started)
            .bind(columns.previous)
            .bind(columns.strikes)
            .bind(columns.suspect)
            .bind(columns.story.as_deref())
            .bind(columns.reason.map(DeadReason::as_str))
            .bind(columns.died)
            .bind(columns.park_until)
            .bind(columns.park_count)
            .bind(columns.route.as_deref())
            .bind(columns.out_of_order)
            .bind(columns.cause)
            .bind(columns.death)
            .bind(columns.redrive)
            .bind(columns.redriven)
            .bind(columns.lease_attempt)
            .bind(columns.lease_token.map(|token| token.to_vec()))
            .bind(columns.lease_until)
            .bind(columns.lease_from)
            .bind(columns.sum($seq))
    }};
}

impl DeskAt<'_> {
    /// Puts an event among those that are held.
    pub(super) async fn insert_held(&mut self, held: &Held) -> sqlx::Result<()> {
        let (seq, event) = (held.row.seq, &*held.row.event);
        let Parts { key, tag, extra, published, calm, crc } = held.row.parts();
        let insert = self.sql(concat!(
            "INSERT INTO redrive.held (",
            event_columns!(),
            ", stream, shard, stamp, flow, ",
            change_columns!(),
            ") VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, \
             CASE WHEN $12 THEN '3'::xid8 ELSE pg_current_xact_id() END, $13, $14, $15, $16, $17, $18, $19, $20, $21, \
             $22, $23, $24, $25, $26, $27, $28, $29, $30, $31, $32, $33, $34, $35, $36, $37, $38)"
        ));
        let query = sqlx::query(insert)
            .persistent(self.keeps())
            .bind(column(seq.0))
            .bind(&event.id)
            .bind(key)
            .bind(tag)
            .bind(&event.payload)
            .bind(extra)
            .bind(published)
            .bind(calm)
            .bind(crc)
            .bind(i64::from(stream_of(seq).0))
            .bind(i64::from(held.row.shard))
            .bind(self.is_owner());
        bind_changes!(query, &held.columns(), seq).execute(&mut *self.conn).await.map(drop)
    }

    /// Writes what changes of an event.
    pub(super) async fn update_held(&mut self, held: &Held) -> sqlx::Result<()> {
        self.update_columns(held.row.seq, &held.columns()).await
    }

    /// The same, where the rest of it is not known.
    pub(super) async fn update_columns(&mut self, seq: Seq, columns: &Columns) -> sqlx::Result<()> {
        let update = self.sql(
            "UPDATE redrive.held SET stamp = CASE WHEN $2 THEN stamp ELSE pg_current_xact_id() END, flow = $3, \
             rev = $4, state = $5, due = $6, attempts = $7, mode = $8, started = $9, previous = $10, strikes = $11, \
             suspect = $12, story = $13, reason = $14, died = $15, park_until = $16, park_count = $17, route = $18, \
             out_of_order = $19, cause = $20, death = $21, redrive = $22, redriven = $23, lease_attempt = $24, \
             lease_token = $25, lease_until = $26, lease_from = $27, progress_crc = $28 WHERE seq = $1",
        );
        let query = sqlx::query(update).persistent(self.keeps()).bind(column(seq.0)).bind(self.is_owner());
        bind_changes!(query, columns, seq).execute(&mut *self.conn).await.map(drop)
    }

    /// The held event with this seq, if there is one.
    pub(super) async fn held(
        &mut self,
        seq: Seq,
        stream: &Stream,
    ) -> sqlx::Result<Option<Result<Held, Damage>>> {
        let select = if self.writes {
            concat!("SELECT ", held_columns!(), " FROM redrive.held WHERE seq = $1 FOR UPDATE")
        } else {
            concat!("SELECT ", held_columns!(), " FROM redrive.held WHERE seq = $1")
        };
        Ok(maybe!(self, select, column(seq.0))?.map(|row| read_held(&row, stream)))
    }

    /// Takes an event out of those that are held.
    pub(super) async fn delete_held(&mut self, seq: Seq) -> sqlx::Result<u64> {
        run!(self, "DELETE FROM redrive.held WHERE seq = $1", column(seq.0))
    }

    /// Puts a changed event where it belongs: among the held, wherever it was before.
    pub(super) async fn keep(&mut self, held: &Held, was_live: bool) -> sqlx::Result<()> {
        if was_live {
            self.delete_live(held.row.seq).await?;
            self.insert_held(held).await
        } else {
            self.update_held(held).await
        }
    }

    /// Takes an event away.
    pub(super) async fn remove(&mut self, seq: Seq, was_live: bool) -> sqlx::Result<()> {
        if was_live { self.delete_live(seq).await } else { self.delete_held(seq).await }.map(drop)
    }
}
