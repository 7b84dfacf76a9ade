//! Our side: Redrive's embedded engine, as its guide sets it up.
//!
//! - [`Work::Life`], one by one: `turn.callers` tasks, each of which publishes one event and publishes the next
//!   when the handler of that one has run; the handler does nothing else. What counts is ends that are committed.
//! - [`Work::Life`], in bulk: one task that publishes as many in one call as were handled since the last one.
//! - [`Work::Publish`]: the same callers without a handler; counts answered publishes.
//! - [`Work::Idle`]: one caller, one event at a time, and a pause in between; from before the publish to the
//!   handler's first line.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use redrive::engine::{OpenOptions, Redrive};
use redrive::store::sqlite::{Sqlite, SqliteSettings};
use redrive::{Delivery, Event};
use redrive_benches::turn::{self, IDLE_PAUSE, Outcome, Publisher, Turn, WARM_UP, Work};
use tokio::sync::{Notify, Semaphore, mpsc};

/// Its name on the command line.
pub(crate) const NAME: &str = "ours";

/// Whether there is something to measure.
pub(crate) const HERE: bool = true;

/// The queue that all events go through.
const QUEUE: &str = "events";

type Fallible<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Measures one turn.
pub(crate) fn measure(turn: &Turn) -> Result<Outcome, String> {
    let runtime = tokio::runtime::Runtime::new().map_err(|error| error.to_string())?;
    let measured = runtime.block_on(async {
        let store = Arc::new(Sqlite::open(turn.folder.join("ours.db"), SqliteSettings::default())?);
        let redrive = OpenOptions::new().over(store.clone());
        match turn.work {
            Work::Life if turn.publisher == Publisher::Bulk => life_in_bulk(turn, &store, &redrive).await,
            Work::Life => life(turn, &store, &redrive).await,
            Work::Publish => publish(turn, &store, &redrive).await,
            Work::Idle => idle(turn, &redrive).await,
        }
    });
    // The process ends here, and with it the publishers.
    runtime.shutdown_background();
    measured.map_err(|error| format!("ours: {error}"))
}

async fn life(turn: &Turn, store: &Sqlite, redrive: &Redrive) -> Fallible<Outcome> {
    let waiting: Arc<[Notify]> = (0..turn.callers).map(|_| Notify::new()).collect();
    let woken = waiting.clone();
    let handler = move |delivery: Delivery| {
        let caller = number(&delivery) % woken.len();
        woken[caller].notify_one();
        std::future::ready(())
    };
    let at_once = u32::try_from(turn.callers)?;
    redrive.queue(QUEUE).concurrency(at_once).handle(handler).await?;
    redrive.start().await?;
    let published = Arc::new(AtomicU64::new(0));
    for caller in 0..turn.callers {
        let (redrive, published, waiting) = (redrive.clone(), published.clone(), waiting.clone());
        tokio::spawn(async move {
            for event in events(caller, waiting.len()) {
                redrive.publish(event).await?;
                published.fetch_add(1, Relaxed);
                waiting[caller].notified().await;
            }
            Fallible::Ok(())
        });
    }
    let counts = || {
        let (transactions, writes) = store.commits();
        // Every write that is no publish is an end.
        (writes - published.load(Relaxed).min(writes), transactions, writes)
    };
    Ok(between(turn, counts).await)
}

async fn life_in_bulk(turn: &Turn, store: &Sqlite, redrive: &Redrive) -> Fallible<Outcome> {
    let room = Arc::new(Semaphore::new(turn.callers));
    let handled = room.clone();
    let handler = move |_: Delivery| {
        handled.add_permits(1);
        std::future::ready(())
    };
    redrive.queue(QUEUE).concurrency(u32::try_from(turn.callers)?).handle(handler).await?;
    redrive.start().await?;
    let published = Arc::new(AtomicU64::new(0));
    tokio::spawn(publish_in_bulk(redrive.clone(), room, published.clone()));
    let counts = || {
        let (transactions, writes) = store.commits();
        // Every write that is no publish is an end.
        (writes - published.load(Relaxed).min(writes), transactions, writes)
    };
    Ok(between(turn, counts).await)
}

/// Publishes as long as the program runs, or until something fails.
async fn publish_in_bulk(
    redrive: Redrive,
    room: Arc<Semaphore>,
    published: Arc<AtomicU64>,
) -> Fallible<Infallible> {
    let mut events = events(0, 1);
    loop {
        let many = room.available_permits().max(1);
        room.acquire_many(u32::try_from(many)?).await?.forget();
        let answers = redrive.publish_all(events.by_ref().take(many)).await?;
        published.fetch_add(answers.len() as u64, Relaxed);
    }
}

async fn publish(turn: &Turn, store: &Sqlite, redrive: &Redrive) -> Fallible<Outcome> {
    redrive.queue(QUEUE).declare().await?;
    let published = Arc::new(AtomicU64::new(0));
    for caller in 0..turn.callers {
        let (redrive, published, callers) = (redrive.clone(), published.clone(), turn.callers);
        tokio::spawn(async move {
            for event in events(caller, callers) {
                redrive.publish(event).await?;
                published.fetch_add(1, Relaxed);
            }
            Fallible::Ok(())
        });
    }
    let counts = || {
        let (transactions, writes) = store.commits();
        (published.load(Relaxed), transactions, writes)
    };
    Ok(between(turn, counts).await)
}

async fn idle(turn: &Turn, redrive: &Redrive) -> Fallible<Outcome> {
    let (tell, mut told) = mpsc::unbounded_channel();
    let handler = move |_: Delivery| {
        // The publishers have gone when the turn is over.
        let _ = tell.send(Instant::now());
        std::future::ready(())
    };
    redrive.queue(QUEUE).handle(handler).await?;
    redrive.start().await?;
    let (from, began) = (turn::now(), Instant::now());
    let mut waits: Vec<Duration> = Vec::new();
    for event in events(0, 1) {
        if began.elapsed() >= turn.time {
            break;
        }
        let before = Instant::now();
        redrive.publish(event).await?;
        let after = told.recv().await.ok_or("the handler is gone")?;
        waits.push(after - before);
        tokio::time::sleep(IDLE_PAUSE).await;
    }
    waits.sort_unstable();
    let middle = waits.get(waits.len() / 2).ok_or("nothing was measured")?;
    let done = waits.len() as u64;
    let p50_us = Some(middle.as_secs_f64() * 1e6);
    Ok(Outcome {
        done,
        from,
        to: turn::now(),
        transactions: done,
        writes: done,
        p50_us,
        settings: settings(),
    })
}

/// Warms up, then looks at the counts (done, transactions, writes) at both ends of the measured time.
async fn between(turn: &Turn, counts: impl Fn() -> (u64, u64, u64)) -> Outcome {
    tokio::time::sleep(WARM_UP).await;
    let (from, before) = (turn::now(), counts());
    tokio::time::sleep(turn.time).await;
    let (after, to) = (counts(), turn::now());
    Outcome {
        done: after.0 - before.0,
        from,
        to,
        transactions: after.1 - before.1,
        writes: after.2 - before.2,
        p50_us: None,
        settings: settings(),
    }
}

/// The events of one caller; their numbers differ from those of all others.
fn events(caller: usize, callers: usize) -> impl Iterator<Item = Event> + Send {
    let numbers = (caller as u64..).step_by(callers);
    numbers.map(|number| Event::new(QUEUE, turn::id(number)).payload(turn::payload(number)))
}

fn number(delivery: &Delivery) -> usize {
    let head = delivery.payload().get(..20).unwrap_or_default();
    let number = std::str::from_utf8(head).ok().and_then(turn::number);
    number.and_then(|number| usize::try_from(number).ok()).unwrap_or_default()
}

fn settings() -> String {
    "journal_mode=wal, synchronous=FULL, checksums, dedupe on".to_owned()
}
