//! Events that change, as rows of PostgreSQL.

use std::sync::LazyLock;

use redrive_core::queue_entry::Seq;
use sqlx::Postgres;
use sqlx::postgres::PgArguments;
use sqlx::query::Query;

use super::fresh::{Damage, EVENT_COLUMNS, Parts, Stream, event_columns, shard_at};
use crate::stores::postgres::tx::{PgTx, maybe, run};
use crate::stores::shared::cells::Cells;
use crate::stores::shared::columns::{Columns, written_columns};
use crate::stores::shared::numbers::{column, stream_of};
use crate::stores::shared::params::{Param, assignments, placeholders};
pub(in crate::stores::postgres) use crate::stores::shared::tracked::{
    LastLease, RedrivenBy, RowState, TrackedEvent, plain_columns,
};

/// All columns of the table that are read.
macro_rules! tracked_columns {
    () => {
        concat!($crate::stores::shared::tracked::tracked_columns!(), ", shard")
    };
}
pub(in crate::stores::postgres) use tracked_columns;

/// How many columns there are before the shard.
const BEFORE_SHARD: usize = EVENT_COLUMNS + 25;

/// Reads a row of [`tracked_columns`].
pub(in crate::stores::postgres) fn read_tracked(
    row: &impl Cells,
    stream: &Stream,
) -> Result<TrackedEvent, Damage> {
    let mut tracked = TrackedEvent::read(row, stream)?;
    tracked.row.shard = shard_at(row, BEFORE_SHARD)?;
    Ok(tracked)
}

/// Binds values, after those that a statement has already.
pub(in crate::stores::postgres) fn bind_all<'q>(
    query: Query<'q, Postgres, PgArguments>,
    params: impl IntoIterator<Item = Param<'q>>,
) -> Query<'q, Postgres, PgArguments> {
    params.into_iter().fold(query, |query, param| match param {
        Param::Number(number) => query.bind(number),
        Param::Text(text) => query.bind(text),
        Param::Bytes(bytes) => query.bind(bytes),
    })
}

impl PgTx<'_> {
    /// Inserts a tracked event.
    pub(in crate::stores::postgres) async fn insert_tracked(
        &mut self,
        tracked: &TrackedEvent,
    ) -> sqlx::Result<()> {
        let (seq, event) = (tracked.row.seq, &*tracked.row.event);
        let Parts { key, tag, extra, published, dedupe_ok_until, crc } = tracked.row.parts();
        static SQL: LazyLock<String> = LazyLock::new(|| {
            let (event, changes) = (event_columns!(), written_columns!());
            format!(
                "INSERT INTO redrive.tracked ({event}, stream, shard, stamp, {changes}) \
                 VALUES ({}, $10, $11, CASE WHEN $12 THEN '3'::xid8 ELSE pg_current_xact_id() END, {})",
                placeholders(event, '$', 1),
                placeholders(changes, '$', 13)
            )
        });
        let insert = self.sql(&SQL);
        let query = sqlx::query(insert)
            .persistent(self.keeps())
            .bind(column(seq.0))
            .bind(&event.id)
            .bind(key)
            .bind(tag)
            .bind(&event.payload)
            .bind(extra)
            .bind(published)
            .bind(dedupe_ok_until)
            .bind(crc)
            .bind(i64::from(stream_of(seq).0))
            .bind(i64::from(tracked.row.shard))
            .bind(self.is_owner());
        let columns = tracked.columns();
        bind_all(query, columns.params(seq)).execute(&mut *self.conn).await.map(drop)
    }

    /// Writes the changing columns of an event.
    pub(in crate::stores::postgres) async fn update_tracked(
        &mut self,
        tracked: &TrackedEvent,
    ) -> sqlx::Result<()> {
        self.update_columns(tracked.row.seq, &tracked.columns()).await
    }

    /// The same, if only the columns are known.
    pub(in crate::stores::postgres) async fn update_columns(
        &mut self,
        seq: Seq,
        columns: &Columns,
    ) -> sqlx::Result<()> {
        static SQL: LazyLock<String> = LazyLock::new(|| {
            let changes = assignments(written_columns!(), '$', 3);
            format!(
                "UPDATE redrive.tracked SET stamp = CASE WHEN $2 THEN stamp ELSE pg_current_xact_id() END, {changes} \
                 WHERE seq = $1"
            )
        });
        let update = self.sql(&SQL);
        let query = sqlx::query(update).persistent(self.keeps()).bind(column(seq.0)).bind(self.is_owner());
        bind_all(query, columns.params(seq)).execute(&mut *self.conn).await.map(drop)
    }

    /// The tracked event with this seq, if there is one.
    pub(in crate::stores::postgres) async fn tracked(
        &mut self,
        seq: Seq,
        stream: &Stream,
    ) -> sqlx::Result<Option<Result<TrackedEvent, Damage>>> {
        let select = if self.writes {
            concat!("SELECT ", tracked_columns!(), " FROM redrive.tracked WHERE seq = $1 FOR UPDATE")
        } else {
            concat!("SELECT ", tracked_columns!(), " FROM redrive.tracked WHERE seq = $1")
        };
        Ok(maybe!(self, select, column(seq.0))?.map(|row| read_tracked(&row, stream)))
    }

    /// Deletes a tracked event.
    pub(in crate::stores::postgres) async fn delete_tracked(&mut self, seq: Seq) -> sqlx::Result<u64> {
        run!(self, "DELETE FROM redrive.tracked WHERE seq = $1", column(seq.0))
    }

    /// Writes a changed event: moves it from the fresh ones, or updates it among the tracked ones.
    pub(in crate::stores::postgres) async fn keep(
        &mut self,
        tracked: &TrackedEvent,
        was_fresh: bool,
    ) -> sqlx::Result<()> {
        if was_fresh {
            self.delete_fresh(tracked.row.seq).await?;
            self.insert_tracked(tracked).await
        } else {
            self.update_tracked(tracked).await
        }
    }

    /// Deletes an event.
    pub(in crate::stores::postgres) async fn remove(
        &mut self,
        seq: Seq,
        was_fresh: bool,
    ) -> sqlx::Result<()> {
        if was_fresh { self.delete_fresh(seq).await } else { self.delete_tracked(seq).await }.map(drop)
    }
}
