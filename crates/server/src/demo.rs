//! `redrive demo`: orders are placed at a service that really fails, and each takes effect once or is given
//! up aloud.
//!
//! Everything is real but small: an HTTP service on loopback with good and bad moments, the library's own
//! client with one idempotency key for each order, one policy with a budget and a breaker for all of them.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use redrive::breaker::BreakerSettings;
use redrive::budget::BudgetSettings;
use redrive::http::Client;
use redrive::{Backoff, Breaker, Budget, Policy, Stopped};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::interval;

mod downstream;
mod narrator;
mod say;
mod summary;

use downstream::Downstream;
use narrator::Narrator;
use summary::{Ending, Summary};

/// What the demo can be told.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How many orders to place, 1 to 10000.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    orders: u32,
    /// How many to place a second, 1 to 1000.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rate: u32,
}

/// Runs the demo, to its end or to Ctrl-C.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let downstream = Downstream::start().await.context("cannot listen on loopback")?;
    let policy = policy().context("the demo's policy")?;
    narrator::opening(&downstream, &policy, args.orders, args.rate);

    let client = Client::new(reqwest::Client::new(), policy.clone());
    let mut summary = Summary::new(args.orders);
    let (stop, stopped) = watch::channel(false);
    let mut calls = JoinSet::new();
    let mut clock = interval(Duration::from_secs(1) / args.rate);
    let mut placed = 0;
    while placed < summary.placed() || !calls.is_empty() {
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {
                if summary.was_interrupted() {
                    bail!("stopped at once, without a summary");
                }
                // Waits end now, attempts under way within their time-out.
                summary.interrupted(placed);
                stop.send_replace(true);
            }
            _ = clock.tick(), if placed < summary.placed() => {
                placed += 1;
                let call = place(client.clone(), downstream.url(), placed, stopped.clone());
                calls.spawn(narrator::telling(placed, call));
            }
            Some(ended) = calls.join_next() => summary.note(ended.context("an order's task")?),
        }
    }

    summary.print(&downstream, &policy);
    if let Some(wrong) = summary.wrong(&downstream) {
        bail!("the figures do not add up: {wrong}");
    }
    summary.print_promise(&downstream);
    Ok(if summary.was_interrupted() { ExitCode::from(130) } else { ExitCode::SUCCESS })
}

/// One policy for everything that calls the one downstream.
fn policy() -> Result<Policy, redrive::PolicyError> {
    Policy::builder()
        .name("orders")
        .attempts(6)
        .backoff(Backoff::exponential(Duration::from_millis(100), 2.0, Duration::from_secs(2)))
        .attempt_time(Duration::from_millis(500))
        .time(Duration::from_secs(8))
        .budget(Budget::new(BudgetSettings { share: 0.5, floor: 10.0, ..BudgetSettings::default() })?)
        .breaker(Breaker::new(BreakerSettings {
            failing: 0.9,
            open_for: Duration::from_secs(1),
            ..BreakerSettings::default()
        })?)
        .observer(Narrator)
        .build()
}

/// Places one order: one intent, one key, as many attempts as it takes.
async fn place(client: Client, url: String, order: u32, mut stopped: watch::Receiver<bool>) -> Ending {
    let poison = order.is_multiple_of(23);
    let body = if poison { "an order for -1 cabins".to_owned() } else { format!("order {order}") };
    let call = client.post(url).with(|post| post.body(body)).idempotency_key(&format!("order-{order}"));
    let stopped = async move {
        let _ = stopped.wait_for(|stopped| *stopped).await;
    };
    match call.send_unless(stopped).await {
        Ok(response) => match Client::report(&response) {
            Some(report) => Ending::Answered { order, status: response.status(), report },
            None => Ending::Lost { order },
        },
        Err(Stopped { report, .. }) => Ending::Unanswered { order, report },
    }
}
