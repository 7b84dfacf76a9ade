//! The schedules that break a weaker rule, with concurrent real connections.
#![cfg(all(feature = "postgres", unix))]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::time::Duration;

use redrive_core::queue_entry::{EventChange, SettleResult};
use redrive_store::{NewEvent, PublishError, Published, StoreError, TxOutcome, prelude::*};

mod postgres_common;

use postgres_common::{Open, PATIENCE, TestStore, again, at, event, publish};

/// P1: until the settle of the first commits, the second is not handed out; not even if it is due earlier.
#[tokio::test]
async fn the_next_of_a_key_waits_for_the_commit_of_the_one_before() {
    let store_dir = TestStore::new();
    let mut node = store_dir.node().await;
    node.take().await;
    for id in ["1", "2"] {
        node.publish(id, Some("k")).await.unwrap();
    }
    let mut raw = store_dir.raw().await;
    raw.say("BEGIN; DELETE FROM redrive.fresh WHERE id = '1'").await.unwrap();
    assert_eq!(node.due_ids(at(9)).await, ["1"], "the settle may still be rolled back");
    raw.say("ROLLBACK").await.unwrap();
    let first = node.one("1").await;
    node.settle(&first, again(300)).await;
    assert!(node.due_ids(at(299)).await.is_empty(), "the second is due, and not its turn");
    raw.say("BEGIN; DELETE FROM redrive.tracked WHERE id = '1'; COMMIT").await.unwrap();
    assert_eq!(node.due_ids(at(9)).await, ["2"]);
}

/// P1: an event that was published earlier and committed later is the head as soon as it is there.
#[tokio::test]
async fn a_late_commit_of_an_earlier_place_becomes_the_head() {
    let store_dir = TestStore::new();
    let (mut owner, other) = (store_dir.node().await, store_dir.node().await);
    owner.take().await;
    let open = Open::with(&other.store, None, |tx| {
        tx.publish(NewEvent::at(event("early", Some("k")), at(0))).unwrap();
    })
    .await;
    owner.publish("late", Some("k")).await.unwrap();
    assert_eq!(owner.due_ids(at(9)).await, ["late"]);
    assert!(matches!(open.commit().await, TxOutcome::Committed { .. }));
    assert_eq!(owner.due_ids(at(9)).await, ["early"], "the smallest living seq is the head");
    let head = owner.one("early").await;
    let settled = owner.settle(&head, EventChange::Done).await;
    let SettleResult::Applied { next: Some(next), .. } = settled else { panic!("{settled:?}") };
    assert_eq!(next.event.id, "late");
}

/// P2: a publisher of an identity that another transaction is about to commit waits for its outcome.
#[tokio::test]
async fn two_open_publishes_of_one_identity_are_one_event() {
    let store_dir = TestStore::new();
    let (one, two) = (store_dir.node().await, store_dir.node().await);
    let mut raw = store_dir.raw().await;
    for (id, commits) in [("kept", true), ("undone", false)] {
        let open = Open::with(&one.store, None, move |tx| {
            let published = tx.publish(NewEvent::at(event(id, None), at(0))).unwrap();
            assert!(matches!(published, Published::Accepted(_)));
        })
        .await;
        let store = std::sync::Arc::clone(&two.store);
        let second = tokio::spawn(async move { publish(&store, id, None).await });
        raw.until_somebody_waits().await;
        assert!(!second.is_finished());
        if commits {
            open.commit().await;
            assert!(matches!(second.await.unwrap(), Ok(Published::Duplicate(_))));
        } else {
            open.roll_back().await;
            assert!(matches!(second.await.unwrap(), Ok(Published::Accepted(_))));
        }
    }
    assert_eq!(raw.number("SELECT count(*) FROM redrive.fresh").await, 2);
    assert_eq!(raw.number("SELECT count(*) FROM redrive.dedupe").await, 2);
}

/// P2: a publisher whose snapshot is older than the settle of the first is refused.
#[tokio::test]
async fn an_old_snapshot_does_not_publish_a_done_event_again() {
    let store_dir = TestStore::new();
    let mut node = store_dir.node().await;
    node.take().await;
    let mut raw = store_dir.raw().await;
    raw.say("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM redrive.dedupe").await.unwrap();
    node.publish("1", None).await.unwrap();
    let entry = node.one("1").await;
    node.settle(&entry, EventChange::Done).await;
    let insert = "INSERT INTO redrive.dedupe (id, stream, fingerprint, seq, published, until, crc) \
                  VALUES ('1', 1, '', 1, 0, 0, 0) ON CONFLICT DO NOTHING";
    let error = raw.say(insert).await.unwrap_err();
    let code = error.as_database_error().and_then(|error| error.code()).unwrap().into_owned();
    assert_eq!(code, "40001");
}

/// P6: a call whose identity is blocked gets an error that may pass, and the other calls of its group are stored.
#[tokio::test]
async fn a_blocked_identity_holds_up_itself_alone() {
    let mut store_dir = TestStore::new();
    store_dir.lock_wait = Duration::from_millis(300);
    let (one, two) = (store_dir.node().await, store_dir.node().await);
    let open = Open::with(&one.store, None, |tx| {
        tx.publish(NewEvent::at(event("blocked", None), at(0))).unwrap();
    })
    .await;
    let calls: Vec<_> = ["first", "blocked", "a", "b", "c"]
        .into_iter()
        .map(|id| {
            let store = std::sync::Arc::clone(&two.store);
            (id, tokio::spawn(async move { publish(&store, id, None).await }))
        })
        .collect();
    for (id, call) in calls {
        let answer = call.await.unwrap();
        if id == "blocked" {
            let error = answer.unwrap_err();
            assert!(matches!(&error, PublishError::Store(StoreError::Passing { .. })), "{error:?}");
        } else {
            assert!(matches!(answer, Ok(Published::Accepted(_))), "{id}: {answer:?}");
        }
    }
    open.roll_back().await;
    assert!(matches!(two.publish("blocked", None).await, Ok(Published::Accepted(_))));
}

/// P3: a settle and a takeover that overlap do not both commit. The fence waits for the process that is about to raise
/// the epoch, and then finds another epoch.
#[tokio::test]
async fn a_zombie_does_not_commit_beside_a_take_over() {
    let store_dir = TestStore::new();
    let mut zombie = store_dir.node().await;
    zombie.take().await;
    for (id, key) in [("plain", None), ("keyed", Some("k"))] {
        zombie.publish(id, key).await.unwrap();
        let entry = zombie.one(id).await;
        let mut raw = store_dir.raw().await;
        raw.say(&format!("BEGIN; UPDATE redrive.shard SET epoch = epoch + 1 WHERE id = {}", entry.shard))
            .await
            .unwrap();
        let settle = zombie.store.settle(vec![zombie.settling(&entry, EventChange::Done)]);
        let settle = tokio::spawn(settle);
        store_dir.raw().await.until_somebody_waits().await;
        assert!(!settle.is_finished());
        raw.say("COMMIT").await.unwrap();
        assert_eq!(settle.await.unwrap().unwrap(), [SettleResult::Fenced]);
        zombie.take().await;
        assert_eq!(zombie.one(id).await.seq, entry.seq, "it is still there");
        let entry = zombie.one(id).await;
        assert!(matches!(zombie.settle(&entry, EventChange::Done).await, SettleResult::Applied { .. }));
    }
}

/// P3: a process that takes a shard waits for a settle that has passed the fence, and loads its result.
#[tokio::test]
async fn a_take_over_waits_for_a_settle_that_passed_the_fence() {
    let store_dir = TestStore::new();
    let (mut owner, next) = (store_dir.node().await, store_dir.node().await);
    owner.take().await;
    owner.publish("1", None).await.unwrap();
    let entry = owner.one("1").await;
    let mut raw = store_dir.raw().await;
    raw.expire_all().await;
    raw.say("BEGIN; DELETE FROM redrive.fresh; SELECT id FROM redrive.shard ORDER BY id FOR SHARE")
        .await
        .unwrap();
    let taking = tokio::spawn(next.store.take(entry.shard, at(1)));
    store_dir.raw().await.until_somebody_waits().await;
    assert!(!taking.is_finished());
    raw.say("COMMIT").await.unwrap();
    let taken = taking.await.unwrap().unwrap();
    assert!(taken.unclean && taken.streams.is_empty(), "{taken:?}");
}

/// P3: a lease is by the database's clock; a shard is taken only when the lease has run out, and late writes of the
/// previous owner are fenced, including work that it has begun.
#[tokio::test]
async fn a_shard_is_taken_when_its_owner_was_not_heard_of() {
    let store_dir = TestStore::new();
    let (mut owner, mut next) = (store_dir.node().await, store_dir.node().await);
    owner.take().await;
    owner.publish("1", None).await.unwrap();
    owner.publish("2", None).await.unwrap();
    let (first, second) = (owner.one("1").await, owner.one("2").await);
    for shard in 0..owner.store.shards() {
        let refused = next.store.take(shard, at(1)).await;
        assert!(matches!(refused, Err(StoreError::NotOwner { .. })), "{refused:?}");
    }
    let mut raw = store_dir.raw().await;
    raw.say("CREATE TABLE redrive.effect (id TEXT)").await.unwrap();
    let insert = format!("INSERT INTO {}.effect VALUES ('1')", store_dir.schema);
    let work = Open::with(&owner.store, Some(owner.claim(&first)), move |tx| {
        let insert = redrive_store::postgres::sqlx::AssertSqlSafe(insert.clone());
        let query = redrive_store::postgres::sqlx::query(insert);
        redrive_store::postgres::with(tx, async |conn| query.execute(conn).await).unwrap().unwrap();
    })
    .await;
    raw.expire_all().await;
    next.take().await;
    for (before, after) in owner.taken.iter().zip(&next.taken) {
        assert!(after.unclean && after.token.epoch > before.token.epoch, "{after:?}");
    }
    assert!(matches!(work.commit().await, TxOutcome::Fenced));
    assert_eq!(owner.settle(&second, EventChange::Done).await, SettleResult::Fenced);
    assert!(matches!(owner.store.release(owner.taken[0].token).await, Err(StoreError::NotOwner { .. })));
    assert_eq!(
        raw.number("SELECT count(*) FROM redrive.effect").await,
        0,
        "the zombie's effect is rolled back"
    );
    assert_eq!(next.due_ids(at(9)).await, ["1", "2"]);
}

/// P3: a command locks the shard, so a settle of the same event comes before or after it, and never beside it.
#[tokio::test]
async fn orders_and_settles_of_one_event_never_both_win() {
    use redrive_core::triage::Operator;
    use redrive_store::operate::{EventAction, EventRef, OperatorAction, OperatorCommand};
    let store_dir = TestStore::new();
    let (mut owner, desk) = (store_dir.node().await, store_dir.node().await);
    owner.take().await;
    for round in 0..30 {
        let id = round.to_string();
        owner.publish(&id, Some("k")).await.unwrap();
        let entry = owner.one(&id).await;
        let by = Operator { who: "ann".to_owned(), from: "here".to_owned() };
        let what = OperatorAction::Events(
            vec![EventRef::new("", postgres_common::ORDERS, &id)],
            EventAction::Discard,
        );
        let order = tokio::spawn(desk.store.operate(OperatorCommand { by, at: at(2), what }));
        let settled = owner.settle(&entry, EventChange::Done).await;
        let operated = order.await.unwrap().unwrap();
        let is_applied = matches!(settled, SettleResult::Applied { .. });
        assert_ne!(is_applied, operated.changed == 1, "{settled:?} {operated:?}");
    }
}

/// P4: an event that commits late is found, though the reader has seen later ones; also by a listener in another
/// process.
#[tokio::test]
async fn what_commits_late_arrives() {
    let store_dir = TestStore::new();
    let (mut owner, other) = (store_dir.node().await, store_dir.node().await);
    owner.take().await;
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    owner.store.watch(std::sync::Arc::new(move |arrivals| {
        for (_, queue, _) in &arrivals.streams {
            let _ = tell.send(queue.clone());
        }
    }));
    let early = Open::with(&other.store, None, |tx| {
        tx.publish(NewEvent::at(event("early", None), at(0))).unwrap();
    })
    .await;
    other.publish("late", None).await.unwrap();
    assert_eq!(told.recv().await.as_deref(), Some(postgres_common::ORDERS));
    let late = owner.one("late").await;
    owner.settle(&late, EventChange::Done).await;
    while told.try_recv().is_ok() {}
    assert!(owner.due_ids(at(9)).await.is_empty());
    // Several looks later the snapshot is far beyond its seq; its stamp was in progress in each.
    for id in ["a", "b"] {
        other.publish(id, None).await.unwrap();
        told.recv().await.unwrap();
    }
    while told.try_recv().is_ok() {}
    early.commit().await;
    let heard = tokio::time::timeout(PATIENCE, told.recv()).await.expect("it was not announced");
    assert_eq!(heard.as_deref(), Some(postgres_common::ORDERS));
    assert!(owner.due_ids(at(9)).await.contains(&"early".to_owned()));
}

/// P4: a publisher prefers a shard that was its own, and has another owner by the time of the commit. It notifies no
/// process, and the owner finds the event all the same.
#[tokio::test]
async fn what_is_near_in_a_shard_that_was_given_away_arrives_there() {
    let store_dir = TestStore::new();
    let (mut owner, mut other) = (store_dir.node().await, store_dir.node().await);
    other.take().await;
    other.store.watch(std::sync::Arc::new(|_| {}));
    other.publish("first", None).await.unwrap();
    for taken in std::mem::take(&mut other.taken) {
        other.store.release(taken.token).await.unwrap();
    }
    owner.take().await;
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    owner.store.watch(std::sync::Arc::new(move |arrivals| {
        let _ = tell.send(arrivals.missed);
    }));
    // A new watcher looks at everything.
    tokio::time::timeout(PATIENCE, told.recv()).await.expect("the watcher did not look");
    for shard in 0..2 {
        let new = NewEvent {
            local_shard: Some(shard),
            ..NewEvent::at(event(&format!("near {shard}"), None), at(0))
        };
        let published = other.store.publish(vec![new]).await.unwrap().remove(0);
        assert!(matches!(published, Ok(Published::Accepted(_))), "{published:?}");
        let heard = tokio::time::timeout(PATIENCE, told.recv()).await.expect("it was not announced");
        assert_eq!(heard, Some(true));
        let entry = owner.one(&format!("near {shard}")).await;
        assert_eq!(entry.shard, shard);
        assert!(matches!(owner.settle(&entry, EventChange::Done).await, SettleResult::Applied { .. }));
    }
}

/// P4: a process that takes a shard has read which streams are in it, and not committed yet, when the first event of
/// another stream is published to it. A look in between sees the event, and another owner. The new owner must learn of
/// the stream all the same: the next look is since this one.
#[tokio::test]
async fn what_is_published_while_its_shard_is_taken_is_told_to_whoever_takes_it() {
    let store_dir = TestStore::new();
    let (owner, other) = (store_dir.node().await, store_dir.node().await);
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    owner.store.watch(std::sync::Arc::new(move |arrivals| {
        let _ = tell.send(arrivals.streams);
    }));
    tokio::time::timeout(PATIENCE, told.recv()).await.expect("the watcher did not look");
    let mut raw = store_dir.raw().await;
    // The last write of a commit.
    raw.say("BEGIN; LOCK TABLE redrive.commit_id IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let new = NewEvent::at(redrive_core::Event { tenant: "new".to_owned(), ..event("first", None) }, at(0));
    let taking = tokio::spawn(owner.store.take(new.shard(owner.store.shards()), at(1)));
    store_dir.raw().await.until_somebody_waits().await;
    let published = other.store.publish(vec![new]).await.unwrap().remove(0);
    assert!(matches!(published, Ok(Published::Accepted(_))), "{published:?}");
    let heard = async { while told.recv().await.unwrap().iter().all(|(_, _, tenant)| tenant != "new") {} };
    tokio::time::timeout(PATIENCE, heard).await.expect("it was not announced");
    raw.say("COMMIT").await.unwrap();
    assert_eq!(taking.await.unwrap().unwrap().streams, [], "it was not there yet");
}
