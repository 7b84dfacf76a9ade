//! For tests that want commits to fail.

use super::Sqlite;
use crate::store::Answer;

impl Sqlite {
    /// Gives the writer's connection to a test that wants its commits to fail.
    #[doc(hidden)]
    pub fn meddle(&self, mut with: impl FnMut(&mut rusqlite::Connection) + Send + 'static) -> Answer<()> {
        self.write_alone(
            move |desk| {
                with(&mut desk.conn);
                Ok(())
            },
            |_, _| {},
        )
    }
}
