//! Engines behind PgBouncer in transaction mode, where every transaction has another session.
#![cfg(all(feature = "postgres", unix))]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::time::Duration;

use redrive::engine::{OpenOptions, Redrive, Transaction};
use redrive::store::postgres::PostgresSettings;
use redrive::store::sql::SqlError;
use redrive::{Delivery, Event, Failure, testing};
use redrive_testkit::postgres::{Disk, Pooler, Server};

const SECOND: Duration = Duration::from_secs(1);
/// The fewest without a deadlock: two engines want more sessions than there are.
const SESSIONS: u32 = 5;

async fn open(pooler: &Pooler, name: &str) -> Redrive {
    let mut settings = PostgresSettings::default();
    (settings.shards, settings.connections) = (4, 6);
    // Fewer sessions than connections: some connection waits for one, perhaps longer than the default on a busy
    // machine.
    settings.patience = SECOND * 30;
    name.clone_into(&mut settings.name);
    let url = format!("{}&statement-cache-capacity=0", pooler.url());
    OpenOptions::new().postgres(settings).open(&url).await.unwrap()
}

fn handle(tx: &mut Transaction<'_>, order: &Delivery) -> Result<(), Failure> {
    tx.execute("INSERT INTO effect (id) VALUES ($1)", &[order.id().into()])
        .map(drop)
        .map_err(Failure::transient)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_engines_share_the_work_behind_a_pooler() {
    let server = Server::start(Disk::Fast).unwrap();
    let pooler = Pooler::start(&server, SESSIONS).unwrap();
    let one = open(&pooler, "one").await;
    one.transact(|tx| tx.execute("CREATE TABLE effect (id TEXT)", &[])).await.unwrap();
    one.queue("orders").handle_in(handle).await.unwrap();
    one.start().await.unwrap();
    let other = open(&pooler, "other").await;
    other.queue("orders").handle_in(handle).await.unwrap();
    other.start().await.unwrap();
    for id in 0..60 {
        let from = if id % 2 == 0 { &one } else { &other };
        from.publish(Event::new("orders", id.to_string()).payload("x")).await.unwrap();
    }
    let count = || {
        one.transact(|tx| {
            let rows = tx.query("SELECT count(*), count(DISTINCT id) FROM effect", &[])?;
            Ok::<_, SqlError>((rows[0].get::<i64>(0)?, rows[0].get::<i64>(1)?))
        })
    };
    let all = async {
        while count().await.unwrap().1 < 60 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(SECOND * 120, all).await.expect("all are done");
    testing::drain(&one).await;
    assert_eq!(count().await.unwrap(), (60, 60), "one effect each");
    other.shutdown(SECOND * 5).await.unwrap();
    one.shutdown(SECOND * 5).await.unwrap();
}
