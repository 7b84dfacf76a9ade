//! Callers that publish, a worker that does nothing, and what came of it.

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use effectum::{Job, JobRunner, Queue, RunningJob, Worker};
use redrive_benches::turn::{self, Outcome, Publisher, Setup, Turn, WARM_UP, Work};
use rusqlite::Connection;
use tokio::sync::Semaphore;

use crate::opened;

pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

const JOB: &str = "event";

/// What callers and handlers share.
#[derive(Debug)]
struct Load {
    /// A permit for each event that may be in flight and is not.
    room: Semaphore,
    next: AtomicU64,
    published: AtomicU64,
}

pub(crate) async fn measure(turn: Turn) -> Result<Outcome, Failure> {
    let file = turn.folder.join("effectum.db");
    if turn.setup == Setup::Full {
        Connection::open(&file)?.pragma_update_and_check(None, "journal_mode", "wal", |_| Ok(()))?;
    }
    connections::watch(turn.setup == Setup::Full)?;
    let queue = Arc::new(Queue::new(&file).await?);
    let load = Arc::new(Load {
        room: Semaphore::new(turn.callers),
        next: AtomicU64::new(0),
        published: AtomicU64::new(0),
    });
    let worker = if turn.work == Work::Life { Some(worker(&turn, &queue, &load).await?) } else { None };
    // Its worker counts a job as finished once that is committed.
    let done = || match &worker {
        Some(worker) => worker.counts().finished,
        None => load.published.load(Ordering::Relaxed),
    };
    let publishers = if turn.publisher == Publisher::Bulk { 1 } else { turn.callers };
    for _ in 0..publishers {
        let publishing = publish(Arc::clone(&load), Arc::clone(&queue), turn.clone());
        tokio::spawn(async move {
            // It ends with an error or not at all.
            let ended = publishing.await;
            eprintln!("effectum: a publisher ended: {ended:?}");
            std::process::exit(1);
        });
    }

    tokio::time::sleep(WARM_UP).await;
    let (from, done_before, commits_before) = (turn::now(), done(), connections::commits());
    tokio::time::sleep(turn.time).await;
    let (to, done, transactions) = (turn::now(), done() - done_before, connections::commits() - commits_before);
    let writes = if turn.work == Work::Life { 2 * done } else { done };
    let settings = settings(&file, turn.setup)?;
    Ok(Outcome { done, from, to, transactions, writes, p50_us: None, settings })
}

async fn worker(turn: &Turn, queue: &Queue, load: &Arc<Load>) -> Result<Worker, Failure> {
    let job = JobRunner::builder(JOB, handle).build();
    let at_once = u16::try_from(turn.callers)?;
    Ok(Worker::builder(queue, Arc::clone(load)).max_concurrency(at_once).jobs([job]).build().await?)
}

async fn handle(_job: RunningJob, load: Arc<Load>) -> Result<(), Infallible> {
    load.room.add_permits(1);
    Ok(())
}

/// Publishes as long as the program runs.
async fn publish(load: Arc<Load>, queue: Arc<Queue>, turn: Turn) -> Result<(), Failure> {
    loop {
        let events = match turn.publisher {
            Publisher::Each => 1,
            Publisher::Bulk => u32::try_from(load.room.available_permits().max(1))?,
        };
        if turn.work == Work::Life {
            load.room.acquire_many(events).await?.forget();
        }
        let first = load.next.fetch_add(events.into(), Ordering::Relaxed);
        let job = |number| Job::builder(JOB).payload(turn::payload(number).into_bytes()).build();
        match turn.publisher {
            Publisher::Each => drop(queue.add_job(job(first)).await?),
            Publisher::Bulk => {
                drop(queue.add_jobs((first..first + u64::from(events)).map(job).collect()).await?);
            }
        }
        load.published.fetch_add(events.into(), Ordering::Relaxed);
    }
}

/// What the file says, and what is known of the connection that writes, which cannot be asked.
fn settings(file: &Path, setup: Setup) -> Result<String, Failure> {
    let connection = Connection::open(file)?;
    let journal: String = connection.pragma_query_value(None, "journal_mode", |row| row.get(0))?;
    let level = match setup {
        Setup::Shipped => "NORMAL",
        Setup::Full if connections::kept_full() => "FULL",
        Setup::Full => return Err("it never asked for less than FULL, so look what it does now".into()),
    };
    Ok(format!("journal_mode={journal}, synchronous={level}"))
}
