//! Keys in a store in which publishers and owners run concurrently: one event at a time, and none forgotten.
#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::Arc;
use std::time::Duration;

use redrive::engine::{OpenOptions, Redrive};
use redrive::postgres::PostgresSettings;
use redrive::postgres::sqlx::{self, AssertSqlSafe, Connection, PgConnection};
use redrive::{Delivery, Event};
use redrive_testkit::postgres::{Server, a_name};
use tokio::sync::{Semaphore, mpsc};

/// An engine whose handler reports its begin and end; the handler of `gated` ends when it is released.
struct Engine {
    redrive: Redrive,
    conn: PgConnection,
    schema: String,
    gate: Arc<Semaphore>,
    told: mpsc::UnboundedReceiver<String>,
}

impl Engine {
    async fn with_gated(gated: &'static str) -> Self {
        let schema = a_name("keys");
        let url = Server::shared().url();
        let mut settings = PostgresSettings::default();
        settings.schema.clone_from(&schema);
        settings.shards = 1;
        settings.lock_wait = Duration::from_secs(60);
        settings.patience = Duration::from_secs(60);
        let redrive = OpenOptions::new().postgres(settings).open(&url).await.unwrap();
        let conn = PgConnection::connect(&url).await.unwrap();
        let gate = Arc::new(Semaphore::new(0));
        let (tell, told) = mpsc::unbounded_channel();
        let way = Arc::clone(&gate);
        let handler = move |delivery: Delivery| {
            let (way, tell) = (Arc::clone(&way), tell.clone());
            async move {
                let id = delivery.id().to_owned();
                tell.send(format!("{id} begins")).unwrap();
                if id == gated {
                    way.acquire().await.unwrap().forget();
                }
                tell.send(format!("{id} ends")).unwrap();
            }
        };
        redrive.queue("orders").ordered().handle(handler).await.unwrap();
        redrive.start().await.unwrap();
        Self { redrive, conn, schema, gate, told }
    }

    async fn say(&mut self, sql: &str) {
        let sql = sql.replace("redrive.", &format!("{}.", self.schema));
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut self.conn).await.unwrap();
    }

    /// Waits for this report; returns the earlier ones.
    async fn hears(&mut self, what: &str) -> Vec<String> {
        let mut before = Vec::new();
        loop {
            let told = tokio::time::timeout(Duration::from_secs(60), self.told.recv()).await;
            let told = told.unwrap_or_else(|_| panic!("never: {what}; before: {before:?}")).unwrap();
            if told == what {
                return before;
            }
            before.push(told);
        }
    }
}

/// Two publishers of one key, of which the first commits last, while the event of the other one runs.
#[tokio::test(flavor = "multi_thread")]
async fn a_first_that_is_committed_late_waits_for_the_one_that_runs() {
    let mut it = Engine::with_gated("early").await;
    // The stream exists before any transaction is open.
    it.redrive.publish(Event::new("orders", "warm")).await.unwrap();
    it.hears("warm ends").await;
    it.say(
        "BEGIN; SELECT redrive.publish('orders', 'late', key => 'k'), redrive.publish('orders', 'beside')",
    )
    .await;
    it.redrive.publish(Event::new("orders", "early").key("k")).await.unwrap();
    it.hears("early begins").await;
    it.say("COMMIT").await;
    // One load finds both.
    let mut told = it.hears("beside ends").await;
    it.gate.add_permits(1);
    told.extend(it.hears("early ends").await);
    assert_eq!(told, ["beside begins"]);
    assert_eq!(it.hears("late ends").await, ["late begins"]);
    it.redrive.shutdown(Duration::from_secs(5)).await.unwrap();
}

/// The next event of a key is committed after the settle of the previous one has looked for it, and before that settle
/// commits.
#[tokio::test(flavor = "multi_thread")]
async fn the_next_is_found_that_crossed_the_end_of_the_one_before() {
    let mut it = Engine::with_gated("1").await;
    it.redrive.publish(Event::new("orders", "1").key("k")).await.unwrap();
    it.hears("1 begins").await;
    it.say(
        "CREATE FUNCTION redrive.hold_up() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
         IF OLD.id = '1' THEN PERFORM pg_advisory_xact_lock(hashtext(TG_TABLE_SCHEMA)); END IF; RETURN NULL; END $$; \
         CREATE CONSTRAINT TRIGGER hold_up AFTER DELETE ON redrive.fresh DEFERRABLE INITIALLY DEFERRED \
         FOR EACH ROW EXECUTE FUNCTION redrive.hold_up()",
    )
    .await;
    let schema = it.schema.clone();
    it.say(&format!("SELECT pg_advisory_lock(hashtext('{schema}'))")).await;
    it.gate.add_permits(1);
    it.hears("1 ends").await;
    let waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted \
                   AND objid = (hashtext($1)::bigint & 4294967295)::oid";
    while sqlx::query_scalar::<_, i64>(waiting).bind(&schema).fetch_one(&mut it.conn).await.unwrap() == 0 {
        tokio::task::yield_now().await;
    }
    // One load finds the other one, and not the next of the key.
    it.say("SELECT redrive.publish('orders', '2', key => 'k'), redrive.publish('orders', 'beside')").await;
    assert_eq!(it.hears("beside ends").await, ["beside begins"]);
    it.say(&format!("SELECT pg_advisory_unlock(hashtext('{schema}'))")).await;
    assert_eq!(it.hears("2 ends").await, ["2 begins"]);
    it.redrive.shutdown(Duration::from_secs(5)).await.unwrap();
}
