//! What is kept of dead letters, and what ends by itself: letters beyond what their queue keeps, rules whose time is
//! over. A slice a call, like everything that is forgotten.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use redrive_core::Moment;
use redrive_core::entry::Seq;
use redrive_core::triage::{Control, Operator};
use sqlx::Row;
use sqlx::postgres::PgRow;

use super::desk::{Desk, maybe, one, rows};
use super::faults::Step;
use super::forget::FORGOTTEN_MAX;
use super::receipt::End;
use crate::operate::Deed;
use crate::store::Keep;
use crate::stores::shared::numbers::{bits, stream_of, to_duration, to_moment};

/// When a letter died, the number of its death, and which it is.
type Grave = (i64, i64, i64);

impl Desk {
    /// Lifts rules whose time is over, and gives up letters beyond what is kept.
    pub(super) async fn keep_in_order(&mut self, now: Moment) -> Step<usize> {
        Ok(self.lift_ended(now).await? + self.purge(now).await?)
    }

    /// Lifts the rules whose time is over.
    async fn lift_ended(&mut self, now: Moment) -> Step<usize> {
        let is_over = |control: &&Control| control.until.is_some_and(|until| until <= now);
        let mut ended: Vec<_> = {
            let rules = self.rules().await?;
            rules.controls.list.iter().filter(is_over).map(|control| control.rule.clone()).collect()
        };
        if ended.is_empty() {
            return Ok(0);
        }
        self.lock_shards().await?;
        ended.truncate(FORGOTTEN_MAX);
        for rule in &ended {
            // Another process may have done so meanwhile.
            if !self.lift_rule(rule).await? {
                continue;
            }
            let note = format!("{}: its time was over", rule.word());
            let deed = Deed { verb: "lift", target: rule.target(), count: 1, note };
            let line = self.next_line().await?;
            self.write_line(line, &Operator::engine(), now, &deed).await?;
            self.raise_version().await?;
        }
        Ok(ended.len())
    }

    /// Gives up dead letters beyond what their queue keeps. Those that hold up their key stay.
    async fn purge(&mut self, now: Moment) -> Step<usize> {
        let keeping = self.keeping().await?;
        if keeping.is_empty() {
            return Ok(0);
        }
        self.lock_shards().await?;
        let mut purged = Vec::new();
        let mut all = 0;
        for (queue, keep) in keeping {
            let room = FORGOTTEN_MAX - all;
            let beyond = match keep.count {
                Some(count) => self.passed_in(&queue).await?.saturating_sub(count),
                None => 0,
            };
            let is_over = |place: u64, died: i64| {
                place < beyond || keep.time.is_some_and(|time| to_moment(died) + time < now)
            };
            let over = self.oldest(&queue, room, is_over).await?;
            let mut count = 0;
            for seq in over {
                count += u64::from(self.purge_one(seq, now).await?);
            }
            if count > 0 {
                purged.push(format!("queue {queue}: {count}"));
                all += usize::try_from(count).unwrap_or(usize::MAX);
            }
        }
        if all > 0 {
            let note = "beyond what is kept of dead letters".to_owned();
            let deed = Deed { verb: "purge", target: purged.join(", "), count: all as u64, note };
            let line = self.next_line().await?;
            self.write_line(line, &Operator::engine(), now, &deed).await?;
        }
        Ok(all)
    }

    /// The queues that do not keep all.
    async fn keeping(&mut self) -> sqlx::Result<Vec<(String, Keep)>> {
        let found = rows!(
            self,
            "SELECT name, keep_time, keep_count FROM redrive.queue \
             WHERE keep_time IS NOT NULL OR keep_count IS NOT NULL"
        )?;
        let keep = |row: &PgRow| {
            let time = row.try_get::<Option<i64>, _>(1)?.map(to_duration);
            Ok((row.try_get(0)?, Keep { time, count: row.try_get::<Option<i64>, _>(2)?.map(bits) }))
        };
        found.iter().map(keep).collect()
    }

    /// How many dead letters of a queue hold up nobody.
    async fn passed_in(&mut self, queue: &str) -> sqlx::Result<u64> {
        one!(
            self,
            "SELECT coalesce(sum(letters - holding), 0)::bigint FROM redrive.tally JOIN redrive.stream ON id = stream \
             WHERE queue = $1",
            queue
        )
        .map(bits)
    }

    /// The oldest letters of a queue, as long as they are meant by their place and death.
    async fn oldest(
        &mut self,
        queue: &str,
        most: usize,
        is_meant: impl Fn(u64, i64) -> bool + Send,
    ) -> Step<Vec<Seq>> {
        let streams = self.streams(Some(queue), None).await?;
        // Each stream has its letters in order; the oldest of all is the oldest of the oldest.
        let mut heads = BinaryHeap::new();
        for stream in streams {
            let id = i64::from(stream.id.0);
            let first = self.next_grave(id, (i64::MIN, i64::MIN, i64::MIN)).await?;
            heads.extend(first.map(|grave| Reverse((grave, id))));
        }
        let mut over = Vec::new();
        while over.len() < most
            && let Some(Reverse((grave, stream))) = heads.pop()
            && is_meant(over.len() as u64, grave.0)
        {
            over.push(Seq(bits(grave.2)));
            heads.extend(self.next_grave(stream, grave).await?.map(|grave| Reverse((grave, stream))));
        }
        Ok(over)
    }

    async fn next_grave(&mut self, stream: i64, after: Grave) -> sqlx::Result<Option<Grave>> {
        let found = maybe!(
            self,
            "SELECT died, death, seq FROM redrive.held WHERE state = 3 AND stream = $1 AND (died, death) > ($2, $3) \
             ORDER BY died, death LIMIT 1",
            stream,
            after.0,
            after.1
        )?;
        found.map(|row| Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?))).transpose()
    }

    /// Gives up one letter. Its receipt says so from now on. `false` where it cannot be read: it stays.
    async fn purge_one(&mut self, seq: Seq, now: Moment) -> Step<bool> {
        let Some(stream) = self.stream(stream_of(seq)).await? else { return Ok(false) };
        let Some(Ok(held)) = self.held(seq, &stream).await? else { return Ok(false) };
        let (attempts, story) = (held.progress.attempts, held.progress.story);
        let end = End { story, ..End::discarded(attempts, now) };
        self.stamp(&stream, &held.row.event.id, now, Some(end)).await?;
        self.uncount_death(stream.id, held.cause, false);
        self.delete_held(seq).await?;
        Ok(true)
    }
}
