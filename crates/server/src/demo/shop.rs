//! The shop publishes orders over HTTP, each with its own id, and now and then one twice, like a client that does not
//! know whether its request went through.

use std::future::Future;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tokio::task::JoinSet;

/// The prefix of order ids.
pub(super) const PREFIX: &str = "order-";

/// One in this many orders is invalid, and one in this many is sent twice.
const NONSENSE: u32 = 33;
const TWICE: u32 = 10;

/// Maximum number of requests in progress; no orders are placed beyond it.
const UNDER_WAY_MAX: usize = 64;

/// The shop.
#[derive(Debug)]
pub(super) struct Shop {
    client: reqwest::Client,
    url: String,
    number: u32,
    under_way: JoinSet<Result<Option<(String, Value)>>>,
    /// The orders that were accepted.
    pub(super) accepted: Vec<String>,
    /// How many answers said that it was one already.
    pub(super) duplicates: u64,
    /// How many were not taken, and are not counted as published.
    pub(super) turned_away: u64,
}

impl Shop {
    pub(super) fn new(address: &str) -> Result<Self> {
        let client = reqwest::Client::builder().no_proxy().build().context("the shop's client")?;
        let url = format!("{address}/v1/queues/orders/events");
        let (under_way, accepted) = (JoinSet::new(), Vec::new());
        Ok(Self { client, url, number: 0, under_way, accepted, duplicates: 0, turned_away: 0 })
    }

    /// Places an order.
    pub(super) fn place(&mut self) {
        if self.under_way.len() >= UNDER_WAY_MAX {
            return;
        }
        self.number += 1;
        let cabins = if self.number.is_multiple_of(NONSENSE) { -1 } else { 1 };
        let id = format!("{PREFIX}{}", self.number);
        let event = json!({ "id": id, "payload": { "order": self.number, "cabins": cabins } });
        let times = if self.number.is_multiple_of(TWICE) { 2 } else { 1 };
        for _ in 0..times {
            let request = self.client.post(&self.url).json(&event).send();
            self.under_way.spawn(placed(id.clone(), request));
        }
    }

    /// Waits for the response to an order; `None` if none is in progress.
    pub(super) async fn answered(&mut self) -> Option<Result<()>> {
        let joined = self.under_way.join_next().await?;
        Some(joined.context("an order's task").flatten().map(|answer| self.note(answer)))
    }

    /// Waits for the outstanding responses.
    pub(super) async fn close(&mut self) -> Result<()> {
        while let Some(answered) = self.answered().await {
            answered?;
        }
        Ok(())
    }

    fn note(&mut self, answer: Option<(String, Value)>) {
        match answer {
            Some((id, answer)) if answer["result"] == "accepted" => self.accepted.push(id),
            Some(_) => self.duplicates += 1,
            None => self.turned_away += 1,
        }
    }
}

/// The response; `None` if the order was not accepted.
async fn placed(
    id: String,
    request: impl Future<Output = reqwest::Result<reqwest::Response>>,
) -> Result<Option<(String, Value)>> {
    let response = request.await.context("the server does not answer")?;
    if !response.status().is_success() {
        return Ok(None);
    }
    let body = response.bytes().await.context("the server's answer")?;
    Ok(Some((id, serde_json::from_slice(&body).context("the server's answer")?)))
}
