//! The queues of the configuration, set up in the engine.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use redrive::engine::QueueBuilder;
use redrive::{AfterDead, Policy, Rate, Redrive};

use crate::config::{AfterDeadSettings, Config, KeepSettings, Order, QueueSettings};
use crate::push::Push;
use crate::push::target::{self, Shared, Target};

/// How long an attempt at a destination may take, unless its policy says: somebody has to end it, and the other side
/// may never answer.
const ATTEMPT_TIME: Duration = Duration::from_secs(30);

/// Sets all of them up, before the engine starts.
///
/// # Errors
/// With the queue that cannot be, and why.
pub async fn set_up(redrive: &Redrive, config: &Config, push: &Arc<Push>) -> Result<()> {
    let targets = target::targets(config);
    let mut shared = Shared::default();
    for (name, settings) in &config.queues {
        let policy = policy(name, settings, targets.get(name), &mut shared);
        let builder = policy.and_then(|policy| builder(redrive, name, settings, policy));
        let builder = builder.with_context(|| format!("queues.{name}"))?;
        match &settings.pull {
            Some(_) => builder.pull().await?,
            None => send(builder, name, push).await?,
        }
    }
    Ok(())
}

/// The queue's own name goes with it: an event that was rerouted here has another one.
async fn send(builder: QueueBuilder, name: &str, push: &Arc<Push>) -> Result<()> {
    let (name, push): (Arc<str>, _) = (name.into(), push.clone());
    let attempt = move |delivery| {
        let (name, push) = (name.clone(), push.clone());
        async move { push.attempt(&name, delivery).await }
    };
    Ok(builder.handle(attempt).await?)
}

/// How it is tried again, with the budget and the breaker of what it calls.
fn policy(
    name: &str,
    settings: &QueueSettings,
    target: Option<&Target>,
    shared: &mut Shared,
) -> Result<Policy> {
    let mut policy = settings.policy.clone();
    if settings.push.is_some() {
        policy.attempt_time = policy.attempt_time.or(Some(ATTEMPT_TIME));
    }
    if let Some(target) = target {
        return Ok(shared.policy(policy, target)?.build()?);
    }
    // A name that nobody gave: all queues would be one target.
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
