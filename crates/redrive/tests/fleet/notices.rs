//! Signals changes in the database: triggers of the test's own on the tables of the store, so that no test has to
//! poll.

use std::time::Duration;

use redrive::store::postgres::sqlx::postgres::PgListener;
use redrive::store::postgres::sqlx::{self, AssertSqlSafe};
use redrive_testkit::postgres::Server;

/// A listener for changes of some tables.
pub(crate) struct Notices(PgListener);

impl Notices {
    /// Listens to these tables from now on. Each has a name of its own: two of them may be about the same table.
    pub(crate) async fn of(server: &Server, name: &str, tables: &[&str]) -> Self {
        let mut listener = PgListener::connect(&server.url()).await.unwrap();
        listener.listen(name).await.unwrap();
        let mut make = format!(
            "CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS \
             $$ BEGIN PERFORM pg_notify('{name}', ''); RETURN NULL; END $$;"
        );
        for table in tables {
            make += &format!(
                "CREATE TRIGGER {name} AFTER INSERT OR UPDATE OR DELETE ON redrive.{table} FOR EACH STATEMENT EXECUTE \
                 FUNCTION {name}();"
            );
        }
        sqlx::raw_sql(AssertSqlSafe(make)).execute(&mut listener).await.unwrap();
        Self(listener)
    }

    /// Returns when something changed since the last time, or panics with the present state.
    pub(crate) async fn next(&mut self, patience: Duration, still: impl FnOnce() -> String) {
        match tokio::time::timeout(patience, self.0.recv()).await {
            Ok(notice) => drop(notice.unwrap()),
            Err(_) => panic!("{}", still()),
        }
    }
}
