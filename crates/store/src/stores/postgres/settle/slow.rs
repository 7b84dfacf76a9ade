//! Settling: the outcome of an attempt, under the fence.
//!
//! Most settles are of events that ran once, with success and without a key: one `DELETE` with all conditions settles
//! all of them. For all others the transaction reads the event first, and locks it. It checks the fencing tokens
//! first, so that each settle has its own answer, and again at the very end, when the shard cannot change hands before
//! the commit: if it did before, everything is rolled back and repeated.
//!
//! A COMMIT that was not answered may have happened. The same settles are then written again: their locks wait for the
//! outcome of the first. If an event is gone while this process still owns the shard, the first try settled it.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use redrive_core::Moment;
use redrive_core::event::{AttemptHistory, State};
use redrive_core::queue_entry::{
    EventChange, FencingToken, ParkFollowers, QueueEntry, Seq, SettleRequest, SettleResult,
};
use sqlx::Row;

use crate::error::StoreError;
use crate::stores::postgres::database::{CommitNews, Database, TxError};
use crate::stores::postgres::events::dedupe::{End, ending_of};
use crate::stores::postgres::events::fresh::{Damage, Stream};
use crate::stores::postgres::events::tracked::{RedrivenBy, RowState, TrackedEvent};
use crate::stores::postgres::faults::{Fault, Step, left_open};
use crate::stores::postgres::tx::{OwnTx, rows};
use crate::stores::postgres::writer::batch::{Batch, BatchItem};
use crate::stores::shared::group::RedriveOutcome;
use crate::stores::shared::numbers::{bits, column, from_moment, stream_of};

/// How often settles of unknown outcome are written again.
const REPEATS_MAX: u32 = 10;

/// A settled event: its new rev, and the event of its key that may run now.
type Changed = Option<(u32, Option<QueueEntry>)>;

impl BatchItem for SettleRequest {
    type Answer = SettleResult;
    type Doubt = Option<SettleResult>;

    fn size(&self) -> usize {
        256
    }

    /// Settles events: the simple ones with one statement, the rest in a transaction.
    async fn write(db: &Arc<Database>, batch: &mut Batch<Self>, is_shared: bool) -> Step<()> {
        if !batch.is_doubted() {
            let left = batch.left();
            let settles = batch.those(&left);
            let mut in_doubt = HashMap::new();
            let done = db.settle_fast(&settles, is_shared, &mut in_doubt).await;
            for (at, meant) in in_doubt {
                batch.doubts[left[at]] = Some(meant);
            }
            batch.answer(&left, done?);
        }
        settle_slow(db, batch, is_shared).await
    }

    /// If some are settled, or may be, the outcome of the call is unknown.
    fn give_up(
        db: &Arc<Database>,
        batch: Batch<Self>,
        error: &StoreError,
    ) -> Result<Vec<SettleResult>, StoreError> {
        if !batch.is_begun() && !batch.is_doubted() {
            return Err(error.clone());
        }
        // The callers do not learn the next events of their keys: a load will find them.
        let entries = batch.answers.into_iter().flatten().filter_map(|settled| match settled {
            SettleResult::Applied { next, .. } => next,
            _ => None,
        });
        let news = CommitNews { arrived: entries.collect(), ..CommitNews::default() };
        db.tell_of(db.notifier.pending.begin(), news.in_doubt());
        Err(left_open(error))
    }
}

/// Settles in a transaction.
async fn settle_slow(db: &Arc<Database>, batch: &mut Batch<SettleRequest>, is_shared: bool) -> Step<()> {
    let left = batch.left();
    if left.is_empty() {
        return Ok(());
    }
    let settles: Arc<Vec<SettleRequest>> = Arc::new(batch.those(&left).into_iter().cloned().collect());
    let mut repeats = 0;
    loop {
        // The answers of a try that may have been committed.
        let before = left.iter().map(|at| batch.doubts[*at].clone().unwrap_or(SettleResult::Stale));
        let before: Arc<Vec<SettleResult>> = Arc::new(before.collect());
        let last = Arc::new(Mutex::new(None));
        // The first try assumes that every fencing token is current; the fence says if one is not.
        let tries = Arc::new(AtomicU32::new(0));
        let done = db
            .try_to_write(|tx| {
                let (all, before, says) = (Arc::clone(&settles), Arc::clone(&before), Arc::clone(&last));
                let careful = tries.fetch_add(1, Relaxed) > 0;
                Box::pin(async move {
                    if is_shared {
                        tx.wait_shortly().await?;
                    }
                    let answers = tx.settle_all(&all, &before, careful).await?;
                    *says.lock().unwrap_or_else(PoisonError::into_inner) = Some(answers.clone());
                    Ok(answers)
                })
            })
            .await;
        match done {
            Ok(answers) => {
                db.notifier.pending.settled(settles.iter().map(|settle| settle.seq));
                batch.answer(&left, answers.into_iter().map(Some));
                return Ok(());
            }
            Err(TxError::No(fault)) => return Err(fault),
            Err(TxError::Unknown(error)) => {
                let said = last.lock().unwrap_or_else(PoisonError::into_inner).take();
                for (at, said) in left.iter().zip(said.into_iter().flatten()) {
                    // No later try takes back what an earlier one applied.
                    let doubt = &mut batch.doubts[*at];
                    if doubt.is_none() || is_applied(Some(&said)) {
                        *doubt = Some(said);
                    }
                }
                repeats += 1;
                if repeats >= REPEATS_MAX {
                    return Err(Fault::Sql(error));
                }
            }
        }
    }
}

impl OwnTx {
    /// Settles events. `before` has the answers of an earlier try, which may have been committed.
    pub(in crate::stores::postgres) async fn settle_all(
        &mut self,
        settles: &[SettleRequest],
        before: &[SettleResult],
        careful: bool,
    ) -> Step<Vec<SettleResult>> {
        let current = self.current(settles, careful).await?;
        let gone = self.delete_plain(settles, &current).await?;
        let mut answers = Vec::with_capacity(settles.len());
        let mut used = HashSet::new();
        for (at, settle) in settles.iter().enumerate() {
            answers.push(if gone.contains(&settle.seq) && used.insert(settle.seq) {
                SettleResult::Applied { rev: 1, next: None }
            } else if current.contains(&settle.token) {
                match self.settle(settle).await? {
                    SettleResult::Stale if is_applied(before.get(at)) => self.settled_before(settle).await?,
                    settled => settled,
                }
            } else {
                SettleResult::Fenced
            });
        }
        Ok(answers)
    }

    /// The current fencing tokens. Nearly always all of them are, so this checks only if the fence has failed, or if
    /// two tokens are for one shard.
    async fn current(&mut self, settles: &[SettleRequest], careful: bool) -> Step<HashSet<FencingToken>> {
        let mut current: HashSet<FencingToken> = settles.iter().map(|settle| settle.token).collect();
        let shards: HashSet<u32> = current.iter().map(|token| token.shard).collect();
        if careful || shards.len() < current.len() {
            for token in current.clone() {
                if !self.is_current(token).await? {
                    current.remove(&token);
                }
            }
        }
        self.tokens.extend(current.iter().map(|token| (token.shard, *token)));
        if let Some(at) = settles.iter().map(|settle| settle.at).max() {
            self.advance_clock(at);
        }
        Ok(current)
    }

    /// Deletes events that ran once, with success and without a key. Returns which.
    async fn delete_plain(
        &mut self,
        settles: &[SettleRequest],
        current: &HashSet<FencingToken>,
    ) -> Step<HashSet<Seq>> {
        let mut seen = HashSet::new();
        // Of several settles of one event the first comes first, whatever it is.
        let plain: Vec<&SettleRequest> = settles
            .iter()
            .filter(|settle| seen.insert(settle.seq))
            .filter(|settle| settle.change == EventChange::Done && settle.rev == 0)
            .filter(|settle| current.contains(&settle.token))
            .collect();
        if plain.is_empty() {
            return Ok(HashSet::new());
        }
        let mut sorted = plain;
        sorted.sort_by_key(|settle| settle.seq);
        let seqs: Vec<i64> = sorted.iter().map(|settle| column(settle.seq.0)).collect();
        let shards: BTreeSet<i64> = sorted.iter().map(|settle| i64::from(settle.token.shard)).collect();
        let last = sorted.iter().map(|settle| settle.at).max().map_or(i64::MAX, from_moment);
        let gone = rows!(
            self,
            "DELETE FROM redrive.fresh WHERE seq = ANY($1) AND key IS NULL AND shard = ANY($2) AND dedupe_ok_until >= $3 RETURNING seq",
            seqs,
            shards.into_iter().collect::<Vec<i64>>(),
            last
        )?;
        Ok(gone.iter().map(|row| row.try_get(0).map(|seq| Seq(bits(seq)))).collect::<sqlx::Result<_>>()?)
    }

    /// Settles an event, under a fencing token that was current.
    async fn settle(&mut self, settle: &SettleRequest) -> Step<SettleResult> {
        let Some(stream) = self.stream(stream_of(settle.seq)).await? else { return Ok(SettleResult::Stale) };
        let Some((tracked, was_fresh)) = self.take_up(settle.seq, &stream).await? else {
            return Ok(SettleResult::Stale);
        };
        if tracked.row.shard != settle.token.shard {
            return Ok(SettleResult::Fenced);
        }
        // The only change a settle may make to a dead letter is to unblock its key. A command may have killed the
        // event, and a guessed rev must not bring it back.
        let is_over = tracked.state == RowState::Discarded
            || tracked.state.is_dead() && settle.change != EventChange::Unpark;
        if tracked.rev != settle.rev || is_over {
            return Ok(SettleResult::Stale);
        }
        let changed = match ending_of(&settle.change, settle.at) {
            Some(end) => {
                let rev = tracked.rev + 1;
                Some((rev, self.end(tracked, was_fresh, &stream, settle.at, end).await?))
            }
            None => self.change(tracked, was_fresh, &settle.change, settle.at, &stream).await?,
        };
        Ok(changed.map_or(SettleResult::Stale, |(rev, next)| SettleResult::Applied { rev, next }))
    }

    /// The result of an earlier try, if it was committed: the event is gone, or as that try left it.
    async fn settled_before(&mut self, settle: &SettleRequest) -> Step<SettleResult> {
        let Some(stream) = self.stream(stream_of(settle.seq)).await? else { return Ok(SettleResult::Stale) };
        let there = self.take_up(settle.seq, &stream).await?;
        let is_end = ending_of(&settle.change, settle.at).is_some();
        let rev = settle.rev + 1;
        let is_done = match (&there, &settle.change) {
            (None, _) => is_end,
            (Some((tracked, _)), EventChange::Retry(progress)) => {
                tracked.rev == rev && tracked.progress == *progress
            }
            (Some((tracked, _)), EventChange::Dead { progress, .. }) => {
                tracked.state.is_dead() && tracked.rev >= rev && tracked.progress == *progress
            }
            (Some((tracked, _)), EventChange::CountCrash) => tracked.rev == rev && tracked.progress.suspect,
            (Some((tracked, _)), EventChange::Unpark) => {
                tracked.rev == rev && tracked.state == RowState::DeadPassed
            }
            _ => false,
        };
        if !is_done {
            return Ok(SettleResult::Stale);
        }
        let key = match &there {
            Some((tracked, _)) => tracked.row.key().map(str::to_owned),
            None => self.key_before(settle.seq).await?,
        };
        let next = match key {
            Some(key) => self.go_on(&stream, &key, settle.seq).await?,
            None => None,
        };
        Ok(SettleResult::Applied { rev: there.map_or(rev, |(tracked, _)| tracked.rev), next })
    }

    /// The key of an event that is gone is unknown; a load finds the event that waits behind it.
    async fn key_before(&mut self, seq: Seq) -> Step<Option<String>> {
        if let Some(stream) = self.stream(stream_of(seq)).await? {
            self.miss(&stream);
        }
        Ok(None)
    }

    /// The event with this seq, and whether it never ran. A damaged event counts as gone: nothing of it is written.
    pub(in crate::stores::postgres) async fn take_up(
        &mut self,
        seq: Seq,
        stream: &Stream,
    ) -> Step<Option<(TrackedEvent, bool)>> {
        match self.fresh(seq, stream).await? {
            Some(Ok(row)) => return Ok(Some((TrackedEvent::fresh(row, RowState::Waiting), true))),
            Some(Err(Damage)) => return Ok(None),
            None => {}
        }
        Ok(self.tracked(seq, stream).await?.and_then(Result::ok).map(|tracked| (tracked, false)))
    }

    /// Applies a change to an event that was read. Returns its new rev, and the event of its key that may run now;
    /// `None` if the change was meant for an event in another state.
    pub(in crate::stores::postgres) async fn apply(
        &mut self,
        (tracked, was_fresh): (TrackedEvent, bool),
        change: &EventChange,
        at: Moment,
        stream: &Arc<Stream>,
    ) -> Step<Changed> {
        let Some(mut end) = ending_of(change, at) else {
            return self.change(tracked, was_fresh, change, at, stream).await;
        };
        if let (Some(end), Some(mark)) = (&mut end, tracked.lease) {
            let did_it = end.state == State::Done && end.attempts == mark.attempt;
            end.token = did_it.then_some(mark.token);
        }
        let rev = tracked.rev + 1;
        Ok(Some((rev, self.end(tracked, was_fresh, stream, at, end).await?)))
    }

    /// Deletes an event that ended. Its dedupe record stays, and an end other than "done at the first attempt" is
    /// written beside it.
    async fn end(
        &mut self,
        tracked: TrackedEvent,
        was_fresh: bool,
        stream: &Arc<Stream>,
        at: Moment,
        end: Option<End>,
    ) -> Step<Option<QueueEntry>> {
        let outcome = match &end {
            Some(end) if end.state != State::Done => RedriveOutcome::Other,
            _ => RedriveOutcome::Done,
        };
        self.charge(tracked.redriven_by, outcome);
        if tracked.state.is_dead() {
            self.uncount_death(stream.id, tracked.cause, tracked.state == RowState::DeadHolding);
        }
        let seq = tracked.row.seq;
        if let Some(end) = end {
            self.write_end(&end, seq).await?;
        }
        if at > tracked.row.dedupe_ok_until {
            self.stamp(stream, &tracked.row.event.id, at, None).await?;
        }
        self.remove(seq, was_fresh).await?;
        match tracked.row.key() {
            Some(key) => self.go_on(stream, key, seq).await,
            None => Ok(None),
        }
    }

    /// Changes an event that goes on living.
    async fn change(
        &mut self,
        mut tracked: TrackedEvent,
        was_fresh: bool,
        change: &EventChange,
        at: Moment,
        stream: &Arc<Stream>,
    ) -> Step<Changed> {
        tracked.rev += 1;
        let (seq, rev, was) = (tracked.row.seq, tracked.rev, tracked.state);
        let (cause, was_holding) = (tracked.cause, was == RowState::DeadHolding);
        let next = match change {
            EventChange::Retry(progress) => {
                if let Some(by @ RedrivenBy::Retry(_)) = tracked.redriven_by {
                    self.charge(Some(by), RedriveOutcome::Failed);
                    tracked.redriven_by = None;
                }
                tracked.progress = progress.clone();
                if was.is_dead() {
                    self.uncount_death(stream.id, cause, was_holding);
                }
                (tracked.reason, tracked.died, tracked.park_until, tracked.park_count) =
                    (None, None, None, None);
                tracked.death = None;
                if was.is_dead() || was == RowState::Leased {
                    self.revive(tracked, was_fresh, stream).await?;
                } else {
                    self.keep(&tracked, was_fresh).await?;
                }
                None
            }
            EventChange::Dead { reason, progress, park } => {
                if was.is_dead() {
                    self.uncount_death(stream.id, cause, was_holding);
                }
                tracked.progress = progress.clone();
                tracked.reason = Some(*reason);
                tracked.died = Some(at);
                self.bury(tracked, was_fresh, *park, stream).await?
            }
            EventChange::CountCrash => {
                tracked.progress.crash_count = tracked.progress.crash_count.saturating_add(1);
                tracked.progress.suspect = true;
                self.keep(&tracked, was_fresh).await?;
                None
            }
            EventChange::Unpark if was.is_dead() => {
                tracked.rev -= 1; // `let_go` raises it
                self.let_go(stream, tracked).await?
            }
            // A living event does not block its key by being dead: the change was meant for an earlier revision.
            _ => return Ok(None),
        };
        Ok(Some((self.rev_of(seq).await?.unwrap_or(rev), next)))
    }

    /// An event died: counts it, and blocks or unblocks the later events of its key. A late settle of an expired lease
    /// no longer counts.
    pub(in crate::stores::postgres) async fn bury(
        &mut self,
        tracked: TrackedEvent,
        was_fresh: bool,
        park: ParkFollowers,
        stream: &Arc<Stream>,
    ) -> Step<Option<QueueEntry>> {
        self.bury_lapsed(TrackedEvent { lease: None, ..tracked }, was_fresh, park, stream).await
    }

    /// The same for an event that died because its lease ran out: the holder may still settle it.
    pub(in crate::stores::postgres) async fn bury_lapsed(
        &mut self,
        mut tracked: TrackedEvent,
        was_fresh: bool,
        park: ParkFollowers,
        stream: &Arc<Stream>,
    ) -> Step<Option<QueueEntry>> {
        let (holds, until, count) = match park {
            ParkFollowers::No => (false, None, None),
            ParkFollowers::UntilResolved => (true, None, None),
            ParkFollowers::UpTo { until, count } => (true, until, count),
        };
        (tracked.park_until, tracked.park_count) = (until, count);
        let key = tracked.row.key().map(str::to_owned);
        let (holds, seq) = (holds && key.is_some(), tracked.row.seq);
        tracked.state = if holds { RowState::DeadHolding } else { RowState::DeadPassed };
        self.count_death(&mut tracked, stream.id).await?;
        self.keep(&tracked, was_fresh).await?;
        match key {
            Some(key) if holds => self.relieve(stream, &key, seq).await,
            Some(key) => self.go_on(stream, &key, seq).await,
            None => Ok(None),
        }
    }

    async fn rev_of(&mut self, seq: Seq) -> sqlx::Result<Option<u32>> {
        let found = rows!(self, "SELECT rev FROM redrive.tracked WHERE seq = $1", column(seq.0))?;
        let rev = found.first().map(|row| row.try_get::<i64, _>(0)).transpose()?;
        Ok(rev.and_then(|rev| u32::try_from(rev).ok()))
    }

    /// Settles the event that a transaction has processed.
    pub(in crate::stores::postgres) async fn settle_done(
        &mut self,
        token: FencingToken,
        (seq, rev): (Seq, u32),
        at: Moment,
        (attempts, history, result): (u32, Option<Arc<AttemptHistory>>, Option<Vec<u8>>),
    ) -> Step<SettleResult> {
        let plain = result.is_none() && attempts <= 1 && history.is_none();
        let change =
            if plain { EventChange::Done } else { EventChange::DoneWith { result, attempts, history } };
        self.settle(&SettleRequest { token, seq, rev, at, change }).await
    }
}

fn is_applied(settled: Option<&SettleResult>) -> bool {
    matches!(settled, Some(SettleResult::Applied { .. }))
}
