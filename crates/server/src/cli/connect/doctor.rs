//! `redrive doctor`: what is wrong with this installation, and what to do.

use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::Result;
use serde_json::{Value, json};

use super::{Neighbour, neighbour};
use crate::cli::output::{Output, plain, several};
use crate::cli::{ConfigLocation, told_once};
use crate::config::{Config, PushTo};
use crate::push::{self, ssrf_guard::SsrfGuard};
use crate::serve;

/// How long a destination may take to accept a connection.
const CONNECT_TIME: Duration = Duration::from_secs(5);
/// How far the clocks may differ.
const CLOCK_SKEW: Duration = Duration::from_secs(2);

/// Check store, disk, clock, server and destinations; says what is wrong and what to do
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    #[command(flatten)]
    location: ConfigLocation,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The result of a check.
#[derive(Debug, Clone, PartialEq)]
struct Finding {
    what: String,
    /// What is wrong and what to do; none if it is fine.
    problem: Option<String>,
    detail: String,
}

impl Finding {
    fn fine(what: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { what: what.into(), problem: None, detail: detail.into() }
    }

    fn wrong(what: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { what: what.into(), problem: Some(problem.into()), detail: String::new() }
    }

    fn is_fine(&self) -> bool {
        self.problem.is_none()
    }
}

pub(in crate::cli) async fn run(Args { location, json }: Args) -> Result<ExitCode> {
    let source = location.source([]);
    let findings = match source.load() {
        Err(error) => vec![Finding::wrong("configuration", told_once(&error.into()))],
        Ok(config) => {
            let file = source.path().map_or("defaults only".to_owned(), |path| path.display().to_string());
            let mut findings = vec![Finding::fine("configuration", file)];
            findings.extend(queues(&config));
            findings.push(server(&config).await);
            findings.extend(store(&config).await);
            findings.extend(destinations(&config).await);
            findings
        }
    };
    let is_fine = findings.iter().all(Finding::is_fine);
    let answer = json!({ "fine": is_fine, "checks": findings.iter().map(to_json).collect::<Vec<_>>() });
    Output { json }.answer(&answer, |_| {
        // No table: what is wrong must not be cut off.
        let line = |finding: &Finding| {
            let state = if finding.is_fine() { "fine " } else { "WRONG" };
            let detail = finding.problem.as_ref().unwrap_or(&finding.detail);
            format!("{state}  {}: {}\n", plain(&finding.what), plain(detail))
        };
        findings.iter().map(line).collect()
    })?;
    Ok(if is_fine { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn to_json(finding: &Finding) -> Value {
    json!({ "check": finding.what, "fine": finding.is_fine(), "problem": finding.problem, "detail": finding.detail })
}

/// Queues that were configured, and settings without effect.
fn queues(config: &Config) -> Vec<Finding> {
    if config.queues.is_empty() {
        let what = "there is no queue; add one to redrive.toml, for example [queues.orders.pull]";
        return vec![Finding::wrong("queues", what)];
    }
    let mut all = vec![Finding::fine("queues", config.queues.len().to_string())];
    all.extend(config.warnings().into_iter().map(|warning| Finding::wrong("queues", warning)));
    all
}

/// Whether a server runs, and on the same store.
async fn server(config: &Config) -> Finding {
    let listen = config.server.listen;
    match neighbour(listen, &config.store).await {
        Neighbour::Silent => Finding::fine("server", format!("none runs on {listen}")),
        Neighbour::Same => Finding::fine("server", format!("runs on {listen}")),
        Neighbour::OtherStore => Finding::wrong(
            "server",
            format!(
                "the server on {listen} serves another store; change `listen` of [server], or `address` of [store]"
            ),
        ),
        Neighbour::OtherProgram => Finding::wrong(
            "server",
            format!("another program listens on {listen}; stop it, or change `listen` of [server]"),
        ),
    }
}

/// Whether the store opens, has room, and agrees about the time.
async fn store(config: &Config) -> Vec<Finding> {
    let place = config.store.place();
    if let Some(("sqlite", file)) = config.store.address.split_once(':')
        && !Path::new(file.trim_start_matches("//")).exists()
    {
        return vec![Finding::fine("store", format!("{place} is created at the first start"))];
    }
    let redrive = match serve::open(config).await {
        Ok(redrive) => redrive,
        Err(error) => return vec![Finding::wrong("store", told_once(&error))],
    };
    let mut findings = Vec::new();
    match redrive.counts().await {
        Ok(counts) => {
            let events: u64 = counts.iter().map(|count| count.events).sum();
            findings.push(Finding::fine(
                "store",
                format!("{place} has {} that did not end", several(events, "event")),
            ));
        }
        Err(error) => findings.push(Finding::wrong("store", told_once(&error.into()))),
    }
    if let Some(room) = redrive.figures().disk {
        let (free, least) = (room.free, room.least);
        findings.push(if room.is_low() {
            Finding::wrong(
                "disk",
                format!("{free} bytes are free, and publishing is refused below {least}; free some space"),
            )
        } else {
            Finding::fine("disk", format!("{} MiB free", free >> 20))
        });
    }
    findings.push(clock(redrive.now().into()));
    let _ = redrive.shutdown(Duration::ZERO).await;
    findings
}

/// Whether this machine's clock agrees with that of the store.
fn clock(store: SystemTime) -> Finding {
    let here = SystemTime::now();
    let apart = here.duration_since(store).unwrap_or_else(|error| error.duration());
    if apart > CLOCK_SKEW {
        let apart = humantime::format_duration(Duration::from_secs(apart.as_secs()));
        return Finding::wrong(
            "clock",
            format!("this machine and the store are {apart} apart; synchronise both with NTP"),
        );
    }
    Finding::fine("clock", humantime::format_rfc3339_seconds(here).to_string())
}

/// Whether each destination can be connected to.
async fn destinations(config: &Config) -> Vec<Finding> {
    let guard = push::guard(&config.push);
    let mut findings = Vec::new();
    for (name, queue) in &config.queues {
        let Some(to) = &queue.push else { continue };
        let what = format!("queue {name}");
        let reached = match &guard {
            Ok(guard) => reach(to, guard).await,
            Err(error) => Err(error.clone()),
        };
        findings.push(match reached {
            Ok(address) => Finding::fine(what, format!("its destination accepts connections at {address}")),
            Err(problem) => Finding::wrong(what, problem),
        });
    }
    findings
}

/// Connects to a destination, and sends nothing.
async fn reach(to: &PushTo, guard: &SsrfGuard) -> Result<SocketAddr, String> {
    let url = url::Url::parse(&to.url).map_err(|error| format!("its URL is not valid: {error}"))?;
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned();
    let port = url.port_or_known_default().unwrap_or(80);
    guard.check_host(&url).map_err(|error| error.to_string())?;
    let addresses = tokio::net::lookup_host((host.as_str(), port)).await;
    let addresses =
        addresses.map_err(|error| format!("its host {host} cannot be resolved: {error}; check the name"))?;
    let mut last = format!("its host {host} has no address; check the name");
    for address in addresses {
        let connecting = tokio::net::TcpStream::connect(address);
        match tokio::time::timeout(CONNECT_TIME, connecting).await {
            Ok(Ok(_)) => return Ok(address),
            Ok(Err(error)) => {
                last = format!(
                    "its destination {host}:{port} cannot be reached: {error}; start it, or correct the URL"
                );
            }
            Err(_) => {
                last = format!(
                    "its destination {host}:{port} does not accept connections; check firewall and URL"
                );
            }
        }
    }
    Err(last)
}
