//! The pipeline: pages are split into observations, which keep their ids, and made into means, which get derived
//! ones; both go to the subscriber through a dedupe window.
//!
//! ```text
//! pages ──▶ observations ──▶ window ──▶ subscriber
//!       └─▶ means ───────────┘
//! ```

use std::path::Path;
use std::time::Duration;

use redrive::engine::Transaction;
use redrive::event::State;
use redrive::prelude::*;
use redrive::window::{self, Once, Window};
use redrive::{EventId, testing};
use serde_json::Value;

use crate::readings;
use crate::subscriber::Subscriber;

/// How long the subscriber's acknowledgement takes: where an attempt is when the pipeline is stopped, most likely.
const ACKNOWLEDGED: Duration = Duration::from_millis(20);

/// The pipeline on its two files.
pub(crate) struct Pipeline {
    redrive: Redrive,
    window: Window,
}

/// What one life of the pipeline saw.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Figures {
    /// What the window knew when it came again.
    pub(crate) seen: u64,
    /// What went to the subscriber.
    pub(crate) committed: u64,
    /// Whether all attempts had ended when it was stopped.
    pub(crate) is_clean: bool,
}

impl Pipeline {
    pub(crate) async fn open(folder: &Path, subscriber: &Subscriber) -> anyhow::Result<Self> {
        let file = |name| format!("sqlite:{}", folder.join(name).display());
        let redrive = Redrive::open(&file("pipeline.db")).await?;
        let window = Window::open(&file("seen.db"), window::Settings::default()).await?;
        redrive.queue("pages").handle_in(split).await?;
        for queue in ["observations", "means"] {
            let sink = Sink { window: window.clone(), subscriber: subscriber.clone() };
            let handle = move |event: Delivery| {
                let sink = sink.clone();
                async move { sink.deliver(&event).await }
            };
            redrive.queue(queue).concurrency(32).handle(handle).await?;
        }
        redrive.start().await?;
        Ok(Self { redrive, window })
    }

    /// Takes a page in, once: a page that was read before is known by its name.
    pub(crate) async fn accept(&self, station: u32, page: u32, text: String) -> bool {
        let event = Event::new("pages", format!("station-{station}/page-{page}")).payload(text);
        self.redrive.publish(event).await.is_ok()
    }

    /// Waits until everything that was taken in has gone through.
    pub(crate) async fn drained(&self) {
        testing::drain(&self.redrive).await;
    }

    /// Records that became dead letters, in all lives.
    pub(crate) async fn dead(&self) -> anyhow::Result<u64> {
        let counts = self.redrive.counts().await?;
        Ok(counts.iter().filter(|count| count.state == State::Dead).map(|count| count.events).sum())
    }

    /// Stops: what is under way gets `grace`, and goes on in the next life otherwise.
    pub(crate) async fn close(self, grace: Duration) -> anyhow::Result<Figures> {
        let stopping = self.redrive.shutdown(grace).await?;
        let window::Figures { seen, committed, .. } = self.window.figures();
        self.window.close().await;
        Ok(Figures { seen, committed, is_clean: stopping.all_ended })
    }
}

/// Splits a page. All that comes of it, and its end, are one commit.
fn split(tx: &mut Transaction<'_>, page: &Delivery) -> Result<(), Failure> {
    let records: Vec<Value> = serde_json::from_slice(page.payload())?;
    let mut good = Vec::new();
    for record in &records {
        // An event that is only passed on keeps its id.
        let id = readings::id(record)?;
        tx.publish(Event::new("observations", id).payload(record.to_string()))?;
        // What cannot be read dies in its own queue, where its story is.
        good.extend(readings::celsius(record).ok().map(|celsius| (id, celsius)));
    }
    let sum: f64 = good.iter().map(|(_, celsius)| celsius).sum();
    let ids = good.iter().map(|(id, _)| id);
    let mean = Event::new("means", EventId::derive(ids, &format!("mean/{}", page.id())));
    tx.publish(mean.payload(format!("{sum} over {}", good.len())))?;
    Ok(())
}

/// Where events leave the pipeline.
#[derive(Debug, Clone)]
struct Sink {
    window: Window,
    subscriber: Subscriber,
}

impl Sink {
    async fn deliver(&self, event: &Delivery) -> Result<(), Failure> {
        if event.queue() == "observations" {
            readings::celsius(&serde_json::from_slice(event.payload())?)?;
        }
        let tell = async {
            self.subscriber.tell(event.id());
            Ok(())
        };
        let once = self.window.once(event.id(), tell).await;
        tokio::time::sleep(ACKNOWLEDGED).await;
        match once {
            Ok(Once::Done(()) | Once::Seen { .. }) => Ok(()),
            Ok(Once::Unmarked { error, .. }) => Err(Failure::permanent(error)),
            Ok(Once::Busy { .. }) => Err(Failure::transient_text("another attempt is at it")),
            Err(error) => Err(Failure::transient(error)),
        }
    }
}
