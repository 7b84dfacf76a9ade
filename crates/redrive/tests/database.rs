//! The engine over a PostgreSQL database, in real time.
#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::time::Duration;

use redrive::engine::{OpenOptions, Redrive, Transaction};
use redrive::event::State;
use redrive::prelude::*;
use redrive::store::postgres::PostgresSettings;
use redrive::{Delivery, Event, Published, testing};
use redrive_testkit::postgres::{Server, a_name};

const SECOND: Duration = Duration::from_secs(1);

/// Each test has a schema of its own in a database that all share.
async fn open(schema: &str) -> Redrive {
    let mut settings = PostgresSettings::default();
    schema.clone_into(&mut settings.schema);
    OpenOptions::new().postgres(settings).open(&Server::shared().url()).await.unwrap()
}

#[tokio::test]
async fn events_survive_a_restart_and_the_caller_s_own_tables_commit_with_them() {
    let schema = a_name("restart");
    let redrive = open(&schema).await;
    redrive.queue("orders").declare().await.unwrap();
    for id in 0..100 {
        redrive.publish(Event::new("orders", id.to_string()).payload(vec![7; 300])).await.unwrap();
    }
    redrive.shutdown(SECOND).await.unwrap();

    let redrive = open(&schema).await;
    let paid = format!("{schema}_paid");
    let make = format!("CREATE TABLE {paid} (id TEXT PRIMARY KEY, attempt BIGINT)");
    redrive.transact(move |tx| tx.execute(&make, &[])).await.unwrap();
    let insert = format!("INSERT INTO {paid} (id, attempt) VALUES ($1, $2)");
    let handler = move |tx: &mut Transaction<'_>, delivery: &Delivery| {
        assert_eq!(delivery.payload(), [7; 300]);
        tx.execute(&insert, &[delivery.id().into(), delivery.attempt().into()])
            .map_err(redrive::Failure::permanent)?;
        if delivery.attempt() == 1 && delivery.id() == "42" {
            return Err(redrive::Failure::transient(std::io::Error::other("not yet")));
        }
        Ok(())
    };
    let policy = Policy::builder().backoff(Backoff::constant(Duration::from_millis(5))).build().unwrap();
    redrive.queue("orders").policy(policy).handle_in(handler).await.unwrap();
    redrive.start().await.unwrap();
    testing::drain(&redrive).await;
    let read = format!("SELECT count(*), max(attempt) FROM {paid}");
    let read = move |tx: &mut Transaction<'_>| {
        let rows = tx.query(&read, &[])?;
        Ok::<_, redrive::store::sql::SqlError>((rows[0].get::<i64>(0)?, rows[0].get::<i64>(1)?))
    };
    assert_eq!(redrive.transact(read).await.unwrap(), (100, 2));
    let again = redrive.publish(Event::new("orders", "7").payload(vec![7; 300])).await.unwrap();
    assert!(matches!(again, Published::Duplicate(found) if found.state == State::Done));
    redrive.shutdown(SECOND).await.unwrap();
}

#[tokio::test]
async fn an_address_that_leads_nowhere_is_told_without_its_password() {
    for (address, told) in [
        ("postgres:shop", "begins with `postgres://`"),
        ("postgres://ann:hush@127.0.0.1:1/shop", "it cannot be reached"),
        ("postgres://ann:hush@127.0.0.1:noport/shop", "not that of a PostgreSQL database"),
    ] {
        let error = Redrive::open(address).await.unwrap_err();
        let text = format!("{error} {error:?}");
        assert!(text.contains(told) && !text.contains("hush"), "{text}");
    }
    let window =
        redrive::window::Window::open("postgres://db", redrive::window::WindowSettings::default()).await;
    assert!(window.unwrap_err().to_string().contains("inbox"));
}
