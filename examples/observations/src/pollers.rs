//! The pollers of the archive: with a policy and a budget, and naive ones.

use std::time::Duration;

use redrive::budget::BudgetSettings;
use redrive::http::Client;
use redrive::prelude::*;
use tokio::task::JoinSet;

use crate::pipeline::Pipeline;
use crate::readings::Size;

/// How often a poller asks.
const EVERY: Duration = Duration::from_millis(250);
/// Retries as a share of first attempts, over all pollers. No floor, so that the sum is exact.
pub(crate) const SHARE: f64 = 0.2;
/// How often the naive ones ask before they wait for their next turn.
const NAIVE_ATTEMPTS: u32 = 5;

/// Reads all pages of all stations into the pipeline, as far as it has not got them.
pub(crate) async fn polite(url: &str, size: Size, pipeline: &Pipeline) -> anyhow::Result<()> {
    // One policy for all pollers: the budget belongs to the called service, not to the caller.
    let budget = Budget::new(BudgetSettings { share: SHARE, floor: 0.0, ..BudgetSettings::default() })?;
    let policy = Policy::builder()
        .name("archive")
        .attempts(4)
        .backoff(Backoff::exponential(Duration::from_millis(20), 2.0, Duration::from_millis(200)))
        .attempt_time(Duration::from_secs(2))
        .budget(budget)
        .build()?;
    let client = Client::new(reqwest::Client::new(), policy);
    let pollers = (0..size.stations).map(|station| poll(&client, url, station, size, pipeline));
    futures_util::future::try_join_all(pollers).await?;
    Ok(())
}

async fn poll(
    client: &Client,
    url: &str,
    station: u32,
    size: Size,
    pipeline: &Pipeline,
) -> anyhow::Result<()> {
    let mut page = pipeline.next_page(station, size).await?;
    // Not all at the same moment.
    tokio::time::sleep(EVERY * station / size.stations).await;
    while page < size.pages {
        let answer = client.get(format!("{url}/{station}/{page}")).send().await;
        let mut wait = EVERY;
        match answer {
            Ok(answer) if answer.status().is_success() => {
                // A page that cannot be read completely, or accepted now, is read again in the next turn.
                if let Ok(text) = answer.text().await
                    && pipeline.accept(station, page, text).await
                {
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

/// The same pages as often, with a loop around each request. Returns the number of polls.
pub(crate) async fn naive(url: &str, size: Size) -> u32 {
    let client = reqwest::Client::new();
    let mut pollers = JoinSet::new();
    for station in 0..size.stations {
        let (client, url) = (client.clone(), url.to_owned());
        pollers.spawn(async move {
            tokio::time::sleep(EVERY * station / size.stations).await;
            let (mut page, mut polls) = (0, 0);
            while page < size.pages {
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
    pollers.join_all().await.into_iter().sum()
}
