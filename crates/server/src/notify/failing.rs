//! A message when events of a queue keep failing: with patient queues an outage of hours has no dead letter.
//!
//! One message for each outage: it is identified by cause, queue and the first attempt of the oldest failing event. The
//! same outage is not reported again while its group is there, though its oldest event may have ended; a later outage of
//! the same cause is another one.

use std::collections::HashSet;
use std::time::Duration;

use redrive::desk::{CauseId, FailingGroup, FailingQuery};
use redrive::{Event, Redrive, StoreError};
use serde_json::json;

use super::{GROUPS_MAX, QUEUE, event, kind_and_code, publish};
use crate::api::wire;

/// The causes and queues that were reported and still fail.
#[derive(Debug, Default)]
pub(super) struct Reported(HashSet<(CauseId, String)>);

/// Publishes a message for every cause of which events of a queue have failed for so long.
pub(super) async fn look(
    redrive: &Redrive,
    after: Duration,
    reported: &mut Reported,
) -> Result<(), StoreError> {
    let mut there = HashSet::new();
    // A look at all queues costs a look at every retrying event, so the oldest of each queue is asked for first.
    for (queue, _, age) in redrive.retrying().await? {
        if age < after || queue == QUEUE {
            continue;
        }
        let query = FailingQuery { queue: Some(queue.clone()), limit: GROUPS_MAX, ..FailingQuery::default() };
        for group in redrive.desk("notify", "server").failing(query).await? {
            if redrive.now().since(group.since) < after {
                continue;
            }
            let pair = (group.cause, queue.clone());
            if !reported.0.contains(&pair) {
                publish(redrive, message(&queue, &group), &queue).await?;
            }
            there.insert(pair);
        }
    }
    reported.0 = there;
    Ok(())
}

fn message(queue: &str, group: &FailingGroup) -> Event {
    let payload = json!({
        "kind": "failing",
        "queue": queue,
        "cause": group.cause.to_string(),
        "title": kind_and_code(&group.title),
        "events": group.events,
        "since": wire::moment(group.since),
        "last": wire::moment(group.last),
        "next": wire::moment(group.next),
        "command": format!("redrive event retry-now --group {}", group.cause),
    });
    event(format!("failing/{}/{queue}/{}", group.cause, group.since.as_nanos()), &payload)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use redrive::desk::{Filter, JobAct, JobPlan, JobState, JobStrategy};
    use redrive::{Delivery, Failure, testing};
    use serde_json::Value;
    use tokio::sync::mpsc;

    use super::*;
    use crate::config::policy::{WINDOW, patient};

    const MINUTE: Duration = Duration::from_secs(60);
    /// What is published in the minute in which the receiver goes down, and in each minute after it.
    const AT_FIRST: u32 = 20;
    const A_MINUTE: u32 = 3;

    /// A server's queue whose receiver is down, and what is heard of it.
    struct Outage {
        redrive: Redrive,
        is_down: Arc<AtomicBool>,
        heard: mpsc::UnboundedReceiver<Value>,
    }

    impl Outage {
        async fn begin(seed: u64) -> Self {
            let redrive = testing::memory_with_seed(seed);
            let is_down = Arc::new(AtomicBool::new(true));
            let (tell, heard) = mpsc::unbounded_channel();
            let hear = move |message: Delivery| {
                let told = serde_json::from_slice(message.payload()).expect("JSON");
                let sent = tell.send(told);
                async move { sent.map_err(Failure::transient) }
            };
            redrive.queue(QUEUE).handle(hear).await.expect("a queue");
            let down = is_down.clone();
            let receive = move |_: Delivery| {
                let is_down = down.load(Ordering::SeqCst);
                async move { if is_down { Err(Failure::transient_text("connection refused")) } else { Ok(()) } }
            };
            let policy = patient().build().expect("a policy");
            redrive.queue("orders").policy(policy).window(WINDOW).handle(receive).await.expect("a queue");
            redrive.start().await.expect("a start");
            Self { redrive, is_down, heard }
        }

        async fn publish(&self, minute: u32, events: u32) {
            let event = |n: u32| Event::new("orders", format!("{minute}-{n}"));
            self.redrive.publish_all((0..events).map(event)).await.expect("published");
        }

        fn hear(&mut self) -> Vec<Value> {
            std::iter::from_fn(|| self.heard.try_recv().ok()).collect()
        }

        async fn retrying(&self) -> u64 {
            self.redrive.retrying().await.expect("a count").iter().map(|(_, events, _)| events).sum()
        }

        /// Drains the queue as `redrive event retry-now --queue orders` does, and gives how long it took.
        async fn drain(&self) -> Duration {
            let desk = self.redrive.desk("ada", "test");
            let strategy = JobStrategy { canary: Some(5), ..JobStrategy::default() };
            let plan = JobPlan { filter: Filter::queue("orders"), act: JobAct::RetryNow, strategy };
            let began = tokio::time::Instant::now();
            let job = desk.start(plan).await.expect("a job");
            loop {
                let job = desk.job(job).await.expect("a look").expect("the job");
                if job.state != JobState::Running {
                    assert_eq!((job.state, job.failed), (JobState::Done, 0), "{job:?}");
                    return began.elapsed();
                }
                assert!(began.elapsed() < 60 * MINUTE, "it makes no progress: {job:?}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }

    /// A receiver is down for an hour: people hear of it, it is seen, nothing dies, and one command drains it.
    async fn an_hour(seed: u64) {
        let mut outage = Outage::begin(seed).await;
        let mut reported = Reported::default();
        let mut heard = Vec::new();
        outage.publish(0, AT_FIRST).await;
        for minute in 1..=60 {
            tokio::time::sleep(MINUTE).await;
            look(&outage.redrive, 15 * MINUTE, &mut reported).await.expect("a look");
            tokio::time::sleep(Duration::from_millis(10)).await;
            heard.extend(outage.hear().into_iter().map(|told| (minute, told)));
            outage.publish(minute, A_MINUTE).await;
        }
        let (minute, told) = &heard[0];
        assert!((15..=16).contains(minute) && heard.len() == 1, "seed {seed}: {heard:?}");
        assert_eq!((&told["kind"], &told["queue"]), (&json!("failing"), &json!("orders")));
        tokio::time::sleep(Duration::from_secs(1)).await;
        let groups =
            outage.redrive.desk("ada", "test").failing(FailingQuery::default()).await.expect("groups");
        let events = u64::from(AT_FIRST + 60 * A_MINUTE);
        let seen: Vec<_> = groups.iter().map(|group| (group.queues.clone(), group.events)).collect();
        assert_eq!(seen, [(vec![("orders".to_owned(), events)], events)], "seed {seed}");
        assert_eq!(testing::dead_letters(&outage.redrive, "orders").await, [], "seed {seed}");

        outage.is_down.store(false, Ordering::SeqCst);
        let took = outage.drain().await;
        assert!(took < 5 * MINUTE, "seed {seed}: it took {took:?}");
        assert_eq!(outage.retrying().await, 0, "seed {seed}");
        assert_eq!(outage.redrive.counts().await.expect("counts"), [], "seed {seed}: all are done");
        look(&outage.redrive, 15 * MINUTE, &mut reported).await.expect("a look");
        assert!(outage.hear().is_empty() && reported.0.is_empty(), "an outage that is over is not reported");
    }

    /// More seeds: `cargo xtask faults outage`.
    #[tokio::test(start_paused = true)]
    async fn an_outage_of_an_hour_is_seen_kills_no_event_and_is_drained_with_one_command() {
        let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
        let (seeds, first) = (number("REDRIVE_FAULTS").unwrap_or(5), number("REDRIVE_SEED").unwrap_or(0));
        for seed in first..first + seeds {
            an_hour(seed).await;
        }
        eprintln!("outage: {seeds} hours, from seed {first} on: all seen, none dead, all drained");
    }

    /// More events are due than the retry budget lets through: what the command takes goes before them.
    #[tokio::test(start_paused = true)]
    async fn a_backlog_that_waits_for_the_budget_is_drained_too() {
        let outage = Outage::begin(1).await;
        outage.publish(0, 4_000).await;
        tokio::time::sleep(10 * MINUTE).await;
        assert_eq!(outage.retrying().await, 4_000);
        outage.is_down.store(false, Ordering::SeqCst);
        let took = outage.drain().await;
        assert!(took < 5 * MINUTE, "it took {took:?}");
        assert_eq!(outage.redrive.counts().await.expect("counts"), []);
    }
}
