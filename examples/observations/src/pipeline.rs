//! The pipeline: pages are split into observations, which keep their ids, and made into means, which get derived
//! ones; both go to the subscriber. All its state is in one file, so it may be killed at any time.
//!
//! ```text
//! archive ──▶ pollers ──▶ pages ──▶ observations ──▶ sink ──▶ subscriber
//!                               └─▶ means ───────────┘
//! ```

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use redrive::EventId;
use redrive::engine::Transaction;
use redrive::event::State;
use redrive::prelude::*;
use serde_json::Value;

use crate::pollers;
use crate::readings::{self, Size};

/// How often it looks whether everything has gone through.
const LOOKS: Duration = Duration::from_millis(20);

/// The pipeline on its file.
pub(crate) struct Pipeline(Redrive);

/// The figures of the file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Left {
    /// Events that have not gone through.
    pub(crate) between: u64,
    /// Records that became dead letters.
    pub(crate) dead: u64,
}

/// One life of it: reads all pages that it has not, and ends when everything has gone through.
pub(crate) async fn run(folder: &Path, archive: &str, sink: &str, size: Size) -> anyhow::Result<()> {
    let redrive = Redrive::open(&file(folder)).await?;
    redrive.queue("pages").handle_in(split).await?;
    let client = reqwest::Client::new();
    for queue in ["observations", "means"] {
        let (client, sink) = (client.clone(), sink.to_owned());
        let handle = move |event: Delivery| deliver(client.clone(), sink.clone(), event);
        redrive.queue(queue).concurrency(32).handle(handle).await?;
    }
    redrive.start().await?;

    let pipeline = Pipeline(redrive);
    pollers::polite(archive, size, &pipeline).await?;
    while look(&pipeline.0).await?.between > 0 {
        tokio::time::sleep(LOOKS).await;
    }
    pipeline.0.shutdown(Duration::from_secs(5)).await?;
    Ok(())
}

impl Pipeline {
    /// The first page of a station that was not taken in yet. Receipts outlive events, so they are a cursor written
    /// in the same commit as the page.
    pub(crate) async fn next_page(&self, station: u32, size: Size) -> anyhow::Result<u32> {
        for page in 0..size.pages {
            if self.0.event("", "pages", &page_id(station, page)).await?.is_none() {
                return Ok(page);
            }
        }
        Ok(size.pages)
    }

    /// Takes a page in, once: a page that was read before is known by its name.
    pub(crate) async fn accept(&self, station: u32, page: u32, text: String) -> bool {
        self.0.publish(Event::new("pages", page_id(station, page)).payload(text)).await.is_ok()
    }
}

/// The figures of a pipeline that does not run.
pub(crate) async fn left(folder: &Path) -> anyhow::Result<Left> {
    let redrive = Redrive::open(&file(folder)).await.context("cannot look at what is left")?;
    let left = look(&redrive).await?;
    redrive.shutdown(Duration::ZERO).await?;
    Ok(left)
}

async fn look(redrive: &Redrive) -> anyhow::Result<Left> {
    let mut left = Left { between: 0, dead: 0 };
    for count in redrive.counts().await? {
        match count.state {
            State::Dead => left.dead += count.events,
            _ => left.between += count.events,
        }
    }
    Ok(left)
}

fn file(folder: &Path) -> String {
    format!("sqlite:{}", folder.join("pipeline.db").display())
}

fn page_id(station: u32, page: u32) -> String {
    format!("station-{station}/page-{page}")
}

/// Splits a page. All its events, and its end, are one commit.
fn split(tx: &mut Transaction<'_>, page: &Delivery) -> Result<(), Failure> {
    let records: Vec<Value> = serde_json::from_slice(page.payload())?;
    let mut good = Vec::new();
    for record in &records {
        // A forwarded event keeps its id.
        let id = readings::id(record)?;
        tx.publish(Event::new("observations", id).payload(record.to_string()))?;
        // An unreadable record dies in its own queue, with its attempts.
        good.extend(readings::celsius(record).ok().map(|celsius| (id, celsius)));
    }
    let sum: f64 = good.iter().map(|(_, celsius)| celsius).sum();
    let ids = good.iter().map(|(id, _)| id);
    let mean = Event::new("means", EventId::derive(ids, &format!("mean/{}", page.id())));
    tx.publish(mean.payload(format!("{sum} over {}", good.len())))?;
    Ok(())
}

/// Delivers an event. A pipeline killed before the acknowledgement delivers it again, and the sink recognises it.
async fn deliver(client: reqwest::Client, sink: String, event: Delivery) -> Result<(), Failure> {
    if event.queue() == "observations" {
        readings::celsius(&serde_json::from_slice(event.payload())?)?;
    }
    let answer = client.post(sink).body(event.id().to_owned()).send().await.map_err(Failure::transient)?;
    if !answer.status().is_success() {
        return Err(Failure::transient_text(format!("the sink says {}", answer.status())));
    }
    Ok(())
}
