//! Several engines on one PostgreSQL database: which node runs which event, and what happens when a node is gone.
#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::time::{Duration, Instant};

use redrive::engine::{EventClock, OpenOptions, Redrive, Transaction};
use redrive::store::postgres::PostgresSettings;
use redrive::store::sql::SqlError;
use redrive::{Delivery, Event};
use redrive_testkit::postgres::{Proxy, Server, Weather, a_name};

const SECOND: Duration = Duration::from_secs(1);
/// How long a test waits at most, however slow the machine is.
const PATIENCE: Duration = Duration::from_secs(60);

/// A schema that several engines share, and a table of their handlers' effects.
#[derive(Clone)]
struct Place {
    schema: String,
    lease: Duration,
}

impl Place {
    async fn new(lease: Duration) -> Self {
        let place = Self { schema: a_name("nodes"), lease };
        let maker = place.open("maker").await;
        let make = format!("CREATE TABLE {} (id TEXT, node TEXT)", place.done());
        maker.transact(move |tx| tx.execute(&make, &[])).await.unwrap();
        maker.queue("orders").declare().await.unwrap();
        maker.shutdown(SECOND).await.unwrap();
        place
    }

    fn done(&self) -> String {
        format!("{}_done", self.schema)
    }

    async fn open(&self, name: &str) -> Redrive {
        self.open_at(name, &Server::shared().url()).await
    }

    fn settings(&self, name: &str) -> PostgresSettings {
        let mut settings = PostgresSettings::default();
        settings.schema.clone_from(&self.schema);
        (settings.shards, settings.connections, settings.lease) = (8, 6, self.lease);
        name.clone_into(&mut settings.name);
        settings
    }

    async fn open_at(&self, name: &str, url: &str) -> Redrive {
        OpenOptions::new().postgres(self.settings(name)).open(url).await.unwrap()
    }

    /// An engine that records its effects.
    async fn node(&self, name: &'static str) -> Redrive {
        self.node_at(name, &Server::shared().url()).await
    }

    async fn node_at(&self, name: &'static str, url: &str) -> Redrive {
        self.run(self.open_at(name, url).await, name).await
    }

    async fn run(&self, redrive: Redrive, name: &'static str) -> Redrive {
        let insert = format!("INSERT INTO {} (id, node) VALUES ($1, $2)", self.done());
        let handler = move |tx: &mut Transaction<'_>, order: &Delivery| {
            tx.execute(&insert, &[order.id().into(), name.into()])
                .map(drop)
                .map_err(redrive::Failure::permanent)
        };
        redrive.queue("orders").handle_in(handler).await.unwrap();
        redrive.start().await.unwrap();
        redrive
    }

    /// How many effects there are, how many distinct ones, and how many were by this node.
    async fn count(&self, by: &Redrive, node: &str) -> (i64, i64, i64) {
        let read = format!(
            "SELECT count(*), count(DISTINCT id), count(*) FILTER (WHERE node = '{node}') FROM {}",
            self.done()
        );
        let read = move |tx: &mut Transaction<'_>| {
            let row = &tx.query(&read, &[])?[0];
            Ok::<_, SqlError>((row.get(0)?, row.get(1)?, row.get(2)?))
        };
        by.transact(read).await.unwrap()
    }

    /// Waits until there are this many distinct effects.
    async fn until_done(&self, by: &Redrive, count: i64) {
        let began = Instant::now();
        while self.count(by, "").await.1 < count {
            assert!(began.elapsed() < PATIENCE, "{:?} of {count}", self.count(by, "").await);
            tokio::task::yield_now().await;
        }
    }
}

/// How many shards nodes own, by their names.
async fn owned(by: &Redrive, names: &[&str]) -> Vec<usize> {
    let nodes = by.nodes().await.unwrap().unwrap();
    let of = |name: &&str| {
        let named = nodes.list.iter().filter(|node| node.name == *name);
        named.map(|node| nodes.owned_by(node.id)).sum()
    };
    names.iter().map(of).collect()
}

/// Waits until nodes own this many shards; returns how long that took.
async fn until_owned(by: &Redrive, names: &[&str], counts: &[usize]) -> Duration {
    let began = Instant::now();
    loop {
        let now = owned(by, names).await;
        if now == counts {
            return began.elapsed();
        }
        assert!(began.elapsed() < PATIENCE, "{names:?} own {now:?}, and not {counts:?}");
        tokio::task::yield_now().await;
    }
}

async fn publish(by: &Redrive, ids: std::ops::Range<u32>) {
    let events = ids.map(|id| Event::new("orders", id.to_string()));
    for published in by.publish_all(events).await.unwrap() {
        published.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn shards_are_shared_out_among_those_that_run_and_whoever_stops_is_inherited_from_at_once() {
    // So long that no test waits for it to run out.
    let place = Place::new(PATIENCE * 10).await;
    let publisher = place.open("publisher").await;
    let one = place.node("one").await;
    assert_eq!(owned(&one, &["one"]).await, [8], "at once, because no other node is there");
    let two = place.node("two").await;
    until_owned(&publisher, &["publisher", "one", "two"], &[0, 4, 4]).await;
    publish(&publisher, 0..100).await;
    place.until_done(&publisher, 100).await;
    assert_eq!(place.count(&publisher, "").await.0, 100, "each once");
    let by_one = place.count(&publisher, "one").await.2;
    assert!(by_one > 0 && by_one < 100, "both do something: {by_one} of a hundred by the first");
    let took = {
        two.shutdown(SECOND).await.unwrap();
        until_owned(&publisher, &["one"], &[8]).await
    };
    println!("inherited in {took:?}");
    publish(&publisher, 100..200).await;
    place.until_done(&publisher, 200).await;
    assert_eq!(place.count(&publisher, "").await.0, 200, "each once");
    let nodes = publisher.nodes().await.unwrap().unwrap();
    assert!(nodes.list.iter().all(|node| node.name != "two"), "it has left: {nodes:?}");
    one.shutdown(SECOND).await.unwrap();
    publisher.shutdown(SECOND).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_cut_off_is_taken_over_from_and_comes_back() {
    for weather in [Weather::Torn, Weather::Hushed] {
        let place = Place::new(2 * SECOND).await;
        let line = Proxy::start(Server::shared()).unwrap();
        let one = place.node("one").await;
        let two = place.node_at("two", &line.url()).await;
        until_owned(&one, &["one", "two"], &[4, 4]).await;
        line.turn(weather);
        let took = until_owned(&one, &["one"], &[8]).await;
        assert!(took < 3 * SECOND, "{weather:?}: it took {took:?}, and the lease is two seconds");
        println!("{weather:?}: taken over in {took:?}");
        let before = place.count(&one, "two").await.2;
        publish(&one, 0..100).await;
        place.until_done(&one, 100).await;
        assert_eq!(place.count(&one, "two").await.2, before, "{weather:?}: who is cut off does nothing");
        line.turn(Weather::Fair);
        until_owned(&one, &["one", "two"], &[4, 4]).await;
        publish(&one, 100..200).await;
        place.until_done(&one, 200).await;
        assert_eq!(place.count(&one, "").await.0, 200, "{weather:?}: each once");
        assert!(place.count(&one, "two").await.2 > 0, "{weather:?}: it does its part again");
        two.check().await.unwrap();
        two.shutdown(SECOND).await.unwrap();
        one.shutdown(SECOND).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn machines_whose_clocks_are_hours_apart_agree_on_what_is_due() {
    const HOUR: i64 = 3600;

    let place = Place::new(PATIENCE).await;
    let url = Server::shared().url();
    let open = async |name, wrong| {
        let options = OpenOptions::new().postgres(place.settings(name)).clock(EventClock::wrong_by(wrong));
        options.open(&url).await.unwrap()
    };
    for (publisher, runner) in [(HOUR, -HOUR), (-HOUR, HOUR)] {
        let (publisher, runner) = (open("publisher", publisher).await, open("runner", runner).await);
        let apart = publisher.now().since(runner.now()).max(runner.now().since(publisher.now()));
        assert!(apart < SECOND, "they are {apart:?} apart");
        let database = publisher.nodes().await.unwrap().unwrap().at;
        let apart = publisher.now().since(database).max(database.since(publisher.now()));
        assert!(apart < SECOND, "they are {apart:?} from the database's clock");
        let runner = place.run(runner, "runner").await;
        let before = place.count(&publisher, "").await.1;
        let id = |what: &str| format!("{what} {before}");
        let expires = Event::new("orders", id("soon")).expires_after(PATIENCE);
        let later = Event::new("orders", id("later")).delay(SECOND);
        let published = Instant::now();
        for event in [expires, later] {
            publisher.publish(event).await.unwrap();
        }
        place.until_done(&publisher, before + 1).await;
        assert!(published.elapsed() < PATIENCE / 2, "an event that is due runs at once");
        place.until_done(&publisher, before + 2).await;
        assert!(published.elapsed() >= SECOND, "one that is to wait waits");
        runner.shutdown(SECOND).await.unwrap();
        publisher.shutdown(SECOND).await.unwrap();
    }
}
