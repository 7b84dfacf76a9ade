//! An owner of all shards: helpers that keep promises short.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redrive_core::event::{AttemptHistory, AttemptRecord, Cause, DeadReason, Mode, State};
use redrive_core::queue_entry::{
    EventChange, EventProgress, FencingToken, LoadRequest, LoadedEvents, ParkFollowers, QueueEntry, Seq,
    SettleRequest, SettleResult, StreamId, TakenShard,
};
use redrive_core::{Event, Executed, Moment};
use redrive_store::{
    Arrivals, DeclaredBy, EventStatus, NewEvent, PublishError, Published, QueueSpec, Store, Tx, TxJob,
    TxOutcome, TxSettle,
};

use super::Subject;

/// How long identities are remembered after their end, in all queues here.
pub(super) const WINDOW: u64 = 100;
/// The horizon of all queues here.
pub(super) const HORIZON: u64 = 1000;
/// An ordered queue.
pub(super) const ORDERS: &str = "orders";
/// An unordered queue.
pub(super) const MAILS: &str = "mails";

/// A moment, in seconds since some midnight.
pub(super) fn at(secs: u64) -> Moment {
    Moment::from_nanos((1_800_000_000 + secs) * 1_000_000_000)
}

pub(super) const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

pub(super) fn order(id: &str, key: &str) -> Event {
    Event::new(ORDERS, id).key(key).payload(id.as_bytes())
}

pub(super) fn mail(id: &str) -> Event {
    Event::new(MAILS, id).payload(id.as_bytes())
}

/// The progress after one failed attempt.
pub(super) fn retry(due: Moment) -> EventProgress {
    EventProgress {
        due,
        attempts: 1,
        mode: Mode::Retry,
        started: Some(at(0)),
        previous: secs(7),
        crash_count: 0,
        suspect: false,
        history: Some(history("refused")),
        route: None,
        out_of_order: false,
    }
}

pub(super) fn history(what: &str) -> Arc<AttemptHistory> {
    Arc::new(AttemptHistory::default().with(AttemptRecord {
        attempt: 1,
        mode: "live".to_owned(),
        at_ms: 1,
        took_ms: 2,
        disposition: "retry".to_owned(),
        executed: Some(Executed::Unknown),
        cause: Some(Cause::new("Refused", what).code("503")),
        delay_ms: Some(7000),
    }))
}

pub(super) fn dead(park: ParkFollowers) -> EventChange {
    EventChange::Dead { reason: DeadReason::AttemptsSpent, progress: retry(at(0)), park }
}

/// The owner of every shard of a store.
pub(super) struct Owner<S> {
    pub(super) subject: S,
    pub(super) store: Arc<dyn Store>,
    pub(super) taken: Vec<TakenShard>,
    streams: Mutex<BTreeSet<StreamId>>,
}

impl<S: Subject> Owner<S> {
    /// Declares the queues and takes every shard.
    pub(super) async fn of(subject: S) -> Self {
        let store = subject.store();
        for (name, ordered) in [(ORDERS, true), (MAILS, false)] {
            let (window, horizon) = (secs(WINDOW), secs(HORIZON));
            store
                .declare(
                    QueueSpec { name: name.to_owned(), ordered, window, horizon, ..QueueSpec::default() },
                    DeclaredBy::Runner,
                )
                .await
                .unwrap();
        }
        let mut owner = Self { subject, store, taken: Vec::new(), streams: Mutex::default() };
        owner.take().await;
        owner
    }

    /// Takes every shard once more.
    pub(super) async fn take(&mut self) {
        self.taken.clear();
        for shard in 0..self.store.shards() {
            let taken = self.store.take(shard, at(0)).await.unwrap();
            self.streams.lock().unwrap().extend(taken.streams.iter().map(|(stream, ..)| *stream));
            self.taken.push(taken);
        }
    }

    /// Crashes, and comes back as the next owner.
    pub(super) async fn crash(self) -> Self {
        let Self { subject, store, .. } = self;
        drop(store);
        Self::of(subject.crash_and_reopen().await).await
    }

    pub(super) async fn release(&self) {
        for taken in &self.taken {
            self.store.release(taken.token).await.unwrap();
        }
    }

    pub(super) fn token(&self, entry: &QueueEntry) -> FencingToken {
        self.taken[usize::try_from(entry.shard).unwrap()].token
    }

    pub(super) fn suspects(&self) -> Vec<String> {
        self.taken.iter().flat_map(|taken| &taken.suspects).map(id).collect()
    }

    /// Publishes a new event.
    pub(super) async fn publish(&self, event: Event, when: Moment) -> Seq {
        match self.try_publish(event, when).await.unwrap() {
            Published::Accepted(seq) => seq,
            Published::Duplicate(found) => panic!("it is known already: {found:?}"),
        }
    }

    /// Publishes an event that is already known.
    pub(super) async fn publish_again(&self, event: Event, when: Moment) -> EventStatus {
        match self.try_publish(event, when).await.unwrap() {
            Published::Accepted(seq) => panic!("it was forgotten, and is now {seq:?}"),
            Published::Duplicate(found) => *found,
        }
    }

    pub(super) async fn try_publish(&self, event: Event, when: Moment) -> Result<Published, PublishError> {
        self.publish_all(vec![NewEvent::at(event, when)]).await.remove(0)
    }

    pub(super) async fn publish_all(&self, news: Vec<NewEvent>) -> Vec<Result<Published, PublishError>> {
        let published = self.store.publish(news).await.unwrap();
        for published in published.iter().flatten() {
            if let Published::Accepted(seq) = published {
                self.streams.lock().unwrap().insert(stream_of(*seq));
            }
        }
        published
    }

    /// Loads everything from all shards and streams.
    pub(super) async fn load(&self, until: Moment, except: &[Seq]) -> Vec<LoadedEvents> {
        let mut all = Vec::new();
        for taken in &self.taken {
            let streams = self.streams.lock().unwrap().clone();
            for stream in streams {
                let (token, except) = (taken.token, except.to_vec());
                let load = LoadRequest {
                    token,
                    stream,
                    until,
                    live_max: 1000,
                    retry_max: 1000,
                    bytes_max: usize::MAX,
                    except,
                };
                all.push(self.store.load(load).await.unwrap());
            }
        }
        all
    }

    /// The due events, by sequence number.
    pub(super) async fn due(&self, until: Moment) -> Vec<QueueEntry> {
        let loaded = self.load(until, &[]).await;
        let mut entries: Vec<_> = loaded.into_iter().flat_map(|loaded| loaded.entries).collect();
        entries.sort_by_key(|entry| entry.seq);
        entries
    }

    /// The ids of the due events, by sequence number.
    pub(super) async fn due_ids(&self, until: Moment) -> Vec<String> {
        self.due(until).await.iter().map(id).collect()
    }

    /// The one event with this id that is due.
    pub(super) async fn entry(&self, id: &str, until: Moment) -> QueueEntry {
        let due = self.due(until).await;
        let found = due.iter().find(|entry| entry.event.id == id).cloned();
        found.unwrap_or_else(|| panic!("{id} is not due, but {due:?}"))
    }

    pub(super) async fn settle(&self, entry: &QueueEntry, when: Moment, change: EventChange) -> SettleResult {
        self.store.settle(vec![self.settling(entry, when, change)]).await.unwrap().remove(0)
    }

    /// Settles, and returns the next event of the key.
    pub(super) async fn settle_next(
        &self,
        entry: &QueueEntry,
        when: Moment,
        change: EventChange,
    ) -> Option<String> {
        match self.settle(entry, when, change).await {
            SettleResult::Applied { next, .. } => next.as_ref().map(id),
            refused => panic!("{} was not settled: {refused:?}", entry.event.id),
        }
    }

    pub(super) fn settling(&self, entry: &QueueEntry, when: Moment, change: EventChange) -> SettleRequest {
        SettleRequest { token: self.token(entry), seq: entry.seq, rev: entry.rev, at: when, change }
    }

    pub(super) async fn found(&self, event: &Event) -> EventStatus {
        let found = self.store.find(&event.tenant, &event.queue, &event.id).await.unwrap();
        found.unwrap_or_else(|| panic!("nothing is known of {event:?}"))
    }

    pub(super) async fn state(&self, event: &Event) -> State {
        self.found(event).await.state
    }

    pub(super) fn claim(&self, entry: &QueueEntry, when: Moment) -> TxSettle {
        let (token, seq, rev) = (self.token(entry), entry.seq, entry.rev);
        TxSettle { token, seq, rev, at: when, attempts: entry.progress.attempts + 1, history: None }
    }

    pub(super) async fn transact(
        &self,
        claim: Option<TxSettle>,
        work: impl FnMut(&mut dyn Tx) -> Worked + Send + 'static,
    ) -> TxOutcome {
        let job = TxJob { work: Box::new(work), claim, time: secs(60), alone: false };
        self.store.transact(job).await.unwrap()
    }

    /// Watches the store; returns the arrivals so far.
    pub(super) fn watch(&self) -> Arc<Mutex<Vec<Arrivals>>> {
        let told = Arc::new(Mutex::new(Vec::new()));
        let hears = Arc::clone(&told);
        self.store.watch(Arc::new(move |mut arrivals| {
            drop(std::mem::take(&mut arrivals.answers));
            hears.lock().unwrap().push(arrivals);
        }));
        told
    }
}

pub(super) type Worked = Result<Option<Vec<u8>>, Box<dyn std::error::Error + Send + Sync>>;

pub(super) fn id(entry: &QueueEntry) -> String {
    entry.event.id.clone()
}

/// The stream of an event: the upper 24 bits of its sequence number.
fn stream_of(seq: Seq) -> StreamId {
    StreamId(u32::try_from(seq.0 >> 40).unwrap())
}
