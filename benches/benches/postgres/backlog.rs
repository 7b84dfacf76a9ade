//! Filling a database with events that failed once and wait for a far retry.
//!
//! One is published and settled through the store. The others are copies of that row with another place, identity and
//! time, made by one statement: their checksums are wrong, but a row that is not due is never read.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use redrive::engine::OpenOptions;
use redrive::store::{NewEvent, Published, Store};
use redrive::{Event, Moment};
use redrive_benches::turn::{self, Outcome};
use redrive_core::event::Mode;
use redrive_core::queue_entry::{EventChange, EventProgress, SettleRequest};
use redrive_store::Postgres;
use redrive_store::postgres::PostgresSettings;
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::Fallible;
use crate::progress_reader::{ProgressReader, outcome};
use crate::redrive_contender::QUEUE;
use crate::turn_args::TurnArgs;

/// As it is called on the command line.
pub(crate) const NAME: &str = "fill";

/// When they are due: far beyond the run.
const FAR: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Fills.
pub(crate) async fn fill(told: &TurnArgs) -> Fallible<Outcome> {
    let count = told.waiting.ok_or("how many are to wait")?;
    let store = Arc::new(Postgres::open(&told.url, PostgresSettings::default()).await?);
    OpenOptions::new().over(store.clone()).queue(QUEUE).declare().await?;
    one(&*store).await?;
    let mut gauge = ProgressReader::open(told, "SELECT count(*) FROM redrive.tracked").await?;
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
            "INSERT INTO redrive.dedupe (id, stream, fingerprint, seq, published, until, crc) \
             SELECT 'wait-' || lpad(n::text, 31, '0'), stream, fingerprint, seq + n, published, until, crc \
             FROM redrive.dedupe, generate_series(1, {more}) n"
        ),
        format!(
            "INSERT INTO redrive.tracked (seq, id, due, shard, {columns}) \
             SELECT seq + n, 'wait-' || lpad(n::text, 31, '0'), due + (n * 2654435761 % 86400000) * 1000000, \
             n % 16, {columns} FROM redrive.tracked, generate_series(1, {more}) n"
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
    let published = store.publish(vec![NewEvent::at(event, now)]).await?;
    let Some(Ok(Published::Accepted(seq))) = published.into_iter().next() else {
        return Err("it was there before".into());
    };
    let progress = EventProgress {
        attempts: 1,
        started: Some(now),
        mode: Mode::Retry,
        ..EventProgress::fresh(now + FAR)
    };
    for shard in 0..store.shards() {
        let token = store.take(shard, now).await?.token;
        let change = EventChange::Retry(progress.clone());
        store.settle(vec![SettleRequest { token, seq, rev: 0, at: now, change }]).await?;
        store.release(token).await?;
    }
    Ok(())
}
