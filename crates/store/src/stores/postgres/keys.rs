//! The order of a key.
//!
//! The head of a key is its smallest living seq, whatever its due time; a dead letter counts while it holds up those
//! that follow. Who is the head is never written down: publishers commit in any order, and what one of them saw is old
//! when it commits. Whoever hands something out asks, in the statement that reads it.

use std::sync::Arc;

use redrive_core::entry::{Entry, Seq};
use sqlx::Row;

use super::desk::{DeskAt, maybe, one, run};
use super::faults::Step;
use super::held::{Held, Stand, held_columns, read_held};
use super::rows::{EventRow, Stream, live_columns, read_live};
use crate::stores::shared::cells::Cells;
use crate::stores::shared::numbers::{bits, column};

/// That nothing of the same key lives, or holds it up, before an event of `$1`, the name of its table in the statement.
macro_rules! is_head {
    ($event:literal) => {
        concat!(
            "(",
            $event,
            ".key IS NULL OR (NOT EXISTS (SELECT 1 FROM redrive.live first WHERE first.stream = ",
            $event,
            ".stream AND first.key = ",
            $event,
            ".key AND first.seq < ",
            $event,
            ".seq) AND NOT EXISTS (SELECT 1 FROM redrive.held first WHERE first.stream = ",
            $event,
            ".stream AND first.key = ",
            $event,
            ".key AND first.state IN (0, 2, 6) AND first.seq < ",
            $event,
            ".seq)))"
        )
    };
}
pub(super) use is_head;

/// That a dead letter `event` holds up more of its key than it may.
macro_rules! holds_too_many {
    () => {
        concat!(
            "(park_count IS NOT NULL AND ",
            is_head!("event"),
            " AND (SELECT count(*) FROM (SELECT 1 FROM redrive.live next WHERE next.stream = event.stream \
             AND next.key = event.key AND next.seq > event.seq LIMIT event.park_count + 1) few) \
             + (SELECT count(*) FROM (SELECT 1 FROM redrive.held next WHERE next.stream = event.stream \
             AND next.key = event.key AND next.state = 0 AND next.seq > event.seq LIMIT event.park_count + 1) few) \
             > park_count)"
        )
    };
}
pub(super) use holds_too_many;

/// The head of a key.
enum Head {
    /// It never ran.
    Live(EventRow),
    /// It waits, is dead and holds up the others, or is leased.
    Held(Held),
    /// Nobody can read it: its key stands still, and the next load names it.
    Damaged,
}

impl DeskAt<'_> {
    /// Whether an earlier one of a key lives, or holds it up.
    pub(super) async fn has_earlier(&mut self, stream: &Stream, key: &str, seq: Seq) -> sqlx::Result<bool> {
        one!(
            self,
            "SELECT EXISTS (SELECT 1 FROM redrive.live WHERE stream = $1 AND key = $2 AND seq < $3) \
             OR EXISTS (SELECT 1 FROM redrive.held WHERE stream = $1 AND key = $2 AND state IN (0, 2, 6) \
             AND seq < $3)",
            i64::from(stream.id.0),
            key,
            column(seq.0)
        )
    }

    /// Whether a later one of a key lives that an owner may have in its hands.
    async fn has_later(&mut self, stream: &Stream, key: &str, seq: Seq) -> sqlx::Result<bool> {
        one!(
            self,
            "SELECT EXISTS (SELECT 1 FROM redrive.live WHERE stream = $1 AND key = $2 AND seq > $3) \
             OR EXISTS (SELECT 1 FROM redrive.held WHERE stream = $1 AND key = $2 AND state = 0 AND seq > $3)",
            i64::from(stream.id.0),
            key,
            column(seq.0)
        )
    }

    async fn head(&mut self, stream: &Stream, key: &str) -> Step<Option<Head>> {
        let first = maybe!(
            self,
            "SELECT seq, true AS live, blocked FROM redrive.live WHERE stream = $1 AND key = $2 \
             UNION ALL SELECT seq, false, false FROM redrive.held WHERE stream = $1 AND key = $2 AND state IN (0, 2, 6) \
             ORDER BY seq LIMIT 1",
            i64::from(stream.id.0),
            key
        )?;
        let Some(row) = first else { return Ok(None) };
        let seq = column(bits(row.try_get(0)?));
        if self.writes && row.try_get::<bool, _>(2)? {
            // Who is at the head is not to be passed by.
            run!(self, "UPDATE redrive.live SET blocked = false WHERE seq = $1", seq)?;
        }
        // Read without a lock: it is handed out or let go, and both are conditional on its rev.
        let found = if row.try_get::<bool, _>(1)? {
            let select = concat!("SELECT ", live_columns!(), " FROM redrive.live WHERE seq = $1");
            maybe!(self, select, seq)?.map(|row| read_live(&row, stream).map(Head::Live))
        } else {
            let select = concat!("SELECT ", held_columns!(), " FROM redrive.held WHERE seq = $1");
            maybe!(self, select, seq)?.map(|row| read_held(&row, stream).map(Head::Held))
        };
        Ok(found.map(|head| head.unwrap_or(Head::Damaged)))
    }

    /// Something of a key at this place is no longer in the way: whoever is the head now may run, if that is a later
    /// one. It may be a dead letter; then that holds up the key, as far as it may.
    pub(super) async fn go_on(&mut self, stream: &Arc<Stream>, key: &str, after: Seq) -> Step<Option<Entry>> {
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
                Some(Head::Live(row)) => row.entry(stream.id),
                Some(Head::Held(held)) if held.stand == Stand::Waits => held.entry(),
                Some(Head::Held(held)) if held.stand == Stand::DeadHolding => {
                    if !self.holds_too_many(stream, key, &held).await? {
                        return Ok(None);
                    }
                    self.pass(stream, held).await?;
                    continue;
                }
                Some(Head::Held(_)) => return Ok(None),
            };
            if entry.seq <= after || self.is_withheld(stream, key).await? {
                return Ok(None);
            }
            self.arrive(entry.clone(), stream).await?;
            return Ok(Some(entry));
        }
    }

    /// The dead letter that holds up a key, if that is its head. A damaged one is not told, and holds on: nobody knows
    /// how many it may hold up.
    pub(super) async fn parking_head(&mut self, stream: &Stream, key: &str) -> Step<Option<Held>> {
        match self.head(stream, key).await? {
            Some(Head::Held(held)) if held.stand == Stand::DeadHolding => Ok(Some(held)),
            _ => Ok(None),
        }
    }

    /// Whether more wait behind a dead letter than it may hold up.
    async fn holds_too_many(&mut self, stream: &Stream, key: &str, dead: &Held) -> sqlx::Result<bool> {
        let Some(count) = dead.park_count else { return Ok(false) };
        let waiting: i64 = one!(
            self,
            "SELECT count(*) FROM (SELECT 1 FROM redrive.live WHERE stream = $1 AND key = $2 AND seq > $3 \
             UNION ALL SELECT 1 FROM redrive.held WHERE stream = $1 AND key = $2 AND state = 0 AND seq > $3 \
             LIMIT $4) waiting",
            i64::from(stream.id.0),
            key,
            column(dead.row.seq.0),
            i64::from(count) + 1
        )?;
        Ok(waiting > i64::from(count))
    }

    /// Lets those go on that wait behind a dead letter, if there are more of them than it may hold up.
    pub(super) async fn relieve(
        &mut self,
        stream: &Arc<Stream>,
        key: &str,
        after: Seq,
    ) -> Step<Option<Entry>> {
        let Some(dead) = self.parking_head(stream, key).await? else { return Ok(None) };
        if !self.holds_too_many(stream, key, &dead).await? {
            return Ok(None);
        }
        self.pass(stream, dead).await?;
        self.go_on(stream, key, after).await
    }

    /// Ends the hold of a dead letter over those that follow.
    pub(super) async fn let_go(&mut self, stream: &Arc<Stream>, dead: Held) -> Step<Option<Entry>> {
        let (seq, key) = (dead.row.seq, dead.row.key().map(str::to_owned));
        self.pass(stream, dead).await?;
        match key {
            Some(key) => self.go_on(stream, &key, seq).await,
            None => Ok(None),
        }
    }

    async fn pass(&mut self, stream: &Arc<Stream>, mut dead: Held) -> Step<()> {
        if dead.stand == Stand::DeadHolding {
            self.uncount_hold(stream.id, dead.cause);
        }
        dead.stand = Stand::DeadPassed;
        dead.rev += 1;
        self.update_held(&dead).await?;
        Ok(())
    }

    /// An event lives again, or goes on living: it is the head of its key, unless an earlier one is. Told as an
    /// arrival where it may run.
    pub(super) async fn revive(&mut self, mut held: Held, was_live: bool, stream: &Arc<Stream>) -> Step<()> {
        held.stand = Stand::Waits;
        self.keep(&held, was_live).await?;
        if let Some(key) = held.row.key() {
            let seq = held.row.seq;
            if self.has_earlier(stream, key, seq).await? {
                return Ok(());
            }
            // The head until now waits behind it, and the owner may have it in its hands.
            self.recall |= self.has_later(stream, key, seq).await?;
            if self.is_withheld(stream, key).await? {
                return Ok(());
            }
        }
        let entry = held.entry();
        self.arrive(entry, stream).await?;
        Ok(())
    }

    /// An event may run, now or when it is due. Those that are pulled are not for the owner.
    pub(super) async fn arrive(&mut self, entry: Entry, stream: &Arc<Stream>) -> sqlx::Result<()> {
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

/// A number in a row that is there.
pub(super) fn seq_at(row: &impl Cells, at: usize) -> Seq {
    Seq(bits(row.number(at).unwrap_or_default()))
}
