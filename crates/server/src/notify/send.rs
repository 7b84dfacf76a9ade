//! Posting a message.

use std::time::Duration;

use anyhow::{Context, Result};
use redrive::http::StatusMap;
use redrive::{Delivery, Disposition, Failure};
use reqwest::header::{CONTENT_TYPE, HeaderValue};

use crate::config::PushSettings;
use crate::push::{self, SsrfGuard};

/// How long the receiver may take.
pub(super) const TIME: Duration = Duration::from_secs(10);

/// Posts messages to one address. The address may hold a secret, so no error and no log names it.
pub(super) struct Sender {
    client: reqwest::Client,
    guard: SsrfGuard,
    url: reqwest::Url,
}

impl Sender {
    pub(super) fn new(url: &str, push: &PushSettings) -> Result<Self> {
        let url = reqwest::Url::parse(url).context("not a valid URL")?;
        anyhow::ensure!(matches!(url.scheme(), "http" | "https"), "must begin with http:// or https://");
        let (client, guard) = push::guarded(push).map_err(anyhow::Error::msg)?;
        Ok(Self { client, guard, url })
    }

    /// Posts one message. A cause keeps its identity over all attempts, so a receiver can recognise duplicates.
    pub(super) async fn send(&self, message: &Delivery) -> Result<(), Failure> {
        self.guard.check_host(&self.url).map_err(Failure::transient)?;
        let json = HeaderValue::from_static("application/json");
        let request = self.client.post(self.url.clone()).header(CONTENT_TYPE, json).timeout(TIME);
        let request = request.header("idempotency-key", format!("\"{}\"", message.idempotency_key()));
        let sent = request.body(message.payload().to_vec()).send().await;
        let answer = sent.map_err(|error| Failure::transient(error.without_url()))?;
        let status = answer.status();
        match StatusMap::default().answer(status, answer.headers()) {
            Disposition::Ok | Disposition::Drop => Ok(()),
            Disposition::Retry(_) => Err(Failure::transient_text(format!("answered with {status}"))),
            _ => Err(Failure::permanent_text(format!("answered with {status}"))),
        }
    }
}
