//! Those who read the archive: with a policy and a budget, and without a thought.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use redrive::budget::BudgetSettings;
use redrive::http::Client;
use redrive::prelude::*;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::pipeline::Pipeline;
use crate::readings::{PAGES, STATIONS};

/// How often a poller asks.
const EVERY: Duration = Duration::from_millis(250);
/// Retries as a share of first attempts, over all pollers. No floor, so that the sum is exact.
const SHARE: f64 = 0.2;
/// How often the naive ones ask before they wait for their next turn.
const NAIVE_ATTEMPTS: u32 = 5;

/// What all polite pollers share: the budget belongs to what is called, and not to who calls.
#[derive(Debug)]
pub(crate) struct Polite {
    client: Client,
    polls: AtomicU32,
}

impl Polite {
    pub(crate) fn new() -> anyhow::Result<Self> {
        let policy = Policy::builder()
            .name("archive")
            .attempts(4)
            .backoff(Backoff::exponential(Duration::from_millis(20), 2.0, Duration::from_millis(200)))
            .attempt_time(Duration::from_secs(2))
            .budget(Budget::new(BudgetSettings { share: SHARE, floor: 0.0, ..BudgetSettings::default() })?)
            .build()?;
        Ok(Self { client: Client::new(reqwest::Client::new(), policy), polls: AtomicU32::new(0) })
    }

    pub(crate) fn polls(&self) -> u32 {
        self.polls.load(Relaxed)
    }

    pub(crate) const fn share(&self) -> f64 {
        SHARE
    }
}

/// Reads all pages of all stations into the pipeline.
pub(crate) async fn polite(polite: &Polite, url: String, pipeline: &Pipeline) -> anyhow::Result<()> {
    // All in this task: whoever drops it stops them.
    let pollers = (0..STATIONS).map(|station| poll(polite, &url, station, pipeline));
    futures_util::future::try_join_all(pollers).await?;
    Ok(())
}

async fn poll(polite: &Polite, url: &str, station: u32, pipeline: &Pipeline) -> anyhow::Result<()> {
    // Not all at the same moment.
    tokio::time::sleep(EVERY * station / STATIONS).await;
    let mut page = 0;
    while page < PAGES {
        polite.polls.fetch_add(1, Relaxed);
        let answer = polite.client.get(format!("{url}/{station}/{page}")).send().await;
        let mut wait = EVERY;
        match answer {
            Ok(answer) if answer.status().is_success() => {
                // What cannot be accepted now is read again in the next turn.
                if pipeline.accept(station, page, answer.text().await?).await {
                    page += 1;
                }
            }
            // It asked to be left alone for longer than a turn.
            Ok(answer) => wait = wait.max(asked_for(&answer)),
            Err(_stopped) => {}
        }
        tokio::time::sleep(wait).await;
    }
    Ok(())
}

fn asked_for(answer: &reqwest::Response) -> Duration {
    let seconds = answer.headers().get("retry-after").and_then(|wait| wait.to_str().ok()?.parse().ok());
    seconds.map_or(Duration::ZERO, Duration::from_secs)
}

/// The same pages as often, with a loop around each request. Gives how often they polled.
pub(crate) async fn naive(url: String, mut stopped: watch::Receiver<bool>) -> u32 {
    let client = reqwest::Client::new();
    let mut pollers = JoinSet::new();
    for station in 0..STATIONS {
        let (client, url) = (client.clone(), url.clone());
        pollers.spawn(async move {
            tokio::time::sleep(EVERY * station / STATIONS).await;
            let (mut page, mut polls) = (0, 0);
            while page < PAGES {
                polls += 1;
                for _ in 0..NAIVE_ATTEMPTS {
                    let answer = client.get(format!("{url}/{station}/{page}")).send().await;
                    if answer.is_ok_and(|answer| answer.status().is_success()) {
                        page += 1;
                        break;
                    }
                }
                tokio::time::sleep(EVERY).await;
            }
            polls
        });
    }
    let mut polls = 0;
    loop {
        tokio::select! {
            ended = pollers.join_next() => match ended {
                Some(ended) => polls += ended.unwrap_or(0),
                None => return polls,
            },
            _ = stopped.wait_for(|stopped| *stopped) => return polls,
        }
    }
}
