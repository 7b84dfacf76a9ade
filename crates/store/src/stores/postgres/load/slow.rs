//! Loading: the due events of a stream.
//!
//! There is no cursor: a load starts at the front each time and skips events that its owner has already. Two
//! publishers commit in any order, and an event behind a cursor is never found again. Everything is read in one
//! snapshot, and only the head of a key in that snapshot is handed out.

use std::sync::Arc;

use redrive_core::Moment;
use redrive_core::queue_entry::{FencingToken, QueueEntry, Seq};
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::error::StoreError;
use crate::store::{LoadRequest, LoadedEvents, OverdueDeadLetter};
use crate::stores::postgres::database::{Database, Retries};
use crate::stores::postgres::events::fresh::{Damage, Stream, fresh_columns, read_fresh};
use crate::stores::postgres::events::tracked::{TrackedEvent, read_tracked, tracked_columns};
use crate::stores::postgres::faults::{Fault, Step, damaged_row, not_done};
use crate::stores::postgres::keys::{holds_too_many, is_head, seq_at};
use crate::stores::postgres::tx::{OwnTx, maybe, one, rows};
use crate::stores::shared::cells::Cells;
use crate::stores::shared::numbers::{column, from_moment, stream_of, to_moment};
use crate::stores::shared::tracked::states;

/// How many overdue dead letters one load reports; the next load reports the rest.
const OVERDUE_MAX: i64 = 1000;

/// The parameters of a load, as the statements take them.
pub(in crate::stores::postgres) struct Wanted {
    pub(in crate::stores::postgres) stream: Arc<Stream>,
    pub(in crate::stores::postgres) shard: i64,
    pub(in crate::stores::postgres) until: i64,
    pub(in crate::stores::postgres) except: Vec<i64>,
    /// Keys that rules withhold.
    pub(in crate::stores::postgres) withheld: Vec<String>,
    pub(in crate::stores::postgres) bytes: i64,
}

impl Database {
    /// Loads. Keys whose dead letters block more than they may are unblocked first: publishers do not check that.
    pub(in crate::stores::postgres) async fn load(
        self: &Arc<Self>,
        load: LoadRequest,
    ) -> Result<LoadedEvents, StoreError> {
        let mut tries = Retries::new(self.patience);
        loop {
            match self.load_fast(&load).await {
                Ok(Some(loaded)) => return Ok(loaded),
                Ok(None) => return self.load_slow(load).await,
                Err(Fault::Sql(error)) if tries.may_go_on(&error) => tries.wait().await,
                Err(fault) => return Err(not_done(fault)),
            }
        }
    }

    async fn load_slow(self: &Arc<Self>, load: LoadRequest) -> Result<LoadedEvents, StoreError> {
        let (token, load) = (load.token, Arc::new(load));
        let mut freed = false;
        loop {
            let (loaded, full) = self
                .look(|tx| {
                    let load = Arc::clone(&load);
                    Box::pin(async move { tx.load(&load).await })
                })
                .await?;
            if full.is_empty() || freed {
                return Ok(loaded);
            }
            self.relieve_all(token, full).await?;
            freed = true;
        }
    }

    /// Unblocks keys whose dead letters block more than they may.
    async fn relieve_all(self: &Arc<Self>, token: FencingToken, full: Vec<Seq>) -> Result<(), StoreError> {
        let full = Arc::new(full);
        self.write(|tx| {
            let full = Arc::clone(&full);
            Box::pin(async move {
                if !tx.is_current(token).await? {
                    return Ok(());
                }
                tx.tokens.insert(token.shard, token);
                for seq in full.iter() {
                    let Some(stream) = tx.stream(stream_of(*seq)).await? else { continue };
                    let Some(Ok(tracked)) = tx.tracked(*seq, &stream).await? else { continue };
                    if let Some(key) = tracked.row.key() {
                        tx.relieve(&stream, key, *seq).await?;
                    }
                }
                Ok(())
            })
        })
        .await
    }
}

impl OwnTx {
    async fn load(&mut self, load: &LoadRequest) -> Step<(LoadedEvents, Vec<Seq>)> {
        if !self.is_current(load.token).await? {
            return Err(self.db.not_owner(load.token.shard).into());
        }
        let mut loaded = LoadedEvents::default();
        let Some(stream) = self.stream(load.stream).await? else { return Ok((loaded, Vec::new())) };
        let withheld = self.withheld(&stream).await?;
        let wanted = Wanted {
            shard: i64::from(load.token.shard),
            until: from_moment(load.until),
            except: load.except.iter().map(|seq| column(seq.0)).collect(),
            bytes: column(load.bytes_max as u64),
            stream,
            withheld,
        };
        loaded.overdue = self.overdue(&wanted).await?;
        if self.spec(&wanted.stream.queue).await?.is_some_and(|queue| queue.pull) {
            // An owner does not get the events of a pulled queue, but its load still unblocks keys whose dead letters
            // are overdue.
            return Ok((loaded, Vec::new()));
        }
        let mut damage = Vec::new();
        let (fresh, more_fresh) = self.load_fresh(&wanted, load.live_max, &mut damage).await?;
        let (waited, more_waited) = self.load_due(&wanted, false, load.live_max, &mut damage).await?;
        loaded.more_live = more_fresh || more_waited || fresh.len() + waited.len() > load.live_max;
        loaded.entries.extend(fresh);
        loaded.entries.extend(waited);
        loaded.entries.sort_by_key(|entry| (entry.progress.due, entry.seq));
        loaded.entries.truncate(load.live_max);

        let (again, more_again) = self.load_due(&wanted, true, load.retry_max, &mut damage).await?;
        loaded.entries.extend(again);
        loaded.more_retry = more_again;
        loaded.next_due = self.next_due(&wanted).await?;
        loaded.damaged = damage;
        Ok((loaded, self.full(&wanted).await?))
    }

    /// Events that never ran, and did not have to wait for their time.
    async fn load_fresh(
        &mut self,
        wanted: &Wanted,
        max: usize,
        damage: &mut Vec<String>,
    ) -> Step<(Vec<QueueEntry>, bool)> {
        let found = rows!(
            self,
            concat!(
                "SELECT ",
                fresh_columns!(),
                ", found FROM (SELECT *, count(*) OVER () AS found, \
                 (sum(octet_length(payload)) OVER (ORDER BY seq ROWS UNBOUNDED PRECEDING) - octet_length(payload))::bigint \
                 AS before FROM (SELECT * FROM redrive.fresh event WHERE stream = $1 AND shard = $2 AND NOT blocked \
                 AND seq <> ALL($3) \
                 AND (key IS NULL OR key <> ALL($4)) AND ",
                is_head!("event"),
                " ORDER BY seq LIMIT $5) few) sums WHERE before <= $6 ORDER BY seq"
            ),
            i64::from(wanted.stream.id.0),
            wanted.shard,
            &wanted.except,
            &wanted.withheld,
            column(max as u64 + 1),
            wanted.bytes
        )?;
        let stream = Arc::clone(&wanted.stream);
        chosen(&found, 10, max, ("fresh", damage), |row| {
            read_fresh(row, &stream).map(|row| row.entry(stream.id))
        })
    }

    /// Events that waited for their time: fresh or retried ones.
    async fn load_due(
        &mut self,
        wanted: &Wanted,
        has_run: bool,
        max: usize,
        damage: &mut Vec<String>,
    ) -> Step<(Vec<QueueEntry>, bool)> {
        let found = rows!(
            self,
            concat!(
                "SELECT ",
                tracked_columns!(),
                ", found FROM (SELECT *, count(*) OVER () AS found, \
                 (sum(octet_length(payload)) OVER (ORDER BY due, seq ROWS UNBOUNDED PRECEDING) \
                 - octet_length(payload))::bigint AS before FROM (SELECT * FROM redrive.tracked event WHERE state = ",
                states!(Waiting),
                " \
                 AND stream = $1 AND shard = $2 AND flow = $7 AND due <= $8 AND seq <> ALL($3) \
                 AND (key IS NULL OR key <> ALL($4)) AND ",
                is_head!("event"),
                " ORDER BY due, seq LIMIT $5) few) sums WHERE before <= $6 ORDER BY due, seq"
            ),
            i64::from(wanted.stream.id.0),
            wanted.shard,
            &wanted.except,
            &wanted.withheld,
            column(max as u64 + 1),
            wanted.bytes,
            i64::from(has_run),
            wanted.until
        )?;
        let stream = Arc::clone(&wanted.stream);
        chosen(&found, 35, max, ("tracked", damage), |row| {
            read_tracked(row, &stream).map(TrackedEvent::entry)
        })
    }

    /// The next time at which something happens: an event is due, or the block of a dead letter ends.
    async fn next_due(&mut self, wanted: &Wanted) -> Step<Option<Moment>> {
        let mut next: Option<i64> = None;
        for has_run in [0_i64, 1] {
            let due = maybe!(
                self,
                concat!(
                    "SELECT due FROM redrive.tracked event WHERE state = ",
                    states!(Waiting),
                    " AND stream = $1 AND shard = $2 AND flow = $5 \
                     AND due > $6 AND seq <> ALL($3) AND (key IS NULL OR key <> ALL($4)) AND ",
                    is_head!("event"),
                    " ORDER BY due, seq LIMIT 1"
                ),
                i64::from(wanted.stream.id.0),
                wanted.shard,
                &wanted.except,
                &wanted.withheld,
                has_run,
                wanted.until
            )?;
            next = next.into_iter().chain(due.and_then(|row| row.number(0).ok())).min();
        }
        let freed: Option<i64> = one!(
            self,
            concat!(
                "SELECT min(park_until) FROM redrive.tracked WHERE state = ",
                states!(DeadHolding),
                " AND stream = $1 AND shard = $2 \
             AND park_until > $3"
            ),
            i64::from(wanted.stream.id.0),
            wanted.shard,
            wanted.until
        )?;
        Ok(next.into_iter().chain(freed).min().map(to_moment))
    }

    /// Dead letters whose time to block others is over.
    async fn overdue(&mut self, wanted: &Wanted) -> Step<Vec<OverdueDeadLetter>> {
        let found = rows!(
            self,
            concat!(
                "SELECT seq, rev FROM redrive.tracked WHERE state = ",
                states!(DeadHolding),
                " AND stream = $1 AND shard = $2 AND park_until <= $3 \
             ORDER BY park_until LIMIT $4"
            ),
            i64::from(wanted.stream.id.0),
            wanted.shard,
            wanted.until,
            OVERDUE_MAX
        )?;
        let overdue = |row: &PgRow| {
            let rev = u32::try_from(row.try_get::<i64, _>(1)?).unwrap_or_default();
            Ok(OverdueDeadLetter { seq: seq_at(row, 0), rev })
        };
        Ok(found.iter().map(overdue).collect::<sqlx::Result<_>>()?)
    }

    /// Dead letters that block more than they may.
    async fn full(&mut self, wanted: &Wanted) -> Step<Vec<Seq>> {
        let found = rows!(
            self,
            concat!(
                "SELECT seq FROM redrive.tracked event WHERE state = ",
                states!(DeadHolding),
                " AND stream = $1 AND shard = $2 AND ",
                holds_too_many!(),
                " ORDER BY seq LIMIT $3"
            ),
            i64::from(wanted.stream.id.0),
            wanted.shard,
            OVERDUE_MAX
        )?;
        Ok(found.iter().map(|row| seq_at(row, 0)).collect())
    }
}

/// The first `max` rows, and whether there are more. The column `of` has their number.
pub(in crate::stores::postgres) fn chosen(
    found: &[PgRow],
    of: usize,
    max: usize,
    (table, damage): (&str, &mut Vec<String>),
    read: impl Fn(&PgRow) -> Result<QueueEntry, Damage>,
) -> Step<(Vec<QueueEntry>, bool)> {
    let all = match found.first() {
        Some(row) => usize::try_from(row.try_get::<i64, _>(of)?).unwrap_or_default(),
        None => 0,
    };
    let mut entries = Vec::with_capacity(found.len().min(max));
    for row in found.iter().take(max) {
        match read(row) {
            Ok(entry) => entries.push(entry),
            Err(Damage) => damage.push(damaged_row(table, seq_at(row, 0).0)),
        }
    }
    Ok((entries, all > found.len().min(max)))
}
