//! The user's own transaction, with the engine and the idempotent layer around it.
#![cfg(all(feature = "postgres", feature = "api"))]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::Request;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use redrive::api::{CommitError, Effects, Endpoint, Idempotent, StoredReply, Tenant};
use redrive::engine::{OpenOptions, Redrive};
use redrive::http::idempotent::{ClaimRequest, LedgerClaim};
use redrive::postgres::PostgresSettings;
use redrive::postgres::sqlx::{self, AssertSqlSafe, PgConnection, PgPool};
use redrive::store::{LedgerStore as _, Postgres, PublishError, StoreError};
use redrive::{Delivery, Event, Failure, Moment, Operation, Published, testing};
use redrive_testkit::postgres::{Server, a_name};
use tower::ServiceExt;

const SECOND: Duration = Duration::from_secs(1);

/// A schema with a table of the user's own in it, the user's pool, and an engine that writes what it handles there.
#[derive(Clone)]
struct Shop {
    schema: String,
    pool: PgPool,
    redrive: Redrive,
}

impl Shop {
    async fn open() -> Self {
        let schema = a_name("lent");
        let url = Server::shared().url();
        let redrive = OpenOptions::new().postgres(settings(&schema)).open(&url).await.unwrap();
        let shop = Self { schema, pool: PgPool::connect(&url).await.unwrap(), redrive };
        shop.say("CREATE TABLE redrive.booking (guest TEXT); CREATE TABLE redrive.email (id TEXT)").await;
        shop
    }

    fn named(&self, sql: &str) -> AssertSqlSafe<String> {
        AssertSqlSafe(sql.replace("redrive.", &format!("{}.", self.schema)))
    }

    async fn say(&self, sql: &str) {
        sqlx::raw_sql(self.named(sql)).execute(&self.pool).await.unwrap();
    }

    async fn count(&self, table: &str) -> i64 {
        let sql = self.named(&format!("SELECT count(*) FROM redrive.{table}"));
        sqlx::query_scalar(sql).fetch_one(&self.pool).await.unwrap()
    }

    async fn book(&self, conn: &mut PgConnection) {
        sqlx::query(self.named("INSERT INTO redrive.booking VALUES ('Ada')")).execute(conn).await.unwrap();
    }
}

fn settings(schema: &str) -> PostgresSettings {
    let mut settings = PostgresSettings::default();
    schema.clone_into(&mut settings.schema);
    settings
}

#[tokio::test]
async fn what_is_published_in_the_users_transaction_is_handled_in_one_of_the_stores() {
    let shop = Shop::open().await;
    let insert = shop.named("INSERT INTO redrive.email VALUES ($1)").0;
    let handler = async move |conn: &mut PgConnection, delivery: &Delivery| {
        let insert = sqlx::query(AssertSqlSafe(insert.clone())).bind(delivery.id().to_owned());
        insert.execute(conn).await.map_err(Failure::transient)?;
        if delivery.attempt() == 1 {
            return Err(Failure::transient_text("what it wrote is rolled back with it"));
        }
        Ok(())
    };
    let policy = redrive::Policy::builder().backoff(redrive::Backoff::constant(Duration::from_millis(5)));
    let queue = shop.redrive.queue("emails").policy(policy.build().unwrap());
    queue.handle_in_postgres(handler).await.unwrap();
    shop.redrive.start().await.unwrap();

    let mut tx = shop.pool.begin().await.unwrap();
    shop.book(&mut tx).await;
    shop.redrive.publish_in(&mut tx, Event::new("emails", "undone")).await.unwrap();
    tx.rollback().await.unwrap();
    let inbox = shop.redrive.inbox("importer.v1");
    for is_first in [true, false] {
        let mut tx = shop.pool.begin().await.unwrap();
        assert_eq!(inbox.mark_in(&mut tx, "message-17").await.unwrap(), is_first);
        let (published, wakeup) = shop.redrive.publish_in(&mut tx, Event::new("emails", "17")).await.unwrap();
        assert_eq!(matches!(published, Published::Accepted(_)), is_first);
        if is_first {
            shop.book(&mut tx).await;
        }
        tx.commit().await.unwrap();
        wakeup.wake();
        testing::drain(&shop.redrive).await;
    }
    assert_eq!((shop.count("booking").await, shop.count("email").await), (1, 1));
    let mut tx = shop.pool.begin().await.unwrap();
    let unversioned = shop.redrive.inbox("importer").mark_in(&mut tx, "1").await.unwrap_err();
    assert!(matches!(unversioned, PublishError::Handler { .. }), "{unversioned}");
    shop.redrive.shutdown(SECOND).await.unwrap();
}

#[tokio::test]
async fn another_store_than_the_database_is_refused() {
    let shop = Shop::open().await;
    let memory = Redrive::open("memory:").await.unwrap();
    memory.queue("emails").declare().await.unwrap();
    let mut tx = shop.pool.begin().await.unwrap();
    let refused = memory.publish_in(&mut tx, Event::new("emails", "1")).await.unwrap_err();
    assert!(matches!(refused, PublishError::Store(StoreError::Elsewhere { .. })), "{refused}");
    let handler = async |_: &mut PgConnection, _: &Delivery| ();
    memory.queue("orders").handle_in_postgres(handler).await.unwrap_err();
    // A failed completion rolls everything back.
    shop.book(&mut tx).await;
    let scope = redrive::http::idempotent::RequestScope {
        tenant: "acme".to_owned(),
        operation: "POST /bookings".to_owned(),
        key: "k".to_owned(),
    };
    memory.ledger().complete_in(&mut tx, &scope, 1, StoredReply::new(201), None).await.unwrap_err();
    tx.commit().await.unwrap();
    assert_eq!(shop.count("booking").await, 0);
}

/// How a handler ends its transaction.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Ends {
    /// As documented.
    Commits,
    /// By itself, and returns another answer.
    CommitsItself,
    /// By rolling back.
    RollsBack,
    /// As documented, after another run took over, ignoring every error.
    AsZombie,
}

async fn book(shop: Shop, op: Operation, ends: Ends) -> Result<Response, CommitError> {
    let mut tx = shop.pool.begin().await.map_err(CommitError::work)?;
    shop.book(&mut tx).await;
    let email = op.event("emails", "confirmation");
    let (_, wakeup) = shop.redrive.publish_in(&mut tx, email).await.map_err(CommitError::work)?;
    if ends == Ends::AsZombie {
        shop.take_over(&op).await;
    }
    let completed = op.complete_in(&mut tx, StoredReply::new(201).body("booked")).await;
    if ends == Ends::AsZombie {
        assert!(matches!(completed, Err(CommitError::Fenced)), "{completed:?}");
        tx.commit().await.map_err(CommitError::work)?;
        return Ok("as if nothing had been".into_response());
    }
    let answer = completed?;
    let said = match ends {
        Ends::Commits => answer.commit(tx).await?.into_response(),
        Ends::CommitsItself => {
            tx.commit().await.map_err(CommitError::work)?;
            (axum::http::StatusCode::IM_A_TEAPOT, "something else").into_response()
        }
        _ => {
            tx.rollback().await.map_err(CommitError::work)?;
            axum::http::StatusCode::SERVICE_UNAVAILABLE.into_response()
        }
    };
    wakeup.wake();
    Ok(said)
}

impl Shop {
    /// Another process finds the lease expired by its clock, and takes the request over.
    async fn take_over(&self, op: &Operation) {
        let other = Postgres::open(&Server::shared().url(), settings(&self.schema)).await.unwrap();
        let later = Moment::from_nanos(u64::MAX / 4);
        let record = other.record(op.scope().clone(), later).await.unwrap().unwrap();
        let ask = ClaimRequest {
            print: record.print,
            older: Vec::new(),
            effects: Effects::Transactional,
            lease: SECOND,
            retention: record.retention,
            first_sent: None,
            skew: Duration::ZERO,
        };
        let claim = other.claim(op.scope().clone(), ask, later).await.unwrap();
        assert!(matches!(claim, LedgerClaim::Run(_)), "{claim:?}");
    }

    async fn ask(&self, key: &str, ends: Ends) -> (u16, String) {
        let endpoint =
            Endpoint::new("POST /bookings").tenant(Tenant::fixed("acme")).effects(Effects::Transactional);
        let layer = Idempotent::new(Arc::new(self.redrive.ledger()), endpoint).unwrap();
        let shop = self.clone();
        let handler = move |op: Operation| book(shop.clone(), op, ends);
        let app = Router::new().route("/bookings", post(handler).layer(layer));
        let request = Request::post("/bookings").header("idempotency-key", format!("\"{key}\""));
        let answer = app.oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        let status = answer.status().as_u16();
        let body = to_bytes(answer.into_body(), 10_000).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }
}

#[tokio::test]
async fn rows_events_and_the_answer_of_a_request_are_there_together() {
    let shop = Shop::open().await;
    shop.redrive.queue("emails").declare().await.unwrap();
    let there = async || (shop.count("booking").await, shop.count("fresh").await);
    assert_eq!(shop.ask("back", Ends::RollsBack).await.0, 503);
    assert_eq!(there().await, (0, 0));
    // The same request again runs again, and this time it is committed.
    for _ in 0..2 {
        assert_eq!(shop.ask("back", Ends::Commits).await, (201, "booked".to_owned()));
        assert_eq!(there().await, (1, 1));
    }
    for _ in 0..2 {
        assert_eq!(shop.ask("itself", Ends::CommitsItself).await, (201, "booked".to_owned()));
        assert_eq!(there().await, (2, 2));
    }
}

#[tokio::test]
async fn a_zombie_that_ignores_the_fence_commits_nothing() {
    let shop = Shop::open().await;
    shop.redrive.queue("emails").declare().await.unwrap();
    let (status, said) = shop.ask("k", Ends::AsZombie).await;
    assert!(status != 200 && !said.contains("as if"), "{status} {said}");
    assert_eq!((shop.count("booking").await, shop.count("fresh").await), (0, 0));
}
