//! The order of a key.
//!
//! The head of a key is its smallest living seq, whatever its due time; a dead letter counts while it blocks the later
//! events. The head is never stored: publishers commit in any order, and what one of them saw is outdated when it
//! commits. The statement that hands an event out determines it.

use std::sync::Arc;

use redrive_core::queue_entry::{QueueEntry, Seq};
use sqlx::Row;

use super::events::fresh::{EventRow, Stream, fresh_columns, read_fresh};
use super::events::tracked::{RowState, TrackedEvent, read_tracked, tracked_columns};
use super::faults::Step;
use super::tx::{PgTx, maybe, one, rows, run};
use crate::stores::shared::cells::Cells;
use crate::stores::shared::numbers::{bits, column};
use crate::stores::shared::tracked::states;

pub(super) mod heads;

/// SQL condition: no earlier event of the key lives or blocks it. `$1` is the table's name in the statement.
macro_rules! is_head {
    ($event:literal) => {
        concat!(
            "(",
            $event,
            ".key IS NULL OR (NOT EXISTS (SELECT 1 FROM redrive.fresh first WHERE first.stream = ",
            $event,
            ".stream AND first.key = ",
            $event,
            ".key AND first.seq < ",
            $event,
            ".seq) AND NOT EXISTS (SELECT 1 FROM redrive.tracked first WHERE first.stream = ",
            $event,
            ".stream AND first.key = ",
            $event,
            concat!(".key AND first.state IN (", states!(Waiting, DeadHolding, Leased), ") AND first.seq < "),
            $event,
            ".seq)))"
        )
    };
}
pub(super) use is_head;

/// SQL condition: the dead letter `event` blocks more events of its key than it may.
macro_rules! holds_too_many {
    () => {
        concat!(
            "(park_count IS NOT NULL AND ",
            is_head!("event"),
            concat!(" AND (SELECT count(*) FROM (SELECT 1 FROM redrive.fresh next WHERE next.stream = event.stream \
             AND next.key = event.key AND next.seq > event.seq LIMIT event.park_count + 1) few) \
             + (SELECT count(*) FROM (SELECT 1 FROM redrive.tracked next WHERE next.stream = event.stream \
             AND next.key = event.key AND next.state = ", states!(Waiting), " AND next.seq > event.seq LIMIT event.park_count + 1) few) \
             > park_count)")
        )
    };
}
pub(super) use holds_too_many;

/// The head of a key.
enum Head {
    /// It never ran.
    Fresh(EventRow),
    /// It waits, is dead and blocks the others, or is leased.
    Tracked(TrackedEvent),
    /// It is unreadable: its key is blocked, and the next load reports it.
    Damaged,
}

impl PgTx<'_> {
    /// Whether an earlier event of a key lives, or blocks it.
    pub(super) async fn has_earlier(&mut self, stream: &Stream, key: &str, seq: Seq) -> sqlx::Result<bool> {
        one!(
            self,
            concat!(
                "SELECT EXISTS (SELECT 1 FROM redrive.fresh WHERE stream = $1 AND key = $2 AND seq < $3) \
             OR EXISTS (SELECT 1 FROM redrive.tracked WHERE stream = $1 AND key = $2 AND state IN (",
                states!(Waiting, DeadHolding, Leased),
                ") \
             AND seq < $3)"
            ),
            i64::from(stream.id.0),
            key,
            column(seq.0)
        )
    }

    /// Whether a later event of a key lives that an owner may have in memory.
    async fn has_later(&mut self, stream: &Stream, key: &str, seq: Seq) -> sqlx::Result<bool> {
        one!(
            self,
            concat!(
                "SELECT EXISTS (SELECT 1 FROM redrive.fresh WHERE stream = $1 AND key = $2 AND seq > $3) \
             OR EXISTS (SELECT 1 FROM redrive.tracked WHERE stream = $1 AND key = $2 AND state = ",
                states!(Waiting),
                " AND seq > $3)"
            ),
            i64::from(stream.id.0),
            key,
            column(seq.0)
        )
    }

    async fn head(&mut self, stream: &Stream, key: &str) -> Step<Option<Head>> {
        let first = maybe!(
            self,
            concat!(
                "SELECT seq, true AS fresh, blocked FROM redrive.fresh WHERE stream = $1 AND key = $2 \
             UNION ALL SELECT seq, false, false FROM redrive.tracked WHERE stream = $1 AND key = $2 AND state IN (",
                states!(Waiting, DeadHolding, Leased),
                ") \
             ORDER BY seq LIMIT 1"
            ),
            i64::from(stream.id.0),
            key
        )?;
        let Some(row) = first else { return Ok(None) };
        let seq = column(bits(row.try_get(0)?));
        if self.writes && row.try_get::<bool, _>(2)? {
            // Loads must not skip the head.
            run!(self, "UPDATE redrive.fresh SET blocked = false WHERE seq = $1", seq)?;
        }
        // Read without a lock: it is handed out or unblocked, and both are conditional on its rev.
        let found = if row.try_get::<bool, _>(1)? {
            let select = concat!("SELECT ", fresh_columns!(), " FROM redrive.fresh WHERE seq = $1");
            maybe!(self, select, seq)?.map(|row| read_fresh(&row, stream).map(Head::Fresh))
        } else {
            let select = concat!("SELECT ", tracked_columns!(), " FROM redrive.tracked WHERE seq = $1");
            maybe!(self, select, seq)?.map(|row| read_tracked(&row, stream).map(Head::Tracked))
        };
        Ok(found.map(|head| head.unwrap_or(Head::Damaged)))
    }

    /// The event `after` no longer blocks the key: the present head may run, if it is a later one. The head may be a
    /// dead letter; then that blocks the key, as far as it may.
    pub(super) async fn go_on(
        &mut self,
        stream: &Arc<Stream>,
        key: &str,
        after: Seq,
    ) -> Step<Option<QueueEntry>> {
        loop {
            let entry = match self.head(stream, key).await? {
                None => {
                    self.freed.insert((stream.id, key.to_owned()), Arc::clone(stream));
                    return Ok(None);
                }
                Some(Head::Damaged) => {
                    self.miss(stream);
                    return Ok(None);
                }
                Some(Head::Fresh(row)) => row.entry(stream.id),
                Some(Head::Tracked(tracked)) if tracked.state == RowState::Waiting => tracked.entry(),
                Some(Head::Tracked(tracked)) if tracked.state == RowState::DeadHolding => {
                    if !self.holds_too_many(stream, key, &tracked).await? {
                        return Ok(None);
                    }
                    self.pass(stream, tracked).await?;
                    continue;
                }
                Some(Head::Tracked(_)) => return Ok(None),
            };
            if entry.seq <= after || self.is_withheld(stream, key).await? {
                return Ok(None);
            }
            self.arrive(entry.clone(), stream).await?;
            return Ok(Some(entry));
        }
    }

    /// The dead letter that blocks a key, if it is the head. A damaged one is left out, and keeps blocking: how many
    /// events it may block is unreadable.
    pub(super) async fn parking_head(&mut self, stream: &Stream, key: &str) -> Step<Option<TrackedEvent>> {
        match self.head(stream, key).await? {
            Some(Head::Tracked(tracked)) if tracked.state == RowState::DeadHolding => Ok(Some(tracked)),
            _ => Ok(None),
        }
    }

    /// All dead letters that block a key. Damaged ones are left out.
    pub(super) async fn parked_letters(
        &mut self,
        stream: &Stream,
        key: &str,
    ) -> sqlx::Result<Vec<TrackedEvent>> {
        let found = rows!(
            self,
            concat!(
                "SELECT ",
                tracked_columns!(),
                " FROM redrive.tracked WHERE stream = $1 AND key = $2 AND state = ",
                states!(DeadHolding),
                " ORDER BY seq"
            ),
            i64::from(stream.id.0),
            key
        )?;
        Ok(found.iter().filter_map(|row| read_tracked(row, stream).ok()).collect())
    }

    /// Whether more wait behind a dead letter than it may block.
    async fn holds_too_many(
        &mut self,
        stream: &Stream,
        key: &str,
        dead: &TrackedEvent,
    ) -> sqlx::Result<bool> {
        let Some(count) = dead.park_count else { return Ok(false) };
        let waiting: i64 = one!(
            self,
            concat!(
                "SELECT count(*) FROM (SELECT 1 FROM redrive.fresh WHERE stream = $1 AND key = $2 AND seq > $3 \
             UNION ALL SELECT 1 FROM redrive.tracked WHERE stream = $1 AND key = $2 AND state = ",
                states!(Waiting),
                " AND seq > $3 \
             LIMIT $4) waiting"
            ),
            i64::from(stream.id.0),
            key,
            column(dead.row.seq.0),
            i64::from(count) + 1
        )?;
        Ok(waiting > i64::from(count))
    }

    /// Unblocks the events behind a dead letter, if there are more of them than it may block.
    pub(super) async fn relieve(
        &mut self,
        stream: &Arc<Stream>,
        key: &str,
        after: Seq,
    ) -> Step<Option<QueueEntry>> {
        let Some(dead) = self.parking_head(stream, key).await? else { return Ok(None) };
        if !self.holds_too_many(stream, key, &dead).await? {
            return Ok(None);
        }
        self.pass(stream, dead).await?;
        self.go_on(stream, key, after).await
    }

    /// Ends the block of a dead letter on its key.
    pub(super) async fn let_go(
        &mut self,
        stream: &Arc<Stream>,
        dead: TrackedEvent,
    ) -> Step<Option<QueueEntry>> {
        let (seq, key) = (dead.row.seq, dead.row.key().map(str::to_owned));
        self.pass(stream, dead).await?;
        match key {
            Some(key) => self.go_on(stream, &key, seq).await,
            None => Ok(None),
        }
    }

    async fn pass(&mut self, stream: &Arc<Stream>, mut dead: TrackedEvent) -> Step<()> {
        if dead.state == RowState::DeadHolding {
            self.uncount_hold(stream.id, dead.cause);
        }
        dead.state = RowState::DeadPassed;
        dead.rev += 1;
        self.update_tracked(&dead).await?;
        Ok(())
    }

    /// An event lives again, or goes on living: it becomes the head of its key, unless an earlier one is. Announced as
    /// an arrival if it may run.
    pub(super) async fn revive(
        &mut self,
        mut tracked: TrackedEvent,
        was_fresh: bool,
        stream: &Arc<Stream>,
    ) -> Step<()> {
        tracked.state = RowState::Waiting;
        self.keep(&tracked, was_fresh).await?;
        if let Some(key) = tracked.row.key() {
            let seq = tracked.row.seq;
            if self.has_earlier(stream, key, seq).await? {
                return Ok(());
            }
            // The previous head waits behind it, and the owner may have that in memory.
            self.recall |= self.has_later(stream, key, seq).await?;
            if self.is_withheld(stream, key).await? {
                return Ok(());
            }
        }
        let entry = tracked.entry();
        self.arrive(entry, stream).await?;
        Ok(())
    }

    /// An event may run, now or when it is due. Events of a pulled queue are not for the owner.
    pub(super) async fn arrive(&mut self, entry: QueueEntry, stream: &Arc<Stream>) -> sqlx::Result<()> {
        if !self.spec(&stream.queue).await?.is_some_and(|queue| queue.pull) {
            self.arrived.push(entry);
        }
        Ok(())
    }

    /// Whether an event is the head of its key.
    pub(super) async fn is_head(&mut self, row: &EventRow, stream: &Stream) -> sqlx::Result<bool> {
        match row.key() {
            Some(key) => self.has_earlier(stream, key, row.seq).await.map(|has| !has),
            None => Ok(true),
        }
    }
}

/// A seq in a column that is never NULL.
pub(super) fn seq_at(row: &impl Cells, at: usize) -> Seq {
    Seq(bits(row.number(at).unwrap_or_default()))
}
