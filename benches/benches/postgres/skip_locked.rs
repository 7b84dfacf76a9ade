//! A queue as one writes it in SQL: a table, `FOR UPDATE SKIP LOCKED`, and nothing else.
//!
//! An identity is unique for good, as ours is for its window: the row stays, and says that it is done. Workers fetch
//! `batch` rows at once, mark them as theirs with a time after which another may have them, handle them, and say that
//! they are done: two commits a batch. One by one, a caller inserts its event itself; in bulk, one inserts as many as
//! there is room for.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use redrive_benches::turn::{self, Outcome, Publisher};
use sqlx::postgres::PgPoolOptions;
use sqlx::{PgPool, Row};
use tokio::sync::{Notify, Semaphore};

use crate::Fallible;
use crate::progress_reader::ProgressReader;
use crate::turn_args::TurnArgs;

/// As it is called on the command line.
pub(crate) const NAME: &str = "plain";

/// How long a worker that found nothing waits, unless an event is published.
const LOOK: Duration = Duration::from_millis(20);

const TABLE: &str = "
    CREATE TABLE job (
        id TEXT COLLATE \"C\" PRIMARY KEY,
        number BIGINT GENERATED ALWAYS AS IDENTITY,
        payload BYTEA NOT NULL,
        ready TIMESTAMPTZ DEFAULT now(),
        done TIMESTAMPTZ
    ) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
    CREATE INDEX job_ready ON job (number) WHERE done IS NULL;
";

/// Measures one turn.
pub(crate) async fn measure(told: &TurnArgs) -> Fallible<Outcome> {
    let many = u32::try_from(told.connections)?;
    let pool = PgPoolOptions::new()
        .max_connections(many)
        .acquire_timeout(Duration::from_secs(60))
        .test_before_acquire(false)
        .connect(&told.url)
        .await?;
    sqlx::raw_sql(TABLE).execute(&pool).await?;
    let published = Arc::new(AtomicU64::new(0));
    let room = Arc::new(Semaphore::new(told.turn.callers));
    let news = Arc::new(Notify::new());
    let (bulk, callers) = (told.turn.publisher == Publisher::Bulk, told.turn.callers);
    let next = Arc::new(AtomicU64::new(1));
    for _ in 0..if bulk { 1 } else { callers } {
        let (pool, room, next) = (pool.clone(), room.clone(), next.clone());
        let (published, news) = (published.clone(), news.clone());
        tokio::spawn(async move {
            if let Err(error) = publish_always(&pool, &room, &next, (&published, &news), bulk).await {
                eprintln!("plain: {error}");
                std::process::exit(1);
            }
        });
    }
    // Half of the connections work, and the others publish.
    for _ in 0..told.connections.div_ceil(2) {
        let (pool, room, news, batch) = (pool.clone(), room.clone(), news.clone(), told.turn.batch);
        tokio::spawn(async move {
            loop {
                let fetched = match work(&pool, batch, &room).await {
                    Ok(fetched) => fetched,
                    Err(error) => {
                        eprintln!("plain: {error}");
                        std::process::exit(1);
                    }
                };
                if fetched == 0 {
                    let _ = tokio::time::timeout(LOOK, news.notified()).await;
                }
            }
        });
    }
    let mut gauge = ProgressReader::open(told, "SELECT count(*) FROM job WHERE done IS NULL").await?;
    gauge.between(told, || published.load(Relaxed)).await
}

/// Publishes as long as the program runs, or until something fails.
async fn publish_always(
    pool: &PgPool,
    room: &Semaphore,
    next: &AtomicU64,
    (published, news): (&AtomicU64, &Notify),
    bulk: bool,
) -> Fallible<()> {
    loop {
        let many = if bulk { room.available_permits().max(1) } else { 1 };
        room.acquire_many(u32::try_from(many)?).await?.forget();
        publish(pool, next.fetch_add(many as u64, Relaxed), many as u64).await?;
        published.fetch_add(many as u64, Relaxed);
        news.notify_one();
    }
}

async fn publish(pool: &PgPool, first: u64, many: u64) -> Fallible<()> {
    let numbers = first..first + many;
    let ids: Vec<String> = numbers.clone().map(turn::id).collect();
    let payloads: Vec<Vec<u8>> = numbers.map(|number| turn::payload(number).into_bytes()).collect();
    let insert = "INSERT INTO job (id, payload) SELECT * FROM unnest($1::text[], $2::bytea[]) \
                  ON CONFLICT DO NOTHING";
    sqlx::query(insert).bind(ids).bind(payloads).execute(pool).await?;
    Ok(())
}

/// Fetches, handles and finishes a batch. How many there were.
async fn work(pool: &PgPool, batch: usize, room: &Semaphore) -> Fallible<usize> {
    let fetch = "UPDATE job SET ready = now() + interval '30 s' WHERE id IN (SELECT id FROM job \
                 WHERE done IS NULL AND ready <= now() ORDER BY number LIMIT $1 FOR UPDATE SKIP LOCKED) \
                 RETURNING id, payload";
    let rows = sqlx::query(fetch).bind(i64::try_from(batch)?).fetch_all(pool).await?;
    let ids: Vec<String> = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
    if ids.is_empty() {
        return Ok(0);
    }
    // The handler: it does nothing, and its caller may publish the next one.
    room.add_permits(ids.len());
    sqlx::query("UPDATE job SET done = now() WHERE id = ANY($1)").bind(&ids).execute(pool).await?;
    Ok(ids.len())
}
