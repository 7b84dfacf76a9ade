//! Behind PgBouncer in transaction mode: every transaction has another session, and must leave nothing in it.
#![cfg(all(feature = "postgres", unix))]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use redrive_core::queue_entry::{EventChange, SettleResult};
use redrive_store::postgres::PostgresSettings;
use redrive_store::postgres::sqlx::postgres::PgConnectOptions;
use redrive_store::postgres::sqlx::{ConnectOptions, Row, raw_sql};
use redrive_store::{Postgres, Published, StoreError, prelude::*};
use redrive_testkit::postgres::{Disk, Pooler, Server};

mod postgres_common;

use postgres_common::{Node, TestStore, at};

/// How many sessions two processes share: fewer than they have connections.
const SESSIONS: u32 = 3;

/// All calls of a process, again and again, while another one takes its sessions away.
async fn work(one: &mut Node, other: &Node) {
    one.take().await;
    for round in 0..20 {
        let id = round.to_string();
        let (here, there) = tokio::join!(one.publish(&id, None), other.publish(&id, None));
        let both = [here.unwrap(), there.unwrap()];
        let accepted = both.iter().filter(|published| matches!(published, Published::Accepted(_))).count();
        assert_eq!(accepted, 1, "{both:?}");
        let entry = one.one(&id).await;
        let (settled, counted, looked) = tokio::join!(
            one.settle(&entry, EventChange::Done),
            other.store.count(at(1)),
            other.store.nodes()
        );
        assert!(matches!(settled, SettleResult::Applied { .. }), "{settled:?}");
        counted.unwrap();
        // A statement that is a transaction by itself.
        assert_eq!(looked.unwrap().unwrap().list.len(), 2);
    }
    one.store.forget(at(9)).await.unwrap();
}

#[tokio::test]
async fn a_store_works_behind_a_pooler() {
    let server = Server::start(Disk::Fast).unwrap();
    let pooler = Pooler::start(&server, SESSIONS).unwrap();
    let store_dir = TestStore::at(&server.url());
    let url = format!("{}&statement-cache-capacity=0", pooler.url());
    let (mut one, other) = (store_dir.node_at(&url).await, store_dir.node_at(&url).await);
    work(&mut one, &other).await;
    assert_eq!(listening(&pooler.url()).await, 0, "a process listens in a session that is not its own");
    let mut raw = store_dir.raw().await;
    // The heartbeat goes the same way.
    let alive = "SELECT count(*) FROM redrive.node WHERE until > clock_timestamp()";
    assert_eq!(raw.number(alive).await, 2);
    one.store.close().await.unwrap();
    other.store.close().await.unwrap();
}

/// How many channels are listened to in the sessions of the pooler: all of them are taken at once.
async fn listening(url: &str) -> i64 {
    let options: PgConnectOptions = url.parse().unwrap();
    let mut open = Vec::new();
    let mut count = 0;
    for _ in 0..SESSIONS {
        let mut conn = options.clone().extra_float_digits(None).connect().await.unwrap();
        raw_sql("BEGIN").execute(&mut conn).await.unwrap();
        let row = raw_sql("SELECT count(*) FROM pg_listening_channels()").fetch_one(&mut conn).await.unwrap();
        count += row.get::<i64, _>(0);
        open.push(conn);
    }
    count
}

/// A program without the setting gets an error that says what to write.
#[tokio::test]
async fn who_does_not_know_of_the_pooler_is_told() {
    let server = Server::start(Disk::Fast).unwrap();
    let pooler = Pooler::start(&server, 1).unwrap();
    let store_dir = TestStore::at(&server.url());
    let mut said = None;
    for _ in 0..20 {
        let settings: PostgresSettings = store_dir.settings();
        match Postgres::open(&pooler.url(), settings).await {
            Ok(store) => {
                if let Err(error) = store.count(at(0)).await {
                    said = Some(error);
                }
            }
            Err(error) => said = Some(error),
        }
        if said.is_some() {
            break;
        }
    }
    let said: StoreError = said.expect("two clients in one session prepare the same name");
    assert!(said.to_string().contains("statement-cache-capacity=0"), "{said}");
}
