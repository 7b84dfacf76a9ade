//! Loading: what is due in a stream.
//!
//! There is no cursor: a load begins at the front each time and skips what its owner has already. Two publishers commit
//! in any order, and what a cursor has passed is never found again. Everything is seen as of one commit, and of a key the
//! head alone is handed out, by that same view.

use std::sync::Arc;

use redrive_core::Moment;
use redrive_core::entry::{Entry, Grant, Seq};
use sqlx::Row;
use sqlx::postgres::PgRow;

use super::desk::{Desk, maybe, one, rows};
use super::faults::{Fault, Step, damaged_row, not_done};
use super::held::{Held, held_columns, read_held};
use super::keys::{holds_too_many, is_head, seq_at};
use super::office::{Office, Tries};
use super::rows::{Damage, Stream, live_columns, read_live};
use crate::error::StoreError;
use crate::store::{Load, Loaded, Overdue};
use crate::stores::shared::cells::Cells;
use crate::stores::shared::numbers::{column, from_moment, stream_of, to_moment};

/// How many dead letters whose time is over are told at once; the next load tells the rest.
const OVERDUE_MAX: i64 = 1000;

/// What is looked for, as the statements want it.
pub(super) struct Wanted {
    pub(super) stream: Arc<Stream>,
    pub(super) shard: i64,
    pub(super) until: i64,
    pub(super) except: Vec<i64>,
    /// Keys that rules withhold.
    pub(super) withheld: Vec<String>,
    pub(super) bytes: i64,
}

impl Office {
    /// Loads. Where dead letters hold up more than they may, their keys go on first: publishers do not look.
    pub(super) async fn load(self: &Arc<Self>, load: Load) -> Result<Loaded, StoreError> {
        let mut tries = Tries::new(self.patience);
        loop {
            match self.load_plainly(&load).await {
                Ok(Some(loaded)) => return Ok(loaded),
                Ok(None) => return self.load_with_care(load).await,
                Err(Fault::Sql(error)) if tries.may_go_on(&error) => tries.wait().await,
                Err(fault) => return Err(not_done(fault)),
            }
        }
    }

    async fn load_with_care(self: &Arc<Self>, load: Load) -> Result<Loaded, StoreError> {
        let (grant, load) = (load.grant, Arc::new(load));
        let mut freed = false;
        loop {
            let (loaded, full) = self
                .look(|desk| {
                    let load = Arc::clone(&load);
                    Box::pin(async move { desk.load(&load).await })
                })
                .await?;
            if full.is_empty() || freed {
                return Ok(loaded);
            }
            self.relieve_all(grant, full).await?;
            freed = true;
        }
    }

    /// Lets keys go on whose dead letters hold up more than they may.
    async fn relieve_all(self: &Arc<Self>, grant: Grant, full: Vec<Seq>) -> Result<(), StoreError> {
        let full = Arc::new(full);
        self.write(|desk| {
            let full = Arc::clone(&full);
            Box::pin(async move {
                if !desk.is_current(grant).await? {
                    return Ok(());
                }
                desk.grants.insert(grant.shard, grant);
                for seq in full.iter() {
                    let Some(stream) = desk.stream(stream_of(*seq)).await? else { continue };
                    let Some(Ok(held)) = desk.held(*seq, &stream).await? else { continue };
                    if let Some(key) = held.row.key() {
                        desk.relieve(&stream, key, *seq).await?;
                    }
                }
                Ok(())
            })
        })
        .await
    }
}

impl Desk {
    async fn load(&mut self, load: &Load) -> Step<(Loaded, Vec<Seq>)> {
        if !self.is_current(load.grant).await? {
            return Err(self.office.not_owner(load.grant.shard).into());
        }
        let mut loaded = Loaded::default();
        let Some(stream) = self.stream(load.stream).await? else { return Ok((loaded, Vec::new())) };
        let withheld = self.withheld(&stream).await?;
        let wanted = Wanted {
            shard: i64::from(load.grant.shard),
            until: from_moment(load.until),
            except: load.except.iter().map(|seq| column(seq.0)).collect(),
            bytes: column(load.bytes_max as u64),
            stream,
            withheld,
        };
        loaded.overdue = self.overdue(&wanted).await?;
        if self.spec(&wanted.stream.queue).await?.is_some_and(|queue| queue.pull) {
            // Its events are not for an owner, but its dead letters are: whoever loads lets their keys go on.
            return Ok((loaded, Vec::new()));
        }
        let mut damage = Vec::new();
        let (fresh, more_fresh) = self.load_live(&wanted, load.live_max, &mut damage).await?;
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

    /// Events that never ran, and that had not to wait for their time.
    async fn load_live(
        &mut self,
        wanted: &Wanted,
        max: usize,
        damage: &mut Vec<String>,
    ) -> Step<(Vec<Entry>, bool)> {
        let found = rows!(
            self,
            concat!(
                "SELECT ",
                live_columns!(),
                ", found FROM (SELECT *, count(*) OVER () AS found, \
                 (sum(octet_length(payload)) OVER (ORDER BY seq ROWS UNBOUNDED PRECEDING) - octet_length(payload))::bigint \
                 AS before FROM (SELECT * FROM redrive.live event WHERE stream = $1 AND shard = $2 AND NOT blocked \
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
        chosen(&found, 10, max, ("live", damage), |row| {
            read_live(row, &stream).map(|row| row.entry(stream.id))
        })
    }

    /// Events that waited for their time: those that never ran, or the others.
    async fn load_due(
        &mut self,
        wanted: &Wanted,
        has_run: bool,
        max: usize,
        damage: &mut Vec<String>,
    ) -> Step<(Vec<Entry>, bool)> {
        let found = rows!(
            self,
            concat!(
                "SELECT ",
                held_columns!(),
                ", found FROM (SELECT *, count(*) OVER () AS found, \
                 (sum(octet_length(payload)) OVER (ORDER BY due, seq ROWS UNBOUNDED PRECEDING) \
                 - octet_length(payload))::bigint AS before FROM (SELECT * FROM redrive.held event WHERE state = 0 \
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
        chosen(&found, 35, max, ("held", damage), |row| read_held(row, &stream).map(Held::entry))
    }

    /// When something happens next: an event is due, or a dead letter has held up others for long enough.
    async fn next_due(&mut self, wanted: &Wanted) -> Step<Option<Moment>> {
        let mut next: Option<i64> = None;
        for has_run in [0_i64, 1] {
            let due = maybe!(
                self,
                concat!(
                    "SELECT due FROM redrive.held event WHERE state = 0 AND stream = $1 AND shard = $2 AND flow = $5 \
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
            "SELECT min(park_until) FROM redrive.held WHERE state = 2 AND stream = $1 AND shard = $2 \
             AND park_until > $3",
            i64::from(wanted.stream.id.0),
            wanted.shard,
            wanted.until
        )?;
        Ok(next.into_iter().chain(freed).min().map(to_moment))
    }

    /// Dead letters whose time to hold up others is over.
    async fn overdue(&mut self, wanted: &Wanted) -> Step<Vec<Overdue>> {
        let found = rows!(
            self,
            "SELECT seq, rev FROM redrive.held WHERE state = 2 AND stream = $1 AND shard = $2 AND park_until <= $3 \
             ORDER BY park_until LIMIT $4",
            i64::from(wanted.stream.id.0),
            wanted.shard,
            wanted.until,
            OVERDUE_MAX
        )?;
        let overdue = |row: &PgRow| {
            let rev = u32::try_from(row.try_get::<i64, _>(1)?).unwrap_or_default();
            Ok(Overdue { seq: seq_at(row, 0), rev })
        };
        Ok(found.iter().map(overdue).collect::<sqlx::Result<_>>()?)
    }

    /// Dead letters that hold up more than they may.
    async fn full(&mut self, wanted: &Wanted) -> Step<Vec<Seq>> {
        let found = rows!(
            self,
            concat!(
                "SELECT seq FROM redrive.held event WHERE state = 2 AND stream = $1 AND shard = $2 AND ",
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

/// The first `max` of what was found, and whether there are more. How many there were at all is the column `of`.
pub(super) fn chosen(
    found: &[PgRow],
    of: usize,
    max: usize,
    (table, damage): (&str, &mut Vec<String>),
    read: impl Fn(&PgRow) -> Result<Entry, Damage>,
) -> Step<(Vec<Entry>, bool)> {
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
