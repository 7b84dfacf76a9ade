//! Opening a file: from the first call to the handler of the first event that is published.

use std::time::{Duration, Instant, SystemTime};

use redrive::{Delivery, Event, Redrive};
use redrive_benches::turn;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::fill::QUEUE;
use crate::subprocess::PartArgs;
use crate::{Fallible, memory};

pub(crate) async fn measure(told: &PartArgs<'_>) -> Fallible<Value> {
    let id = format!("opened-{:?}", SystemTime::now());
    let began = Instant::now();
    let redrive = Redrive::open(&format!("sqlite:{}", told.file.display())).await?;
    let (tell, mut told) = mpsc::unbounded_channel();
    let expected = id.clone();
    let handler = move |delivery: Delivery| {
        if delivery.id() == expected {
            // The caller waits for one.
            let _ = tell.send(Instant::now());
        }
        std::future::ready(())
    };
    redrive.queue(QUEUE).handle(handler).await?;
    redrive.start().await?;
    let started = began.elapsed();
    redrive.publish(Event::new(QUEUE, id).payload(turn::payload(0))).await?;
    let handled = told.recv().await.ok_or("the handler is gone")? - began;
    redrive.shutdown(Duration::from_secs(10)).await?;
    let (handled, started) = (handled.as_secs_f64(), started.as_secs_f64());
    Ok(json!({ "handled_s": handled, "started_s": started, "most_mb": memory::most_mb()? }))
}
