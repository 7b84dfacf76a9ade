//! Putting all dead letters back, against publishing as many anew.
//!
//! One engine does both, with empty handlers that run meanwhile, so both share the writer with as many ends. A job
//! without a rate takes a thousand letters in a step; so events are published a thousand in a call, one call at a
//! time, to the same queues and tenants: a part before the job and a part after it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use redrive::triage::job::{JobAct, STEP_MAX};
use redrive::triage::{Filter, JobPlan, JobStrategy, RedriveOptions as How};
use redrive::{Delivery, Redrive};
use serde_json::{Value, json};

use crate::dead_letters::{Letter, QUEUES};
use crate::life_cycles::NUMBERS;
use crate::subprocess::PartArgs;
use crate::{Fallible, memory};

/// Attempts at once, of each queue.
const CONCURRENCY: u32 = 256;

/// How often a look is taken at how far it has come.
const LOOK: Duration = Duration::from_millis(20);

/// Something of which many were begun, and then done, in seconds.
#[derive(Default, Clone, Copy)]
struct Took {
    events: u64,
    given: f64,
    done: f64,
}

pub(crate) async fn measure(told: &PartArgs<'_>) -> Fallible<Value> {
    let letters = told.number("letters")?;
    let redrive = Redrive::open(&format!("sqlite:{}", told.file.display())).await?;
    let handled = Arc::new(AtomicU64::new(0));
    for queue in QUEUES {
        let handled = handled.clone();
        let handler = move |_: Delivery| {
            handled.fetch_add(1, Relaxed);
            std::future::ready(())
        };
        redrive.queue(queue).concurrency(CONCURRENCY).handle(handler).await?;
    }
    redrive.start().await?;
    let part = (letters / 10).max(1_000);
    let before = publish(&redrive, &handled, NUMBERS..NUMBERS + part).await?;
    let job = put_back(&redrive, letters).await?;
    let after = publish(&redrive, &handled, 2 * NUMBERS..2 * NUMBERS + part).await?;
    redrive.shutdown(Duration::from_secs(10)).await?;
    let published = Took {
        events: before.events + after.events,
        given: before.given + after.given,
        done: before.done + after.done,
    };
    Ok(json!({
        "published_a_second": rate(published.events, published.given),
        "published_done_a_second": rate(published.events, published.done),
        "taken_a_second": rate(job.events, job.given),
        "taken_done_a_second": rate(job.events, job.done),
        "most_mb": memory::most_mb()?,
    }))
}

async fn publish(redrive: &Redrive, handled: &AtomicU64, numbers: std::ops::Range<u64>) -> Fallible<Took> {
    let events = numbers.end - numbers.start;
    let all = handled.load(Relaxed) + events;
    let began = Instant::now();
    let step = u64::from(STEP_MAX);
    for first in numbers.clone().step_by(usize::try_from(step)?) {
        let batch = (first..numbers.end.min(first + step)).map(|number| Letter(number).event());
        for published in redrive.publish_all(batch).await? {
            published?;
        }
    }
    let given = began.elapsed().as_secs_f64();
    while handled.load(Relaxed) < all {
        tokio::time::sleep(LOOK).await;
    }
    redrive.idle().await;
    Ok(Took { events, given, done: began.elapsed().as_secs_f64() })
}

async fn put_back(redrive: &Redrive, letters: u64) -> Fallible<Took> {
    let desk = redrive.desk("bench", "scale");
    let act = JobAct::Redrive(How::default());
    let began = Instant::now();
    let job =
        desk.start(JobPlan { filter: Filter::default(), act, strategy: JobStrategy::default() }).await?;
    let mut given = None;
    loop {
        let job = desk.job(job).await?.ok_or("the job is gone")?;
        if job.exhausted && given.is_none() {
            given = Some(began.elapsed().as_secs_f64());
        }
        if job.exhausted && job.under_way() == 0 {
            if (job.taken, job.done) != (letters, letters) {
                return Err(format!("{} taken and {} done of {letters}", job.taken, job.done).into());
            }
            let (given, done) = (given.unwrap_or_default(), began.elapsed().as_secs_f64());
            return Ok(Took { events: letters, given, done });
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn rate(events: u64, seconds: f64) -> f64 {
    f64::from(u32::try_from(events).unwrap_or(u32::MAX)) / seconds
}
