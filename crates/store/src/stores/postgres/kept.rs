//! What programs that are built on the store keep in it.
//!
//! Whoever looks may write what follows from it, so all who look wait for each other: it is little, and rare.

use sqlx::Row;

use super::desk::{Desk, rows, run};
use super::faults::Step;

impl Desk {
    /// Keeps bytes under a name, or none.
    pub(super) async fn put_kept(&mut self, name: &str, bytes: Option<&[u8]>) -> Step<()> {
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

    /// What is kept under names that begin so.
    pub(super) async fn find_kept(&mut self, beginning: &str) -> Step<Vec<(String, Vec<u8>)>> {
        run!(self, "LOCK TABLE redrive.kept IN SHARE ROW EXCLUSIVE MODE")?;
        let found = rows!(
            self,
            "SELECT name, bytes FROM redrive.kept WHERE name >= $1 AND starts_with(name, $1) ORDER BY name",
            beginning
        )?;
        Ok(found.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect::<sqlx::Result<_>>()?)
    }
}
