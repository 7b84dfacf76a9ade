//! The queues of the configuration, set up in the engine.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use redrive::engine::QueueBuilder;
use redrive::{AfterDead, Delivery, Policy, Rate, Redrive, Reply};

use crate::api::wire;
use crate::app::AppServices;
use crate::config::{AfterDeadSettings, Config, KeepSettings, Order, QueueSettings};
use crate::observe::attempt_feed::Line;
use crate::push::target::{self, SharedPolicies, Target};

/// The default time limit of a push attempt: the other side may never respond.
const ATTEMPT_TIME: Duration = Duration::from_secs(30);

/// Sets all of them up, before the engine starts.
///
/// # Errors
/// With the queue that cannot be, and why.
pub async fn set_up(redrive: &Redrive, config: &Config, outside: &AppServices) -> Result<()> {
    let targets = target::targets(config);
    let mut shared = SharedPolicies::default();
    for (name, settings) in &config.queues {
        let policy = policy(name, settings, targets.get(name), &mut shared);
        let builder = policy.and_then(|policy| builder(redrive, name, settings, policy));
        let builder = builder.with_context(|| format!("queues.{name}"))?;
        match &settings.pull {
            Some(_) => builder.pull().await?,
            None => send(builder, name, outside).await?,
        }
    }
    Ok(())
}

/// The queue's own name goes with it: an event that was rerouted here has another one.
async fn send(builder: QueueBuilder, name: &str, outside: &AppServices) -> Result<()> {
    let (name, push, feed): (Arc<str>, _, _) = (name.into(), outside.push.clone(), outside.feed.clone());
    let attempt = move |delivery: Delivery| {
        let (name, push, feed) = (name.clone(), push.clone(), feed.clone());
        async move {
            if !feed.is_watched() {
                return push.attempt(&name, delivery).await;
            }
            let began = Instant::now();
            let said = push.attempt(&name, delivery.clone()).await;
            let reply = said.clone().unwrap_or_else(Reply::from);
            feed.note(line(&delivery, &reply, began.elapsed()));
            said
        }
    };
    Ok(builder.handle(attempt).await?)
}

/// An attempt of a push, as `redrive tail` tells it.
fn line(delivery: &Delivery, reply: &Reply, took: Duration) -> Line {
    let event = delivery.event();
    let mut told = wire::attempt(&event.id, delivery.attempt(), reply);
    told["tenant"] = event.tenant.clone().into();
    told["mode"] = delivery.mode().as_str().into();
    told["took_ms"] = u64::try_from(took.as_millis()).unwrap_or(u64::MAX).into();
    Line { queue: event.queue.clone(), tenant: event.tenant.clone(), told }
}

/// Its retry policy, with the budget and breaker of its target.
fn policy(
    name: &str,
    settings: &QueueSettings,
    target: Option<&Target>,
    shared: &mut SharedPolicies,
) -> Result<Policy> {
    let mut policy = settings.policy.clone();
    if settings.push.is_some() {
        policy.attempt_time = policy.attempt_time.or(Some(ATTEMPT_TIME));
    }
    if let Some(target) = target {
        return Ok(shared.policy(policy, target)?.build()?);
    }
    // The default name: all queues would be one target.
    if target::given_name(&policy).is_none() {
        name.clone_into(&mut policy.name);
    }
    Ok(policy.build()?)
}

fn builder(redrive: &Redrive, name: &str, settings: &QueueSettings, policy: Policy) -> Result<QueueBuilder> {
    let KeepSettings { time, count } = settings.keep_dead.clone();
    let mut builder = redrive
        .queue(name)
        .policy(policy)
        .concurrency(settings.concurrency)
        .retry_share(settings.retry_share)
        .window(settings.window)
        .keep_dead(time, count);
    if let Some(rate) = &settings.rate {
        builder = builder.rate(Rate::new(rate.per_second, rate.burst)?);
    }
    if settings.order == Order::Key {
        builder = builder.ordered();
    }
    builder = match &settings.after_dead {
        AfterDeadSettings::GoOn => builder,
        AfterDeadSettings::Park => builder.after_dead(AfterDead::Park),
        AfterDeadSettings::ParkUpTo(KeepSettings { time, count }) => {
            let count = count.map(|count| u32::try_from(count).unwrap_or(u32::MAX));
            builder.after_dead(AfterDead::ParkUpTo { time: *time, count })
        }
    };
    Ok(builder)
}
