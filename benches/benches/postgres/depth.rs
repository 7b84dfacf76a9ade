//! Filling a database with events that failed once and wait for a far retry.
//!
//! One is published and settled through the store. The others are that row with another place, identity and time, by
//! one statement: their checksums are not right, and nobody reads a row that is not due.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use redrive::engine::Options;
use redrive::store::{New, Published, Store};
use redrive::{Event, Moment};
use redrive_benches::turn::{self, Outcome};
use redrive_core::entry::{Change, Progress, Settle};
use redrive_core::event::Mode;
use redrive_store::Postgres;
use redrive_store::postgres::Settings;
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::Fallible;
use crate::gauge::{Gauge, outcome};
use crate::ours::QUEUE;
use crate::told::Told;

/// As it is called on the command line.
pub(crate) const NAME: &str = "fill";

/// When they are due: far beyond the run.
const FAR: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Fills.
pub(crate) async fn fill(told: &Told) -> Fallible<Outcome> {
    let count = told.waiting.ok_or("how many are to wait")?;
    let store = Arc::new(Postgres::open(&told.url, Settings::default()).await?);
    Options::new().over(store.clone()).queue(QUEUE).declare().await?;
    one(&*store).await?;
    let mut gauge = Gauge::open(told, "SELECT count(*) FROM redrive.held").await?;
    let before = gauge.look().await?;
    let mut conn = PgConnection::connect(&told.url).await?;
    let columns: Vec<String> = sqlx::query_scalar(
        "SELECT column_name::text FROM information_schema.columns WHERE table_schema = 'redrive' \
         AND table_name = 'held' AND column_name NOT IN ('seq', 'id', 'due', 'shard') ORDER BY 1",
    )
    .fetch_all(&mut conn)
    .await?;
    let columns = columns.join(", ");
    let more = count.saturating_sub(1);
    // Not all at once, and not in the order of their seqs. Their places are before all that come.
    for statement in [
        format!("SELECT setval('redrive.place', nextval('redrive.place') + {more})"),
        format!(
            "INSERT INTO redrive.receipt (id, stream, fingerprint, seq, published, until, crc) \
             SELECT 'wait-' || lpad(n::text, 31, '0'), stream, fingerprint, seq + n, published, until, crc \
             FROM redrive.receipt, generate_series(1, {more}) n"
        ),
        format!(
            "INSERT INTO redrive.held (seq, id, due, shard, {columns}) \
             SELECT seq + n, 'wait-' || lpad(n::text, 31, '0'), due + (n * 2654435761 % 86400000) * 1000000, \
             n % 16, {columns} FROM redrive.held, generate_series(1, {more}) n"
        ),
        "VACUUM ANALYZE".to_owned(),
        "CHECKPOINT".to_owned(),
    ] {
        sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut conn).await?;
    }
    store.close().await?;
    let after = gauge.look().await?;
    if after.left != count {
        return Err(format!("{} wait, and {count} should", after.left).into());
    }
    Ok(outcome(before, after, count, count, String::new()))
}

/// Publishes one, which fails at its first attempt.
async fn one(store: &dyn Store) -> Fallible<()> {
    let now: Moment = SystemTime::now().into();
    let event = Event::new(QUEUE, turn::id(0)).payload(turn::payload(0));
    let published = store.publish(vec![New::at(event, now)]).await?;
    let Some(Ok(Published::Accepted(seq))) = published.into_iter().next() else {
        return Err("it was there before".into());
    };
    let progress =
        Progress { attempts: 1, started: Some(now), mode: Mode::Retry, ..Progress::fresh(now + FAR) };
    for shard in 0..store.shards() {
        let grant = store.take(shard, now).await?.grant;
        let change = Change::Again(progress.clone());
        store.settle(vec![Settle { grant, seq, rev: 0, at: now, change }]).await?;
        store.release(grant).await?;
    }
    Ok(())
}
