//! `redrive demo`: a server, a service that really fails, and a stream of orders in between.
//!
//! Everything is real but small: the server that `redrive serve` runs, with its store in a temporary folder; a
//! service on loopback with a ledger like a payment provider's; a shop that publishes over HTTP. At the end the
//! figures of all sides are compared.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::time::{MissedTickBehavior, interval, sleep_until};

use crate::config::Config;
use crate::serve::Server;

mod downstream;
mod print;
mod progress;
mod shop;
mod summary;

use downstream::Downstream;
use print::say;
use progress::{Figures, ProgressDisplay};
use shop::Shop;
use summary::Summary;

/// How often the figures are printed: in place on a terminal, as lines otherwise.
const IN_PLACE: Duration = Duration::from_millis(200);
const AS_LINES: Duration = Duration::from_secs(2);

/// How long attempts in progress get at the end.
const GRACE: Duration = Duration::from_secs(2);

/// The arguments of `redrive demo`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How long to run, e.g. 20s [default: until Ctrl-C]
    #[arg(long = "for", value_name = "TIME", value_parser = for_how_long)]
    time: Option<Duration>,
    /// Orders per second, 1 to 500.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=500))]
    rate: u32,
}

fn for_how_long(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(Duration::ZERO) => Err("the duration must be at least a few seconds".to_owned()),
        Ok(time) => Ok(time),
        Err(error) => Err(error.to_string()),
    }
}

/// The server's settings, as in `redrive.toml`.
const SETTINGS: &str = r#"
[push]
allow = ["127.0.0.0/8"]

[queues.orders]
concurrency = 32
[queues.orders.policy]
attempts = 8
attempt_time = "1s"
[queues.orders.policy.backoff.exponential]
base = "200ms"
factor = 2.0
cap = "5s"
[queues.orders.policy.budget]
share = 0.5
floor = 10
window = "10s"
[queues.orders.policy.breaker]
failing = 0.8
window = 20
least_calls = 10
open_for = "1s"
probes = 3
"#;

/// Runs the demo for its duration or until Ctrl-C.
pub(crate) async fn run(args: Args) -> Result<ExitCode> {
    let folder = tempfile::Builder::new().prefix("redrive-demo-").tempdir().context("a temporary folder")?;
    let downstream = Downstream::start().await.context("cannot listen on loopback")?;
    let config = settings(folder.path(), &downstream)?;
    let server = Server::start(config).await?;
    // The desk's overview can repair the service.
    let _ = server.app().demo.set(downstream.repaired());
    let address = format!("http://{}", server.address());
    opening(&args, &address, &downstream);

    let mut shop = Shop::new(&address)?;
    let interrupted = trade(&args, &server, &downstream, &mut shop).await?;

    shop.close().await?;
    let summary = Summary::take(&server, &downstream, &shop).await?;
    let stopping = tokio::select! {
        stopping = server.stop(GRACE) => stopping,
        _ = tokio::signal::ctrl_c() => bail!("stopped at once, without a summary"),
    };
    stopping?;
    summary.print();
    if let Some(wrong) = summary.wrong() {
        bail!("the figures do not add up: {wrong}");
    }
    summary.print_promise();
    Ok(if interrupted && args.time.is_some() { ExitCode::from(130) } else { ExitCode::SUCCESS })
}

/// Places orders and prints figures until the time is over; returns whether Ctrl-C ended it.
async fn trade(args: &Args, server: &Server, downstream: &Downstream, shop: &mut Shop) -> Result<bool> {
    let end = args.time.map(|time| tokio::time::Instant::from(Instant::now() + time));
    let mut board = ProgressDisplay::new();
    let mut orders = interval(Duration::from_secs(1) / args.rate);
    // Orders that were not placed in time are skipped, not placed in a burst.
    orders.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut telling = interval(if board.is_in_place() { IN_PLACE } else { AS_LINES });
    loop {
        let over = async {
            match end {
                Some(end) => sleep_until(end).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {
                board.leave();
                return Ok(true);
            }
            () = over => {
                board.leave();
                return Ok(false);
            }
            error = server.failed() => bail!("the store failed: {error}"),
            _ = orders.tick() => shop.place(),
            Some(placed) = shop.answered() => placed?,
            _ = telling.tick() => {
                board.news(downstream.news());
                board.show(&Figures::take(server, downstream, shop).await?);
            }
        }
    }
}

fn settings(folder: &std::path::Path, downstream: &Downstream) -> Result<Config> {
    let push = format!("[queues.orders.push]\nurl = \"{}\"\n", downstream.url());
    let mut config: Config = toml::from_str(&format!("{SETTINGS}{push}")).context("the demo's settings")?;
    config.store.address = format!("sqlite:{}", folder.join("redrive.db").display());
    config.server.listen.set_port(0);
    config.server.edit = true;
    config.check()?;
    Ok(config)
}

/// Prints what the demo does, and what to try meanwhile.
fn opening(args: &Args, address: &str, downstream: &Downstream) {
    let program = program();
    let until = args
        .time
        .map_or("until Ctrl-C".to_owned(), |time| format!("for {}", humantime::format_duration(time)));
    say(format_args!("Redrive runs at {address} {until}, with its events in a file."));
    say(format_args!(
        "A shop publishes {} orders per second over HTTP. Redrive sends each order to a service at",
        args.rate
    ));
    say(format_args!(
        "{}, which starts slowly, has bursts of 503, loses responses after the",
        downstream.url()
    ));
    say(
        "order took effect, and is down for some seconds. A few orders are invalid, and a few are sent twice.\n",
    );
    say(format_args!("The desk, for a browser:  {address}/desk\n"));
    say("In another terminal:");
    say(format_args!("  {program} dead groups --url {address}"));
    say(format_args!("  {program} dead ls --url {address}"));
    say(format_args!("  {program} queue pause orders --for 5s --url {address}"));
    say(format_args!("  curl -s {address}/metrics | grep redrive_events"));
    say(format_args!(
        "  curl -s {address}/v1/queues/orders/events -H 'redrive-id: mine' -d '{{\"cabins\":2}}'\n"
    ));
}

/// The command line of this program.
fn program() -> String {
    let here = std::env::current_dir().ok();
    let program = std::env::current_exe().ok();
    let short =
        program.as_ref().zip(here.as_ref()).and_then(|(program, here)| program.strip_prefix(here).ok());
    match (short, &program) {
        (Some(short), _) => format!("./{}", short.display()),
        (None, Some(program)) => program.display().to_string(),
        (None, None) => "redrive".to_owned(),
    }
}
