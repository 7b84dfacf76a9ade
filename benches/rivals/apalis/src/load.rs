//! Callers that publish, a worker that does nothing, and what came of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use apalis::prelude::*;
use apalis_sqlite::SqliteStorage;
use redrive_benches::turn::{self, Outcome, Publisher, Setup, Turn, WARM_UP, Work};
use tokio::sync::Semaphore;

use crate::store::{Failure, Store};

/// What callers and handlers share.
#[derive(Debug)]
struct Load {
    /// A permit for each event that may be in flight and is not.
    room: Semaphore,
    next: AtomicU64,
    refused: AtomicU64,
}

pub(crate) async fn measure(turn: Turn) -> Result<Outcome, Failure> {
    let mut store = Store::open(&turn).await?;
    let load =
        Arc::new(Load { room: Semaphore::new(0), next: AtomicU64::new(0), refused: AtomicU64::new(0) });
    let mut backend = SqliteStorage::<String>::new(&store.pool).with_config(store.config.clone());
    if turn.work == Work::Life {
        handle_all(&backend, &store, &load);
    }
    if turn.setup == Setup::Full && turn.work == Work::Life {
        rehearse(&mut backend, &mut store, &turn).await?;
    } else {
        load.room.add_permits(turn.callers);
    }
    let publishers = if turn.publisher == Publisher::Bulk { 1 } else { turn.callers };
    for _ in 0..publishers {
        tokio::spawn(publish(Arc::clone(&load), backend.clone(), turn.clone()));
    }

    tokio::time::sleep(WARM_UP).await;
    let (done, commits, from) = (store.done(turn.work).await?, store.commits(), turn::now());
    tokio::time::sleep(turn.time).await;
    let (done, transactions, to) =
        (store.done(turn.work).await? - done, store.commits() - commits, turn::now());
    let refused = load.refused.load(Ordering::Relaxed);
    if refused > 0 {
        eprintln!("apalis-sqlite: {refused} calls to publish failed, and were made again");
    }
    let writes = if turn.work == Work::Life { 2 * done } else { done };
    Ok(Outcome { done, from, to, transactions, writes, p50_us: None, settings: store.settings })
}

/// Runs as many events as will be in flight through their lives, and has SQLite count the rows while no other
/// connection writes.
async fn rehearse(
    backend: &mut SqliteStorage<String>,
    store: &mut Store,
    turn: &Turn,
) -> Result<(), Failure> {
    let events = u64::try_from(turn.callers)?;
    backend.push_bulk((0..events).map(turn::payload).collect()).await?;
    while store.done(turn.work).await? < events {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    store.analyze().await
}

fn handle_all(backend: &SqliteStorage<String>, store: &Store, load: &Arc<Load>) {
    let worker = WorkerBuilder::new("worker")
        .backend(backend.clone().with_callback(store.listener.clone()))
        .data(Arc::clone(load))
        .build(handle);
    tokio::spawn(async move {
        // It has no reason to end; without it, nothing would be done until the time is over.
        let ended = worker.run().await;
        eprintln!("apalis-sqlite: the worker ended: {ended:?}");
        std::process::exit(1);
    });
}

async fn handle(_event: String, load: Data<Arc<Load>>) {
    load.room.add_permits(1);
}

/// Publishes as long as the program runs.
async fn publish(load: Arc<Load>, mut backend: SqliteStorage<String>, turn: Turn) {
    loop {
        let events = match turn.publisher {
            Publisher::Each => 1,
            Publisher::Bulk => load.room.available_permits().max(1),
        };
        let permits = u32::try_from(events).unwrap_or(u32::MAX);
        if turn.work == Work::Life {
            match load.room.acquire_many(permits).await {
                Ok(taken) => taken.forget(),
                Err(_) => return,
            }
        }
        let first = load.next.fetch_add(permits.into(), Ordering::Relaxed);
        let events: Vec<String> = (first..first + u64::from(permits)).map(turn::payload).collect();
        while backend.push_bulk(events.clone()).await.is_err() {
            load.refused.fetch_add(1, Ordering::Relaxed);
        }
    }
}
