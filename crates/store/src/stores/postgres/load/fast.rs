//! The fast load: no rule is active, and no dead letter unblocks its key by time or by count.
//!
//! That is nearly always so, and then one statement does all of it; a second one if events waited for their time. Each
//! sees one snapshot, and hands out only the heads of keys in it. Other transactions may commit between the two, as
//! between two loads, and the owner of the shard is notified of them.
//!
//! Of a key with many waiting events, every load would read all but the head. If there are many, they are marked once,
//! and leave the index that loads use; the transaction that removes the head takes the mark off the next one
//! (`block_fast` in the schema).
//!
//! Every other case is left to a transaction (`slow.rs`), which reads everything in one snapshot.

use std::sync::Arc;

use redrive_core::queue_entry::QueueEntry;
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};

use super::slow::{Wanted, chosen};
use crate::store::{LoadRequest, LoadedEvents};
use crate::stores::postgres::database::Database;
use crate::stores::postgres::events::fresh::{fresh_columns, read_fresh};
use crate::stores::postgres::events::tracked::{TrackedEvent, read_tracked, tracked_columns};
use crate::stores::postgres::faults::Fault;
use crate::stores::postgres::keys::is_head;
use crate::stores::shared::numbers::{column, from_moment, signed, to_moment};
use crate::stores::shared::tracked::states;

/// The column with the total, after the columns of a fresh event and of a tracked one.
const OF_FRESH: usize = 10;
const OF_TRACKED: usize = 35;

/// How many events behind another one of their key a load reads, unless it finds nothing else.
const BEHIND_MAX: i64 = 1_000;
/// From how many on they are marked, so that the next load skips them: a mark is a write, and so is removing it.
const BEHIND_LEAST: i64 = 64;

/// When the first event is due that waits or has waited for its time. In the order of the index: for a mere existence
/// check the planner read dead letters to find it.
macro_rules! first_due {
    ($flow:literal) => {
        concat!(
            "(SELECT due FROM redrive.tracked WHERE state = ",
            states!(Waiting),
            " AND stream = $1 AND shard = $2 AND flow = ",
            $flow,
            " ORDER BY due, seq LIMIT 1)"
        )
    };
}

/// The first event that waits for its time, fresh or retried (`$1`).
macro_rules! next_due {
    ($flow:literal) => {
        concat!(
            "(SELECT due FROM redrive.tracked event WHERE state = ",
            states!(Waiting),
            " AND stream = $1 AND shard = $2 AND flow = ",
            $flow,
            " AND due > $6 AND seq <> ALL($7) AND ",
            is_head!("event"),
            " ORDER BY due, seq LIMIT 1)"
        )
    };
}

/// Events that have waited for their time, up to `$2` of them.
macro_rules! due {
    ($flow:literal, $most:literal) => {
        concat!(
            "(SELECT ",
            tracked_columns!(),
            concat!(", found, flow FROM (SELECT *, count(*) OVER () AS found, \
             (sum(octet_length(payload)) OVER (ORDER BY due, seq ROWS UNBOUNDED PRECEDING) \
             - octet_length(payload))::bigint AS before FROM (SELECT * FROM redrive.tracked event WHERE state = ", states!(Waiting), " \
             AND stream = $1 AND shard = $2 AND flow = "),
            $flow,
            " AND due <= $3 AND seq <> ALL($4) AND ",
            is_head!("event"),
            " ORDER BY due, seq LIMIT ",
            $most,
            ") few) sums WHERE before <= $5)"
        )
    };
}

/// What a load has to know beside the fresh events.
struct State {
    is_current: bool,
    is_special: bool,
    next: Option<i64>,
    /// Whether some events have waited for their time.
    waited: bool,
    /// How many fresh events were read, and how many of them wait for another one of their key.
    looked: i64,
    behind: i64,
}

impl State {
    fn read(row: &PgRow) -> sqlx::Result<Self> {
        let at = |at| row.try_get::<bool, _>(OF_FRESH + at);
        let due = |at| row.try_get::<Option<i64>, _>(OF_FRESH + at);
        Ok(Self {
            is_current: at(1)?,
            is_special: at(2)?,
            next: due(3)?.into_iter().chain(due(4)?).min(),
            waited: at(5)?,
            looked: row.try_get(OF_FRESH + 6)?,
            behind: row.try_get(OF_FRESH + 7)?,
        })
    }
}

/// How many to request, to learn whether there are more.
fn most(max: usize) -> i64 {
    column(max as u64 + 1)
}

impl Database {
    /// Loads; `None` if the slow path is needed.
    pub(in crate::stores::postgres) async fn load_fast(
        self: &Arc<Self>,
        load: &LoadRequest,
    ) -> Result<Option<LoadedEvents>, Fault> {
        let Some(stream) = self.cache.names.of(load.stream).filter(|_| !self.pooled) else { return Ok(None) };
        let wanted = Wanted {
            shard: i64::from(load.token.shard),
            until: from_moment(load.until),
            except: load.except.iter().map(|seq| column(seq.0)).collect(),
            bytes: column(load.bytes_max as u64),
            stream,
            withheld: Vec::new(),
        };
        let mut conn = self.pool.acquire().await?;
        let mut reach = most(load.live_max);
        let (found, state) = loop {
            let found = self.heads_within(&mut conn, load, &wanted, reach).await?;
            let Some(state) = found.first().map(State::read).transpose()? else { return Ok(None) };
            if !state.is_current {
                return Err(self.not_owner(load.token.shard).into());
            }
            if state.is_special {
                return Ok(None);
            }
            let has_heads = state.looked > state.behind;
            let is_first = reach == most(load.live_max);
            if state.behind == 0 || state.looked < reach || (has_heads && !is_first) {
                break (found, state);
            }
            // Some of them wait for another one of their key, and there may be heads beyond them.
            reach = if is_first { reach + BEHIND_MAX } else { reach.saturating_mul(4) };
        };
        let mut loaded = LoadedEvents { next_due: state.next.map(to_moment), ..LoadedEvents::default() };
        let is_event = |row: &PgRow| row.try_get::<Option<i64>, _>(0).is_ok_and(|seq| seq.is_some());
        let found = if found.first().is_some_and(is_event) { found } else { Vec::new() };
        let stream = Arc::clone(&wanted.stream);
        let read = |row: &PgRow| read_fresh(row, &stream).map(|row| row.entry(stream.id));
        let (fresh, more) = chosen(&found, OF_FRESH, load.live_max, ("fresh", &mut loaded.damaged), read)?;
        (loaded.entries, loaded.more_live) = (fresh, more);
        loaded.entries.sort_by_key(order);
        // There may be more behind the events that were read.
        loaded.more_live |= state.looked >= reach;
        if state.behind >= BEHIND_LEAST {
            self.pass_by(&mut conn, load).await?;
        }
        if state.waited {
            let due = sqlx::query(self.schema.sql(concat!(due!("0", "$6"), " UNION ALL ", due!("1", "$7"))))
                .bind(i64::from(wanted.stream.id.0))
                .bind(wanted.shard)
                .bind(wanted.until)
                .bind(&wanted.except)
                .bind(wanted.bytes)
                .bind(most(load.live_max))
                .bind(most(load.retry_max))
                .fetch_all(&mut *conn)
                .await?;
            self.add_due(load, &wanted, due, &mut loaded)?;
        }
        Ok(Some(loaded))
    }

    /// The heads among the first fresh events, and the rest of the state.
    async fn heads_within(
        &self,
        conn: &mut PgConnection,
        load: &LoadRequest,
        wanted: &Wanted,
        reach: i64,
    ) -> Result<Vec<PgRow>, Fault> {
        let found = sqlx::query(self.schema.sql(concat!(
            "WITH candidate AS MATERIALIZED (SELECT event.*, ",
            is_head!("event"),
            concat!(" AS head FROM redrive.fresh event WHERE stream = $1 AND shard = $2 AND NOT blocked AND seq <> ALL($7) \
             ORDER BY seq LIMIT $10) SELECT event.*, state.* FROM (SELECT EXISTS (SELECT 1 FROM redrive.shard WHERE id = $2 AND epoch = $3 \
             AND incarnation = $4 AND owner IS NOT NULL) AS is_current, (EXISTS (SELECT 1 FROM redrive.rule) \
             OR (SELECT park_until FROM redrive.tracked WHERE state = ", states!(DeadHolding), " AND stream = $1 AND shard = $2 \
             AND park_until IS NOT NULL ORDER BY park_until LIMIT 1) IS NOT NULL \
             OR (SELECT seq FROM redrive.tracked WHERE state = ", states!(DeadHolding), " AND stream = $1 AND shard = $2 \
             AND park_count IS NOT NULL ORDER BY seq LIMIT 1) IS NOT NULL \
             OR NOT EXISTS (SELECT 1 FROM redrive.queue WHERE name = $5 AND pull = 0)) AS is_special, "),
            next_due!("0"),
            " AS next_fresh, ",
            next_due!("1"),
            " AS next_again, coalesce(",
            first_due!("0"),
            " <= $6 OR ",
            first_due!("1"),
            " <= $6, false) AS waited, (SELECT count(*) FROM candidate) AS looked, \
             (SELECT count(*) FROM candidate WHERE NOT head) AS behind) state LEFT JOIN LATERAL (SELECT ",
            fresh_columns!(),
            ", found FROM (SELECT *, count(*) OVER () AS found, (sum(octet_length(payload)) \
             OVER (ORDER BY seq ROWS UNBOUNDED PRECEDING) - octet_length(payload))::bigint AS before \
             FROM (SELECT * FROM candidate WHERE head ORDER BY seq LIMIT $8) few) sums WHERE before <= $9 ORDER BY seq) event \
             ON is_current AND NOT is_special"
        )))
        .bind(i64::from(wanted.stream.id.0))
        .bind(wanted.shard)
        .bind(signed(load.token.epoch))
        .bind(signed(load.token.incarnation))
        .bind(&wanted.stream.queue)
        .bind(wanted.until)
        .bind(&wanted.except)
        .bind(most(load.live_max))
        .bind(wanted.bytes)
        .bind(reach)
        .fetch_all(conn)
        .await?;
        Ok(found)
    }

    /// Marks events that wait for another one of their key, so that the next loads skip them.
    async fn pass_by(&self, conn: &mut PgConnection, load: &LoadRequest) -> Result<(), Fault> {
        let mark = self.schema.sql("SELECT marked FROM redrive.block_fast($1, $2, $3, $4, $5, $6)");
        let marked = sqlx::query(mark)
            .bind(self.lock_wait(true))
            .bind(i64::from(load.stream.0))
            .bind(i64::from(load.token.shard))
            .bind(signed(load.token.epoch))
            .bind(signed(load.token.incarnation))
            .bind(column((load.live_max + load.except.len()) as u64) + BEHIND_MAX)
            .execute(conn)
            .await;
        match marked {
            // Even after a conflict, or if the shard has another owner by now, the loaded events are correct.
            Err(sqlx::Error::Database(_)) | Ok(_) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Adds events that have waited for their time.
    fn add_due(
        &self,
        load: &LoadRequest,
        wanted: &Wanted,
        due: Vec<PgRow>,
        loaded: &mut LoadedEvents,
    ) -> Result<(), Fault> {
        let has_run = |row: &PgRow| row.try_get::<i64, _>(OF_TRACKED + 1).is_ok_and(|flow| flow == 1);
        let (mut again, mut waited): (Vec<PgRow>, Vec<PgRow>) = due.into_iter().partition(has_run);
        let place = |row: &PgRow| (row.try_get::<i64, _>(11).ok(), row.try_get::<i64, _>(0).ok());
        again.sort_by_key(place);
        waited.sort_by_key(place);
        let read = |row: &PgRow| read_tracked(row, &wanted.stream).map(TrackedEvent::entry);
        let (waited, more) =
            chosen(&waited, OF_TRACKED, load.live_max, ("tracked", &mut loaded.damaged), read)?;
        loaded.more_live |= more || loaded.entries.len() + waited.len() > load.live_max;
        loaded.entries.extend(waited);
        loaded.entries.sort_by_key(order);
        loaded.entries.truncate(load.live_max);
        let (again, more) =
            chosen(&again, OF_TRACKED, load.retry_max, ("tracked", &mut loaded.damaged), read)?;
        loaded.more_retry = more;
        loaded.entries.extend(again);
        Ok(())
    }
}

/// The order in which events run.
fn order(entry: &QueueEntry) -> (redrive_core::Moment, redrive_core::queue_entry::Seq) {
    (entry.progress.due, entry.seq)
}
