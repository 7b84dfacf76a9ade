//! Work in the database's own transaction: its reported outcome is true, and nothing of it is left behind.
#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use redrive::engine::desk::{DeskError, Edit};
use redrive::engine::{OpenOptions, Redrive, TransactError};
use redrive::event::State;
use redrive::postgres::PostgresSettings;
use redrive::postgres::sqlx::{self, AssertSqlSafe, Connection, PgConnection};
use redrive::store::operate::{EventRef, Refusal};
use redrive::{Delivery, Event, Failure, testing};
use redrive_testkit::postgres::{Cut, Proxy, Server, a_name};
use tokio::sync::Semaphore;

type Failed = Box<dyn std::error::Error + Send + Sync>;

const LONG: Duration = Duration::from_secs(60);

async fn open_at(url: &str, schema: &str) -> Redrive {
    let mut settings = PostgresSettings::default();
    schema.clone_into(&mut settings.schema);
    OpenOptions::new().postgres(settings).open(url).await.unwrap()
}

async fn open(what: &str) -> (Redrive, PgConnection, String) {
    let (schema, url) = (a_name(what), Server::shared().url());
    (open_at(&url, &schema).await, PgConnection::connect(&url).await.unwrap(), schema)
}

async fn say(conn: &mut PgConnection, sql: String) {
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(conn).await.unwrap();
}

async fn count(conn: &mut PgConnection, sql: String) -> i64 {
    sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(conn).await.unwrap()
}

#[tokio::test]
async fn what_is_said_to_be_rolled_back_is() {
    let (maker, mut conn, schema) = open("late").await;
    say(&mut conn, format!("CREATE TABLE {schema}.charge (id TEXT)")).await;
    maker.shutdown(Duration::ZERO).await.unwrap();
    let proxy = Proxy::start(Server::shared()).unwrap();
    let redrive = open_at(&proxy.url(), &schema).await;
    // The COMMIT of the first try is on its way; the second try fails.
    proxy.cut_next(Cut::Late);
    let (insert, mut runs) = (format!("INSERT INTO {schema}.charge VALUES ('17')"), 0);
    let said = redrive
        .transact(move |tx| {
            runs += 1;
            if runs > 1 {
                return Err::<(), Failed>("no room".into());
            }
            Ok(tx.execute(&insert, &[]).map(drop)?)
        })
        .await;
    proxy.deliver();
    let charges = count(&mut conn, format!("SELECT count(*) FROM {schema}.charge")).await;
    let is_said = matches!(said, Err(TransactError::Work(_)));
    assert_eq!((proxy.cuts(), is_said, charges), (1, true, 0), "{said:?}");
}

#[tokio::test]
async fn an_edit_does_not_take_an_id_that_somebody_publishes() {
    let (redrive, mut conn, schema) = open("edit").await;
    let no = |_| async { Err::<(), _>(redrive::Failure::permanent(std::io::Error::other("no"))) };
    redrive.queue("orders").handle(no).await.unwrap();
    redrive.start().await.unwrap();
    redrive.publish(Event::new("orders", "1")).await.unwrap();
    testing::drain(&redrive).await;
    say(&mut conn, format!("BEGIN; SELECT {schema}.publish('orders', 'X', 'of a publisher')")).await;
    let desk = redrive.desk("ann", "here");
    let edit = Edit { id: "X".to_owned(), payload: Some(b"of an operator".to_vec()), ..Edit::default() };
    let editing = tokio::spawn(async move { desk.edit(EventRef::new("", "orders", "1"), edit).await });
    let mut other = PgConnection::connect(&Server::shared().url()).await.unwrap();
    let waits = format!(
        "SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE NOT granted AND query LIKE '%{schema}.dedupe%'"
    );
    while count(&mut other, waits.clone()).await == 0 && !editing.is_finished() {
        tokio::task::yield_now().await;
    }
    say(&mut conn, "COMMIT".to_owned()).await;
    let edited = editing.await.unwrap();
    assert!(matches!(edited, Err(DeskError::Refused(Refusal::IdTaken { .. }))), "{edited:?}");
    testing::drain(&redrive).await;
}

#[tokio::test]
async fn what_sql_publishes_beside_the_engine_is_found() {
    let (redrive, _conn, schema) = open("beside").await;
    let ran = Arc::new(Semaphore::new(0));
    let runs = ran.clone();
    let handler = move |delivery: Delivery| {
        runs.add_permits(usize::from(delivery.id() == "by-sql"));
        async {}
    };
    redrive.queue("orders").handle(handler).await.unwrap();
    redrive.queue("emails").declare().await.unwrap();
    redrive.start().await.unwrap();
    redrive.publish(Event::new("orders", "0")).await.unwrap();
    testing::drain(&redrive).await;
    let publish = format!("SELECT {schema}.publish('orders', 'by-sql')");
    redrive
        .transact(move |tx| {
            tx.publish(Event::new("emails", "by-engine"))?;
            Ok::<_, Failed>(tx.query(&publish, &[]).map(drop)?)
        })
        .await
        .unwrap();
    let heard = tokio::time::timeout(LONG, ran.acquire()).await;
    heard.expect("the handler did not run").unwrap().forget();
}

#[tokio::test]
async fn nothing_of_work_is_left_in_a_session() {
    let mut settings = PostgresSettings::default();
    settings.schema = a_name("session");
    settings.connections = 5;
    let redrive = OpenOptions::new().postgres(settings).open(&Server::shared().url()).await.unwrap();
    for _ in 0..4 {
        redrive
            .transact(|tx| {
                tx.query("SELECT set_config('TimeZone', 'Asia/Tokyo', false)", &[])?;
                tx.query("SELECT pg_try_advisory_lock_shared(17)::text", &[])?;
                Ok::<_, Failed>(())
            })
            .await
            .unwrap();
    }
    let left = redrive
        .transact(|tx| {
            let look = "SELECT current_setting('TimeZone') || ' ' || (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 17)::text";
            Ok::<_, Failed>(tx.query(look, &[])?[0].get::<String>(0)?)
        })
        .await;
    assert_eq!(left.unwrap(), "UTC 0");
}

/// An error type of the user's own.
#[derive(Debug, thiserror::Error)]
#[error("the booking was not kept")]
struct NotKept(#[source] sqlx::Error);

#[tokio::test]
async fn work_on_the_users_own_connection_runs_again_after_a_deadlock() {
    let (redrive, _conn, _schema) = open("deadlock").await;
    for (code, runs) in [("40P01", 2), ("40001", 2), ("23505", 1)] {
        let ran = Arc::new(AtomicU32::new(0));
        let counted = ran.clone();
        let said = redrive
            .transact(move |tx| {
                if counted.fetch_add(1, Relaxed) == 0 {
                    let raise = format!("DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '{code}'; END $$");
                    let say = async |conn: &mut PgConnection| {
                        sqlx::raw_sql(AssertSqlSafe(raise)).execute(conn).await
                    };
                    tx.postgres(say).unwrap().map_err(NotKept)?;
                }
                Ok::<_, NotKept>(())
            })
            .await;
        assert_eq!((ran.load(Relaxed), said.is_ok()), (runs, runs == 2), "{code}: {said:?}");
    }
}

#[tokio::test]
async fn a_handler_runs_again_after_a_deadlock_and_no_attempt_is_charged() {
    let (redrive, _conn, _schema) = open("victim").await;
    let (ran, attempts) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let (counted, attempted) = (ran.clone(), attempts.clone());
    let handler = async move |conn: &mut PgConnection, delivery: &Delivery| {
        attempted.fetch_max(delivery.attempt(), Relaxed);
        if counted.fetch_add(1, Relaxed) == 0 {
            // It is not classified: without the retry, the event would be dead.
            sqlx::raw_sql("DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40P01'; END $$")
                .execute(conn)
                .await?;
        }
        Ok::<_, Failure>(())
    };
    redrive.queue("orders").handle_in_postgres(handler).await.unwrap();
    redrive.start().await.unwrap();
    redrive.publish(Event::new("orders", "1")).await.unwrap();
    testing::drain(&redrive).await;
    assert_eq!((ran.load(Relaxed), attempts.load(Relaxed)), (2, 1));
    assert_eq!(redrive.event("", "orders", "1").await.unwrap().unwrap().state, State::Done);
}

/// A code that the handler set itself does not come from the database.
#[tokio::test]
async fn a_handler_that_says_no_for_itself_does_not_run_again() {
    let (redrive, _conn, _schema) = open("itself").await;
    let ran = Arc::new(AtomicU32::new(0));
    let counted = ran.clone();
    let handler = async move |_: &mut PgConnection, _: &Delivery| {
        counted.fetch_add(1, Relaxed);
        Err::<(), _>(Failure::permanent_text("the token is too old").code("40001"))
    };
    redrive.queue("orders").handle_in_postgres(handler).await.unwrap();
    redrive.start().await.unwrap();
    redrive.publish(Event::new("orders", "1")).await.unwrap();
    testing::drain(&redrive).await;
    assert_eq!(ran.load(Relaxed), 1);
    assert_eq!(redrive.event("", "orders", "1").await.unwrap().unwrap().state, State::Dead);
}

#[tokio::test]
async fn work_that_waits_for_what_does_not_come_is_ended() {
    let (redrive, _conn, _schema) = open("hangs").await;
    let began = std::time::Instant::now();
    let said = redrive
        .transact(|tx| {
            tx.postgres(async |_conn| std::future::pending::<()>().await);
            Ok::<_, Failed>(())
        })
        .await;
    assert!(matches!(said, Err(TransactError::TimedOut)), "{said:?} after {:?}", began.elapsed());
    redrive.queue("orders").declare().await.unwrap();
    redrive.publish(Event::new("orders", "1")).await.unwrap();
}
