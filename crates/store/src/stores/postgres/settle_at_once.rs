//! Settles as one statement for each kind of them, which is its own transaction.
//!
//! | what | statement |
//! |---|---|
//! | done at the first attempt, in a queue that keeps no order | `done_at_once`: a delete |
//! | any other end | `ended_at_once`: a delete, how it ended, and who follows in the key |
//! | to run again later | `again_at_once` |
//!
//! All conditions are in the statement, and the fence is the last lock that it takes. What has more to be written of it
//! (what an operator put back, what somebody outside has had, a death, a receipt that has to last longer) is left alone
//! there, and is for a desk.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, PoisonError};

use redrive_core::entry::{Change, Entry, Grant, Progress, Seq, Settle, Settled, StreamId};
use redrive_core::event::Mode;
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};

use super::at_once::{LOST, says};
use super::faults::{Fault, Kind, kind};
use super::heads::{Keys, Next};
use super::held::plain_columns;
use super::office::{News, Office, Tries, Trouble};
use super::receipt::ending_of;
use super::rows::Stream;
use crate::stores::shared::numbers::{bits, column, from_moment, signed, stream_of};
use crate::stores::shared::receipt::end_sum;
use crate::stores::shared::stories::write_story;

/// A settle, and its place in the list.
type Placed<'a> = (usize, &'a Settle);

/// What was done: the event, its key where that is free now, and who is at the head of it.
type Did = Vec<(Seq, Option<String>, Next)>;

/// What can be settled with one statement.
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
    fn kind(&self, settle: &Settle) -> Option<Kinds> {
        match &settle.change {
            Change::Done if settle.rev == 0 && !self.ordered.contains(&stream_of(settle.seq)) => {
                Some(Kinds::Done)
            }
            Change::Again(_) => Some(Kinds::Again),
            change => ending_of(change, settle.at).map(|_| Kinds::Ended),
        }
    }
}

impl Office {
    /// Settles what is simple. Nothing is said of the others; of those that may have been settled, it is said in
    /// `in_doubt` what was meant.
    pub(super) async fn settle_at_once(
        self: &Arc<Self>,
        settles: &[&Settle],
        is_shared: bool,
        in_doubt: &mut HashMap<usize, Settled>,
    ) -> Result<Vec<Option<Settled>>, Fault> {
        let mut answers: Vec<Option<Settled>> = settles.iter().map(|_| None).collect();
        let grants: HashMap<u32, Grant> =
            settles.iter().map(|settle| (settle.grant.shard, settle.grant)).collect();
        if self.pooled || settles.iter().any(|settle| grants[&settle.grant.shard] != settle.grant) {
            return Ok(answers);
        }
        if let Some(at) = settles.iter().map(|settle| settle.at).max() {
            self.seen.see(at);
        }
        let streams = self.streams_of(settles).await?;
        let mut met = HashSet::new();
        // Of several settles of one event the first comes first, whatever it is.
        let mut first: Vec<Placed<'_>> =
            settles.iter().copied().enumerate().filter(|(_, settle)| met.insert(settle.seq)).collect();
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
                        let applied = |next: &Option<Entry>| Settled::Applied {
                            rev: settle.rev + 1,
                            next: next.clone(),
                        };
                        answers[at] = done.get(&settle.seq).map(applied);
                    }
                }
                // Somebody else owns a shard by now: which is found out at a desk.
                Err(Trouble::No(Fault::Lost)) => {}
                Err(Trouble::Unknown(_)) => {
                    let meant = |settle: &Settle| Settled::Applied { rev: settle.rev + 1, next: None };
                    in_doubt.extend(some.into_iter().map(|(at, settle)| (at, meant(settle))));
                }
                // What was settled stays so, and is answered; the rest is for a desk.
                Err(Trouble::No(_)) if answers.iter().any(Option::is_some) => {}
                Err(Trouble::No(fault)) => return Err(fault),
            }
        }
        Ok(answers)
    }

    async fn streams_of(&self, settles: &[&Settle]) -> Result<Streams, Fault> {
        let ids: BTreeSet<StreamId> = settles.iter().map(|settle| stream_of(settle.seq)).collect();
        let mut named = HashMap::new();
        for id in &ids {
            named.extend(self.stream_of(*id).await?.map(|stream| (*id, stream)));
        }
        let specs = self.specs.lock().unwrap_or_else(PoisonError::into_inner);
        let spec = |id: &StreamId| named.get(id).and_then(|stream: &Arc<Stream>| specs.get(&stream.queue));
        // What is not known may keep order.
        let ordered = ids.iter().filter(|id| spec(id).is_none_or(|spec| spec.ordered)).copied().collect();
        let pulled = ids.iter().filter(|id| spec(id).is_some_and(|spec| spec.pull)).copied().collect();
        drop(specs);
        Ok(Streams { named, ordered, pulled })
    }

    /// Who was settled, and who follows each.
    async fn settle_kind(
        &self,
        kinds: Kinds,
        some: &[Placed<'_>],
        streams: &Streams,
        wait: i64,
    ) -> Result<HashMap<Seq, Option<Entry>>, Trouble> {
        let mut tries = Tries::new(self.patience);
        loop {
            match self.settle_once(kinds, some, streams, wait).await {
                Err(Trouble::No(Fault::Sql(error))) if tries.may_go_on(&error) => tries.wait().await,
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
    ) -> Result<HashMap<Seq, Option<Entry>>, Trouble> {
        let mut aside = self.at_hand.take(&self.pool).await.map_err(Fault::Sql)?;
        let open = self.tellings.begin();
        let did = match kinds {
            Kinds::Done => aside.say(async |conn| self.finish(conn, some, wait).await).await,
            Kinds::Ended => aside.say(async |conn| self.end_all(conn, some, wait, streams).await).await,
            Kinds::Again => aside.say(async |conn| self.put_off(conn, some, wait).await).await,
        };
        let did = match did {
            Ok(did) => did,
            Err(error) if says(&error, LOST) => return Err(Fault::Lost.into()),
            Err(error) if kind(&error) == Kind::Cut => return Err(Trouble::Unknown(error)),
            Err(error) => return Err(Fault::Sql(error).into()),
        };
        self.tellings.settled(did.iter().map(|(seq, ..)| *seq));
        let (mut news, mut keys, mut done) = (News::default(), Keys::new(), HashMap::new());
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
                (Next::Nobody, Some(stream), Some(key)) => {
                    keys.insert((stream.id, key), Arc::clone(stream));
                    None
                }
                _ => None,
            };
            done.insert(seq, next);
        }
        let _ = aside.say(async |conn| self.tell_heads(conn, keys, &mut news, |_| true).await).await;
        self.tell_of(open, news);
        Ok(done)
    }

    /// Done at the first attempt, in queues that keep no order.
    async fn finish(&self, conn: &mut PgConnection, some: &[Placed<'_>], wait: i64) -> sqlx::Result<Did> {
        let Rights { shards, epochs, incarnations } = Rights::of(some);
        let last = some.iter().map(|(_, settle)| from_moment(settle.at)).max();
        let done = "SELECT gone FROM redrive.done_at_once($1, $2, $3, $4, $5, $6)";
        let gone: Option<Vec<i64>> = sqlx::query_scalar(self.schema.sql(done))
            .bind(wait)
            .bind(seqs(some))
            .bind(last)
            .bind(shards)
            .bind(epochs)
            .bind(incarnations)
            .fetch_one(conn)
            .await?;
        Ok(gone.into_iter().flatten().map(|seq| (Seq(bits(seq)), None, Next::Nobody)).collect())
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
            "SELECT * FROM redrive.ended_at_once($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)";
        let found = sqlx::query(self.schema.sql(ended))
            .bind(wait)
            .bind(seqs(some))
            .bind(revs(some))
            .bind(ends.ats)
            .bind(places)
            .bind(ends.states)
            .bind(ends.attempts)
            .bind(ends.stories)
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
                None => Next::Nobody,
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
            if let Change::Again(progress) = &settle.change {
                later.push(settle, progress);
            }
        }
        let again = "SELECT changed FROM redrive.again_at_once($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, \
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
            .bind(later.strikes)
            .bind(later.suspects)
            .bind(later.stories)
            .bind(later.routes)
            .bind(later.disorders)
            .bind(later.sums)
            .bind(shards)
            .bind(epochs)
            .bind(incarnations)
            .fetch_one(conn)
            .await?;
        Ok(changed.into_iter().flatten().map(|seq| (Seq(bits(seq)), None, Next::Nobody)).collect())
    }
}

fn seqs(some: &[Placed<'_>]) -> Vec<i64> {
    some.iter().map(|(_, settle)| column(settle.seq.0)).collect()
}

fn revs(some: &[Placed<'_>]) -> Vec<i64> {
    some.iter().map(|(_, settle)| i64::from(settle.rev)).collect()
}

fn places(some: &[Placed<'_>]) -> Vec<i64> {
    some.iter().map(|(_, settle)| i64::from(settle.grant.shard)).collect()
}

/// The rights in which something is settled, as arrays.
struct Rights {
    shards: Vec<i64>,
    epochs: Vec<i64>,
    incarnations: Vec<i64>,
}

impl Rights {
    fn of(some: &[Placed<'_>]) -> Self {
        let grants: BTreeMap<u32, Grant> =
            some.iter().map(|(_, settle)| (settle.grant.shard, settle.grant)).collect();
        Self {
            shards: grants.keys().map(|shard| i64::from(*shard)).collect(),
            epochs: grants.values().map(|grant| signed(grant.epoch)).collect(),
            incarnations: grants.values().map(|grant| signed(grant.incarnation)).collect(),
        }
    }
}

/// How events ended, as arrays.
#[derive(Default)]
struct Ends {
    ats: Vec<i64>,
    states: Vec<Option<String>>,
    attempts: Vec<i64>,
    stories: Vec<Option<String>>,
    results: Vec<Option<Vec<u8>>>,
    sums: Vec<i64>,
}

impl Ends {
    fn push(&mut self, settle: &Settle) {
        let at = from_moment(settle.at);
        self.ats.push(at);
        let Some(end) = ending_of(&settle.change, settle.at).flatten() else {
            // Its absence says it all.
            self.states.push(None);
            self.attempts.push(0);
            self.stories.push(None);
            self.results.push(None);
            self.sums.push(0);
            return;
        };
        let (state, attempts) = (end.state.as_str(), i64::from(end.attempts));
        let story = write_story(end.story.as_deref());
        let left = (end.result.as_deref(), None);
        self.sums.push(end_sum(column(settle.seq.0), state, at, attempts, story.as_deref(), left));
        self.states.push(Some(state.to_owned()));
        self.attempts.push(attempts);
        self.stories.push(story);
        self.results.push(end.result);
    }
}

/// What events that run again have, as arrays.
#[derive(Default)]
struct Later {
    flows: Vec<i64>,
    dues: Vec<i64>,
    attempts: Vec<i64>,
    modes: Vec<String>,
    started: Vec<Option<i64>>,
    previous: Vec<i64>,
    strikes: Vec<i64>,
    suspects: Vec<i64>,
    stories: Vec<Option<String>>,
    routes: Vec<Option<String>>,
    disorders: Vec<i64>,
    sums: Vec<i64>,
}

impl Later {
    fn push(&mut self, settle: &Settle, progress: &Progress) {
        let columns = plain_columns(progress, settle.rev + 1);
        self.sums.push(columns.sum(settle.seq));
        self.flows.push(i64::from(columns.attempts > 0 || columns.mode != Mode::Live));
        self.dues.push(columns.due);
        self.attempts.push(columns.attempts);
        self.modes.push(columns.mode.as_str().to_owned());
        self.started.push(columns.started);
        self.previous.push(columns.previous);
        self.strikes.push(columns.strikes);
        self.suspects.push(columns.suspect);
        self.stories.push(columns.story);
        self.routes.push(columns.route);
        self.disorders.push(columns.out_of_order);
    }
}
