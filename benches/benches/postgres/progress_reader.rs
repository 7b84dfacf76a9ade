//! How far a contender is, by the database itself.
//!
//! A transaction that writes has a number, and numbers are given out one by one: two looks tell how many there were
//! in between, and a look has none itself.

use redrive_benches::turn::{self, Outcome, WARM_UP};
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};

use crate::Fallible;
use crate::turn_args::TurnArgs;

/// A connection that looks.
pub(crate) struct ProgressReader {
    conn: PgConnection,
    /// What counts those that are not done yet.
    left: String,
}

/// One look.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Snapshot {
    pub(crate) at: f64,
    /// Transactions that wrote.
    transactions: u64,
    /// Published and not done.
    pub(crate) left: u64,
}

impl ProgressReader {
    /// `left` is a statement with one number.
    pub(crate) async fn open(told: &TurnArgs, left: &str) -> Fallible<Self> {
        Ok(Self { conn: PgConnection::connect(&told.url).await?, left: left.to_owned() })
    }

    pub(crate) async fn look(&mut self) -> Fallible<Snapshot> {
        let look =
            format!("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint, ({})::bigint", self.left);
        let row = sqlx::query(AssertSqlSafe(look)).fetch_one(&mut self.conn).await?;
        let number = |at| row.try_get::<i64, _>(at).map(i64::unsigned_abs);
        Ok(Snapshot { at: turn::now(), transactions: number(0)?, left: number(1)? })
    }

    /// The settings that matter, as the server says.
    pub(crate) async fn settings(&mut self) -> Fallible<String> {
        let ask = "SELECT 'fsync=' || current_setting('fsync') || ', synchronous_commit=' \
                   || current_setting('synchronous_commit')";
        Ok(sqlx::query_scalar(ask).fetch_one(&mut self.conn).await?)
    }

    /// Warms up, and looks at both ends of the measured time. `published` is how many were answered.
    pub(crate) async fn between(
        &mut self,
        told: &TurnArgs,
        published: impl Fn() -> u64,
    ) -> Fallible<Outcome> {
        let settings = self.settings().await?;
        tokio::time::sleep(WARM_UP).await;
        let (before, earlier) = (self.look().await?, published());
        tokio::time::sleep(told.turn.time).await;
        let (after, later) = (self.look().await?, published());
        let done = (later + before.left).saturating_sub(earlier + after.left);
        Ok(outcome(before, after, done, done + later - earlier, settings))
    }
}

/// What came of a turn.
pub(crate) fn outcome(
    before: Snapshot,
    after: Snapshot,
    done: u64,
    writes: u64,
    settings: String,
) -> Outcome {
    let transactions = (after.transactions - before.transactions).max(1);
    Outcome { done, from: before.at, to: after.at, transactions, writes, p50_us: None, settings }
}
