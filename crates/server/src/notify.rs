//! Tells people when letters die of something new, without any other tool: a message to `notify.url` for every cause
//! that a queue has not seen before.
//!
//! It is made of what the server has anyway. A message is an event of a queue of its own, and its identity is the
//! cause: so it is told once, over restarts as well, and one that cannot be told is tried again for hours, until it is
//! a dead letter itself. How often is bounded by that queue's rate.

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
use crate::config::Config;

mod send;

/// The queue that messages wait in. It does not tell of its own dead letters.
pub const QUEUE: &str = "redrive-notify";

/// How many causes are looked at; those with most letters first.
const GROUPS_MAX: usize = 10_000;
/// How long a cause that was told is remembered: after that it is told again, if letters of it are still there.
const REMEMBERED: Duration = Duration::from_secs(30 * 86_400);
/// How long is waited with another look at a receipt: of a cause that an earlier process told, or whose time ends soon.
const LOOKED_AT: Duration = Duration::from_secs(3600);
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

/// Causes of queues that need no look at their receipt, and until when.
type ToldUntil = HashMap<(CauseId, String), Instant>;

/// Looks for new causes, again and again.
pub async fn watch(redrive: Redrive, every: Duration) {
    let mut told = ToldUntil::new();
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
/// a receipt, and as long as that is kept it is not told again.
async fn look(redrive: &Redrive, told: &mut ToldUntil) -> Result<(), StoreError> {
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
            match redrive.publish(message).await {
                Ok(_) => {}
                Err(PublishError::Store(error)) => return Err(error),
                Err(error) => tracing::warn!(%error, queue, "a new failure group cannot be told"),
            }
        }
        told.insert((cause, queue), now + quiet);
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
        let mut told = ToldUntil::new();
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
