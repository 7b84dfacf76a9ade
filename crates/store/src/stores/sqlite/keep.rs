//! What is kept of dead letters, and what ends by itself: letters beyond what their queue keeps, groups without
//! letters, rules whose time is over. A slice a call, like everything that is forgotten.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use redrive_core::Moment;
use redrive_core::entry::{Seq, StreamId};
use redrive_core::triage::Operator;
use rusqlite::{OptionalExtension, params};

use super::desk::Desk;
use super::faults::Step;
use super::forget::{FORGOTTEN_MAX, LOOKED_AT_MAX};
use super::held::{Held, delete_held};
use super::numbers::{bits, stream_of, to_duration, to_moment};
use super::receipt::End;
use crate::operate::Deed;
use crate::store::Keep;

/// When a letter died, the number of its death, and which it is.
type Grave = (i64, i64, i64);

impl Desk {
    /// Lifts the rules whose time is over.
    pub(super) fn lift_ended(&mut self, now: Moment) -> Step<usize> {
        let mut ended = self.ended_rules(now)?;
        ended.truncate(FORGOTTEN_MAX);
        for rule in &ended {
            let recalled_before = std::mem::take(&mut self.recall);
            self.lift_rule(rule)?;
            let note = format!("{}: its time was over", rule.word());
            let deed = Deed { verb: "lift", target: rule.target(), count: 1, note };
            self.write_line(&Operator::engine(), now, &deed)?;
            self.raise_version()?;
            self.recall |= recalled_before;
        }
        Ok(ended.len())
    }

    /// Gives up dead letters beyond what their queue keeps. Those that hold up their key stay.
    pub(super) fn purge(&mut self, now: Moment) -> Step<usize> {
        // The groups say how many there are.
        self.write_numbers()?;
        let mut purged = Vec::new();
        let mut all = 0;
        for (queue, keep) in self.keeping()? {
            let room = FORGOTTEN_MAX - all;
            let beyond = match keep.count {
                Some(count) => self.passed_in(&queue)?.saturating_sub(count),
                None => 0,
            };
            let over = self.oldest(&queue, room, |place, died| {
                place < beyond || keep.time.is_some_and(|time| to_moment(died) + time < now)
            })?;
            let mut count = 0;
            for seq in over {
                count += u64::from(self.purge_one(seq, now)?);
            }
            if count > 0 {
                purged.push(format!("queue {queue}: {count}"));
                all += usize::try_from(count).unwrap_or(usize::MAX);
            }
        }
        if all > 0 {
            let note = "beyond what is kept of dead letters".to_owned();
            let deed = Deed { verb: "purge", target: purged.join(", "), count: all as u64, note };
            self.write_line(&Operator::engine(), now, &deed)?;
        }
        Ok(all)
    }

    /// The queues that do not keep all.
    fn keeping(&self) -> rusqlite::Result<Vec<(String, Keep)>> {
        let mut select = self.conn.prepare_cached(
            "SELECT name, keep_time, keep_count FROM redrive_queue \
             WHERE keep_time IS NOT NULL OR keep_count IS NOT NULL",
        )?;
        let queues = select.query_map([], |row| {
            let time = row.get::<_, Option<i64>>(1)?.map(to_duration);
            Ok((row.get(0)?, Keep { time, count: row.get::<_, Option<i64>>(2)?.map(bits) }))
        })?;
        queues.collect()
    }

    /// How many dead letters of a queue hold up nobody.
    fn passed_in(&self, queue: &str) -> rusqlite::Result<u64> {
        self.conn
            .prepare_cached(
                "SELECT coalesce(sum(letters - holding), 0) FROM redrive_group JOIN redrive_stream ON id = stream \
                 WHERE queue = ?1",
            )?
            .query_row([queue], |row| row.get(0).map(bits))
    }

    /// The oldest letters of a queue, as long as they are meant by their place and death.
    fn oldest(&self, queue: &str, most: usize, is_meant: impl Fn(u64, i64) -> bool) -> Step<Vec<Seq>> {
        let streams: Vec<u32> = {
            let mut select = self.conn.prepare_cached("SELECT id FROM redrive_stream WHERE queue = ?1")?;
            select.query_map([queue], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?
        };
        // Each stream has its letters in order; the oldest of all is the oldest of the oldest.
        let mut heads = BinaryHeap::new();
        for stream in streams {
            heads.extend(
                self.next_grave(stream, (i64::MIN, i64::MIN, i64::MIN))?
                    .map(|grave| Reverse((grave, stream))),
            );
        }
        let mut over = Vec::new();
        while over.len() < most
            && let Some(Reverse((grave, stream))) = heads.pop()
            && is_meant(over.len() as u64, grave.0)
        {
            over.push(Seq(bits(grave.2)));
            heads.extend(self.next_grave(stream, grave)?.map(|grave| Reverse((grave, stream))));
        }
        Ok(over)
    }

    fn next_grave(&self, stream: u32, after: Grave) -> rusqlite::Result<Option<Grave>> {
        self.conn
            .prepare_cached(
                "SELECT died, death, seq FROM redrive_held WHERE state = 3 AND stream = ?1 \
                 AND (died, death) > (?2, ?3) ORDER BY died, death LIMIT 1",
            )?
            .query_row(params![stream, after.0, after.1], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
            .optional()
    }

    /// Gives up one letter. Its receipt says so from now on. `false` where it cannot be read: it stays.
    fn purge_one(&mut self, seq: Seq, now: Moment) -> Step<bool> {
        let Some(stream) = self.names.of(&self.conn, stream_of(seq))? else { return Ok(false) };
        let Some(Ok(held)) = Held::find(&self.conn, seq, &stream)? else { return Ok(false) };
        let (attempts, story) = (held.progress.attempts, held.progress.story);
        let end = End { story, ..End::discarded(attempts, now) };
        self.stamp(&stream, &held.row.event.id, now, Some(end))?;
        self.uncount_death(stream.id, held.cause, false)?;
        delete_held(&self.conn, seq)?;
        Ok(true)
    }

    /// Forgets groups that have had no letters for as long as their queue remembers identities.
    pub(super) fn forget_groups(&mut self, now: Moment) -> Step<usize> {
        self.write_numbers()?;
        let (mut stream, mut cause) = self.cursor.group;
        let mut over = Vec::new();
        let mut looked_at = 0;
        let mut rows = Vec::new();
        {
            let mut select = self.conn.prepare_cached(
                "SELECT stream, cause, letters, last FROM redrive_group WHERE (stream, cause) > (?1, ?2) \
                 ORDER BY stream, cause LIMIT ?3",
            )?;
            let mut found = select.query(params![stream, cause, LOOKED_AT_MAX])?;
            while let Some(row) = found.next()? {
                looked_at += 1;
                (stream, cause) = (row.get(0)?, row.get(1)?);
                if row.get::<_, i64>(2)? == 0 {
                    rows.push((stream, cause, to_moment(row.get(3)?)));
                }
            }
        }
        for (stream, cause, last) in rows {
            let Some(names) = self.names.of(&self.conn, StreamId(stream))? else { continue };
            if last + self.window(&names.queue)? < now {
                over.push((stream, cause));
            }
        }
        for (stream, cause) in &over {
            self.conn
                .prepare_cached("DELETE FROM redrive_group WHERE stream = ?1 AND cause = ?2")?
                .execute(params![stream, cause])?;
        }
        if !over.is_empty() {
            self.ledger = super::ledger::Ledger::default();
        }
        self.cursor.group = if looked_at < LOOKED_AT_MAX { (0, i64::MIN) } else { (stream, cause) };
        Ok(over.len())
    }
}
