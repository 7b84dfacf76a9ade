//! For tests that want commits to fail.

use crate::store::StoreFuture;
use crate::stores::sqlite::Sqlite;

impl Sqlite {
    /// Gives the writer's connection to a test that wants its commits to fail.
    #[doc(hidden)]
    pub fn meddle(
        &self,
        mut with: impl FnMut(&mut rusqlite::Connection) + Send + 'static,
    ) -> StoreFuture<()> {
        self.write_alone(
            move |tx| {
                with(&mut tx.conn);
                Ok(())
            },
            |_, _| {},
        )
    }
}
