//! The user's own transaction: publishing, marking, completing, with concurrent real connections.
#![cfg(all(feature = "postgres", unix))]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::Arc;
use std::time::Duration;

use redrive_core::ledger::{
    ClaimRequest, Effects, LedgerClaim, LedgerRecord, RecordPhase, RenewResult, RequestFingerprint,
    RequestScope, Retention, StoredReply,
};
use redrive_store::ledger::LedgerStore;
use redrive_store::postgres::sqlx::postgres::PgListener;
use redrive_store::postgres::sqlx::{
    self, AssertSqlSafe, Connection, PgConnection, PgPool, PgTransaction, Row,
};
use redrive_store::{
    CompleteError, NewEvent, Postgres, PublishError, Published, Store, StoreError, prelude::*,
};
use redrive_testkit::postgres::a_name;
use tokio::sync::mpsc;

mod postgres_common;

use postgres_common::{Node, PATIENCE, TestStore, at, event};

/// The isolation levels, and whether a concurrent commit is an error.
const LEVELS: [(&str, bool); 3] =
    [("READ COMMITTED", false), ("REPEATABLE READ", true), ("SERIALIZABLE", true)];

/// A place with a table of the user's own, and the user's pool.
struct Shop {
    store_dir: TestStore,
    node: Node,
    pool: PgPool,
}

impl Shop {
    async fn new() -> Self {
        let store_dir = TestStore::new();
        let node = store_dir.node().await;
        let pool = PgPool::connect(&store_dir.url).await.unwrap();
        let shop = Self { store_dir, node, pool };
        shop.say("CREATE TABLE redrive.sale (what TEXT)").await;
        shop
    }

    fn named(&self, sql: &str) -> AssertSqlSafe<String> {
        AssertSqlSafe(sql.replace("redrive.", &format!("{}.", self.store_dir.schema)))
    }

    async fn say(&self, sql: &str) {
        sqlx::raw_sql(self.named(sql)).execute(&self.pool).await.unwrap();
    }

    async fn number(&self, sql: &str) -> i64 {
        sqlx::query_scalar(self.named(sql)).fetch_one(&self.pool).await.unwrap()
    }

    async fn sales(&self) -> i64 {
        self.number("SELECT count(*) FROM redrive.sale").await
    }

    async fn begin(&self, level: &str) -> PgTransaction<'static> {
        let begin = format!("BEGIN ISOLATION LEVEL {level}");
        let mut tx = self.pool.begin_with(AssertSqlSafe(begin)).await.unwrap();
        // The first statement takes the snapshot of the stricter levels.
        sqlx::query("SELECT 1").execute(&mut *tx).await.unwrap();
        tx
    }

    async fn sell(&self, tx: &mut PgTransaction<'_>) {
        sqlx::query(self.named("INSERT INTO redrive.sale VALUES ('x')")).execute(&mut **tx).await.unwrap();
    }

    async fn publish(&self, tx: &mut PgTransaction<'_>, id: &str) -> Result<Published, PublishError> {
        let new = NewEvent::at(event(id, None), at(0));
        self.node.store.publish_in(tx, new).await.map(|(published, _)| published)
    }

    /// Waits until a transaction waits for a lock.
    async fn until_somebody_waits(&self) {
        self.store_dir.raw().await.until_somebody_waits().await;
    }
}

/// Whether the database wants the transaction repeated.
fn is_serialization(error: &StoreError) -> bool {
    format!("{error:?}").contains("40001")
}

#[tokio::test]
async fn an_event_is_there_with_the_commit_and_never_was_without() {
    let shop = Shop::new().await;
    for (level, _) in LEVELS {
        let mut tx = shop.begin(level).await;
        shop.sell(&mut tx).await;
        let published = shop.publish(&mut tx, level).await.unwrap();
        assert!(matches!(published, Published::Accepted(_)), "{published:?}");
        let again = shop.publish(&mut tx, level).await.unwrap();
        assert!(matches!(again, Published::Duplicate(_)), "its own is known to it: {again:?}");
        assert_eq!(shop.node.store.find("", "orders", level).await.unwrap(), None, "it is not visible yet");
        tx.rollback().await.unwrap();
        assert_eq!(shop.number("SELECT count(*) FROM redrive.dedupe").await, 0);
        assert_eq!(shop.number("SELECT count(*) FROM redrive.fresh").await, 0);
    }
    let mut tx = shop.begin("READ COMMITTED").await;
    shop.sell(&mut tx).await;
    let mut inner = tx.begin().await.unwrap();
    shop.publish(&mut inner, "undone").await.unwrap();
    inner.rollback().await.unwrap();
    shop.publish(&mut tx, "kept").await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(shop.node.store.find("", "orders", "undone").await.unwrap(), None);
    assert!(shop.node.store.find("", "orders", "kept").await.unwrap().is_some());
    assert_eq!(shop.sales().await, 1);
}

/// P2: two open transactions with one identity, at every isolation level.
#[tokio::test]
async fn two_open_transactions_with_one_identity_are_one_event() {
    let shop = Arc::new(Shop::new().await);
    for (level, is_strict) in LEVELS {
        for commits in [true, false] {
            let id = format!("{level} {commits}");
            let mut first = shop.begin(level).await;
            let mut second = shop.begin(level).await;
            shop.publish(&mut first, &id).await.unwrap();
            let (waits, named) = (Arc::clone(&shop), id.clone());
            let waiting = tokio::spawn(async move {
                let published = waits.publish(&mut second, &named).await;
                (second, published)
            });
            shop.until_somebody_waits().await;
            if commits {
                first.commit().await.unwrap();
            } else {
                first.rollback().await.unwrap();
            }
            let (mut second, published) = waiting.await.unwrap();
            match published {
                Ok(Published::Accepted(_)) => assert!(!commits, "{id}: two events"),
                Ok(Published::Duplicate(_)) => assert!(commits && !is_strict, "{id}"),
                Err(PublishError::Store(error)) => {
                    assert!(commits && is_strict && is_serialization(&error), "{id}: {error:?}");
                    assert!(error.is_transient());
                    second.rollback().await.unwrap();
                    second = shop.begin(level).await;
                    let again = shop.publish(&mut second, &id).await.unwrap();
                    assert!(matches!(again, Published::Duplicate(_)), "{again:?}");
                }
                Err(error) => panic!("{id}: {error}"),
            }
            second.commit().await.unwrap();
            let count = format!("SELECT count(*) FROM redrive.fresh WHERE id = '{id}'");
            assert_eq!(shop.number(&count).await, 1, "{id}");
        }
    }
}

/// P2: an event that a strict transaction cannot see is not published a second time by it, whether it is done and
/// forgotten or not.
#[tokio::test]
async fn what_a_snapshot_does_not_see_is_not_published_twice() {
    let mut shop = Shop::new().await;
    shop.node.take().await;
    for (level, is_strict) in LEVELS {
        let mut tx = shop.begin(level).await;
        shop.node.publish(level, None).await.unwrap();
        let entry = shop.node.one(level).await;
        shop.node.settle(&entry, redrive_core::queue_entry::EventChange::Done).await;
        match shop.publish(&mut tx, level).await {
            Ok(Published::Duplicate(found)) => {
                assert!(!is_strict);
                assert_eq!(found.state, redrive_core::event::State::Done);
            }
            Err(PublishError::Store(error)) => assert!(is_strict && is_serialization(&error), "{error:?}"),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn the_same_id_with_another_payload_and_a_queue_that_is_not_there_are_refused() {
    let shop = Shop::new().await;
    let mut tx = shop.begin("READ COMMITTED").await;
    shop.publish(&mut tx, "1").await.unwrap();
    let other = NewEvent::at(event("1", None).payload(*b"another"), at(0));
    let refused = shop.node.store.publish_in(&mut tx, other).await.unwrap_err();
    assert!(matches!(refused, PublishError::IdReused { .. }), "{refused}");
    let nowhere = NewEvent::at(redrive_core::Event::new("nowhere", "1"), at(0));
    let refused = shop.node.store.publish_in(&mut tx, nowhere).await.unwrap_err();
    assert!(matches!(refused, PublishError::NoQueue { .. }), "{refused}");
    let long = NewEvent::at(redrive_core::Event::new("orders", "i".repeat(257)), at(0));
    let refused = shop.node.store.publish_in(&mut tx, long).await.unwrap_err();
    assert!(matches!(refused, PublishError::Event(_)), "{refused}");
    // A refusal spoils nothing.
    tx.commit().await.unwrap();
    assert!(shop.node.store.find("", "orders", "1").await.unwrap().is_some());
}

#[tokio::test]
async fn a_transaction_in_another_database_is_refused() {
    let shop = Shop::new().await;
    let mut raw = shop.store_dir.raw().await;
    let (empty, own, copy) = (a_name("empty"), a_name("own"), a_name("copy"));
    for name in [&empty, &own] {
        raw.say(&format!("CREATE DATABASE {name}")).await.unwrap();
    }
    let url = |name: &str| shop.store_dir.url.replace("/postgres?", &format!("/{name}?"));
    let other = Postgres::open(&url(&own), shop.store_dir.settings()).await.unwrap();
    other.close().await.unwrap();
    // A copy has the same rows, including the incarnation, and is another database.
    raw.say(&format!("CREATE DATABASE {copy} TEMPLATE {own}")).await.unwrap();
    let at_own = Postgres::open(&url(&own), shop.store_dir.settings()).await.unwrap();
    let refused = |store: Arc<Postgres>, name: String| async move {
        let mut conn = PgConnection::connect(&url(&name)).await.unwrap();
        let mut tx = conn.begin().await.unwrap();
        let published = store.publish_in(&mut tx, NewEvent::at(event("1", None), at(0))).await.unwrap_err();
        let PublishError::Store(StoreError::Elsewhere { why }) = published else { panic!("{published:?}") };
        tx.rollback().await.unwrap();
        let mut tx = conn.begin().await.unwrap();
        let marked = store.mark_in(&mut tx, "h.v1", "1", at(9)).await.unwrap_err();
        assert!(matches!(marked, StoreError::Elsewhere { .. }), "{marked}");
        tx.rollback().await.unwrap();
        let mut tx = conn.begin().await.unwrap();
        let completed = store.complete_in(&mut tx, &scope("k"), 1, (reply(), None), at(1)).await.unwrap_err();
        let is_elsewhere = matches!(completed, CompleteError::Store(StoreError::Elsewhere { .. }));
        assert!(is_elsewhere, "{completed}");
        sqlx::query("SELECT 1").execute(&mut *tx).await.unwrap_err();
        why
    };
    let why = refused(Arc::clone(&shop.node.store), empty.clone()).await;
    assert!(why.contains("there is no schema"), "{why}");
    let why = refused(Arc::clone(&shop.node.store), own.clone()).await;
    assert!(why.contains("another database"), "{why}");
    let why = refused(Arc::new(at_own), copy.clone()).await;
    assert!(why.contains("another database"), "{why}");
}

/// A publisher of an expired id does not block the owners until its user commits.
#[tokio::test]
async fn an_id_whose_time_is_over_is_published_anew_and_nobody_waits() {
    let mut shop = Shop::new().await;
    shop.node.take().await;
    for (level, _) in LEVELS {
        for id in [format!("{level} old"), format!("{level} other")] {
            shop.node.publish(&id, None).await.unwrap();
        }
        let old = shop.node.one(&format!("{level} old")).await;
        shop.node.settle(&old, redrive_core::queue_entry::EventChange::Done).await;
        let mut tx = shop.begin(level).await;
        let later = NewEvent::at(event(&format!("{level} old"), None), at(90_000));
        let (published, _) = shop.node.store.publish_in(&mut tx, later).await.unwrap();
        assert!(matches!(published, Published::Accepted(_)), "{published:?}");
        let other = shop.node.one(&format!("{level} other")).await;
        let settled = tokio::time::timeout(
            PATIENCE,
            shop.node.settle(&other, redrive_core::queue_entry::EventChange::Done),
        );
        settled.await.expect("the owner does not wait");
        tx.commit().await.unwrap();
    }
}

#[tokio::test]
async fn nobody_is_told_inside_of_the_transaction_and_whoever_wakes_tells() {
    let shop = Shop::new().await;
    let (told, mut hears) = mpsc::unbounded_channel();
    let mut listener = PgListener::connect(&shop.store_dir.url).await.unwrap();
    let channel = format!("redrive_{}", shop.store_dir.schema);
    listener.listen(&channel).await.unwrap();
    let publish = async |id: &str| {
        let mut tx = shop.begin("READ COMMITTED").await;
        let new = NewEvent::at(event(id, None), at(0));
        let (_, wakeup) = shop.node.store.publish_in(&mut tx, new).await.unwrap();
        tx.commit().await.unwrap();
        wakeup
    };
    drop(publish("1").await);
    shop.say(&format!("SELECT pg_notify('{channel}', 'mine')")).await;
    assert_eq!(listener.recv().await.unwrap().payload(), "mine", "the transaction itself notified no one");
    let wakeup = publish("2").await;
    shop.node.store.watch(Arc::new(move |arrivals| {
        let _ = told.send((std::thread::current().id(), arrivals.missed, arrivals.streams));
    }));
    wakeup.wake();
    // The look announces it from a thread of the store.
    let mut heard = None;
    while let Ok((thread, missed, streams)) = hears.try_recv() {
        heard = Some((missed, streams)).filter(|_| thread == std::thread::current().id()).or(heard);
    }
    let (missed, streams) = heard.expect("this process was told at once");
    assert!(missed && streams.iter().any(|(_, queue, _)| queue == "orders"), "{streams:?}");
    let hint = tokio::time::timeout(PATIENCE, listener.recv()).await.expect("the others were told").unwrap();
    assert_ne!(hint.payload(), "mine");
    // An event without a wakeup is found by the next look.
    drop(publish("3").await);
    let (_, missed, _) = tokio::time::timeout(PATIENCE, hears.recv()).await.unwrap().unwrap();
    assert!(missed);
}

#[tokio::test]
async fn a_marker_is_one_of_two_open_transactions() {
    let shop = Arc::new(Shop::new().await);
    for (level, is_strict) in LEVELS {
        for commits in [true, false] {
            let id = format!("{level} {commits}");
            let (mut first, mut second) = (shop.begin(level).await, shop.begin(level).await);
            assert!(shop.node.store.mark_in(&mut first, "projector.v1", &id, at(9)).await.unwrap());
            let (store, named) = (Arc::clone(&shop.node.store), id.clone());
            let waiting = tokio::spawn(async move {
                let marked = store.mark_in(&mut second, "projector.v1", &named, at(9)).await;
                second.commit().await.unwrap();
                marked
            });
            shop.until_somebody_waits().await;
            if commits {
                first.commit().await.unwrap();
            } else {
                first.rollback().await.unwrap();
            }
            match waiting.await.unwrap() {
                Ok(is_first) => assert!(is_first != commits && !(commits && is_strict), "{id}"),
                Err(error) => assert!(commits && is_strict && is_serialization(&error), "{id}: {error}"),
            }
        }
    }
}

fn scope(key: &str) -> RequestScope {
    RequestScope { tenant: "acme".to_owned(), operation: "POST /bookings".to_owned(), key: key.to_owned() }
}

fn ask() -> ClaimRequest {
    ClaimRequest {
        print: RequestFingerprint { version: 1, hash: [7; 32] },
        older: Vec::new(),
        effects: Effects::Transactional,
        lease: Duration::from_secs(10),
        retention: Retention { answer: Duration::from_secs(86_400) },
        first_sent: None,
        skew: Duration::ZERO,
    }
}

fn reply() -> StoredReply {
    StoredReply { status: 201, headers: Vec::new(), body: Some(b"booked".to_vec()) }
}

impl Shop {
    async fn claim(&self, key: &str, seconds: u64) -> LedgerRecord {
        match self.node.store.claim(scope(key), ask(), at(seconds)).await.unwrap() {
            LedgerClaim::Run(record) => record,
            other => panic!("{other:?}"),
        }
    }

    async fn complete(
        &self,
        tx: &mut PgTransaction<'_>,
        key: &str,
        run: &LedgerRecord,
    ) -> Result<(), CompleteError> {
        self.node.store.complete_in(tx, &scope(key), run.epoch, (reply(), None), at(20)).await
    }

    async fn is_completed(&self, key: &str) -> bool {
        let record = self.node.store.record(scope(key), at(20)).await.unwrap().unwrap();
        matches!(record.phase, RecordPhase::Completed { .. })
    }
}

#[tokio::test]
async fn an_answer_is_completed_with_the_users_own_rows_or_not_at_all() {
    let shop = Shop::new().await;
    for (number, (level, _)) in (1..).zip(LEVELS) {
        let run = shop.claim(level, 0).await;
        let mut tx = shop.begin(level).await;
        shop.sell(&mut tx).await;
        shop.complete(&mut tx, level, &run).await.unwrap();
        tx.rollback().await.unwrap();
        assert!(!shop.is_completed(level).await);
        let mut tx = shop.begin(level).await;
        shop.complete(&mut tx, level, &run).await.unwrap();
        let idle: String =
            sqlx::query("SHOW idle_in_transaction_session_timeout").fetch_one(&mut *tx).await.unwrap().get(0);
        assert_eq!(idle, "20s", "an idle session blocks others no longer than this");
        // Not the last call, as it should be; and correct all the same.
        shop.sell(&mut tx).await;
        tx.commit().await.unwrap();
        assert!(shop.is_completed(level).await);
        assert_eq!(shop.sales().await, number);
    }
}

/// P3: a run that was taken over commits nothing, whether or not its user checks the error.
#[tokio::test]
async fn what_a_zombie_wrote_does_not_commit_though_it_ignores_the_error() {
    let shop = Shop::new().await;
    for (level, _) in LEVELS {
        let first = shop.claim(level, 0).await;
        let mut early = shop.begin(level).await;
        shop.sell(&mut early).await;
        shop.claim(level, 11).await;
        let mut late = shop.begin(level).await;
        shop.sell(&mut late).await;
        for mut tx in [early, late] {
            shop.complete(&mut tx, level, &first).await.unwrap_err();
            // The driver reports success; PostgreSQL has made a ROLLBACK of it.
            tx.commit().await.unwrap();
            assert_eq!(shop.sales().await, 0, "{level}");
        }
        assert!(!shop.is_completed(level).await);
    }
    let none = LedgerRecord { epoch: 1, ..shop.claim("k", 0).await };
    let mut tx = shop.begin("READ COMMITTED").await;
    shop.sell(&mut tx).await;
    let fenced = shop.complete(&mut tx, "no such request", &none).await.unwrap_err();
    assert!(matches!(fenced, CompleteError::Fenced(None)), "{fenced}");
    tx.commit().await.unwrap();
    assert_eq!(shop.sales().await, 0);
}

/// P3: from the completion to the commit no run takes over; one that tries waits for its outcome.
#[tokio::test]
async fn a_take_over_waits_for_the_fate_of_a_completion() {
    let shop = Arc::new(Shop::new().await);
    for commits in [true, false] {
        let key = format!("{commits}");
        let run = shop.claim(&key, 0).await;
        let mut tx = shop.begin("READ COMMITTED").await;
        shop.complete(&mut tx, &key, &run).await.unwrap();
        let (other, named) = (Arc::clone(&shop), key.clone());
        let ask = tokio::spawn(async move { other.node.store.claim(scope(&named), ask(), at(30)).await });
        shop.until_somebody_waits().await;
        if commits {
            tx.commit().await.unwrap();
        } else {
            tx.rollback().await.unwrap();
        }
        let claim = ask.await.unwrap().unwrap();
        assert_eq!(matches!(claim, LedgerClaim::Say(_)), commits, "{claim:?}");
    }
}

/// A renewal between the snapshot and the completion is a conflict for the stricter levels, and nothing is committed.
#[tokio::test]
async fn a_renewal_meanwhile_is_seen_or_is_a_conflict() {
    let shop = Shop::new().await;
    for (level, is_strict) in LEVELS {
        let run = shop.claim(level, 0).await;
        let mut tx = shop.begin(level).await;
        shop.sell(&mut tx).await;
        let (lease, most) = (Duration::from_secs(10), Duration::from_secs(60));
        let renewed = shop.node.store.renew(scope(level), run.epoch, lease, most, at(5)).await.unwrap();
        assert!(matches!(renewed, Ok(RenewResult::On(_))));
        let sales = shop.sales().await;
        match shop.complete(&mut tx, level, &run).await {
            Ok(()) => assert!(!is_strict),
            Err(CompleteError::Store(error)) => assert!(is_strict && is_serialization(&error), "{error}"),
            Err(error) => panic!("{error}"),
        }
        tx.commit().await.unwrap();
        assert_eq!(shop.sales().await, sales + i64::from(!is_strict));
    }
}
