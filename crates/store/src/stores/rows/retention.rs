//! Retention: rules that expire, and dead letters beyond what their queue keeps. A bounded slice per call.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use redrive_core::Moment;
use redrive_core::queue_entry::{Seq, StreamId};
use redrive_core::triage::{ActiveRule, Operator};

use super::Step;
use super::act::{or_refused, stamp};
use super::contract::Rows;
use super::operate::note_recall;
use super::rules::lift_rule;
use crate::operate::AuditEntry;
use crate::stores::shared::dedupe::End;
use crate::stores::shared::numbers::{bits, stream_of, to_moment};

/// How many rows a call deletes: each is a page to write.
pub(in crate::stores) const FORGOTTEN_MAX: usize = 1000;

/// A dead letter, ordered by when it died.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::stores) struct DeadRef {
    pub(in crate::stores) died: i64,
    /// The number of its death.
    pub(in crate::stores) death: i64,
    pub(in crate::stores) seq: i64,
}

impl DeadRef {
    /// Before all dead letters.
    const FIRST: Self = Self { died: i64::MIN, death: i64::MIN, seq: i64::MIN };
}

/// Lifts expired rules, and purges dead letters beyond what is kept. Returns how many of both.
pub(in crate::stores) async fn enforce<R: Rows>(tx: &mut R, now: Moment) -> Step<usize, R> {
    Ok(lift_expired(tx, now).await? + purge(tx, now).await?)
}

async fn lift_expired<R: Rows>(tx: &mut R, now: Moment) -> Step<usize, R> {
    let is_over = |control: &&ActiveRule| control.until.is_some_and(|until| until <= now);
    let mut expired: Vec<_> = {
        let rules = tx.rules().await?;
        rules.controls.list.iter().filter(is_over).map(|control| control.rule.clone()).collect()
    };
    if expired.is_empty() {
        return Ok(0);
    }
    tx.lock_shards().await?;
    expired.truncate(FORGOTTEN_MAX);
    for rule in &expired {
        let recalled_before = std::mem::take(tx.recall());
        // Another process may have lifted it meanwhile.
        if lift_rule(tx, rule).await? {
            let note = format!("{}: it expired", rule.word());
            let deed = AuditEntry { verb: "lift", target: rule.target(), count: 1, note };
            let number = tx.next_audit_number().await?;
            tx.write_audit_line(number, &Operator::engine(), now, &deed).await?;
        }
        note_recall(tx, recalled_before).await?;
    }
    Ok(expired.len())
}

/// Purges dead letters beyond what their queue keeps. Dead letters that block their key stay.
async fn purge<R: Rows>(tx: &mut R, now: Moment) -> Step<usize, R> {
    let queues = tx.queues_with_retention().await?;
    if queues.is_empty() {
        return Ok(0);
    }
    tx.lock_shards().await?;
    let mut purged = Vec::new();
    let mut all = 0;
    for (queue, keep) in queues {
        let beyond = match keep.count {
            Some(count) => tx.passed_letters(&queue).await?.saturating_sub(count),
            None => 0,
        };
        let is_over = |index: u64, died: i64| {
            index < beyond || keep.time.is_some_and(|time| to_moment(died) + time < now)
        };
        let mut count = 0;
        for seq in oldest(tx, &queue, FORGOTTEN_MAX - all, is_over).await? {
            count += u64::from(purge_one(tx, seq, now).await?);
        }
        if count > 0 {
            purged.push(format!("queue {queue}: {count}"));
            all += usize::try_from(count).unwrap_or(usize::MAX);
        }
    }
    if all > 0 {
        let note = "beyond the queue's limit of kept dead letters".to_owned();
        let deed = AuditEntry { verb: "purge", target: purged.join(", "), count: all as u64, note };
        let number = tx.next_audit_number().await?;
        tx.write_audit_line(number, &Operator::engine(), now, &deed).await?;
    }
    Ok(all)
}

/// The oldest dead letters of a queue, while `is_over` holds for their index and their time of death.
async fn oldest<R: Rows>(
    tx: &mut R,
    queue: &str,
    most: usize,
    is_over: impl Fn(u64, i64) -> bool + Send,
) -> Step<Vec<Seq>, R> {
    // Each stream has its dead letters in order; the oldest of all is the oldest of the first ones.
    let mut firsts: BinaryHeap<Reverse<(DeadRef, StreamId)>> = BinaryHeap::new();
    for stream in tx.streams_of(queue).await? {
        firsts.extend(tx.next_dead(stream, DeadRef::FIRST).await?.map(|dead| Reverse((dead, stream))));
    }
    let mut over = Vec::new();
    while over.len() < most
        && let Some(Reverse((dead, stream))) = firsts.pop()
        && is_over(over.len() as u64, dead.died)
    {
        over.push(Seq(bits(dead.seq)));
        firsts.extend(tx.next_dead(stream, dead).await?.map(|dead| Reverse((dead, stream))));
    }
    Ok(over)
}

/// Purges one dead letter: its dedupe record then says `discarded`. `false` if it is damaged, and stays.
async fn purge_one<R: Rows>(tx: &mut R, seq: Seq, now: Moment) -> Step<bool, R> {
    let Some(stream) = tx.stream(stream_of(seq)).await? else { return Ok(false) };
    let Ok(Some(event)) = or_refused(tx.tracked_row(seq, &stream).await)? else { return Ok(false) };
    let (attempts, history) = (event.progress.attempts, event.progress.history);
    let end = End { history, ..End::discarded(attempts, now) };
    stamp(tx, &stream, &event.row.event.id, now, Some(end)).await?;
    tx.uncount_death(stream.id, event.cause, false).await?;
    tx.delete_tracked(seq).await?;
    Ok(true)
}
