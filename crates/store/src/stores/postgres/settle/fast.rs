//! Settles, one statement for each kind, which is its own transaction.
//!
//! | what | statement |
//! |---|---|
//! | done at the first attempt, in a queue that keeps no order | `done_fast`: a delete |
//! | any other end | `ended_fast`: a delete, how it ended, and the next event of the key |
//! | to run again later | `again_fast` |
//!
//! All conditions are in the statement, and the fence is the last lock that it takes. Events that need more to be
//! written (redriven by an operator, leased, dead, or with a dedupe record that has to last longer) are left alone
//! there, and are settled in a transaction.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, PoisonError};

use redrive_core::event::Mode;
use redrive_core::queue_entry::{
    EventChange, EventProgress, FencingToken, QueueEntry, Seq, SettleRequest, SettleResult, StreamId,
};
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};

use crate::stores::postgres::database::{CommitNews, Database, Retries, TxError};
use crate::stores::postgres::events::dedupe::ending_of;
use crate::stores::postgres::events::fresh::Stream;
use crate::stores::postgres::events::tracked::plain_columns;
use crate::stores::postgres::faults::{Fault, Kind, kind};
use crate::stores::postgres::keys::heads::{Keys, Next};
use crate::stores::postgres::publish::fast::{LOST, says};
use crate::stores::shared::dedupe::end_sum;
use crate::stores::shared::history::write_history;
use crate::stores::shared::numbers::{bits, column, from_moment, signed, stream_of};

/// A settle, and its position in the list.
type Placed<'a> = (usize, &'a SettleRequest);

/// Settled events: the event, its key if that is free now, and the new head of the key.
type Did = Vec<(Seq, Option<String>, Next)>;

/// The kinds that one statement can settle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kinds {
    Done,
    Ended,
    Again,
}

/// The streams of a list, and which of their queues keep order, or are pulled.
struct Streams {
    named: HashMap<StreamId, Arc<Stream>>,
    ordered: HashSet<StreamId>,
    pulled: HashSet<StreamId>,
}

impl Streams {
    fn kind(&self, settle: &SettleRequest) -> Option<Kinds> {
        match &settle.change {
            EventChange::Done if settle.rev == 0 && !self.ordered.contains(&stream_of(settle.seq)) => {
                Some(Kinds::Done)
            }
            EventChange::Retry(_) => Some(Kinds::Again),
            change => ending_of(change, settle.at).map(|_| Kinds::Ended),
        }
    }
}

impl Database {
    /// Settles the simple ones, and leaves the others unanswered. `in_doubt` gets the answers of those that may have
    /// been settled.
    pub(in crate::stores::postgres) async fn settle_fast(
        self: &Arc<Self>,
        settles: &[&SettleRequest],
        is_shared: bool,
        in_doubt: &mut HashMap<usize, SettleResult>,
    ) -> Result<Vec<Option<SettleResult>>, Fault> {
        let mut answers: Vec<Option<SettleResult>> = settles.iter().map(|_| None).collect();
        let tokens: HashMap<u32, FencingToken> =
            settles.iter().map(|settle| (settle.token.shard, settle.token)).collect();
        if self.pooled || settles.iter().any(|settle| tokens[&settle.token.shard] != settle.token) {
            return Ok(answers);
        }
        if let Some(at) = settles.iter().map(|settle| settle.at).max() {
            self.clock.advance(at);
        }
        let streams = self.streams_of(settles).await?;
        let mut seen = HashSet::new();
        // Of several settles of one event the first comes first, whatever it is.
        let mut first: Vec<Placed<'_>> =
            settles.iter().copied().enumerate().filter(|(_, settle)| seen.insert(settle.seq)).collect();
        first.sort_by_key(|(_, settle)| settle.seq);
        for kind in [Kinds::Done, Kinds::Ended, Kinds::Again] {
            let some: Vec<Placed<'_>> =
                first.iter().filter(|(_, settle)| streams.kind(settle) == Some(kind)).copied().collect();
            if some.is_empty() {
                continue;
            }
            match self.settle_kind(kind, &some, &streams, self.lock_wait(is_shared)).await {
                Ok(done) => {
                    for (at, settle) in some {
                        let applied = |next: &Option<QueueEntry>| SettleResult::Applied {
                            rev: settle.rev + 1,
                            next: next.clone(),
                        };
                        answers[at] = done.get(&settle.seq).map(applied);
                    }
                }
                // Another process owns a shard by now: a transaction finds out which one.
                Err(TxError::No(Fault::Void)) => {}
                Err(TxError::Unknown(_)) => {
                    let meant =
                        |settle: &SettleRequest| SettleResult::Applied { rev: settle.rev + 1, next: None };
                    in_doubt.extend(some.into_iter().map(|(at, settle)| (at, meant(settle))));
                }
                // Settled events stay settled, and are answered; the rest is for a transaction.
                Err(TxError::No(_)) if answers.iter().any(Option::is_some) => {}
                Err(TxError::No(fault)) => return Err(fault),
            }
        }
        Ok(answers)
    }

    async fn streams_of(&self, settles: &[&SettleRequest]) -> Result<Streams, Fault> {
        let ids: BTreeSet<StreamId> = settles.iter().map(|settle| stream_of(settle.seq)).collect();
        let mut named = HashMap::new();
        for id in &ids {
            named.extend(self.stream_of(*id).await?.map(|stream| (*id, stream)));
        }
        let specs = self.cache.specs.lock().unwrap_or_else(PoisonError::into_inner);
        let spec = |id: &StreamId| named.get(id).and_then(|stream: &Arc<Stream>| specs.get(&stream.queue));
        // An unknown queue may keep order.
        let ordered = ids.iter().filter(|id| spec(id).is_none_or(|spec| spec.ordered)).copied().collect();
        let pulled = ids.iter().filter(|id| spec(id).is_some_and(|spec| spec.pull)).copied().collect();
        drop(specs);
        Ok(Streams { named, ordered, pulled })
    }

    /// Which events were settled, and the next event of each key.
    async fn settle_kind(
        &self,
        kinds: Kinds,
        some: &[Placed<'_>],
        streams: &Streams,
        wait: i64,
    ) -> Result<HashMap<Seq, Option<QueueEntry>>, TxError> {
        let mut tries = Retries::new(self.patience);
        loop {
            match self.settle_once(kinds, some, streams, wait).await {
                Err(TxError::No(Fault::Sql(error))) if tries.may_go_on(&error) => tries.wait().await,
                done => return done,
            }
        }
    }

    async fn settle_once(
        &self,
        kinds: Kinds,
        some: &[Placed<'_>],
        streams: &Streams,
        wait: i64,
    ) -> Result<HashMap<Seq, Option<QueueEntry>>, TxError> {
        let mut autocommit = self.autocommit.take(&self.pool).await.map_err(Fault::Sql)?;
        let open = self.notifier.pending.begin();
        let did = match kinds {
            Kinds::Done => autocommit.say(async |conn| self.finish(conn, some, wait).await).await,
            Kinds::Ended => autocommit.say(async |conn| self.end_all(conn, some, wait, streams).await).await,
            Kinds::Again => autocommit.say(async |conn| self.put_off(conn, some, wait).await).await,
        };
        let did = match did {
            Ok(did) => did,
            Err(error) if says(&error, LOST) => return Err(Fault::Void.into()),
            Err(error) if kind(&error) == Kind::Cut => return Err(TxError::Unknown(error)),
            Err(error) => return Err(Fault::Sql(error).into()),
        };
        self.notifier.pending.settled(did.iter().map(|(seq, ..)| *seq));
        let (mut news, mut keys, mut done) = (CommitNews::default(), Keys::new(), HashMap::new());
        for (seq, freed, next) in did {
            let stream = streams.named.get(&stream_of(seq));
            let next = match (next, stream, freed) {
                (Next::Entry(next), Some(stream), _) if next.seq > seq => {
                    if !streams.pulled.contains(&stream.id) {
                        news.arrived.push((*next).clone());
                    }
                    Some(*next)
                }
                (Next::Special, Some(stream), _) => {
                    news.missed.insert(stream.id, Arc::clone(stream));
                    None
                }
                (Next::NoEvent, Some(stream), Some(key)) => {
                    keys.insert((stream.id, key), Arc::clone(stream));
                    None
                }
                _ => None,
            };
            done.insert(seq, next);
        }
        let _ = autocommit.say(async |conn| self.tell_heads(conn, keys, &mut news, |_| true).await).await;
        self.tell_of(open, news);
        Ok(done)
    }

    /// Done at the first attempt, in queues that keep no order.
    async fn finish(&self, conn: &mut PgConnection, some: &[Placed<'_>], wait: i64) -> sqlx::Result<Did> {
        let Rights { shards, epochs, incarnations } = Rights::of(some);
        let last = some.iter().map(|(_, settle)| from_moment(settle.at)).max();
        let done = "SELECT gone FROM redrive.done_fast($1, $2, $3, $4, $5, $6)";
        let gone: Option<Vec<i64>> = sqlx::query_scalar(self.schema.sql(done))
            .bind(wait)
            .bind(seqs(some))
            .bind(last)
            .bind(shards)
            .bind(epochs)
            .bind(incarnations)
            .fetch_one(conn)
            .await?;
        Ok(gone.into_iter().flatten().map(|seq| (Seq(bits(seq)), None, Next::NoEvent)).collect())
    }

    /// Any other end.
    async fn end_all(
        &self,
        conn: &mut PgConnection,
        some: &[Placed<'_>],
        wait: i64,
        streams: &Streams,
    ) -> sqlx::Result<Did> {
        let (places, Rights { shards, epochs, incarnations }) = (places(some), Rights::of(some));
        let mut ends = Ends::default();
        some.iter().for_each(|(_, settle)| ends.push(settle));
        let ended =
            "SELECT * FROM redrive.ended_fast($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)";
        let found = sqlx::query(self.schema.sql(ended))
            .bind(wait)
            .bind(seqs(some))
            .bind(revs(some))
            .bind(ends.ats)
            .bind(places)
            .bind(ends.states)
            .bind(ends.attempts)
            .bind(ends.history)
            .bind(ends.results)
            .bind(ends.sums)
            .bind(shards)
            .bind(epochs)
            .bind(incarnations)
            .fetch_all(conn)
            .await?;
        let read = |row: &PgRow| {
            let seq = Seq(bits(row.try_get(11)?));
            let next = match streams.named.get(&stream_of(seq)) {
                Some(stream) => Next::read(row, stream)?,
                None => Next::NoEvent,
            };
            Ok((seq, row.try_get(12)?, next))
        };
        found.iter().map(read).collect()
    }

    /// To run again later.
    async fn put_off(&self, conn: &mut PgConnection, some: &[Placed<'_>], wait: i64) -> sqlx::Result<Did> {
        let (places, Rights { shards, epochs, incarnations }) = (places(some), Rights::of(some));
        let mut later = Later::default();
        for (_, settle) in some {
            if let EventChange::Retry(progress) = &settle.change {
                later.push(settle, progress);
            }
        }
        let again = "SELECT changed FROM redrive.again_fast($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, \
                     $14, $15, $16, $17, $18, $19)";
        let changed: Option<Vec<i64>> = sqlx::query_scalar(self.schema.sql(again))
            .bind(wait)
            .bind(seqs(some))
            .bind(revs(some))
            .bind(places)
            .bind(later.flows)
            .bind(later.dues)
            .bind(later.attempts)
            .bind(later.modes)
            .bind(later.started)
            .bind(later.previous)
            .bind(later.crash_count)
            .bind(later.suspects)
            .bind(later.history)
            .bind(later.routes)
            .bind(later.disorders)
            .bind(later.sums)
            .bind(shards)
            .bind(epochs)
            .bind(incarnations)
            .fetch_one(conn)
            .await?;
        Ok(changed.into_iter().flatten().map(|seq| (Seq(bits(seq)), None, Next::NoEvent)).collect())
    }
}

fn seqs(some: &[Placed<'_>]) -> Vec<i64> {
    some.iter().map(|(_, settle)| column(settle.seq.0)).collect()
}

fn revs(some: &[Placed<'_>]) -> Vec<i64> {
    some.iter().map(|(_, settle)| i64::from(settle.rev)).collect()
}

fn places(some: &[Placed<'_>]) -> Vec<i64> {
    some.iter().map(|(_, settle)| i64::from(settle.token.shard)).collect()
}

/// The fencing tokens of settles, as arrays.
struct Rights {
    shards: Vec<i64>,
    epochs: Vec<i64>,
    incarnations: Vec<i64>,
}

impl Rights {
    fn of(some: &[Placed<'_>]) -> Self {
        let tokens: BTreeMap<u32, FencingToken> =
            some.iter().map(|(_, settle)| (settle.token.shard, settle.token)).collect();
        Self {
            shards: tokens.keys().map(|shard| i64::from(*shard)).collect(),
            epochs: tokens.values().map(|token| signed(token.epoch)).collect(),
            incarnations: tokens.values().map(|token| signed(token.incarnation)).collect(),
        }
    }
}

/// How events ended, as arrays.
#[derive(Default)]
struct Ends {
    ats: Vec<i64>,
    states: Vec<Option<String>>,
    attempts: Vec<i64>,
    history: Vec<Option<String>>,
    results: Vec<Option<Vec<u8>>>,
    sums: Vec<i64>,
}

impl Ends {
    fn push(&mut self, settle: &SettleRequest) {
        let at = from_moment(settle.at);
        self.ats.push(at);
        let Some(end) = ending_of(&settle.change, settle.at).flatten() else {
            // A missing row says "done".
            self.states.push(None);
            self.attempts.push(0);
            self.history.push(None);
            self.results.push(None);
            self.sums.push(0);
            return;
        };
        let (state, attempts) = (end.state.as_str(), i64::from(end.attempts));
        let history = write_history(end.history.as_deref());
        let left = (end.result.as_deref(), None);
        self.sums.push(end_sum(column(settle.seq.0), state, at, attempts, history.as_deref(), left));
        self.states.push(Some(state.to_owned()));
        self.attempts.push(attempts);
        self.history.push(history);
        self.results.push(end.result);
    }
}

/// The columns of events that run again, as arrays.
#[derive(Default)]
struct Later {
    flows: Vec<i64>,
    dues: Vec<i64>,
    attempts: Vec<i64>,
    modes: Vec<String>,
    started: Vec<Option<i64>>,
    previous: Vec<i64>,
    crash_count: Vec<i64>,
    suspects: Vec<i64>,
    history: Vec<Option<String>>,
    routes: Vec<Option<String>>,
    disorders: Vec<i64>,
    sums: Vec<i64>,
}

impl Later {
    fn push(&mut self, settle: &SettleRequest, progress: &EventProgress) {
        let columns = plain_columns(progress, settle.rev + 1);
        self.sums.push(columns.sum(settle.seq));
        self.flows.push(i64::from(columns.attempts > 0 || columns.mode != Mode::Live));
        self.dues.push(columns.due);
        self.attempts.push(columns.attempts);
        self.modes.push(columns.mode.as_str().to_owned());
        self.started.push(columns.started);
        self.previous.push(columns.previous);
        self.crash_count.push(columns.crash_count);
        self.suspects.push(columns.suspect);
        self.history.push(columns.history);
        self.routes.push(columns.route);
        self.disorders.push(columns.out_of_order);
    }
}
