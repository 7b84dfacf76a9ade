//! Life cycles beside those that wait: publish, an empty handler, acknowledged, 1,000 in flight.
//!
//! In the same queue as those that wait, so that they share its tables, its trees and its loads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use redrive::engine::OpenOptions;
use redrive::store::sqlite::{Sqlite, SqliteSettings};
use redrive::{Delivery, Event};
use redrive_benches::turn::{self, WARM_UP};
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::fill::QUEUE;
use crate::subprocess::PartArgs;
use crate::{Fallible, memory};

/// Events in flight, as in the bench of the engine.
const IN_FLIGHT: usize = 1_000;

/// How long those under way have at the end.
const GRACE: Duration = Duration::from_secs(10);

/// Numbers of the events of a turn begin at a multiple of this.
pub(crate) const NUMBERS: u64 = 10_000_000_000;

/// Measures for so many milliseconds; with `killed` it ends without a word, in the middle of its work.
pub(crate) async fn measure(told: &PartArgs<'_>) -> Fallible<Value> {
    let store = Arc::new(Sqlite::open(told.file, SqliteSettings::default())?);
    let redrive = OpenOptions::new().over(store.clone());
    let (first, time) = (told.number("first")?, Duration::from_millis(told.number("millis")?));
    let waiting: Arc<[Notify]> = (0..IN_FLIGHT).map(|_| Notify::new()).collect();
    let woken = waiting.clone();
    let handler = move |delivery: Delivery| {
        let number = std::str::from_utf8(delivery.payload()).ok().and_then(turn::number).unwrap_or_default();
        woken[usize::try_from(number).unwrap_or_default() % IN_FLIGHT].notify_one();
        std::future::ready(())
    };
    redrive.queue(QUEUE).concurrency(u32::try_from(IN_FLIGHT)?).handle(handler).await?;
    redrive.start().await?;
    let published = Arc::new(AtomicU64::new(0));
    let over = Arc::new(AtomicBool::new(false));
    for caller in 0..IN_FLIGHT {
        let (redrive, published) = (redrive.clone(), published.clone());
        let (waiting, over) = (waiting.clone(), over.clone());
        let numbers = (first + caller as u64..).step_by(IN_FLIGHT);
        tokio::spawn(async move {
            for number in numbers.take_while(|_| !over.load(Relaxed)) {
                redrive.publish(Event::new(QUEUE, turn::id(number)).payload(turn::payload(number))).await?;
                published.fetch_add(1, Relaxed);
                waiting[caller].notified().await;
            }
            Fallible::Ok(())
        });
    }
    // Every write that is no publish is an end.
    let ends = || {
        let (_, writes) = store.commits();
        writes - published.load(Relaxed).min(writes)
    };
    tokio::time::sleep(WARM_UP).await;
    let (began, before) = (Instant::now(), ends());
    tokio::time::sleep(time).await;
    let (took, done) = (began.elapsed(), ends() - before);
    if told.number("killed")? == 0 {
        over.store(true, Relaxed);
        redrive.idle().await;
        redrive.shutdown(GRACE).await?;
    }
    let rate = f64::from(u32::try_from(done)?) / took.as_secs_f64();
    Ok(json!({ "a_second": rate, "most_mb": memory::most_mb()? }))
}
