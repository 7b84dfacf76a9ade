//! `redrive.publish(…)`: an event published in SQL equals one published in Rust, and is refused in the same cases.
#![cfg(all(feature = "postgres", unix))]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::time::Duration;

use redrive_core::event::{Expiry, Meta, When};
use redrive_core::{Event, Moment, RandomSource, SeededRandom};
use redrive_store::postgres::sqlx::{self, AssertSqlSafe, Row};
use redrive_store::{DeclaredBy, NewEvent, PublishError, Published, QueueSpec, prelude::*};

mod postgres_common;

use postgres_common::{Node, ORDERS, Raw, TestStore, at};

/// How many random events there are.
const EVENTS: u32 = 400;

/// Calls the function.
async fn call(raw: &mut Raw, event: &Event) -> sqlx::Result<String> {
    let sql = raw.named(
        "SELECT redrive.publish(queue => $1, id => $2, payload => $3::bytea, key => $4, tenant => $5, \
         content_type => $6, headers => $7::jsonb, delay => $8 * interval '1 us', \
         due => timestamptz 'epoch' + $9 * interval '1 us', expires_after => $10 * interval '1 us', \
         expires_at => timestamptz 'epoch' + $11 * interval '1 us', correlation => $12, causation => $13)",
    );
    let micros = |nanos: u128| i64::try_from(nanos / 1000).unwrap();
    let moment = |at: Moment| micros(u128::from(at.as_nanos()));
    let (delay, due) = match event.when {
        When::Now => (None, None),
        When::After(delay) => (Some(micros(delay.as_nanos())), None),
        When::At(at) => (None, Some(moment(at))),
    };
    let (expires_after, expires_at) = match event.expires {
        None => (None, None),
        Some(Expiry::After(time)) => (Some(micros(time.as_nanos())), None),
        Some(Expiry::At(at)) => (None, Some(moment(at))),
    };
    let meta = event.meta.as_deref().cloned().unwrap_or_default();
    let headers = (!meta.headers.is_empty()).then(|| serde_json::to_string(&meta.headers).unwrap());
    let query = sqlx::query_scalar(AssertSqlSafe(sql))
        .bind(&event.queue)
        .bind(&event.id)
        .bind(&event.payload)
        .bind(&event.key)
        .bind(&event.tenant)
        .bind(&meta.content_type)
        .bind(headers)
        .bind(delay)
        .bind(due)
        .bind(expires_after)
        .bind(expires_at)
        .bind(&meta.correlation)
        .bind(&meta.causation);
    query.fetch_one(&mut raw.conn).await
}

/// Events of all kinds, the same each time.
struct Maker(SeededRandom);

impl Maker {
    fn below(&mut self, end: u32) -> u32 {
        u32::try_from(self.0.roll() % u64::from(end)).unwrap()
    }

    fn text(&mut self, most: u32) -> String {
        const LETTERS: [&str; 12] =
            ["a", "Z", "7", " ", "\"", "\\", "/", "é", "漢", "\u{1f6a2}", "\u{2028}", "'"];
        let letters = self.below(most + 1);
        (0..letters).map(|_| LETTERS[self.below(12) as usize]).collect()
    }

    fn maybe(&mut self) -> Option<String> {
        (self.below(3) == 0).then(|| self.text(20))
    }

    fn micros(&mut self) -> Duration {
        Duration::from_micros(u64::from(self.below(4_000_000_000)))
    }

    fn event(&mut self, number: u32) -> Event {
        let queue = if self.below(2) == 0 { ORDERS } else { "loose" };
        let tenant = ["", "acme", "Ümläut \"&\" Co"][self.below(3) as usize];
        let bytes = [0, 3, 4, 5, 64, 5000][self.below(6) as usize];
        let payload: Vec<u8> = (0..bytes).map(|_| self.0.roll().to_le_bytes()[0]).collect();
        let mut event =
            Event::new(queue, format!("{number}-{}", self.text(9))).tenant(tenant).payload(payload);
        event.key = self.maybe();
        event.when = match self.below(4) {
            0 => When::After(self.micros()),
            1 => When::At(Moment::from_nanos(1_000_000_000_000_000_000) + self.micros()),
            2 => When::At(Moment::from_nanos(4_000_000_000_000_000_000) + self.micros()),
            _ => When::Now,
        };
        event.expires = match self.below(4) {
            0 => Some(Expiry::After(Duration::from_secs(5000) + self.micros())),
            1 => Some(Expiry::At(Moment::from_nanos(4_100_000_000_000_000_000) + self.micros())),
            _ => None,
        };
        if self.below(2) == 0 {
            let pairs = 1 + self.below(3);
            let headers = (0..pairs).map(|_| (self.text(5), self.text(9))).collect();
            let (content_type, correlation) = (self.maybe(), self.maybe());
            let causation = self.maybe();
            event.meta =
                Some(Box::new(Meta { headers, content_type, correlation, causation, ..Meta::default() }));
        }
        event
    }
}

/// A place with two queues, one of which keeps order.
async fn store_dir() -> (TestStore, Node, Raw) {
    let store_dir = TestStore::new();
    let node = store_dir.node().await;
    let loose =
        QueueSpec { name: "loose".to_owned(), window: Duration::from_secs(60), ..QueueSpec::default() };
    node.store.declare(loose, DeclaredBy::Runner).await.unwrap();
    let raw = store_dir.raw().await;
    (store_dir, node, raw)
}

/// All written rows, without the number of the transaction.
async fn rows(raw: &mut Raw) -> Vec<String> {
    let mut all = Vec::new();
    for table in ["stream", "dedupe", "fresh", "tracked"] {
        let sql = format!("SELECT (to_jsonb(r) - 'stamp')::text FROM redrive.{table} r ORDER BY 1");
        let found = raw.say(&sql).await.unwrap();
        all.extend(found.iter().map(|row| format!("{table} {}", row.get::<String, _>(0))));
    }
    all
}

#[tokio::test]
async fn a_row_that_is_published_in_sql_is_the_row_that_is_published_in_rust() {
    let (_in_sql, sql_node, mut sql) = store_dir().await;
    let (_in_rust, rust_node, mut rust) = store_dir().await;
    let mut maker = Maker(SeededRandom::new(20));
    for number in 0..EVENTS {
        let event = maker.event(number);
        event.check().unwrap();
        assert_eq!(call(&mut sql, &event).await.unwrap(), "accepted", "{event:?}");
        let written = sql.say("SELECT published FROM redrive.dedupe ORDER BY published DESC LIMIT 1").await;
        let published: i64 = written.unwrap()[0].get(0);
        let new = NewEvent::at(event.clone(), Moment::from_nanos(u64::try_from(published).unwrap()));
        let answers = rust_node.store.publish(vec![new]).await.unwrap();
        assert!(matches!(answers[0], Ok(Published::Accepted(_))), "{answers:?}");
        // Each checks the events that the other has published.
        if number % 20 == 0 {
            assert_eq!(call(&mut rust, &event).await.unwrap(), "duplicate", "{event:?}");
            let again = sql_node.store.publish(vec![NewEvent::at(event.clone(), at(0))]).await.unwrap();
            assert!(matches!(again[0], Ok(Published::Duplicate(_))), "{again:?}");
            let now = rust.number("SELECT last_value FROM redrive.place").await;
            sql.say(&format!("SELECT setval('redrive.place', {now})")).await.unwrap();
        }
    }
    let (in_sql, in_rust) = (rows(&mut sql).await, rows(&mut rust).await);
    assert!(in_sql.len() > 2 * EVENTS as usize);
    for (ours, theirs) in in_sql.iter().zip(&in_rust) {
        assert_eq!(ours, theirs);
    }
    assert_eq!(in_sql.len(), in_rust.len());
    // A reader finds them undamaged.
    let mut node = sql_node;
    node.take().await;
    let far = Moment::from_nanos(5_000_000_000_000_000_000);
    assert!(!node.due(far).await.is_empty());
}

#[tokio::test]
async fn what_cannot_be_kept_is_refused_in_the_same_words() {
    let (_place, node, mut raw) = store_dir().await;
    let good = || Event::new(ORDERS, "1");
    let cases = [
        Event::new(ORDERS, ""),
        Event::new("or/ders", "1"),
        Event::new("", "1"),
        Event::new("q".repeat(101), "1"),
        Event::new("nowhere", "1"),
        Event::new(ORDERS, "i".repeat(257)),
        good().key("k".repeat(257)),
        good().tenant("t".repeat(129)),
        good().payload(vec![0; (1 << 20) + 1]),
        good().header("a", "b".repeat(16 << 10)),
        good().content_type("c".repeat(9000)).correlation("d".repeat(9000)),
    ];
    for event in cases {
        let refused = call(&mut raw, &event).await.unwrap_err();
        let said = refused.as_database_error().unwrap().message().to_owned();
        let answers = node.store.publish(vec![NewEvent::at(event, at(0))]).await.unwrap();
        assert_eq!(said, answers[0].as_ref().unwrap_err().to_string());
    }
    for (event, part) in [
        (Event::new(ORDERS, "a\nb"), "the id \"a\\nb\" contains a control character"),
        (good().header("a", "b\u{7f}"), "the value of a header"),
        (
            good().delay(Duration::from_secs(9)).expires_after(Duration::from_secs(8)),
            "expires after 00:00:08: it would never run",
        ),
    ] {
        let refused = call(&mut raw, &event).await.unwrap_err().to_string();
        assert!(refused.contains(part), "{refused}");
    }
    assert_eq!(raw.number("SELECT count(*) FROM redrive.dedupe").await, 0);
}

#[tokio::test]
async fn one_id_is_one_event_whoever_publishes_it() {
    let (_place, node, mut raw) = store_dir().await;
    let event = Event::new(ORDERS, "17").payload(*b"one");
    assert_eq!(call(&mut raw, &event).await.unwrap(), "accepted");
    assert_eq!(call(&mut raw, &event.clone().header("trace", "2")).await.unwrap(), "duplicate");
    for other in [event.clone().payload(*b"two"), event.clone().content_type("text/plain")] {
        let refused = call(&mut raw, &other).await.unwrap_err();
        let said = refused.as_database_error().unwrap();
        assert_eq!(said.code().as_deref(), Some("23505"));
        let reused = PublishError::IdReused { queue: ORDERS.to_owned(), id: "17".to_owned() };
        assert_eq!(said.message(), reused.to_string());
    }
    // The same id of another tenant is another event.
    assert_eq!(call(&mut raw, &event.clone().tenant("acme")).await.unwrap(), "accepted");
    // Only the dedupe record is left of an event that has ended and expired.
    raw.say("DELETE FROM redrive.fresh").await.unwrap();
    assert_eq!(call(&mut raw, &event.clone().payload(*b"one")).await.unwrap(), "duplicate");
    raw.say("UPDATE redrive.dedupe SET until = 1").await.unwrap();
    assert_eq!(call(&mut raw, &event.payload(*b"three")).await.unwrap(), "accepted");
    assert_eq!(raw.number("SELECT count(*) FROM redrive.dedupe").await, 2);
    drop(node);
}

/// So that an event that is published by both ways is a duplicate, and not another payload.
#[tokio::test]
async fn json_has_the_content_type_that_http_gives_it() {
    let (_store_dir, _node, mut raw) = store_dir().await;
    for (id, kind) in [("one", "json"), ("two", "jsonb")] {
        let sql = format!("SELECT redrive.publish('orders', '{id}', '{{}}'::{kind})");
        let said: String = raw.say(&sql).await.unwrap()[0].get(0);
        assert_eq!(said, "accepted");
        let mut http = Event::new("orders", id).payload(*b"{}");
        http.meta_mut().content_type = Some("application/json".to_owned());
        assert_eq!(call(&mut raw, &http).await.unwrap(), "duplicate", "{kind}");
        let own = format!("SELECT redrive.publish('orders', '{id}', '{{}}'::{kind}, content_type => 'a/b')");
        raw.say(&own).await.expect_err("another content type is another event");
    }
}

#[tokio::test]
async fn whoever_may_use_the_schema_may_publish_and_nothing_else() {
    let (store_dir, _node, mut raw) = store_dir().await;
    let schema = &store_dir.schema;
    let role = format!("app_{schema}");
    raw.say(&format!("CREATE ROLE {role}; GRANT USAGE ON SCHEMA {schema} TO {role}; SET ROLE {role}"))
        .await
        .unwrap();
    for payload in ["'{\"euro\": 17}'", "'{}'::jsonb", "'{}'::json", "'\\x00'::bytea"] {
        let publish =
            format!("SELECT redrive.publish('orders', $id${payload}$id$, {payload}, notify => true)");
        let said: String = raw.say(&publish).await.unwrap()[0].get(0);
        assert_eq!(said, "accepted");
    }
    raw.say("SELECT redrive.publish('orders', 'no payload'); SELECT redrive.wake()").await.unwrap();
    raw.say("SELECT * FROM redrive.fresh").await.unwrap_err();
}
