//! Calls that share a commit: each gets its own outcome, even if one of them is blocked.
#![cfg(all(feature = "postgres", unix))]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::Arc;
use std::time::Duration;

use redrive_core::Event;
use redrive_core::queue_entry::{EventChange, SettleResult};
use redrive_store::postgres::sqlx::Connection;
use redrive_store::{NewEvent, PublishError, Published, StoreError, prelude::*};
use redrive_testkit::postgres::{Cut, Proxy, Server, Weather};

mod postgres_common;

use postgres_common::{Node, ORDERS, Open, PATIENCE, Raw, TestStore, again, at, event, publish};

/// How many calls arrive at once: the first ones have a commit each, and the others share one.
const CALLS: usize = 100;

/// A process that waits only briefly for locks, with a proxy in between, and a direct connection.
async fn impatient() -> (Proxy, Node, Raw) {
    let store_dir = TestStore { lock_wait: Duration::from_millis(300), ..TestStore::new() };
    let proxy = Proxy::start(Server::shared()).unwrap();
    let mut node = store_dir.node_at(&proxy.url()).await;
    node.take().await;
    node.publish("0", None).await.unwrap();
    let raw = store_dir.raw().await;
    (proxy, node, raw)
}

/// An event that has to wait for its time.
fn delayed(id: &str) -> NewEvent {
    NewEvent::at(event(id, None).delay(Duration::from_secs(60)), at(0))
}

const BLOCK: &str = "BEGIN; SELECT redrive.publish('orders', 'blocked')";

#[tokio::test]
async fn of_a_call_each_event_is_told_its_own_fate() {
    let (_proxy, node, mut raw) = impatient().await;
    raw.say(BLOCK).await.unwrap();
    let call = vec![NewEvent::at(event("fresh", None), at(0)), delayed("blocked")];
    let said = node.store.publish(call).await.unwrap();
    assert!(matches!(said[0], Ok(Published::Accepted(_))), "{said:?}");
    assert!(matches!(&said[1], Err(PublishError::Store(error)) if error.is_definite()), "{said:?}");
}

/// The COMMIT is not answered, and when it is repeated another transaction blocks it.
#[tokio::test]
async fn nothing_was_changed_is_said_only_where_it_is_so() {
    for (cut, count) in [(Cut::Before, 0), (Cut::After, 1)] {
        let (proxy, node, mut raw) = impatient().await;
        raw.say(BLOCK).await.unwrap();
        proxy.cut_next(cut);
        let said =
            node.store.publish(vec![NewEvent::at(event("fresh", None), at(0)), delayed("blocked")]).await;
        assert_eq!(proxy.cuts(), 1);
        let there = raw.number("SELECT count(*) FROM redrive.fresh WHERE id = 'fresh'").await;
        assert_eq!(there, count, "{cut:?}");
        assert!(matches!(said, Err(StoreError::Unanswered { .. })), "{cut:?}: {said:?}");
    }
}

/// How often calls may arrive without sharing a commit.
const ROUNDS_MAX: usize = 50;

/// Calls share a commit that is not answered, and when it is repeated, another transaction blocks one of them: each of
/// the others is repeated by itself, and finds its own dedupe record.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_is_a_duplicate_of_itself() {
    let (proxy, node, mut raw) = impatient().await;
    raw.say(BLOCK).await.unwrap();
    for round in 0..ROUNDS_MAX {
        let name = |n: usize| format!("f{round}-{n}");
        let publish = |new: NewEvent| tokio::spawn(node.store.publish(vec![new]));
        // The first calls occupy all groups, and none of their messages arrives. So the others wait in the queue
        // together.
        proxy.turn(Weather::Hushed);
        let first: Vec<_> =
            (0..4).map(|n| publish(NewEvent::at(event(&format!("x{round}-{n}"), None), at(0)))).collect();
        somebody_else_runs().await;
        let is_blocked = |n: usize| n == 4;
        let fresh = |n: usize| NewEvent::at(event(&name(n), None), at(0));
        let calls: Vec<_> =
            (0..9).map(|n| publish(if is_blocked(n) { delayed("blocked") } else { fresh(n) })).collect();
        somebody_else_runs().await;
        proxy.cut_next_with(Cut::After, &name(0));
        proxy.turn(Weather::Fair);
        for call in first {
            let said = call.await.unwrap();
            assert!(matches!(said.as_deref(), Ok([Ok(Published::Accepted(_))])), "{said:?}");
        }
        for (n, call) in calls.into_iter().enumerate() {
            let said = call.await.unwrap();
            if is_blocked(n) {
                assert!(!matches!(said.map(|mut said| said.remove(0)), Ok(Ok(_))), "it is blocked");
            } else {
                assert!(matches!(said.as_deref(), Ok([Ok(Published::Accepted(_))])), "{}: {said:?}", name(n));
            }
        }
        assert_eq!(proxy.cuts(), round + 1);
        let of_round = format!("FROM redrive.fresh WHERE id LIKE 'f{round}-%'");
        assert_eq!(raw.number(&format!("SELECT count(*) {of_round}")).await, 8);
        // The calls before and after the blocked one: so that one was with them.
        if raw.number(&format!("SELECT count(DISTINCT xmin::text) {of_round}")).await == 1 {
            return;
        }
    }
    panic!("they never shared a commit");
}

/// Lets the spawned tasks run.
async fn somebody_else_runs() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

/// Of two settles in one call one was committed, and another transaction has locked the other.
#[tokio::test]
async fn a_settle_that_may_have_happened_is_not_called_undone() {
    let (_proxy, node, mut raw) = impatient().await;
    for id in ["done", "locked"] {
        node.publish(id, None).await.unwrap();
    }
    let (done, locked) = (node.one("done").await, node.one("locked").await);
    raw.say("BEGIN; SELECT 1 FROM redrive.fresh WHERE id = 'locked' FOR UPDATE").await.unwrap();
    let settles = vec![node.settling(&done, EventChange::Done), node.settling(&locked, again(5))];
    let said = node.store.settle(settles).await;
    assert_eq!(raw.number("SELECT count(*) FROM redrive.fresh WHERE id = 'done'").await, 0);
    assert!(matches!(&said, Err(error) if !error.is_definite()), "{said:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_is_stale_because_of_itself() {
    let (_proxy, node, mut raw) = impatient().await;
    for n in 0..CALLS {
        node.publish(&format!("{n}"), None).await.unwrap();
    }
    let due = node.due(at(1000)).await;
    raw.say(&format!("BEGIN; SELECT 1 FROM redrive.fresh WHERE id = '{}' FOR UPDATE", CALLS - 1))
        .await
        .unwrap();
    let calls: Vec<_> = due
        .iter()
        .map(|entry| {
            let is_locked = entry.event.id == format!("{}", CALLS - 1);
            let settle = node.settling(entry, if is_locked { again(5) } else { EventChange::Done });
            (is_locked, tokio::spawn(node.store.settle(vec![settle])))
        })
        .collect();
    for (is_locked, call) in calls {
        let said = call.await.unwrap();
        match said.as_deref() {
            Ok([SettleResult::Applied { .. }]) => assert!(!is_locked),
            said => assert!(is_locked, "{said:?}"),
        }
    }
}

/// An event of a new tenant.
fn of_new(id: &str) -> Event {
    event(id, None).tenant("new")
}

/// An open transaction has published the first event of a tenant.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_that_is_about_to_be_made_holds_up_nobody_else() {
    let store_dir = TestStore { lock_wait: PATIENCE * 2, ..TestStore::new() };
    let node = store_dir.node().await;
    node.publish("0", None).await.unwrap();
    let (mut raw, mut other) = (store_dir.raw().await, store_dir.raw().await);
    raw.say("BEGIN; SELECT redrive.publish('orders', 'x', tenant => 'new')").await.unwrap();
    let mut held_up = Vec::new();
    for n in 0..20 {
        let new = NewEvent::at(of_new(&format!("y{n}")), at(0));
        held_up.push(tokio::spawn(node.store.publish(vec![new])));
        other.until_somebody_waits().await;
    }
    for n in 0..5 {
        let others = tokio::time::timeout(PATIENCE, publish(&node.store, &format!("{}", n + 1), None)).await;
        assert!(matches!(others, Ok(Ok(Published::Accepted(_)))), "{others:?}");
    }
    let nodes = tokio::time::timeout(PATIENCE, node.store.nodes()).await;
    assert!(matches!(nodes, Ok(Ok(_))), "{nodes:?}");
    assert!(held_up.iter().all(|call| !call.is_finished()), "they wait for it");
    raw.say("COMMIT").await.unwrap();
    for call in held_up {
        let said = call.await.unwrap();
        assert!(matches!(said.as_deref(), Ok([Ok(Published::Accepted(_))])), "{said:?}");
    }
}

/// A call that waits for a tenant too long gets an error, and nothing was changed.
#[tokio::test]
async fn a_tenant_is_not_waited_for_without_end() {
    let (_proxy, node, mut raw) = impatient().await;
    raw.say("BEGIN; SELECT redrive.publish('orders', 'x', tenant => 'new')").await.unwrap();
    let said =
        tokio::time::timeout(PATIENCE, node.store.publish(vec![NewEvent::at(of_new("y"), at(0))])).await;
    assert!(matches!(said, Ok(Err(StoreError::Passing { .. }))), "{said:?}");
}

/// In one transaction the first event of a tenant is published in SQL, and the next one in Rust.
#[tokio::test]
async fn a_tenant_made_in_the_same_transaction_is_there() {
    let (_proxy, node, mut raw) = impatient().await;
    let first = raw.named("SELECT redrive.publish('orders', 'x', tenant => 'new')");
    let rows = "SELECT count(*) FROM redrive.fresh JOIN redrive.stream ON stream.id = fresh.stream \
                WHERE tenant = 'new'";
    for is_kept in [false, true] {
        let mut tx = raw.conn.begin().await.unwrap();
        let sql = redrive_store::postgres::sqlx::AssertSqlSafe(first.clone());
        redrive_store::postgres::sqlx::raw_sql(sql).execute(&mut *tx).await.unwrap();
        let said = node.store.publish_in(&mut tx, NewEvent::at(of_new("y"), at(0)));
        let said = tokio::time::timeout(PATIENCE, said).await;
        assert!(matches!(said, Ok(Ok((Published::Accepted(_), _)))), "{said:?}");
        if is_kept {
            tx.commit().await.unwrap();
        } else {
            tx.rollback().await.unwrap();
        }
        assert_eq!(raw.number(rows).await, if is_kept { 2 } else { 0 });
    }
    let said = node.store.publish(vec![NewEvent::at(of_new("z"), at(0))]).await.unwrap();
    assert!(matches!(said[..], [Ok(Published::Accepted(_))]), "{said:?}");
    assert_eq!(raw.number(rows).await, 3, "a stream that was rolled back is not remembered");
}

/// The same in work that is rolled back: the tenant does not exist, and the next publish creates it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_made_in_work_is_there() {
    let (_proxy, node, mut raw) = impatient().await;
    let first = raw.named("SELECT redrive.publish('orders', 'x', tenant => 'new')");
    let said = Arc::new(std::sync::Mutex::new(None));
    let tell = Arc::clone(&said);
    let open = Open::with(&node.store, None, move |tx| {
        tx.query(&first, &[]).unwrap();
        *tell.lock().unwrap() = Some(tx.publish(NewEvent::at(of_new("y"), at(0))));
    });
    tokio::time::timeout(PATIENCE, open).await.unwrap().roll_back().await;
    let said = said.lock().unwrap().take();
    assert!(matches!(said, Some(Ok(Published::Accepted(_)))), "{said:?}");
    let said = node.store.publish(vec![NewEvent::at(of_new("y"), at(0))]).await.unwrap();
    assert!(matches!(said[..], [Ok(Published::Accepted(_))]), "{said:?}");
    let rows = format!(
        "SELECT count(*) FROM redrive.fresh JOIN redrive.stream ON stream.id = fresh.stream \
         WHERE tenant = 'new' AND queue = '{ORDERS}'"
    );
    assert_eq!(raw.number(&rows).await, 1, "a stream that was rolled back is not remembered");
}
