//! Rows of PostgreSQL: their cells, and events among those that may run.

use redrive_core::queue_entry::Seq;
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::stores::postgres::tx::{PgTx, maybe, run};
use crate::stores::shared::cells::Cells;
pub(in crate::stores::postgres) use crate::stores::shared::cells::Damage;
use crate::stores::shared::numbers::column;
pub(in crate::stores::postgres) use crate::stores::shared::rows::{
    EVENT_COLUMNS, EventRow, Parts, Stream, event_columns,
};

/// The columns of an event that never ran.
macro_rules! fresh_columns {
    () => {
        concat!($crate::stores::shared::rows::event_columns!(), ", shard")
    };
}
pub(in crate::stores::postgres) use fresh_columns;

/// Reads a row of [`fresh_columns`].
pub(in crate::stores::postgres) fn read_fresh(row: &impl Cells, stream: &Stream) -> Result<EventRow, Damage> {
    let event = EventRow::read(row, stream)?;
    Ok(EventRow { shard: shard_at(row, EVENT_COLUMNS)?, ..event })
}

/// The shard in a row.
pub(in crate::stores::postgres) fn shard_at(row: &impl Cells, at: usize) -> Result<u32, Damage> {
    u32::try_from(row.number(at)?).map_err(|_| Damage)
}

impl Cells for PgRow {
    fn number(&self, at: usize) -> Result<i64, Damage> {
        self.try_get(at).map_err(|_| Damage)
    }

    fn maybe_number(&self, at: usize) -> Result<Option<i64>, Damage> {
        self.try_get(at).map_err(|_| Damage)
    }

    fn word(&self, at: usize) -> Result<Option<&str>, Damage> {
        self.try_get(at).map_err(|_| Damage)
    }

    fn blob(&self, at: usize) -> Result<Option<&[u8]>, Damage> {
        self.try_get(at).map_err(|_| Damage)
    }
}

impl PgTx<'_> {
    /// The event with this seq, if it may run and never ran.
    pub(in crate::stores::postgres) async fn fresh(
        &mut self,
        seq: Seq,
        stream: &Stream,
    ) -> sqlx::Result<Option<Result<EventRow, Damage>>> {
        let select = if self.writes {
            concat!("SELECT ", fresh_columns!(), " FROM redrive.fresh WHERE seq = $1 FOR UPDATE")
        } else {
            concat!("SELECT ", fresh_columns!(), " FROM redrive.fresh WHERE seq = $1")
        };
        Ok(maybe!(self, select, column(seq.0))?.map(|row| read_fresh(&row, stream)))
    }

    /// Takes an event out of those that may run.
    pub(in crate::stores::postgres) async fn delete_fresh(&mut self, seq: Seq) -> sqlx::Result<u64> {
        run!(self, "DELETE FROM redrive.fresh WHERE seq = $1", column(seq.0))
    }
}
