//! Order within a key, with concurrent publishers and settles.
#![cfg(all(feature = "postgres", unix))]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::Arc;
use std::time::Duration;

use redrive_core::event::DeadReason;
use redrive_core::queue_entry::{EventChange, EventProgress, ParkFollowers, SettleResult};
use redrive_store::lease::{LeaseRef, LeaseRequest, LeaseSettle, LeaseSettleResult, LeasedEvents};
use redrive_store::postgres::sqlx::Row as _;
use redrive_store::{Arrivals, DeclaredBy, NewEvent, PublishError, Published, QueueSpec, prelude::*};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

mod postgres_common;

use postgres_common::{Node, ORDERS, Open, PATIENCE, TestStore, again, at, event};

/// The ids of events that are announced one by one.
fn watch(node: &Node) -> UnboundedReceiver<String> {
    let (tell, told) = unbounded_channel();
    node.store.watch(Arc::new(move |arrivals: Arrivals| {
        for entry in arrivals.entries {
            let _ = tell.send(entry.event.id.clone());
        }
    }));
    told
}

/// P1: a settle looks for the next event, and finds none; then the next one is published, and finds the first still at
/// the head; then the settle commits. The next one is announced all the same.
#[tokio::test]
async fn what_is_published_while_its_key_is_being_freed_is_told() {
    let at_a_desk = EventChange::DoneWith { result: Some(vec![7]), attempts: 1, history: None };
    for change in [EventChange::Done, at_a_desk] {
        let store_dir = TestStore::new();
        let mut owner = store_dir.node().await;
        owner.take().await;
        let mut told = watch(&owner);
        owner.publish("first", Some("k")).await.unwrap();
        let first = owner.one("first").await;
        let mut raw = store_dir.raw().await;
        // The fence comes last: a settle that waits there has looked.
        raw.say("BEGIN; SELECT id FROM redrive.shard FOR UPDATE").await.unwrap();
        let settling = tokio::spawn(owner.store.settle(vec![owner.settling(&first, change.clone())]));
        store_dir.raw().await.until_somebody_waits().await;
        owner.publish("second", Some("k")).await.unwrap();
        assert!(!settling.is_finished());
        while let Ok(id) = told.try_recv() {
            assert_eq!(id, "first", "the first is still at the head");
        }
        raw.say("COMMIT").await.unwrap();
        let settled = settling.await.unwrap().unwrap().remove(0);
        let SettleResult::Applied { next: None, .. } = settled else { panic!("{settled:?}") };
        let heard = tokio::time::timeout(PATIENCE, told.recv()).await.expect("it was not announced");
        assert_eq!(heard.as_deref(), Some("second"), "{change:?}");
    }
}

/// P1: of several events that are published to a key at once the first is announced, and each of the others when it is
/// its turn.
#[tokio::test]
async fn of_a_key_each_is_told_when_it_is_its_turn() {
    let store_dir = TestStore::new();
    let mut owner = store_dir.node().await;
    owner.take().await;
    let mut told = watch(&owner);
    for id in ["1", "2", "3"] {
        owner.publish(id, Some("k")).await.unwrap();
    }
    for id in ["1", "2", "3"] {
        assert_eq!(told.try_recv().as_deref(), Ok(id));
        assert!(told.try_recv().is_err(), "it is not yet the turn of the next one");
        let entry = owner.one(id).await;
        let settled = owner.settle(&entry, EventChange::Done).await;
        let SettleResult::Applied { next, .. } = settled else { panic!("{settled:?}") };
        let follows = next.map(|next| next.event.id.clone());
        assert_eq!(follows, ["2", "3"].into_iter().find(|next| *next > id).map(str::to_owned));
    }
}

/// P1: seqs are reserved for events without a key only. One process has reserved some, another one publishes to a key,
/// and then the first one does: its event has a later seq, and runs later.
#[tokio::test]
async fn places_that_were_drawn_before_are_not_for_keys() {
    let store_dir = TestStore::new();
    let (one, mut other) = (store_dir.node().await, store_dir.node().await);
    other.take().await;
    let seqs = |published: Vec<Result<Published, PublishError>>| {
        let seq = |answer| if let Ok(Published::Accepted(seq)) = answer { seq } else { panic!("{answer:?}") };
        published.into_iter().map(seq).collect::<Vec<_>>()
    };
    for round in 0..5 {
        let group = |name: &str, key: Option<&str>| {
            let new = |number| NewEvent::at(event(&format!("{name} {round} {number}"), key), at(0));
            (0..16).map(new).collect::<Vec<_>>()
        };
        one.store.publish(group("no key", None)).await.unwrap();
        let first = seqs(other.store.publish(group("first", Some("k"))).await.unwrap());
        let second = seqs(one.store.publish(group("second", Some("k"))).await.unwrap());
        assert!(first.is_sorted() && second.is_sorted() && first.last() < second.first());
    }
}

/// How many events wait for one in the tests of hot keys: enough to be marked.
const MANY: usize = 90;

async fn many_of_one_key(owner: &Node) {
    let events = (0..MANY).map(|number| NewEvent::at(event(&format!("{number:03}"), Some("hot")), at(0)));
    let published = owner.store.publish(events.collect()).await.unwrap();
    assert!(published.iter().all(Result::is_ok), "{published:?}");
}

/// P1: events that wait for one, and are too few to be marked, do not hide the heads behind them.
#[tokio::test]
async fn heads_are_found_beyond_those_that_wait_for_one() {
    let store_dir = TestStore::new();
    let mut owner = store_dir.node().await;
    owner.take().await;
    let hot = (0..20).map(|number| (format!("hot {number:02}"), Some("hot")));
    let others = (0..8).map(|number| (format!("other {number}"), None));
    for (id, key) in hot.chain(others) {
        owner.publish(&id, key).await.unwrap();
    }
    let due = owner.due_up_to(10, at(9)).await;
    let ids: Vec<&str> = due.iter().map(|entry| entry.event.id.as_str()).collect();
    let others: Vec<String> = (0..8).map(|number| format!("other {number}")).collect();
    assert_eq!(
        (ids[0], &ids[1..]),
        ("hot 00", others.iter().map(String::as_str).collect::<Vec<_>>().as_slice())
    );
}

/// P4: nor do events that wait for one that ran, however many keys there are; and those are marked, too.
#[tokio::test]
async fn heads_are_found_beyond_those_that_wait_for_one_that_ran() {
    const KEYS: usize = 2_500;
    let store_dir = TestStore::new();
    let mut owner = store_dir.node().await;
    owner.take().await;
    let publish = async |name: &str, keys: Option<usize>, many: usize| {
        let new = (0..many).map(|number| {
            let key = keys.map(|keys| format!("key {}", number % keys));
            NewEvent::at(event(&format!("{name} {number}"), key.as_deref()), at(0))
        });
        let published = owner.store.publish(new.collect()).await.unwrap();
        assert!(published.iter().all(Result::is_ok), "{published:?}");
    };
    publish("first", Some(KEYS), KEYS).await;
    let due = owner.due_up_to(KEYS, at(9)).await;
    assert_eq!(due.len(), KEYS);
    let settles = due.iter().map(|entry| owner.settling(entry, again(1_000_000))).collect();
    owner.store.settle(settles).await.unwrap();
    publish("second", Some(KEYS), KEYS).await;
    publish("other", None, 8).await;
    let mut raw = store_dir.raw().await;
    for _ in 0..2 {
        let ids = owner.due_up_to(10, at(9)).await.into_iter().map(|entry| entry.event.id.clone());
        assert_eq!(
            ids.collect::<Vec<_>>(),
            (0..8).map(|number| format!("other {number}")).collect::<Vec<_>>()
        );
        assert!(raw.number("SELECT count(*) FROM redrive.fresh WHERE blocked").await > 1_000);
    }
    // When the first event of a key has ended, the next one is runnable again.
    let mut over = owner.due(at(2_000_000)).await;
    over.retain(|entry| entry.event.id == "first 17");
    let SettleResult::Applied { next, .. } = owner.settle(&over[0], EventChange::Done).await else {
        panic!("{over:?}")
    };
    assert_eq!(next.unwrap().event.id, "second 17");
    assert!(owner.due_ids(at(9)).await.contains(&"second 17".to_owned()));
}

/// P1: events that wait for one are out of the index of loads, and each returns when it is its turn: also for a new
/// owner.
#[tokio::test]
async fn a_hot_key_goes_on_one_by_one() {
    let store_dir = TestStore::new();
    let mut owner = store_dir.node().await;
    owner.take().await;
    many_of_one_key(&owner).await;
    let mut raw = store_dir.raw().await;
    for number in 0..MANY {
        let due = owner.due(at(9)).await;
        let ids: Vec<&str> = due.iter().map(|entry| entry.event.id.as_str()).collect();
        assert_eq!(ids, [format!("{number:03}")]);
        if number == 0 {
            let marked = raw.number("SELECT count(*) FROM redrive.fresh WHERE blocked").await;
            assert_eq!(usize::try_from(marked).unwrap(), MANY - 1, "all but the head");
        }
        // All three ways in which a key is freed, in turn.
        let change = match number % 3 {
            0 => EventChange::Done,
            1 => EventChange::DoneWith { result: Some(vec![7]), attempts: 1, history: None },
            _ => dead(),
        };
        let settled = owner.settle(&due[0], change).await;
        let SettleResult::Applied { next, .. } = settled else { panic!("{settled:?}") };
        let follows = next.map(|next| next.event.id.clone());
        assert_eq!(follows, (number + 1 < MANY).then(|| format!("{:03}", number + 1)));
    }
    assert!(owner.due(at(9)).await.is_empty());
}

/// P1: the head is being settled while the events behind it are marked. The settle has looked for the next event, and
/// saw no mark; so the marking transaction must not mark that one.
#[tokio::test]
async fn who_is_next_while_others_are_marked_is_not() {
    let store_dir = TestStore::new();
    let mut owner = store_dir.node().await;
    owner.take().await;
    many_of_one_key(&owner).await;
    let mut raw = store_dir.raw().await;
    raw.say("BEGIN; DELETE FROM redrive.fresh WHERE id = '000'").await.unwrap();
    let marked = "SELECT count(*) FROM redrive.fresh WHERE blocked";
    assert_eq!(raw.number(marked).await, 0, "who follows is not marked");
    assert_eq!(owner.due_ids(at(9)).await, ["000"], "the settle may still be rolled back");
    assert!(store_dir.raw().await.number(marked).await > 0);
    raw.say("COMMIT").await.unwrap();
    assert_eq!(owner.due_ids(at(9)).await, ["001"]);
}

/// Dead, and the later events run.
fn dead() -> EventChange {
    let progress = EventProgress { attempts: 1, ..EventProgress::fresh(at(0)) };
    EventChange::Dead { reason: DeadReason::Permanent, progress, park: ParkFollowers::No }
}

async fn lease(node: &Node, token: u8, when: u64) -> LeasedEvents {
    let call = LeaseRequest {
        queue: ORDERS.to_owned(),
        tenant: None,
        at: at(when),
        until: at(60),
        tokens: vec![[token; 16]],
        bytes_max: usize::MAX,
        lapsed: Box::new(|_, _| EventChange::Done),
    };
    node.store.lease(call).await.unwrap()
}

/// P4: a queue was pulled from, and handlers run its events by now. An earlier lease is settled through a process that
/// owns nothing, and the next event of the key was not written: its owner is notified all the same.
#[tokio::test]
async fn the_end_of_a_lease_is_told_to_whoever_handles_the_queue_by_now() {
    let store_dir = TestStore::new();
    let (mut owner, other) = (store_dir.node().await, store_dir.node().await);
    let hour = Duration::from_secs(3600);
    let declare = async |pull| {
        let (name, ordered) = (ORDERS.to_owned(), true);
        let queue = QueueSpec { name, ordered, pull, window: hour, horizon: hour, ..QueueSpec::default() };
        owner.store.declare(queue.clone(), DeclaredBy::Runner).await.unwrap();
        other.store.declare(queue, DeclaredBy::Runner).await.unwrap();
    };
    declare(true).await;
    for id in ["first", "second"] {
        other.publish(id, Some("k")).await.unwrap();
    }
    assert_eq!(lease(&other, 1, 5).await.entries.len(), 1);
    declare(false).await;
    owner.take().await;
    let (tell, mut told) = unbounded_channel();
    owner.store.watch(Arc::new(move |arrivals: Arrivals| {
        let _ = tell.send(arrivals.missed || arrivals.recall);
    }));
    // A new watcher looks at everything.
    tokio::time::timeout(PATIENCE, told.recv()).await.expect("the watcher did not look");
    assert!(owner.due(at(9)).await.is_empty());
    let (tenant, queue, id) = (String::new(), ORDERS.to_owned(), "first".to_owned());
    let held = LeaseRef { tenant, queue, id, attempt: 1, token: [1; 16] };
    let settle = LeaseSettle { lease: held, at: at(7), decide: Box::new(|_, _| EventChange::Done) };
    assert_eq!(other.store.settle_leased(vec![settle]).await.unwrap(), [LeaseSettleResult::Applied]);
    let heard = tokio::time::timeout(PATIENCE, told.recv()).await.expect("it was not announced");
    assert_eq!(heard, Some(true));
    assert_eq!(owner.due_ids(at(9)).await, ["second"]);
}

/// Of many dead letters that may block a number of events each, a lease call checks some, and the next one the next;
/// so the last of them, which blocks too many, has its turn.
#[tokio::test]
async fn every_dead_letter_of_a_queue_that_is_leased_from_has_its_turn() {
    const OTHERS: u32 = 1_500;
    let store_dir = TestStore::new();
    let (node, mut raw) = (store_dir.node().await, store_dir.raw().await);
    let hour = Duration::from_secs(3600);
    let (name, ordered, pull) = (ORDERS.to_owned(), true, true);
    let queue = QueueSpec { name, ordered, pull, window: hour, horizon: hour, ..QueueSpec::default() };
    node.store.declare(queue, DeclaredBy::Runner).await.unwrap();
    raw.say(&format!("SELECT setval('redrive.place', {OTHERS} + 1)")).await.unwrap();
    for id in ["dead", "next"] {
        node.publish(id, Some("key")).await.unwrap();
    }
    assert_eq!(lease(&node, 1, 1).await.entries[0].event.id, "dead");
    let (tenant, queue, id) = (String::new(), ORDERS.to_owned(), "dead".to_owned());
    let held = LeaseRef { tenant, queue, id, attempt: 1, token: [1; 16] };
    let progress = EventProgress { attempts: 1, ..EventProgress::fresh(at(0)) };
    let park = ParkFollowers::UpTo { until: None, count: Some(1) };
    let reason = DeadReason::Permanent;
    let decide = Box::new(move |_: &_, _| EventChange::Dead { reason, progress: progress.clone(), park });
    let settled = node.store.settle_leased(vec![LeaseSettle { lease: held, at: at(2), decide }]).await;
    assert_eq!(settled.unwrap(), [LeaseSettleResult::Applied]);
    // Others before it, of keys without waiting events.
    let columns = "SELECT string_agg(attname, ', ') FROM pg_attribute WHERE attrelid = 'redrive.tracked'::regclass \
                   AND attnum > 0 AND attname NOT IN ('seq', 'id', 'key')";
    let columns: String = raw.say(columns).await.unwrap()[0].get(0);
    raw.say(&format!(
        "INSERT INTO redrive.tracked (seq, id, key, {columns}) SELECT seq - n, id || n, key || n, {columns} \
         FROM redrive.tracked, generate_series(1, {OTHERS}) n"
    ))
    .await
    .unwrap();
    // One more behind it, by a publisher that does not look at the others.
    raw.say(&format!("SELECT redrive.publish('{ORDERS}', 'more', key => 'key')")).await.unwrap();
    assert!(lease(&node, 2, 3).await.entries.is_empty());
    assert_eq!(lease(&node, 3, 3).await.entries[0].event.id, "next");
}

/// P1: a worker has leased the first event of a key; then an earlier one is committed, which is due at once, or soon.
/// It waits for the end of that lease.
#[tokio::test]
async fn a_first_that_is_committed_late_is_not_leased_beside_another() {
    for delay in [0, 1] {
        let store_dir = TestStore::new();
        let (node, other) = (store_dir.node().await, store_dir.node().await);
        let hour = Duration::from_secs(3600);
        let (name, ordered, pull) = (ORDERS.to_owned(), true, true);
        let queue = QueueSpec { name, ordered, pull, window: hour, horizon: hour, ..QueueSpec::default() };
        node.store.declare(queue, DeclaredBy::Runner).await.unwrap();
        let open = Open::with(&other.store, None, move |tx| {
            let late = event("late", Some("k")).delay(Duration::from_secs(delay));
            tx.publish(NewEvent::at(late, at(0))).unwrap();
        })
        .await;
        node.publish("early", Some("k")).await.unwrap();
        let ids = |leased: &LeasedEvents| -> Vec<String> {
            leased.entries.iter().map(|entry| entry.event.id.clone()).collect()
        };
        assert_eq!(ids(&lease(&node, 1, 5).await), ["early"]);
        open.commit().await;
        let beside = lease(&node, 2, 6).await;
        assert_eq!(ids(&beside), [""; 0], "delay {delay}");
        assert_eq!(beside.next_due, Some(at(60)), "nothing is to be had before that lease is over");
        let (tenant, queue, id) = (String::new(), ORDERS.to_owned(), "early".to_owned());
        let held = LeaseRef { tenant, queue, id, attempt: 1, token: [1; 16] };
        let settle = LeaseSettle { lease: held, at: at(7), decide: Box::new(|_, _| EventChange::Done) };
        assert_eq!(node.store.settle_leased(vec![settle]).await.unwrap(), [LeaseSettleResult::Applied]);
        assert_eq!(ids(&lease(&node, 3, 8).await), ["late"]);
    }
}
