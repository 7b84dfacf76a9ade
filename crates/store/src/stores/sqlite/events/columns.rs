//! The columns of an event that change, as SQLite takes them.

use std::sync::LazyLock;

use redrive_core::queue_entry::Seq;
use rusqlite::types::{ToSql, ToSqlOutput, ValueRef};
use rusqlite::{CachedStatement, Connection};

use crate::stores::shared::columns::written_columns;
pub(in crate::stores::sqlite) use crate::stores::shared::columns::{Columns, redrive_columns};
use crate::stores::shared::numbers::column;
use crate::stores::shared::params::{Param, assignments};

impl ToSql for Param<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        let value = match self {
            Self::Number(number) => number.map(ValueRef::Integer),
            Self::Text(text) => text.map(|text| ValueRef::Text(text.as_bytes())),
            Self::Bytes(bytes) => bytes.map(ValueRef::Blob),
        };
        Ok(ToSqlOutput::Borrowed(value.unwrap_or(ValueRef::Null)))
    }
}

impl Columns {
    /// Writes them all.
    pub(in crate::stores::sqlite) fn update(&self, conn: &Connection, seq: Seq) -> rusqlite::Result<()> {
        static SQL: LazyLock<String> = LazyLock::new(|| {
            format!("UPDATE redrive_tracked SET {} WHERE seq = ?1", assignments(written_columns!(), '?', 2))
        });
        let mut update = conn.prepare_cached(&SQL)?;
        update.raw_bind_parameter(1, column(seq.0))?;
        self.bind(&mut update, 2, seq)?;
        update.raw_execute().map(drop)
    }

    /// Binds them, the first of them to the parameter with this number.
    pub(in crate::stores::sqlite) fn bind(
        &self,
        to: &mut CachedStatement<'_>,
        first: usize,
        seq: Seq,
    ) -> rusqlite::Result<()> {
        for (at, param) in self.params(seq).into_iter().enumerate() {
            to.raw_bind_parameter(first + at, param)?;
        }
        Ok(())
    }
}
