//! Filling a file: events that wait for a far retry, and dead letters.
//!
//! Through the store's own publish and settle, as if each had run once and failed, and in large batches: while one
//! is settled the next one is published. So nothing in the file is unlike what an engine would have left there.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use redrive::engine::OpenOptions;
use redrive::event::{AttemptHistory, AttemptRecord, Cause, DeadReason, Mode};
use redrive::store::sqlite::{Sqlite, SqliteSettings};
use redrive::store::{NewEvent, Published, Store};
use redrive::{Event, Moment, PublishError};
use redrive_benches::turn;
use redrive_core::queue_entry::{EventChange, EventProgress, ParkFollowers, SettleRequest};
use serde_json::{Value, json};

use crate::Fallible;
use crate::dead_letters::{self, Letter};
use crate::subprocess::PartArgs;

/// The queue of those that wait, and of the life cycles beside them.
pub(crate) const QUEUE: &str = "events";

/// Events in a batch: as many as fit in one commit of the writer.
const BATCH: u64 = 5_000;

/// When they are due: far beyond the run.
const FAR: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// How often progress is printed.
const TELL: Duration = Duration::from_secs(5);

/// Events that failed once and wait.
pub(crate) async fn waiting(told: &PartArgs<'_>) -> Fallible<Value> {
    let store = Arc::new(Sqlite::open(told.file, SqliteSettings::default())?);
    OpenOptions::new().over(store.clone()).queue(QUEUE).declare().await?;
    let (from, to) = (told.number("from")?, told.number("to")?);
    let make = |number| Event::new(QUEUE, turn::id(number)).payload(turn::payload(number));
    let change = |number: u64, now: Moment| {
        // Not all at once, and not in the order of their seqs.
        let due = now + FAR + Duration::from_millis(number.wrapping_mul(2_654_435_761) % 86_400_000);
        let progress = failed(now, due, Cause::new("Http", "the other side is busy").code("503"));
        EventChange::Retry(EventProgress { mode: Mode::Retry, ..progress })
    };
    fill(&*store, "waiting", from..to, make, change).await
}

/// Dead letters of several queues, tenants and causes.
pub(crate) async fn dead(told: &PartArgs<'_>) -> Fallible<Value> {
    let store = Arc::new(Sqlite::open(told.file, SqliteSettings::default())?);
    let redrive = OpenOptions::new().over(store.clone());
    for queue in dead_letters::QUEUES {
        redrive.queue(queue).declare().await?;
    }
    let all = 0..told.number("to")?;
    let change = |number, now: Moment| EventChange::Dead {
        reason: DeadReason::Permanent,
        progress: failed(now, now, Letter(number).cause()),
        park: ParkFollowers::No,
    };
    fill(&*store, "dead letters", all, |number| Letter(number).event(), change).await
}

async fn fill(
    store: &dyn Store,
    what: &str,
    numbers: std::ops::Range<u64>,
    make: impl Fn(u64) -> Event,
    change: impl Fn(u64, Moment) -> EventChange,
) -> Fallible<Value> {
    let now: Moment = SystemTime::now().into();
    let token = store.take(0, now).await?.token;
    let (began, mut told) = (Instant::now(), Instant::now());
    let mut settles = Vec::new();
    for first in numbers.clone().step_by(usize::try_from(BATCH)?) {
        let batch = first..numbers.end.min(first + BATCH);
        let news = batch.clone().map(|number| NewEvent::at(make(number), now)).collect();
        let (published, settled) = tokio::join!(store.publish(news), store.settle(settles));
        settled?;
        let settle = |(number, published): (u64, Result<Published, PublishError>)| match published? {
            Published::Accepted(seq) => {
                Ok(SettleRequest { token, seq, rev: 0, at: now, change: change(number, now) })
            }
            Published::Duplicate(_) => Err(format!("event {number} was there before").into()),
        };
        settles = batch.zip(published?).map(settle).collect::<Fallible<Vec<SettleRequest>>>()?;
        if told.elapsed() > TELL {
            told = Instant::now();
            let (have, all) = (first + BATCH - numbers.start, numbers.end - numbers.start);
            eprintln!("bench: {have} of {all} {what}");
        }
    }
    store.settle(settles).await?;
    store.release(token).await?;
    store.close().await?;
    Ok(json!({ "seconds": began.elapsed().as_secs_f64() }))
}

/// After one attempt that failed.
fn failed(at: Moment, due: Moment, cause: Cause) -> EventProgress {
    let record = AttemptRecord {
        attempt: 1,
        mode: Mode::Live.as_str().to_owned(),
        at_ms: at.as_nanos() / 1_000_000,
        took_ms: 12,
        disposition: "retry".to_owned(),
        executed: None,
        cause: Some(cause),
        delay_ms: None,
    };
    let history = Some(Arc::new(AttemptHistory::default().with(record)));
    EventProgress { attempts: 1, started: Some(at), history, ..EventProgress::fresh(due) }
}
