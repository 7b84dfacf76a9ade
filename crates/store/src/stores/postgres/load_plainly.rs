//! Loading where nothing is special: no rule holds, and no dead letter lets its key go on by time or by count.
//!
//! That is nearly always so, and then one statement does all of it; a second one where events waited for their time.
//! Each is seen as of one commit, and of a key each hands out the head alone, by that same view. Between the two others
//! may commit; that is as between two loads, and whoever owns the shard is told of it.
//!
//! Of a key with many that wait, all but the head would be looked at in every load. Where there are many, they are marked
//! once, and out of the index that loads go by; whoever takes the head away takes the mark off the next one
//! (`block_at_once` in the schema).
//!
//! Whatever is special is left to a desk (`load.rs`), where everything is read in one view.

use std::sync::Arc;

use redrive_core::entry::Entry;
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};

use super::faults::Fault;
use super::held::{Held, held_columns, read_held};
use super::keys::is_head;
use super::load::{Wanted, chosen};
use super::office::Office;
use super::rows::{live_columns, read_live};
use crate::store::{Load, Loaded};
use crate::stores::shared::numbers::{column, from_moment, signed, to_moment};

/// How many events there are at all, behind the columns of one that never ran, and of any other.
const OF_LIVE: usize = 10;
const OF_HELD: usize = 35;

/// How many that wait for another one of their key are looked at in a load, unless there is nothing else among them.
const BEHIND_MAX: i64 = 1_000;
/// From how many on they are marked, so that the next load passes them by: a mark is a write, and so is taking it off.
const BEHIND_LEAST: i64 = 64;

/// When the first is due that waits or has waited for its time. Asked for in the order of the index: where it was only asked
/// whether there is one, the planner went through dead letters to find it.
macro_rules! first_due {
    ($flow:literal) => {
        concat!(
            "(SELECT due FROM redrive.held WHERE state = 0 AND stream = $1 AND shard = $2 AND flow = ",
            $flow,
            " ORDER BY due, seq LIMIT 1)"
        )
    };
}

/// The first that waits for its time, of those that never ran or of the others (`$1`).
macro_rules! next_due {
    ($flow:literal) => {
        concat!(
            "(SELECT due FROM redrive.held event WHERE state = 0 AND stream = $1 AND shard = $2 AND flow = ",
            $flow,
            " AND due > $6 AND seq <> ALL($7) AND ",
            is_head!("event"),
            " ORDER BY due, seq LIMIT 1)"
        )
    };
}

/// Those that have waited for their time, up to so many (`$2`).
macro_rules! due {
    ($flow:literal, $most:literal) => {
        concat!(
            "(SELECT ",
            held_columns!(),
            ", found, flow FROM (SELECT *, count(*) OVER () AS found, \
             (sum(octet_length(payload)) OVER (ORDER BY due, seq ROWS UNBOUNDED PRECEDING) \
             - octet_length(payload))::bigint AS before FROM (SELECT * FROM redrive.held event WHERE state = 0 \
             AND stream = $1 AND shard = $2 AND flow = ",
            $flow,
            " AND due <= $3 AND seq <> ALL($4) AND ",
            is_head!("event"),
            " ORDER BY due, seq LIMIT ",
            $most,
            ") few) sums WHERE before <= $5)"
        )
    };
}

/// What there is beside the events that never ran.
struct State {
    is_current: bool,
    is_special: bool,
    next: Option<i64>,
    /// Whether some have waited for their time.
    waited: bool,
    /// How many were looked at that never ran, and how many of them wait for another one of their key.
    looked: i64,
    behind: i64,
}

impl State {
    fn read(row: &PgRow) -> sqlx::Result<Self> {
        let at = |at| row.try_get::<bool, _>(OF_LIVE + at);
        let due = |at| row.try_get::<Option<i64>, _>(OF_LIVE + at);
        Ok(Self {
            is_current: at(1)?,
            is_special: at(2)?,
            next: due(3)?.into_iter().chain(due(4)?).min(),
            waited: at(5)?,
            looked: row.try_get(OF_LIVE + 6)?,
            behind: row.try_get(OF_LIVE + 7)?,
        })
    }
}

/// How many to ask for, to know whether there are more.
fn most(max: usize) -> i64 {
    column(max as u64 + 1)
}

impl Office {
    /// Loads; nothing where something is special.
    pub(super) async fn load_plainly(self: &Arc<Self>, load: &Load) -> Result<Option<Loaded>, Fault> {
        let Some(stream) = self.names.of(load.stream).filter(|_| !self.pooled) else { return Ok(None) };
        let wanted = Wanted {
            shard: i64::from(load.grant.shard),
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
                return Err(self.not_owner(load.grant.shard).into());
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
        let mut loaded = Loaded { next_due: state.next.map(to_moment), ..Loaded::default() };
        let is_event = |row: &PgRow| row.try_get::<Option<i64>, _>(0).is_ok_and(|seq| seq.is_some());
        let found = if found.first().is_some_and(is_event) { found } else { Vec::new() };
        let stream = Arc::clone(&wanted.stream);
        let read = |row: &PgRow| read_live(row, &stream).map(|row| row.entry(stream.id));
        let (fresh, more) = chosen(&found, OF_LIVE, load.live_max, ("live", &mut loaded.damaged), read)?;
        (loaded.entries, loaded.more_live) = (fresh, more);
        loaded.entries.sort_by_key(order);
        // There may be more behind those that were looked at.
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

    /// The heads among so many of the first that never ran, and what there is beside them.
    async fn heads_within(
        &self,
        conn: &mut PgConnection,
        load: &Load,
        wanted: &Wanted,
        reach: i64,
    ) -> Result<Vec<PgRow>, Fault> {
        let found = sqlx::query(self.schema.sql(concat!(
            "WITH candidate AS MATERIALIZED (SELECT event.*, ",
            is_head!("event"),
            " AS head FROM redrive.live event WHERE stream = $1 AND shard = $2 AND NOT blocked AND seq <> ALL($7) \
             ORDER BY seq LIMIT $10) SELECT event.*, state.* FROM (SELECT EXISTS (SELECT 1 FROM redrive.shard WHERE id = $2 AND epoch = $3 \
             AND incarnation = $4 AND owner IS NOT NULL) AS is_current, (EXISTS (SELECT 1 FROM redrive.rule) \
             OR (SELECT park_until FROM redrive.held WHERE state = 2 AND stream = $1 AND shard = $2 \
             AND park_until IS NOT NULL ORDER BY park_until LIMIT 1) IS NOT NULL \
             OR (SELECT seq FROM redrive.held WHERE state = 2 AND stream = $1 AND shard = $2 \
             AND park_count IS NOT NULL ORDER BY seq LIMIT 1) IS NOT NULL \
             OR NOT EXISTS (SELECT 1 FROM redrive.queue WHERE name = $5 AND pull = 0)) AS is_special, ",
            next_due!("0"),
            " AS next_fresh, ",
            next_due!("1"),
            " AS next_again, coalesce(",
            first_due!("0"),
            " <= $6 OR ",
            first_due!("1"),
            " <= $6, false) AS waited, (SELECT count(*) FROM candidate) AS looked, \
             (SELECT count(*) FROM candidate WHERE NOT head) AS behind) state LEFT JOIN LATERAL (SELECT ",
            live_columns!(),
            ", found FROM (SELECT *, count(*) OVER () AS found, (sum(octet_length(payload)) \
             OVER (ORDER BY seq ROWS UNBOUNDED PRECEDING) - octet_length(payload))::bigint AS before \
             FROM (SELECT * FROM candidate WHERE head ORDER BY seq LIMIT $8) few) sums WHERE before <= $9 ORDER BY seq) event \
             ON is_current AND NOT is_special"
        )))
        .bind(i64::from(wanted.stream.id.0))
        .bind(wanted.shard)
        .bind(signed(load.grant.epoch))
        .bind(signed(load.grant.incarnation))
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

    /// Has the next loads pass by those that wait for another one of their key.
    async fn pass_by(&self, conn: &mut PgConnection, load: &Load) -> Result<(), Fault> {
        let mark = self.schema.sql("SELECT marked FROM redrive.block_at_once($1, $2, $3, $4, $5, $6)");
        let marked = sqlx::query(mark)
            .bind(self.lock_wait(true))
            .bind(i64::from(load.stream.0))
            .bind(i64::from(load.grant.shard))
            .bind(signed(load.grant.epoch))
            .bind(signed(load.grant.incarnation))
            .bind(column((load.live_max + load.except.len()) as u64) + BEHIND_MAX)
            .execute(conn)
            .await;
        match marked {
            // Whatever is in the way, or whoever has the shard by now: those that were loaded are right as they are.
            Err(sqlx::Error::Database(_)) | Ok(_) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Adds those that have waited for their time.
    fn add_due(
        &self,
        load: &Load,
        wanted: &Wanted,
        due: Vec<PgRow>,
        loaded: &mut Loaded,
    ) -> Result<(), Fault> {
        let has_run = |row: &PgRow| row.try_get::<i64, _>(OF_HELD + 1).is_ok_and(|flow| flow == 1);
        let (mut again, mut waited): (Vec<PgRow>, Vec<PgRow>) = due.into_iter().partition(has_run);
        let place = |row: &PgRow| (row.try_get::<i64, _>(11).ok(), row.try_get::<i64, _>(0).ok());
        again.sort_by_key(place);
        waited.sort_by_key(place);
        let read = |row: &PgRow| read_held(row, &wanted.stream).map(Held::entry);
        let (waited, more) = chosen(&waited, OF_HELD, load.live_max, ("held", &mut loaded.damaged), read)?;
        loaded.more_live |= more || loaded.entries.len() + waited.len() > load.live_max;
        loaded.entries.extend(waited);
        loaded.entries.sort_by_key(order);
        loaded.entries.truncate(load.live_max);
        let (again, more) = chosen(&again, OF_HELD, load.retry_max, ("held", &mut loaded.damaged), read)?;
        loaded.more_retry = more;
        loaded.entries.extend(again);
        Ok(())
    }
}

/// Who comes first.
fn order(entry: &Entry) -> (redrive_core::Moment, redrive_core::entry::Seq) {
    (entry.progress.due, entry.seq)
}
