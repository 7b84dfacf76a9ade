//! Clients: each has an intent, keeps its key, and asks one process and the other until it has an answer.
//!
//! They wait less than `Retry-After` asks, to meet more races.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use reqwest::StatusCode;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::fault_counts::FaultCounts;
use crate::booking_request::BookingRequest;

/// How much longer a client waits that prefers to wait.
const WAITING: Duration = Duration::from_secs(2);
/// How many leases a client keeps asking. A key that is in flight for that long is stuck.
const PATIENCE: u32 = 60;
/// How long a guest waits between two requests.
const WAIT: Duration = Duration::from_millis(25);

/// One intent.
#[derive(Debug, Clone)]
pub(crate) struct Intent {
    pub(crate) key: String,
    pub(crate) wish: BookingRequest,
    /// How many clients send it at once.
    pub(crate) clients: usize,
}

/// The final answer to a client: the same for all of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClientAnswer {
    pub(crate) status: u16,
    pub(crate) location: Option<String>,
    pub(crate) body: String,
}

impl ClientAnswer {
    /// Whether the guest has the berth.
    pub(crate) fn is_booked(&self) -> bool {
        self.status == StatusCode::CREATED
    }
}

/// The clients of the two processes.
#[derive(Debug, Clone)]
pub(crate) struct Clients {
    client: reqwest::Client,
    urls: [String; 2],
    lease: Duration,
    tally: Arc<FaultCounts>,
}

impl Clients {
    pub(crate) fn new(urls: [String; 2], lease: Duration, tally: Arc<FaultCounts>) -> anyhow::Result<Self> {
        let client = reqwest::Client::builder().no_proxy().build()?;
        Ok(Self { client, urls, lease, tally })
    }

    /// Asks until there is a final answer, alternating between the processes; the flag says whether it was a replay.
    pub(crate) async fn ask(
        &self,
        intent: &Intent,
        first: usize,
        waits: bool,
    ) -> anyhow::Result<(ClientAnswer, bool)> {
        let patience = self.lease * PATIENCE;
        let until = Instant::now() + patience;
        let mut last = String::new();
        for door in first.. {
            if Instant::now() > until {
                bail!("{} of {:?} had no answer in {patience:?}, lastly: {last}", intent.key, intent.wish);
            }
            match self.once(intent, door % 2, waits).await {
                Ok(told) => return Ok(told),
                Err(error) => last = format!("{error:#}"),
            }
            sleep(WAIT).await;
        }
        bail!("too many intents")
    }

    /// Asks once. The error says why it is no answer; the flag, whether it was a replay.
    pub(crate) async fn once(
        &self,
        intent: &Intent,
        door: usize,
        waits: bool,
    ) -> anyhow::Result<(ClientAnswer, bool)> {
        let Intent { key, wish, .. } = intent;
        // Shorter than a process is stopped, so that another has the request when it wakes.
        let time = self.lease * 4 / 5;
        let mut request = self
            .client
            .post(format!("{}/bookings", self.urls[door]))
            .timeout(if waits { time + WAITING } else { time })
            .header("idempotency-key", format!("\"{key}\""))
            .header("content-type", "application/json")
            .body(serde_json::to_string(wish)?);
        if waits {
            request = request.header("prefer", "wait=2");
        }
        self.tally.saw("requests", 1);
        let answer = request.send().await.inspect_err(|_| self.tally.saw("requests without an answer", 1))?;
        let status = answer.status();
        let header =
            |name: &str| answer.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let (location, replayed) = (header("location"), header("idempotent-replayed"));
        let body = answer.text().await.inspect_err(|_| self.tally.saw("requests without an answer", 1))?;
        let said: Value = serde_json::from_str(&body).unwrap_or_default();
        let code = said.get("code").and_then(Value::as_str).unwrap_or_default();
        match (status, code) {
            (StatusCode::CREATED, _) | (StatusCode::CONFLICT, "cabin-taken") => {
                let replayed = replayed.context("an answer does not say whether it is a replay")? == "true";
                self.tally.saw(if replayed { "replays" } else { "first answers" }, 1);
                Ok((ClientAnswer { status: status.as_u16(), location, body }, replayed))
            }
            (StatusCode::CONFLICT, "in-flight") => {
                self.tally.saw("told that it runs already", 1);
                bail!("in flight")
            }
            (StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE, _) => {
                self.tally.saw("told to come back", 1);
                bail!("{status}: {body}")
            }
            _ => {
                self.tally.violation(format!("{key} was answered {status}: {body}"));
                bail!("{status}: {body}")
            }
        }
    }
}
