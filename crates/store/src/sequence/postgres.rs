//! Both sides in a PostgreSQL database of the caller's own.
//!
//! The conditional update of the producer's row is a lock: a second delivery of the same number waits for the first
//! one's commit, and then is a duplicate. At `REPEATABLE READ` and above it fails with a serialisation error instead,
//! and its transaction has to run again.
//!
//! ```no_run
//! use redrive_core::ladder::sequence::SequenceVerdict;
//! use redrive_store::postgres::sqlx::{self, PgPool};
//! use redrive_store::sequence::postgres;
//!
//! # async fn run(pool: PgPool, epoch: u64, number: u64) -> sqlx::Result<()> {
//! let mut tx = pool.begin().await?;
//! if postgres::accept(&mut tx, "payments", "shop", epoch, number).await? == SequenceVerdict::Apply {
//!     sqlx::query("INSERT INTO payment VALUES (100)").execute(&mut *tx).await?;
//! }
//! tx.commit().await
//! # }
//! ```

use std::time::Duration;

use redrive_core::ladder::sequence::{NumberedMessage, OpenedProducer, ProducerState, SequenceVerdict};
use sqlx::{PgConnection, Result, Row};

use super::{signed, unsigned};

const CREATE: &str = "CREATE SEQUENCE IF NOT EXISTS redrive_receiver_epoch;
CREATE TABLE IF NOT EXISTS redrive_producer (
  stream TEXT NOT NULL, producer TEXT NOT NULL, epoch BIGINT NOT NULL, last BIGINT NOT NULL,
  at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(), PRIMARY KEY (stream, producer)
) WITH (fillfactor = 50);
CREATE TABLE IF NOT EXISTS redrive_producer_log (
  stream TEXT NOT NULL, producer TEXT NOT NULL, last BIGINT NOT NULL, PRIMARY KEY (stream, producer)
) WITH (fillfactor = 50);
CREATE TABLE IF NOT EXISTS redrive_numbered (
  stream TEXT NOT NULL, producer TEXT NOT NULL, number BIGINT NOT NULL, payload BYTEA,
  PRIMARY KEY (stream, producer, number)
)";

/// Creates the tables of both sides, where they are missing.
///
/// # Errors
/// If the database refuses it.
pub async fn create(conn: &mut PgConnection) -> Result<()> {
    sqlx::raw_sql(CREATE).execute(conn).await.map(drop)
}

/// Receiver: makes a producer known, unless it is, and opens it. For its very first start.
///
/// # Errors
/// If the database refuses it.
pub async fn enrol(conn: &mut PgConnection, stream: &str, producer: &str) -> Result<OpenedProducer> {
    let insert = "INSERT INTO redrive_producer (stream, producer, epoch, last) VALUES ($1, $2, 0, 0) \
                  ON CONFLICT DO NOTHING";
    sqlx::query(insert).bind(stream).bind(producer).execute(&mut *conn).await?;
    open(conn, stream, producer).await?.ok_or(sqlx::Error::RowNotFound)
}

/// Receiver: opens a known producer under a new epoch; `None` if it is not known, and then an operator has to decide.
///
/// # Errors
/// If the database refuses it.
pub async fn open(conn: &mut PgConnection, stream: &str, producer: &str) -> Result<Option<OpenedProducer>> {
    // The row is locked before the epoch is drawn: of two openings the later one has the larger epoch.
    let update = "WITH held AS MATERIALIZED (SELECT stream, producer FROM redrive_producer \
                  WHERE stream = $1 AND producer = $2 FOR UPDATE) \
                  UPDATE redrive_producer AS p SET epoch = nextval('redrive_receiver_epoch'), at = clock_timestamp() \
                  FROM held WHERE p.stream = held.stream AND p.producer = held.producer RETURNING p.epoch, p.last";
    let row = sqlx::query(update).bind(stream).bind(producer).fetch_optional(conn).await?;
    row.map(|row| Ok(OpenedProducer { epoch: unsigned(row.try_get(0)?), last: unsigned(row.try_get(1)?) }))
        .transpose()
}

/// Receiver: judges a message, and takes its number if it is to be applied. The first statement of the effect's
/// transaction; commit it only together with the effect.
///
/// # Errors
/// If the database refuses it.
pub async fn accept(
    tx: &mut PgConnection,
    stream: &str,
    producer: &str,
    epoch: u64,
    number: u64,
) -> Result<SequenceVerdict> {
    let take = "UPDATE redrive_producer SET last = $4, at = clock_timestamp() \
                WHERE stream = $1 AND producer = $2 AND epoch = $3 AND last = $4 - 1";
    let take = sqlx::query(take).bind(stream).bind(producer).bind(signed(epoch)).bind(signed(number));
    if take.execute(&mut *tx).await?.rows_affected() == 1 {
        return Ok(SequenceVerdict::Apply);
    }
    let known = "SELECT epoch, last FROM redrive_producer WHERE stream = $1 AND producer = $2";
    let row = sqlx::query(known).bind(stream).bind(producer).fetch_optional(tx).await?;
    let Some(row) = row else { return Ok(SequenceVerdict::UnknownProducer) };
    let state = ProducerState { epoch: unsigned(row.try_get(0)?), last: unsigned(row.try_get(1)?) };
    Ok(match state.judge(epoch, number) {
        // The row changed between the two statements: this number is not ours to take any more.
        SequenceVerdict::Apply => SequenceVerdict::Gap { expected: state.last + 1 },
        verdict => verdict,
    })
}

/// Receiver: forgets producers that sent nothing for `age`; returns how many. Their messages are refused from then on.
///
/// # Errors
/// If the database refuses it.
pub async fn forget(conn: &mut PgConnection, age: Duration) -> Result<u64> {
    let old = "DELETE FROM redrive_producer WHERE at <= clock_timestamp() - make_interval(secs => $1)";
    Ok(sqlx::query(old).bind(age.as_secs_f64()).execute(conn).await?.rows_affected())
}

/// Producer: gives a message its number, in the transaction that decides to send it. The counter is locked until that
/// commits, so numbers commit in their order and a rolled-back one is given out again.
///
/// # Errors
/// If the database refuses it.
pub async fn assign(tx: &mut PgConnection, stream: &str, producer: &str, payload: &[u8]) -> Result<u64> {
    let next = "INSERT INTO redrive_producer_log AS log (stream, producer, last) VALUES ($1, $2, 1) \
                ON CONFLICT (stream, producer) DO UPDATE SET last = log.last + 1 RETURNING last";
    let row = sqlx::query(next).bind(stream).bind(producer).fetch_one(&mut *tx).await?;
    let number: i64 = row.try_get(0)?;
    let store = "INSERT INTO redrive_numbered (stream, producer, number, payload) VALUES ($1, $2, $3, $4)";
    sqlx::query(store).bind(stream).bind(producer).bind(number).bind(payload).execute(tx).await?;
    Ok(unsigned(number))
}

/// Producer: gives a message up; its number is sent as a void. `false` if it is confirmed already.
///
/// # Errors
/// If the database refuses it.
pub async fn abandon(tx: &mut PgConnection, stream: &str, producer: &str, number: u64) -> Result<bool> {
    let void = "UPDATE redrive_numbered SET payload = NULL WHERE stream = $1 AND producer = $2 AND number = $3 \
                AND payload IS NOT NULL";
    let void = sqlx::query(void).bind(stream).bind(producer).bind(signed(number));
    Ok(void.execute(tx).await?.rows_affected() == 1)
}

/// Producer: the receiver opened it. What was applied is confirmed, and numbers go on behind it.
///
/// # Errors
/// If the database refuses it.
pub async fn opened(
    tx: &mut PgConnection,
    stream: &str,
    producer: &str,
    opened: OpenedProducer,
) -> Result<()> {
    let at_least = "INSERT INTO redrive_producer_log AS log (stream, producer, last) VALUES ($1, $2, $3) \
                    ON CONFLICT (stream, producer) DO UPDATE SET last = greatest(log.last, excluded.last)";
    sqlx::query(at_least).bind(stream).bind(producer).bind(signed(opened.last)).execute(&mut *tx).await?;
    confirm(tx, stream, producer, opened.last).await
}

/// Producer: everything up to this number is applied.
///
/// # Errors
/// If the database refuses it.
pub async fn confirm(tx: &mut PgConnection, stream: &str, producer: &str, number: u64) -> Result<()> {
    let done = "DELETE FROM redrive_numbered WHERE stream = $1 AND producer = $2 AND number <= $3";
    sqlx::query(done).bind(stream).bind(producer).bind(signed(number)).execute(tx).await.map(drop)
}

/// Producer: up to `limit` messages to send, in order, from this number.
///
/// # Errors
/// If the database refuses it.
pub async fn pending(
    conn: &mut PgConnection,
    stream: &str,
    producer: &str,
    from: u64,
    limit: u32,
) -> Result<Vec<NumberedMessage>> {
    let next = "SELECT number, payload FROM redrive_numbered \
                WHERE stream = $1 AND producer = $2 AND number >= $3 ORDER BY number LIMIT $4";
    let next = sqlx::query(next).bind(stream).bind(producer).bind(signed(from)).bind(i64::from(limit));
    let rows = next.fetch_all(conn).await?;
    rows.iter()
        .map(|row| Ok(NumberedMessage { number: unsigned(row.try_get(0)?), payload: row.try_get(1)? }))
        .collect()
}
