//! Bytes that programs built on the store keep in it.
//!
//! A reader may write values that follow from what it read, so all readers wait for each other: the values are few,
//! and rarely read.

use sqlx::Row;

use crate::stores::postgres::faults::Step;
use crate::stores::postgres::tx::{OwnTx, rows, run};

impl OwnTx {
    /// Stores bytes under a name, or removes them.
    pub(in crate::stores::postgres) async fn put_kept(
        &mut self,
        name: &str,
        bytes: Option<&[u8]>,
    ) -> Step<()> {
        match bytes {
            Some(bytes) => run!(
                self,
                "INSERT INTO redrive.kept (name, bytes) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET bytes = $2",
                name,
                bytes
            )?,
            None => run!(self, "DELETE FROM redrive.kept WHERE name = $1", name)?,
        };
        Ok(())
    }

    /// The entries whose names have this prefix.
    pub(in crate::stores::postgres) async fn find_kept(
        &mut self,
        beginning: &str,
    ) -> Step<Vec<(String, Vec<u8>)>> {
        run!(self, "LOCK TABLE redrive.kept IN SHARE ROW EXCLUSIVE MODE")?;
        let found = rows!(
            self,
            "SELECT name, bytes FROM redrive.kept WHERE name >= $1 AND starts_with(name, $1) ORDER BY name",
            beginning
        )?;
        Ok(found.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect::<sqlx::Result<_>>()?)
    }
}
