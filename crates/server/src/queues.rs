//! The queues of the configuration, set up in the engine.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use redrive::engine::QueueBuilder;
use redrive::policy::PolicySettings;
use redrive::{AfterDead, Rate, Redrive};

use crate::config::{AfterDeadSettings, Config, KeepSettings, Order, QueueSettings};
use crate::push::Push;

/// How long an attempt at a destination may take, unless its policy says: somebody has to end it, and the other side
/// may never answer.
const ATTEMPT_TIME: Duration = Duration::from_secs(30);

/// Sets all of them up, before the engine starts.
///
/// # Errors
/// With the queue that cannot be, and why.
pub async fn set_up(redrive: &Redrive, config: &Config, push: &Arc<Push>) -> Result<()> {
    for (name, settings) in &config.queues {
        let builder = builder(redrive, name, settings).with_context(|| format!("queues.{name}"))?;
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

fn builder(redrive: &Redrive, name: &str, settings: &QueueSettings) -> Result<QueueBuilder> {
    let mut policy = settings.policy.clone();
    // A name that nobody gave: all queues would be one target.
    if policy.name.is_empty() || policy.name == PolicySettings::default().name {
        name.clone_into(&mut policy.name);
    }
    if settings.push.is_some() {
        policy.attempt_time = policy.attempt_time.or(Some(ATTEMPT_TIME));
    }
    let KeepSettings { time, count } = settings.keep_dead.clone();
    let mut builder = redrive
        .queue(name)
        .policy(policy.build()?)
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
