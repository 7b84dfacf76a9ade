//! Tells people when letters die of something new, without any other tool: a message to `notify.url` for every cause
//! that a queue has not seen before.
//!
//! It is made of what the server has anyway. A message is an event of a queue of its own, and its identity is the
//! cause: so it is told once, over restarts as well, and one that cannot be told is tried again for hours, until it is
//! a dead letter itself. How often is bounded by that queue's rate.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use redrive::desk::{Group, GroupQuery};
use redrive::policy::PolicySettings;
use redrive::triage::CauseId;
use redrive::{Backoff, Event, Policy, PublishError, Rate, Redrive, StoreError};
use serde_json::json;

use crate::api::wire;
use crate::config::Config;

mod send;

/// The queue that messages wait in. It does not tell of its own dead letters.
pub const QUEUE: &str = "redrive-notify";

/// How many causes are looked at; those with most letters first.
const GROUPS_MAX: usize = 10_000;
/// How long a cause that was told is remembered: after that it is told again, if letters of it are still there.
const REMEMBERED: Duration = Duration::from_secs(30 * 86_400);
/// How often a message is tried: for about six hours.
const ATTEMPTS: u32 = 40;
/// How many messages a second, and at once.
const RATE: (f64, u32) = (1.0, 10);

/// Sets the queue of messages up, where somebody is to be told. Before the engine starts.
///
/// # Errors
/// With what is in the way.
pub async fn set_up(redrive: &Redrive, config: &Config) -> Result<()> {
    let Some(url) = &config.notify.url else { return Ok(()) };
    let sender = Arc::new(send::Sender::new(url, &config.push).context("notify.url")?);
    let queue = redrive.queue(QUEUE).policy(policy()?).window(REMEMBERED).concurrency(1);
    let queue = queue.rate(Rate::new(RATE.0, RATE.1)?).keep_dead(Some(REMEMBERED), Some(10_000));
    queue
        .handle(move |message| {
            let sender = sender.clone();
            async move { sender.send(&message).await }
        })
        .await
        .with_context(|| format!("the queue `{QUEUE}` of notify.url"))
}

fn policy() -> Result<Policy> {
    let settings = PolicySettings { name: QUEUE.to_owned(), attempts: ATTEMPTS, ..PolicySettings::default() };
    let backoff = Backoff::exponential(Duration::from_secs(1), 2.0, Duration::from_secs(600));
    Ok(PolicySettings { backoff, attempt_time: Some(send::TIME), ..settings }.build()?)
}

/// Looks for new causes, again and again.
pub async fn watch(redrive: Redrive, every: Duration) {
    let mut told = HashSet::new();
    let mut tick = tokio::time::interval(every.max(Duration::from_millis(100)));
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        match look(&redrive, &mut told).await {
            Ok(()) => {}
            Err(StoreError::Closed) => return,
            // The next look finds the same.
            Err(error) => tracing::warn!(%error, "cannot look for new failure groups"),
        }
    }
}

/// Publishes a message for every cause of a queue that is not told yet. Of one that an earlier process told there is
/// a receipt.
async fn look(redrive: &Redrive, told: &mut HashSet<(CauseId, String)>) -> Result<(), StoreError> {
    let desk = redrive.desk("notify", "server");
    let groups = desk.groups(GroupQuery { limit: GROUPS_MAX, ..GroupQuery::default() }).await?;
    let mut there = HashSet::new();
    for group in &groups {
        let Some(cause) = group.cause else { continue };
        there.extend(group.queues.iter().filter(|queue| *queue != QUEUE).map(|queue| (cause, queue.clone())));
    }
    told.retain(|pair| there.contains(pair));
    let mut new: Vec<_> = there.into_iter().filter(|pair| !told.contains(pair)).collect();
    new.sort_by(|a, b| a.1.cmp(&b.1));
    let mut in_queue: (Option<String>, Vec<Group>) = (None, Vec::new());
    for (cause, queue) in new {
        if in_queue.0.as_ref() != Some(&queue) {
            let query = GroupQuery { queue: Some(queue.clone()), limit: GROUPS_MAX, ..GroupQuery::default() };
            in_queue = (Some(queue.clone()), desk.groups(query).await?);
        }
        // It may have been dealt with since.
        let Some(group) = in_queue.1.iter().find(|group| group.cause == Some(cause)) else { continue };
        let message = message(cause, &queue, group);
        if redrive.event("", QUEUE, &message.id).await?.is_none() {
            match redrive.publish(message).await {
                Ok(_) => {}
                Err(PublishError::Store(error)) => return Err(error),
                Err(error) => tracing::warn!(%error, queue, "a new failure group cannot be told"),
            }
        }
        told.insert((cause, queue));
    }
    Ok(())
}

/// What a title says before the text of an error. That may have in it what was sent to whoever failed, and messages go
/// to other places than letters do.
fn kind_and_code(title: &str) -> &str {
    title.split_once(": ").map_or(title, |(kind_and_code, _)| kind_and_code)
}

fn message(cause: CauseId, queue: &str, group: &Group) -> Event {
    let payload = json!({
        "kind": "new-failure-group",
        "queue": queue,
        "cause": cause.to_string(),
        "title": kind_and_code(&group.title),
        "letters": group.letters,
        "first": wire::moment(group.first),
        "last": wire::moment(group.last),
        "keys_blocked": group.keys_blocked,
    });
    let mut event = Event::new(QUEUE, format!("{cause}/{queue}")).payload(payload.to_string());
    event.meta_mut().content_type = Some("application/json".to_owned());
    event
}
