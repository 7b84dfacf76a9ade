//! Notifies people of new failure causes without any other tool: a message to `notify.url` for every cause that is
//! new to a queue, and for every cause of which events of a queue keep failing.
//!
//! It reuses the engine. A message is an event of its own queue, identified by the cause: so it is sent once, also
//! across restarts, and is retried for hours until it becomes a dead letter itself. That queue's rate limits the
//! messages.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use redrive::desk::{Group, GroupQuery};
use redrive::policy::PolicySettings;
use redrive::triage::CauseId;
use redrive::{Backoff, Event, Policy, PublishError, Rate, Redrive, StoreError};
use serde_json::json;
use tokio::time::Instant;

use crate::api::wire;
use crate::config::{Config, NotifySettings};

mod failing;
mod send;

/// The queue of messages. Its own dead letters cause no notification.
pub const QUEUE: &str = "redrive-notify";

/// Maximum number of causes checked, largest first.
const GROUPS_MAX: usize = 10_000;
/// How long a reported cause is remembered: after that it is reported again, if dead letters of it still exist.
const REMEMBERED: Duration = Duration::from_secs(30 * 86_400);
/// How long to wait before checking a receipt again: of a cause reported by an earlier process, or about to expire.
const LOOKED_AT: Duration = Duration::from_secs(3600);
/// How often a message is tried: for about six hours.
const ATTEMPTS: u32 = 40;
/// Messages per second, and burst.
const RATE: (f64, u32) = (1.0, 10);

/// Sets up the queue of messages, if a URL is configured. Call it before the engine starts.
///
/// # Errors
/// With the reason.
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

/// Causes of queues that need no look at their receipt, and until when.
type NotifiedUntil = HashMap<(CauseId, String), Instant>;

/// Looks for new causes and for events that keep failing, again and again.
pub async fn watch(redrive: Redrive, settings: NotifySettings) {
    let (mut told, mut failing) = (NotifiedUntil::new(), failing::Reported::default());
    let mut tick = tokio::time::interval(settings.every.max(Duration::from_millis(100)));
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let looked = async {
            look(&redrive, &mut told).await?;
            failing::look(&redrive, settings.failing_after, &mut failing).await
        };
        match looked.await {
            Ok(()) => {}
            Err(StoreError::Closed) => return,
            // The next check finds the same.
            Err(error) => tracing::warn!(%error, "cannot check for failing events"),
        }
    }
}

/// Publishes a message for every unreported cause of a queue. A cause reported by an earlier process has a receipt,
/// and is not reported again while that is kept.
async fn look(redrive: &Redrive, told: &mut NotifiedUntil) -> Result<(), StoreError> {
    let desk = redrive.desk("notify", "server");
    let groups = desk.groups(GroupQuery { limit: GROUPS_MAX, ..GroupQuery::default() }).await?;
    let mut there = HashSet::new();
    for group in &groups {
        let Some(cause) = group.cause else { continue };
        there.extend(group.queues.iter().filter(|queue| *queue != QUEUE).map(|queue| (cause, queue.clone())));
    }
    let now = Instant::now();
    told.retain(|pair, until| *until > now && there.contains(pair));
    let mut new: Vec<_> = there.into_iter().filter(|pair| !told.contains_key(pair)).collect();
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
        let mut quiet = LOOKED_AT;
        if redrive.event("", QUEUE, &message.id).await?.is_none() {
            quiet = REMEMBERED;
            publish(redrive, message, &queue).await?;
        }
        told.insert((cause, queue), now + quiet);
    }
    Ok(())
}

/// Publishes a message. One that cannot be published is logged.
async fn publish(redrive: &Redrive, message: Event, queue: &str) -> Result<(), StoreError> {
    match redrive.publish(message).await {
        Ok(_) => Ok(()),
        Err(PublishError::Store(error)) => Err(error),
        Err(error) => {
            tracing::warn!(%error, queue, "cannot send a notification about failures");
            Ok(())
        }
    }
}

/// The title, without the text of the error, which may contain data; messages go to other places than dead letters.
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
    event(format!("{cause}/{queue}"), &payload)
}

/// A message as an event.
fn event(id: String, payload: &serde_json::Value) -> Event {
    let mut event = Event::new(QUEUE, id).payload(payload.to_string());
    event.meta_mut().content_type = Some("application/json".to_owned());
    event
}

#[cfg(test)]
mod tests {
    use redrive::{Delivery, Failure, testing};
    use tokio::sync::mpsc;

    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    #[tokio::test(start_paused = true)]
    async fn a_cause_whose_letters_stay_is_told_again_after_thirty_days() {
        let redrive = testing::memory();
        let (tell, mut hear) = mpsc::unbounded_channel();
        let queue = redrive.queue(QUEUE).policy(policy().expect("a policy")).window(REMEMBERED);
        let heard = move |message: Delivery| {
            let sent = tell.send(message.id().to_owned());
            async move { sent.map_err(Failure::transient) }
        };
        queue.handle(heard).await.expect("a queue");
        let fail = |_: Delivery| async { Err::<(), _>(Failure::permanent_text("card refused")) };
        redrive.queue("orders").handle(fail).await.expect("a queue");
        redrive.publish(Event::new("orders", "1")).await.expect("it is kept");
        redrive.start().await.expect("a start");
        testing::drain(&redrive).await;
        let mut told = NotifiedUntil::new();
        let mut heard_on = Vec::new();
        // Receipts are forgotten by a chore of the engine's, which may come after a look and before the next.
        for (day, days) in [(0, 0), (1, 1), (29, 28), (31, 2), (32, 1), (33, 1), (34, 1)] {
            tokio::time::advance(days * DAY).await;
            look(&redrive, &mut told).await.expect("a look");
            testing::drain(&redrive).await;
            heard_on.extend(std::iter::from_fn(|| hear.try_recv().ok()).map(|_| day));
        }
        assert!(matches!(heard_on[..], [0, again] if again >= 31), "{heard_on:?}");
    }
}
