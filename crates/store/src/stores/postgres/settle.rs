//! Settling: what became of an event, under the fence.
//!
//! Most settles are of events that ran once, with success and without a key: those are one `DELETE` for all of them,
//! with every condition in it. Everything else reads the event first, and locks it. What a grant says is looked at
//! first, so that each settle has its own answer, and again at the very end, when nobody can take the shard any more
//! before the commit: if somebody did, all of it is rolled back and begun anew.
//!
//! A COMMIT that was not answered may have happened. The same settles are then written again: their locks wait for the
//! fate of the first. What is not there any more, though the shard is still ours, was settled by it.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use redrive_core::Moment;
use redrive_core::entry::{Change, Entry, Grant, Park, Seq, Settle, Settled};
use redrive_core::event::{State, Story};
use sqlx::Row;

use super::batch::{Batch, Piece};
use super::desk::{Desk, rows};
use super::faults::{Fault, Step, left_open};
use super::held::{Held, Stand};
use super::ledger::Outcome;
use super::office::{News, Office, Trouble};
use super::receipt::{End, ending_of};
use super::rows::{Damage, Stream};
use crate::error::StoreError;
use crate::stores::shared::numbers::{bits, column, from_moment, stream_of};

/// How often settles of unknown fate are written again.
const REPEATS_MAX: u32 = 10;

/// What was settled by whom: the new rev, and who of the key may run now.
type Changed = Option<(u32, Option<Entry>)>;

impl Piece for Settle {
    type Answer = Settled;
    type Doubt = Option<Settled>;

    fn size(&self) -> usize {
        256
    }

    /// Writes what became of events: what is simple with one statement, the rest at a desk.
    async fn write(office: &Arc<Office>, batch: &mut Batch<Self>, is_shared: bool) -> Step<()> {
        if !batch.is_doubted() {
            let left = batch.left();
            let settles = batch.those(&left);
            let mut in_doubt = HashMap::new();
            let done = office.settle_at_once(&settles, is_shared, &mut in_doubt).await;
            for (at, meant) in in_doubt {
                batch.doubts[left[at]] = Some(meant);
            }
            batch.answer(&left, done?);
        }
        settle_with_care(office, batch, is_shared).await
    }

    /// Where some are settled, or may be, it is not known of any of them.
    fn give_up(
        office: &Arc<Office>,
        batch: Batch<Self>,
        error: &StoreError,
    ) -> Result<Vec<Settled>, StoreError> {
        if !batch.is_begun() && !batch.is_doubted() {
            return Err(error.clone());
        }
        // Nobody hears who follows those that are settled: a load will tell.
        let entries = batch.answers.into_iter().flatten().filter_map(|settled| match settled {
            Settled::Applied { next, .. } => next,
            _ => None,
        });
        let news = News { arrived: entries.collect(), ..News::default() };
        office.tell_of(office.tellings.begin(), news.in_doubt());
        Err(left_open(error))
    }
}

/// Settles at a desk.
async fn settle_with_care(office: &Arc<Office>, batch: &mut Batch<Settle>, is_shared: bool) -> Step<()> {
    let left = batch.left();
    if left.is_empty() {
        return Ok(());
    }
    let settles: Arc<Vec<Settle>> = Arc::new(batch.those(&left).into_iter().cloned().collect());
    let mut repeats = 0;
    loop {
        // What a try said that may have been committed.
        let before = left.iter().map(|at| batch.doubts[*at].clone().unwrap_or(Settled::Stale));
        let before: Arc<Vec<Settled>> = Arc::new(before.collect());
        let last = Arc::new(Mutex::new(None));
        // The first try takes every grant for good; the fence says where one is not.
        let tries = Arc::new(AtomicU32::new(0));
        let done = office
            .try_to_write(|desk| {
                let (all, before, says) = (Arc::clone(&settles), Arc::clone(&before), Arc::clone(&last));
                let careful = tries.fetch_add(1, Relaxed) > 0;
                Box::pin(async move {
                    if is_shared {
                        desk.wait_shortly().await?;
                    }
                    let answers = desk.settle_all(&all, &before, careful).await?;
                    *says.lock().unwrap_or_else(PoisonError::into_inner) = Some(answers.clone());
                    Ok(answers)
                })
            })
            .await;
        match done {
            Ok(answers) => {
                office.tellings.settled(settles.iter().map(|settle| settle.seq));
                batch.answer(&left, answers.into_iter().map(Some));
                return Ok(());
            }
            Err(Trouble::No(fault)) => return Err(fault),
            Err(Trouble::Unknown(error)) => {
                let said = last.lock().unwrap_or_else(PoisonError::into_inner).take();
                for (at, said) in left.iter().zip(said.into_iter().flatten()) {
                    // What one of the tries applied, no later one takes back.
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

impl Desk {
    /// Writes what became of events. `before` is what an earlier try said, which may have been committed.
    pub(super) async fn settle_all(
        &mut self,
        settles: &[Settle],
        before: &[Settled],
        careful: bool,
    ) -> Step<Vec<Settled>> {
        let current = self.current(settles, careful).await?;
        let gone = self.delete_plain(settles, &current).await?;
        let mut answers = Vec::with_capacity(settles.len());
        let mut used = HashSet::new();
        for (at, settle) in settles.iter().enumerate() {
            answers.push(if gone.contains(&settle.seq) && used.insert(settle.seq) {
                Settled::Applied { rev: 1, next: None }
            } else if current.contains(&settle.grant) {
                match self.settle(settle).await? {
                    Settled::Stale if is_applied(before.get(at)) => self.settled_before(settle).await?,
                    settled => settled,
                }
            } else {
                Settled::Fenced
            });
        }
        Ok(answers)
    }

    /// The grants under which something may be settled. Nearly always that is all of them, so it is looked at only where
    /// the fence has said otherwise, or where two of them are for one shard.
    async fn current(&mut self, settles: &[Settle], careful: bool) -> Step<HashSet<Grant>> {
        let mut current: HashSet<Grant> = settles.iter().map(|settle| settle.grant).collect();
        let shards: HashSet<u32> = current.iter().map(|grant| grant.shard).collect();
        if careful || shards.len() < current.len() {
            for grant in current.clone() {
                if !self.is_current(grant).await? {
                    current.remove(&grant);
                }
            }
        }
        self.grants.extend(current.iter().map(|grant| (grant.shard, *grant)));
        if let Some(at) = settles.iter().map(|settle| settle.at).max() {
            self.see(at);
        }
        Ok(current)
    }

    /// Takes away events that ran once, with success and without a key: which.
    async fn delete_plain(&mut self, settles: &[Settle], current: &HashSet<Grant>) -> Step<HashSet<Seq>> {
        let mut met = HashSet::new();
        // Of several settles of one event the first comes first, whatever it is.
        let plain: Vec<&Settle> = settles
            .iter()
            .filter(|settle| met.insert(settle.seq))
            .filter(|settle| settle.change == Change::Done && settle.rev == 0)
            .filter(|settle| current.contains(&settle.grant))
            .collect();
        if plain.is_empty() {
            return Ok(HashSet::new());
        }
        let mut sorted = plain;
        sorted.sort_by_key(|settle| settle.seq);
        let seqs: Vec<i64> = sorted.iter().map(|settle| column(settle.seq.0)).collect();
        let shards: BTreeSet<i64> = sorted.iter().map(|settle| i64::from(settle.grant.shard)).collect();
        let last = sorted.iter().map(|settle| settle.at).max().map_or(i64::MAX, from_moment);
        let gone = rows!(
            self,
            "DELETE FROM redrive.live WHERE seq = ANY($1) AND key IS NULL AND shard = ANY($2) AND calm >= $3 RETURNING seq",
            seqs,
            shards.into_iter().collect::<Vec<i64>>(),
            last
        )?;
        Ok(gone.iter().map(|row| row.try_get(0).map(|seq| Seq(bits(seq)))).collect::<sqlx::Result<_>>()?)
    }

    /// Writes what became of an event, in a right that was current.
    async fn settle(&mut self, settle: &Settle) -> Step<Settled> {
        let Some(stream) = self.stream(stream_of(settle.seq)).await? else { return Ok(Settled::Stale) };
        let Some((held, was_live)) = self.take_up(settle.seq, &stream).await? else {
            return Ok(Settled::Stale);
        };
        if held.row.shard != settle.grant.shard {
            return Ok(Settled::Fenced);
        }
        // Of a dead letter it is said that it holds up nobody any more, and nothing else: an order may have made one
        // of it, and who guesses its rev must not bring it back.
        let is_over = held.stand == Stand::Discarded || held.stand.is_dead() && settle.change != Change::GoOn;
        if held.rev != settle.rev || is_over {
            return Ok(Settled::Stale);
        }
        let changed = match ending_of(&settle.change, settle.at) {
            Some(end) => {
                let rev = held.rev + 1;
                Some((rev, self.end(held, was_live, &stream, settle.at, end).await?))
            }
            None => self.change(held, was_live, &settle.change, settle.at, &stream).await?,
        };
        Ok(changed.map_or(Settled::Stale, |(rev, next)| Settled::Applied { rev, next }))
    }

    /// What an earlier try did, if it was committed: the event is gone, or is as it was to be.
    async fn settled_before(&mut self, settle: &Settle) -> Step<Settled> {
        let Some(stream) = self.stream(stream_of(settle.seq)).await? else { return Ok(Settled::Stale) };
        let there = self.take_up(settle.seq, &stream).await?;
        let is_end = ending_of(&settle.change, settle.at).is_some();
        let rev = settle.rev + 1;
        let is_done = match (&there, &settle.change) {
            (None, _) => is_end,
            (Some((held, _)), Change::Again(progress)) => held.rev == rev && held.progress == *progress,
            (Some((held, _)), Change::Dead { progress, .. }) => {
                held.stand.is_dead() && held.rev >= rev && held.progress == *progress
            }
            (Some((held, _)), Change::Strike) => held.rev == rev && held.progress.suspect,
            (Some((held, _)), Change::GoOn) => held.rev == rev && held.stand == Stand::DeadPassed,
            _ => false,
        };
        if !is_done {
            return Ok(Settled::Stale);
        }
        let key = match &there {
            Some((held, _)) => held.row.key().map(str::to_owned),
            None => self.key_before(settle.seq).await?,
        };
        let next = match key {
            Some(key) => self.go_on(&stream, &key, settle.seq).await?,
            None => None,
        };
        Ok(Settled::Applied { rev: there.map_or(rev, |(held, _)| held.rev), next })
    }

    /// The key of an event that is gone is not known any more; whoever waits for it is found by a load.
    async fn key_before(&mut self, seq: Seq) -> Step<Option<String>> {
        if let Some(stream) = self.stream(stream_of(seq)).await? {
            self.miss(&stream);
        }
        Ok(None)
    }

    /// The event with this seq, and whether it never ran. What is damaged counts as gone: nothing of it is written.
    pub(super) async fn take_up(&mut self, seq: Seq, stream: &Stream) -> Step<Option<(Held, bool)>> {
        match self.live(seq, stream).await? {
            Some(Ok(row)) => return Ok(Some((Held::fresh(row, Stand::Waits), true))),
            Some(Err(Damage)) => return Ok(None),
            None => {}
        }
        Ok(self.held(seq, stream).await?.and_then(Result::ok).map(|held| (held, false)))
    }

    /// Writes what became of an event that was read. Its new rev, and who of its key may run now; nothing where
    /// the change was meant for an event in another state.
    pub(super) async fn apply(
        &mut self,
        (held, was_live): (Held, bool),
        change: &Change,
        at: Moment,
        stream: &Arc<Stream>,
    ) -> Step<Changed> {
        let Some(mut end) = ending_of(change, at) else {
            return self.change(held, was_live, change, at, stream).await;
        };
        if let (Some(end), Some(mark)) = (&mut end, held.lease) {
            let did_it = end.state == State::Done && end.attempts == mark.attempt;
            end.token = did_it.then_some(mark.token);
        }
        let rev = held.rev + 1;
        Ok(Some((rev, self.end(held, was_live, stream, at, end).await?)))
    }

    /// Takes an event away. Its receipt stays, and what its absence does not tell is written beside it.
    async fn end(
        &mut self,
        held: Held,
        was_live: bool,
        stream: &Arc<Stream>,
        at: Moment,
        end: Option<End>,
    ) -> Step<Option<Entry>> {
        let outcome = match &end {
            Some(end) if end.state != State::Done => Outcome::Other,
            _ => Outcome::Done,
        };
        self.charge(held.put_back, outcome);
        if held.stand.is_dead() {
            self.uncount_death(stream.id, held.cause, held.stand == Stand::DeadHolding);
        }
        let seq = held.row.seq;
        if let Some(end) = end {
            self.write_end(&end, seq).await?;
        }
        if at > held.row.calm {
            self.stamp(stream, &held.row.event.id, at, None).await?;
        }
        self.remove(seq, was_live).await?;
        match held.row.key() {
            Some(key) => self.go_on(stream, key, seq).await,
            None => Ok(None),
        }
    }

    /// Changes an event that goes on living.
    async fn change(
        &mut self,
        mut held: Held,
        was_live: bool,
        change: &Change,
        at: Moment,
        stream: &Arc<Stream>,
    ) -> Step<Changed> {
        held.rev += 1;
        let (seq, rev, was) = (held.row.seq, held.rev, held.stand);
        let (cause, was_holding) = (held.cause, was == Stand::DeadHolding);
        let next = match change {
            Change::Again(progress) => {
                held.progress = progress.clone();
                if was.is_dead() {
                    self.uncount_death(stream.id, cause, was_holding);
                }
                (held.reason, held.died, held.park_until, held.park_count) = (None, None, None, None);
                held.death = None;
                if was.is_dead() || was == Stand::Leased {
                    self.revive(held, was_live, stream).await?;
                } else {
                    self.keep(&held, was_live).await?;
                }
                None
            }
            Change::Dead { reason, progress, park } => {
                if was.is_dead() {
                    self.uncount_death(stream.id, cause, was_holding);
                }
                held.progress = progress.clone();
                held.reason = Some(*reason);
                held.died = Some(at);
                self.bury(held, was_live, *park, stream).await?
            }
            Change::Strike => {
                held.progress.strikes = held.progress.strikes.saturating_add(1);
                held.progress.suspect = true;
                self.keep(&held, was_live).await?;
                None
            }
            Change::GoOn if was.is_dead() => {
                held.rev -= 1; // `let_go` raises it
                self.let_go(stream, held).await?
            }
            // Whoever lives holds nobody up by being dead: this was meant for an earlier one.
            _ => return Ok(None),
        };
        Ok(Some((self.rev_of(seq).await?.unwrap_or(rev), next)))
    }

    /// An event is dead, as it says: it is counted, and those of its key that follow wait or go on. What a lease that
    /// is over says of it now comes too late.
    pub(super) async fn bury(
        &mut self,
        held: Held,
        was_live: bool,
        park: Park,
        stream: &Arc<Stream>,
    ) -> Step<Option<Entry>> {
        self.bury_lapsed(Held { lease: None, ..held }, was_live, park, stream).await
    }

    /// The same for one that died by the end of its lease, whose holder may still say what became of it.
    pub(super) async fn bury_lapsed(
        &mut self,
        mut held: Held,
        was_live: bool,
        park: Park,
        stream: &Arc<Stream>,
    ) -> Step<Option<Entry>> {
        let (holds, until, count) = match park {
            Park::GoOn => (false, None, None),
            Park::Stay => (true, None, None),
            Park::UpTo { until, count } => (true, until, count),
        };
        (held.park_until, held.park_count) = (until, count);
        let key = held.row.key().map(str::to_owned);
        let (holds, seq) = (holds && key.is_some(), held.row.seq);
        held.stand = if holds { Stand::DeadHolding } else { Stand::DeadPassed };
        self.count_death(&mut held, stream.id).await?;
        self.keep(&held, was_live).await?;
        match key {
            Some(key) if holds => self.relieve(stream, &key, seq).await,
            Some(key) => self.go_on(stream, &key, seq).await,
            None => Ok(None),
        }
    }

    async fn rev_of(&mut self, seq: Seq) -> sqlx::Result<Option<u32>> {
        let found = rows!(self, "SELECT rev FROM redrive.held WHERE seq = $1", column(seq.0))?;
        let rev = found.first().map(|row| row.try_get::<i64, _>(0)).transpose()?;
        Ok(rev.and_then(|rev| u32::try_from(rev).ok()))
    }

    /// Settles what a transaction has done.
    pub(super) async fn settle_done(
        &mut self,
        grant: Grant,
        (seq, rev): (Seq, u32),
        at: Moment,
        (attempts, story, result): (u32, Option<Arc<Story>>, Option<Vec<u8>>),
    ) -> Step<Settled> {
        let plain = result.is_none() && attempts <= 1 && story.is_none();
        let change = if plain { Change::Done } else { Change::DoneWith { result, attempts, story } };
        self.settle(&Settle { grant, seq, rev, at, change }).await
    }
}

fn is_applied(settled: Option<&Settled>) -> bool {
    matches!(settled, Some(Settled::Applied { .. }))
}
