//! Events without a key, published by a process that has free slots for them, in a PostgreSQL database that several
//! processes share: they run there. Events beyond its slots, and events with a key, go to the shard of their hash.
#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use redrive::engine::{OpenOptions, Redrive, Transaction};
use redrive::store::postgres::PostgresSettings;
use redrive::store::sql::SqlError;
use redrive::{Event, Published, Reply};
use redrive_core::event::identity;
use redrive_testkit::postgres::{Proxy, Server, Weather, a_name};
use tokio::sync::{mpsc, watch};

const SECOND: Duration = Duration::from_secs(1);
/// How long a test waits at most, however slow the machine is.
const PATIENCE: Duration = Duration::from_secs(60);
const SHARDS: u32 = 8;

/// Engines on one schema, and the starts that their handlers report.
struct Fleet {
    schema: String,
    lease: Duration,
    say: mpsc::UnboundedSender<(String, String)>,
    said: mpsc::UnboundedReceiver<(String, String)>,
}

impl Fleet {
    fn new(lease: Duration) -> Self {
        let (say, said) = mpsc::unbounded_channel();
        Self { schema: a_name("near"), lease, say, said }
    }

    /// An engine whose handlers report their start, and end when they may.
    async fn node(&self, name: &str, url: &str, concurrency: u32, may_end: &watch::Sender<bool>) -> Redrive {
        let mut settings = PostgresSettings::default();
        settings.schema.clone_from(&self.schema);
        (settings.shards, settings.connections, settings.lease) = (SHARDS, 6, self.lease);
        name.clone_into(&mut settings.name);
        let redrive = OpenOptions::new().postgres(settings).open(url).await.unwrap();
        let (say, name, may_end) = (self.say.clone(), name.to_owned(), may_end.subscribe());
        let handler = move |order: redrive::Delivery| {
            let _ = say.send((name.clone(), order.id().to_owned()));
            let mut may_end = may_end.clone();
            async move {
                let _ = may_end.wait_for(|may| *may).await;
                Reply::ok()
            }
        };
        redrive.queue("orders").ordered().concurrency(concurrency).handle(handler).await.unwrap();
        redrive.start().await.unwrap();
        redrive
    }

    /// The next start: the node, and the event.
    async fn next(&mut self) -> (String, String) {
        tokio::time::timeout(PATIENCE, self.said.recv()).await.expect("something starts").unwrap()
    }

    /// Waits until these have started; returns the node of each, and how often.
    async fn until_started(
        &mut self,
        ids: impl IntoIterator<Item = String>,
    ) -> BTreeMap<String, Vec<String>> {
        let mut started: BTreeMap<String, Vec<String>> = ids.into_iter().map(|id| (id, Vec::new())).collect();
        while started.values().any(Vec::is_empty) {
            let (node, id) = self.next().await;
            started.entry(id).or_default().push(node);
        }
        started
    }
}

fn order(id: u32) -> Event {
    Event::new("orders", id.to_string())
}

async fn publish(by: &Redrive, event: Event) {
    assert!(matches!(by.publish(event).await.unwrap(), Published::Accepted(_)));
}

/// Waits until nodes own this many shards.
async fn until_owned(by: &Redrive, names: &[&str], counts: &[usize]) {
    let began = Instant::now();
    loop {
        let nodes = by.nodes().await.unwrap().unwrap();
        let of = |name: &&str| {
            let named = nodes.list.iter().filter(|node| node.name == *name);
            named.map(|node| nodes.owned_by(node.id)).sum::<usize>()
        };
        let now: Vec<usize> = names.iter().map(of).collect();
        if now == counts {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "{names:?} own {now:?}, and not {counts:?}");
        tokio::task::yield_now().await;
    }
}

/// Waits until nodes own this many shards and have begun to run their events: they know what the table says.
async fn until_at_work(fleet: &mut Fleet, by: &Redrive, names: &[&str], counts: &[usize]) {
    until_owned(by, names, counts).await;
    let mut ids = Vec::new();
    for shard in 0..SHARDS {
        let is_there = |event: &Event| identity::shard(event, SHARDS) == shard;
        let event = (0..).map(|key: u32| Event::new("orders", format!("first {shard}")).key(key.to_string()));
        let event = event.into_iter().find(is_there).unwrap();
        ids.push(event.id.clone());
        publish(by, event).await;
    }
    fleet.until_started(ids).await;
    until_empty(fleet, by).await;
}

/// Waits until nothing is left to do, and the driver knows it.
async fn until_empty(fleet: &Fleet, by: &Redrive) {
    let began = Instant::now();
    while !shards(fleet, by).await.is_empty() {
        assert!(began.elapsed() < PATIENCE);
        tokio::task::yield_now().await;
    }
    by.idle().await;
}

/// The shards of the present events, by id.
async fn shards(fleet: &Fleet, by: &Redrive) -> BTreeMap<String, u32> {
    let read =
        format!("SELECT id, shard FROM {0}.fresh UNION ALL SELECT id, shard FROM {0}.tracked", fleet.schema);
    let read = move |tx: &mut Transaction<'_>| {
        let rows = tx.query(&read, &[])?;
        rows.iter()
            .map(|row| Ok((row.get(0)?, u32::try_from(row.get::<i64>(1)?).unwrap())))
            .collect::<Result<_, SqlError>>()
    };
    by.transact(read).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_free_process_publishes_runs_there() {
    let mut fleet = Fleet::new(PATIENCE);
    let (url, go) = (Server::shared().url(), watch::Sender::new(true));
    let one = fleet.node("one", &url, 4, &go).await;
    let two = fleet.node("two", &url, 4, &go).await;
    until_at_work(&mut fleet, &one, &["one", "two"], &[4, 4]).await;
    for id in 0..20 {
        let (by, name) = if id % 3 == 0 { (&two, "two") } else { (&one, "one") };
        publish(by, order(id)).await;
        assert_eq!(fleet.next().await, (name.to_owned(), id.to_string()));
        until_empty(&fleet, by).await;
        let again = by.publish(order(id)).await.unwrap();
        assert!(matches!(again, Published::Duplicate(_)), "wherever it was, it is known: {again:?}");
    }
    for node in [one, two] {
        node.shutdown(SECOND).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_too_much_for_its_publisher_is_run_by_others() {
    const COUNT: u32 = 40;

    let mut fleet = Fleet::new(PATIENCE);
    let url = Server::shared().url();
    let (slow, go) = (watch::Sender::new(true), watch::Sender::new(true));
    let one = fleet.node("one", &url, 1, &slow).await;
    let two = fleet.node("two", &url, 1, &go).await;
    until_at_work(&mut fleet, &one, &["one", "two"], &[4, 4]).await;
    slow.send_replace(false);
    publish(&one, order(0)).await;
    assert_eq!(fleet.next().await, ("one".to_owned(), "0".to_owned()));
    // The first is still running. Some together, some one by one.
    let many = one.publish_all((1..COUNT / 2).map(order)).await.unwrap();
    assert!(many.iter().all(|one| matches!(one, Ok(Published::Accepted(_)))));
    for id in COUNT / 2..COUNT {
        publish(&one, order(id)).await;
    }
    let places = shards(&fleet, &one).await;
    let hashed = |id: u32| identity::shard(&order(id), SHARDS);
    // Events that are done are gone.
    for id in 1..COUNT {
        let place = places.get(&id.to_string()).copied().unwrap_or(hashed(id));
        assert_eq!(place, hashed(id), "{id} is spread like any other");
    }
    // The events of the other process do not wait for the first.
    let nodes = one.nodes().await.unwrap().unwrap();
    let of_two = nodes.list.iter().find(|node| node.name == "two").map(|node| node.id);
    let is_twos = |id: &u32| nodes.shards[hashed(*id) as usize].owner == of_two;
    let (twos, ones): (Vec<u32>, Vec<u32>) = (1..COUNT).partition(is_twos);
    assert!(!twos.is_empty() && !ones.is_empty());
    let started = fleet.until_started(twos.iter().map(u32::to_string)).await;
    assert_eq!(started.len(), twos.len(), "nothing else starts: {started:?}");
    assert!(started.values().all(|by| by == &["two"]), "{started:?}");
    // And the rest is only behind it.
    slow.send_replace(true);
    let started = fleet.until_started(ones.iter().map(u32::to_string)).await;
    assert!(started.values().all(|by| by == &["one"]), "{started:?}");
    until_empty(&fleet, &one).await;
    for node in [one, two] {
        node.shutdown(SECOND).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_events_of_a_key_stay_in_its_shard_whoever_publishes_them() {
    const COUNT: u32 = 20;

    let mut fleet = Fleet::new(PATIENCE);
    let (url, go) = (Server::shared().url(), watch::Sender::new(true));
    let one = fleet.node("one", &url, 100, &go).await;
    let two = fleet.node("two", &url, 100, &go).await;
    until_at_work(&mut fleet, &one, &["one", "two"], &[4, 4]).await;
    go.send_replace(false);
    for id in 0..COUNT {
        let by = if id % 2 == 0 { &one } else { &two };
        publish(by, order(id).key("k")).await;
    }
    let home = identity::shard(&order(0).key("k"), SHARDS);
    let places = shards(&fleet, &one).await;
    assert_eq!(places.len(), COUNT as usize);
    assert!(places.values().all(|shard| *shard == home), "{places:?}");
    go.send_replace(true);
    let mut ran = Vec::new();
    for _ in 0..COUNT {
        ran.push(fleet.next().await.1.parse::<u32>().unwrap());
    }
    assert_eq!(ran, (0..COUNT).collect::<Vec<_>>());
    until_empty(&fleet, &one).await;
    for node in [one, two] {
        node.shutdown(SECOND).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_published_near_outlives_its_publisher() {
    const COUNT: u32 = 10;

    let mut fleet = Fleet::new(2 * SECOND);
    let (never, go) = (watch::Sender::new(true), watch::Sender::new(true));
    let line = Proxy::start(Server::shared()).unwrap();
    // Twice as many slots: a slot that was just freed may count as taken a moment longer.
    let one = fleet.node("one", &line.url(), 2 * COUNT, &never).await;
    let two = fleet.node("two", &Server::shared().url(), COUNT, &go).await;
    until_at_work(&mut fleet, &two, &["one", "two"], &[4, 4]).await;
    never.send_replace(false);
    for id in 0..COUNT {
        publish(&one, order(id)).await;
    }
    let ids = || (0..COUNT).map(|id| id.to_string());
    let started = fleet.until_started(ids()).await;
    assert!(started.values().all(|by| by == &["one"]), "all of it was near: {started:?}");
    line.turn(Weather::Torn);
    let started = fleet.until_started(ids()).await;
    assert!(started.values().all(|by| by == &["two"]), "each is done where its shard is now: {started:?}");
    until_empty(&fleet, &two).await;
    for id in 0..COUNT {
        let again = two.publish(order(id)).await.unwrap();
        assert!(matches!(again, Published::Duplicate(_)), "{again:?}");
    }
    two.shutdown(SECOND).await.unwrap();
    drop(one);
}

#[tokio::test(flavor = "multi_thread")]
async fn shards_change_hands_while_everybody_publishes_near() {
    let mut fleet = Fleet::new(PATIENCE);
    let (url, go) = (Server::shared().url(), watch::Sender::new(true));
    let mut nodes: Vec<(&str, Redrive)> = Vec::new();
    let mut next = 0;
    // Other nodes come and go; all present nodes publish, before, meanwhile and after.
    for (comes, goes) in
        [(Some("one"), None), (Some("two"), None), (Some("three"), None), (None, Some(1)), (None, Some(1))]
    {
        let stop = watch::Sender::new(false);
        let publishing: Vec<_> = nodes
            .iter()
            .enumerate()
            .filter(|(at, _)| Some(*at) != goes)
            .map(|(at, (_, node))| {
                let (node, mut stop) = (node.clone(), stop.subscribe());
                let mut id = next + u32::try_from(at).unwrap() * 1_000_000;
                tokio::spawn(async move {
                    let first = id;
                    while !*stop.borrow_and_update() || id < first + 50 {
                        publish(&node, order(id)).await;
                        id += 1;
                    }
                    first..id
                })
            })
            .collect();
        let mut ids = Vec::new();
        if let Some(name) = comes {
            // The attempts in the shards that it is to get take a while, and the shards are not handed off until then.
            go.send_replace(false);
            nodes.push((name, fleet.node(name, &url, 8, &go).await));
            for id in next + 5_000_000..next + 5_000_100 {
                publish(&nodes[0].1, order(id)).await;
                ids.push(id.to_string());
            }
            go.send_replace(true);
        }
        if let Some(at) = goes {
            nodes.remove(at).1.shutdown(SECOND).await.unwrap();
        }
        let names: Vec<&str> = nodes.iter().map(|(name, _)| *name).collect();
        let counts: &[usize] = [&[8][..], &[4, 4], &[3, 3, 2]][names.len() - 1];
        until_owned(&nodes[0].1, &names, counts).await;
        stop.send_replace(true);
        for published in publishing {
            ids.extend(published.await.unwrap().map(|id| id.to_string()));
        }
        let started = fleet.until_started(ids).await;
        let twice: Vec<_> = started.iter().filter(|(_, by)| by.len() > 1).collect();
        assert!(twice.is_empty(), "no process died, and these ran twice: {twice:?}");
        until_empty(&fleet, &nodes[0].1).await;
        next += 10_000_000;
    }
    for (_, node) in nodes {
        node.shutdown(SECOND).await.unwrap();
    }
}
