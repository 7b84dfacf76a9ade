//! The raw line: the same rows in the same tables, by plain statements over arrays.
//!
//! No callers, no queue, no handler: so many connections as ours has, and each inserts a batch of receipts and events
//! with one statement, and takes the events away with another; each is a commit. An engine over these tables cannot be
//! faster at the same batch; how near it comes is what it costs itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use redrive_benches::turn::{self, Outcome};
use redrive_store::postgres::PostgresSettings;
use redrive_store::{Postgres, prelude::*};
use sqlx::{Connection, PgConnection};

use crate::Fallible;
use crate::progress_reader::ProgressReader;
use crate::turn_args::TurnArgs;

/// As it is called on the command line.
pub(crate) const NAME: &str = "raw";

/// So many shards as ours has, and as even.
const SHARDS: u64 = 16;

/// Measures one turn.
pub(crate) async fn measure(told: &TurnArgs) -> Fallible<Outcome> {
    // The tables as ours makes them.
    Postgres::open(&told.url, PostgresSettings::default()).await?.close().await?;
    let (next, published) = (Arc::new(AtomicU64::new(1)), Arc::new(AtomicU64::new(0)));
    for _ in 0..told.connections {
        let mut conn = PgConnection::connect(&told.url).await?;
        let (next, published, batch) = (next.clone(), published.clone(), told.turn.batch as u64);
        tokio::spawn(async move {
            loop {
                let first = next.fetch_add(batch, Relaxed);
                if let Err(error) = life(&mut conn, first, batch, &published).await {
                    eprintln!("raw: {error}");
                    std::process::exit(1);
                }
            }
        });
    }
    let mut gauge = ProgressReader::open(told, "SELECT count(*) FROM redrive.fresh").await?;
    gauge.between(told, || published.load(Relaxed)).await
}

async fn life(conn: &mut PgConnection, first: u64, batch: u64, published: &AtomicU64) -> Fallible<()> {
    let numbers: Vec<u64> = (first..first + batch).collect();
    let seqs: Vec<i64> = numbers.iter().map(|number| i64::try_from(*number)).collect::<Result<_, _>>()?;
    let ids: Vec<String> = numbers.iter().map(|number| turn::id(*number)).collect();
    let payloads: Vec<Vec<u8>> = numbers.iter().map(|number| turn::payload(*number).into_bytes()).collect();
    let prints: Vec<Vec<u8>> = numbers.iter().map(|_| vec![7; 32]).collect();
    let shards: Vec<i64> =
        numbers.iter().map(|number| i64::try_from(number % SHARDS)).collect::<Result<_, _>>()?;
    let insert = "WITH new AS (INSERT INTO redrive.dedupe (id, stream, fingerprint, seq, published, until, crc) \
                  SELECT id, 1, print, seq, seq, seq, seq FROM unnest($1::text[], $2::bigint[], $3::bytea[]) \
                  AS event (id, seq, print)) \
                  INSERT INTO redrive.fresh (seq, id, payload, published, dedupe_ok_until, crc, stream, shard) \
                  SELECT seq, id, payload, seq, seq, seq, 1, shard \
                  FROM unnest($2::bigint[], $1::text[], $4::bytea[], $5::bigint[]) AS event (seq, id, payload, shard)";
    sqlx::query(insert)
        .bind(&ids)
        .bind(&seqs)
        .bind(&prints)
        .bind(&payloads)
        .bind(&shards)
        .execute(&mut *conn)
        .await?;
    published.fetch_add(batch, Relaxed);
    let delete = "DELETE FROM redrive.fresh WHERE seq = ANY($1)";
    sqlx::query(delete).bind(&seqs).execute(&mut *conn).await?;
    Ok(())
}
