//! Retries that wait.

use std::time::Duration;

use redrive_broker::{IncomingMessage, Message};
use redrive_core::Fault;
use redrive_core::scheduler::{AttemptEnd, EndedAttempt};

use super::BrokerSubject;
use super::worker::{Worker, ok, plain, policy, retry, text};

const SHORT: Duration = Duration::from_millis(50);

/// Fails at the first attempt.
async fn second_time(incoming: IncomingMessage) -> redrive_broker::Handled {
    if incoming.attempt() == 1 { retry() } else { ok() }
}

/// A retry starts after its due time, and soon after.
pub async fn a_retry_is_never_early_and_hardly_late<S: BrokerSubject>(subject: S) {
    let wait = Duration::from_millis(400);
    for n in 0..5 {
        subject.publish(Message::new(n.to_string())).await;
    }
    let mut worker = Worker::start(subject.source().await, policy(3, wait), plain, second_time);
    worker.until_ended(5).await;
    let seen = worker.journal.seen();
    for n in 0..5 {
        let at: Vec<_> = seen.iter().filter(|seen| seen.body == n.to_string()).map(|seen| seen.at).collect();
        assert_eq!(at.len(), 2, "attempts of {n}");
        let waited = at[1].since(at[0]);
        assert!(waited >= wait, "{n} was early: {waited:?}");
        assert!(waited <= wait + S::late_max(), "{n} was late: {waited:?}");
    }
    worker.stop().await;
}

/// A short wait that began later ends first.
pub async fn a_short_wait_is_not_behind_a_long_one<S: BrokerSubject>(subject: S) {
    let handle = |incoming: IncomingMessage| async move {
        let wait = if text(&incoming.message) == "long" { Duration::from_secs(30) } else { SHORT };
        let fault = Fault::transient().not_before(wait);
        if incoming.attempt() == 1 {
            EndedAttempt::new(AttemptEnd::Outcome(fault.into())).into()
        } else {
            ok()
        }
    };
    subject.publish(Message::new("long").key("k")).await;
    let mut worker =
        Worker::start(subject.source().await, policy(3, Duration::from_millis(1)), plain, handle);
    worker.journal.until("the long one", |seen| seen.len() == 1).await;
    subject.publish(Message::new("short").key("k2")).await;
    worker.until_ended(1).await;
    assert_eq!((worker.journal.count("short"), worker.journal.count("long")), (2, 1));
    subject.kill(worker.abort()).await;
}

/// While retries wait, as many as there are places, other messages run.
pub async fn a_waiting_retry_blocks_no_other_message<S: BrokerSubject>(subject: S) {
    for n in 0..4 {
        subject.publish(Message::new("waits").key(format!("w{n}"))).await;
    }
    let handle = |incoming: IncomingMessage| async move {
        if text(&incoming.message) == "waits" { retry() } else { ok() }
    };
    let tune = |consumer: redrive_broker::Consumer| consumer.concurrency(2);
    let mut worker = Worker::start(subject.source().await, policy(9, Duration::from_secs(60)), tune, handle);
    worker.journal.until("all that wait", |seen| seen.len() == 4).await;
    for n in 0..20 {
        subject.publish(Message::new(n.to_string()).key(n.to_string())).await;
    }
    worker.until_ended(20).await;
    subject.kill(worker.abort()).await;
}

/// A retry that waits comes back, not early, after its consumer died.
pub async fn a_waiting_retry_survives_the_consumer<S: BrokerSubject>(subject: S) {
    subject.publish(Message::new("1")).await;
    let wait = Duration::from_millis(700);
    let first = Worker::start(subject.source().await, policy(9, wait), plain, |_| async { retry() });
    first.journal.until("a failure", |seen| seen.len() == 1).await;
    let began = first.journal.seen()[0].at;
    tokio::time::sleep(SHORT).await;
    subject.kill(first.abort()).await;
    let mut second = Worker::start(subject.source().await, policy(9, wait), plain, |_| async { ok() });
    second.until_ended(1).await;
    let seen = second.journal.seen();
    assert_eq!(seen.len(), 1);
    // Either the retry, in time, or the first attempt again, if its settle was cut off.
    let is_retry = seen[0].incoming.attempt() == 2;
    assert!(!is_retry || seen[0].at.since(began) >= wait, "{seen:?}");
    second.stop().await;
}

/// A retry that waits survives a hard stop of the broker, where the broker keeps anything.
pub async fn a_waiting_retry_survives_the_broker<S: BrokerSubject>(subject: S) {
    subject.publish(Message::new("1")).await;
    subject.publish(Message::new("2")).await;
    let mut worker =
        Worker::start(subject.source().await, policy(9, Duration::from_millis(900)), plain, second_time);
    worker.journal.until("failures", |seen| seen.len() >= 2).await;
    if !subject.kill_broker().await {
        subject.kill(worker.abort()).await;
        return;
    }
    worker.until_ended(2).await;
    worker.stop().await;
    assert!(subject.dead().await.is_empty());
}
