//! Lateness: events that come due at an even pace while millions wait.
//!
//! They are published before the engine starts, so that it knows of none of them but through its loads. What counts
//! is the handler's first line against the moment in the payload.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use redrive::{Delivery, Event, Redrive};
use redrive_benches::turn;
use serde_json::{Value, json};

use crate::fill::QUEUE;
use crate::subprocess::PartArgs;
use crate::sync_probe::Probe;
use crate::{Fallible, memory};

/// Between the publishing and the first that is due.
const LEAD: Duration = Duration::from_secs(2);

/// Events in a call.
const BATCH: usize = 5_000;

/// How long after the last was due all have to be handled.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) async fn measure(told: &PartArgs<'_>) -> Fallible<Value> {
    let (first, rate, seconds) = (told.number("first")?, told.number("rate")?, told.number("seconds")?);
    let redrive = Redrive::open(&format!("sqlite:{}", told.file.display())).await?;
    let late = Arc::new(Mutex::new(Vec::<u64>::new()));
    let lates = late.clone();
    let handler = move |delivery: Delivery| {
        let now = nanos(SystemTime::now());
        let due = std::str::from_utf8(delivery.payload()).ok().and_then(turn::number);
        // Those that wait for long are none of ours, and so are those of other parts.
        if let Some(due) = due.filter(|due| *due > 1_000_000_000_000_000_000) {
            lates.lock().unwrap_or_else(PoisonError::into_inner).push(now.saturating_sub(due));
        }
        std::future::ready(())
    };
    redrive.queue(QUEUE).handle(handler).await?;
    let count = usize::try_from(rate * seconds)?;
    // A second for every fifty thousand, so that the last one is published before the first is due.
    let lead = LEAD + Duration::from_secs(rate * seconds / 50_000);
    let start = SystemTime::now() + lead;
    let dues: Vec<SystemTime> =
        (0..rate * seconds).map(|at| start + Duration::from_nanos(at * 1_000_000_000 / rate)).collect();
    for (batch, dues) in dues.chunks(BATCH).enumerate() {
        let events = dues.iter().enumerate().map(|(at, due)| {
            let number = first + (batch * BATCH + at) as u64;
            Event::new(QUEUE, turn::id(number)).payload(turn::payload(nanos(*due))).at(*due)
        });
        for published in redrive.publish_all(events).await? {
            published?;
        }
    }
    if SystemTime::now() >= start {
        return Err("publishing took so long that the first was due before the start".into());
    }
    redrive.start().await?;
    let probe = Probe::start(told.file)?;
    let end = start + Duration::from_secs(seconds) + PATIENCE;
    let have = || late.lock().unwrap_or_else(PoisonError::into_inner).len();
    while have() < count && SystemTime::now() < end {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let (sync_p50, sync_most) = probe.end()?;
    redrive.shutdown(Duration::from_secs(10)).await?;
    let mut late = std::mem::take(&mut *late.lock().unwrap_or_else(PoisonError::into_inner));
    if late.len() != count {
        return Err(format!("{} of {count} were handled", late.len()).into());
    }
    late.sort_unstable();
    let at = |percent: usize| ms(late[(late.len() - 1) * percent / 100]);
    Ok(json!({
        "p50_ms": at(50), "p99_ms": at(99), "most_ms": at(100),
        "sync_p50_ms": sync_p50, "sync_most_ms": sync_most, "most_mb": memory::most_mb()?,
    }))
}

fn nanos(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

fn ms(nanos: u64) -> f64 {
    Duration::from_nanos(nanos).as_secs_f64() * 1e3
}
