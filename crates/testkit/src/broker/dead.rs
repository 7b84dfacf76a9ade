//! Dead letters.

use std::time::Duration;

use redrive_broker::consume::{ConsumeError, DeadRatio};
use redrive_broker::metadata::DeadCause;
use redrive_broker::{Consumer, IncomingMessage, Message};

use super::BrokerSubject;
use super::worker::{Worker, ok, permanent, plain, policy, retry, text};

const SHORT: Duration = Duration::from_millis(20);

/// A message that cannot succeed is one dead letter, and the others are none.
pub async fn a_message_that_fails_for_good_is_one_dead_letter<S: BrokerSubject>(subject: S) {
    for n in 0..10 {
        subject.publish(Message::new(n.to_string()).key(n.to_string())).await;
    }
    let handle = |incoming: IncomingMessage| async move {
        match text(&incoming.message).as_str() {
            "3" => permanent(),
            "7" => retry(),
            _ => ok(),
        }
    };
    let mut worker = Worker::start(subject.source().await, policy(3, SHORT), plain, handle);
    worker.until_ended(10).await;
    let report = worker.stop().await;
    assert_eq!((report.done, report.dead), (8, 2), "{report:?}");
    let mut dead: Vec<_> = subject.dead().await.iter().map(text).collect();
    dead.sort();
    assert_eq!(dead, ["3", "7"]);
}

/// A dead letter says where it came from, what went wrong, and how often it was tried; key and body are the original's.
pub async fn a_dead_letter_has_its_cause<S: BrokerSubject>(subject: S) {
    subject.publish(Message::new("1").key("customer").header("ce_id", "order-9")).await;
    let tune = |consumer: Consumer| consumer.group("orders-consumer");
    let mut worker = Worker::start(subject.source().await, policy(2, SHORT), tune, |_| async { retry() });
    worker.until_ended(1).await;
    worker.stop().await;
    let dead = subject.dead().await.remove(0);
    let cause = DeadCause::read(&dead.headers);
    assert_eq!(
        (cause.reason.as_str(), cause.kind.as_str(), cause.attempts),
        ("attempts_spent", "Refused", 2)
    );
    assert_eq!(cause.message, "no such account");
    assert_eq!((text(&dead).as_str(), dead.key.as_deref()), ("1", Some(&b"customer"[..])));
    for (name, value) in [("redrive-id", "order-9"), ("redrive-group", "orders-consumer")] {
        assert_eq!(dead.headers.text(name), Some(value));
    }
    assert!(dead.headers.text("redrive-origin").is_some_and(|origin| origin.ends_with("/0")));
    assert!(dead.headers.text("redrive-first-seen").is_some());
}

/// If there is no place for dead letters, a message that should become one is kept, and becomes one later.
pub async fn a_missing_place_for_dead_letters_loses_nothing<S: BrokerSubject>(subject: S) {
    if !subject.break_dead_place(true).await {
        return;
    }
    subject.publish(Message::new("1")).await;
    let first = Worker::start(subject.source().await, policy(1, SHORT), plain, |_| async { permanent() });
    first.journal.until("an attempt", |seen| !seen.is_empty()).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    subject.kill(first.abort()).await;
    subject.break_dead_place(false).await;
    assert!(subject.dead().await.is_empty());
    let mut second =
        Worker::start(subject.source().await, policy(1, SHORT), plain, |_| async { permanent() });
    second.until_ended(1).await;
    second.stop().await;
    assert_eq!(subject.dead().await.len(), 1);
}

/// Above the dead-letter ratio the consumer stops, and the message that would have been one too many is kept.
pub async fn too_many_dead_letters_stop_the_consumer<S: BrokerSubject>(subject: S) {
    for n in 0..40 {
        subject.publish(Message::new(n.to_string())).await;
    }
    let limit = DeadRatio { window: 20, minimum: 10, share: 0.5 };
    let tune = move |consumer: Consumer| consumer.dead_ratio(limit).concurrency(1);
    let worker = Worker::start(subject.source().await, policy(1, SHORT), tune, |_| async { permanent() });
    let error = worker.failed().await;
    assert!(matches!(error, ConsumeError::TooManyDead { .. }), "{error}");
    let dead = subject.dead().await.len();
    assert_eq!(dead, 9, "the tenth would be more than half of ten");
    let mut rest = Worker::start(subject.source().await, policy(1, SHORT), plain, |_| async { ok() });
    rest.until_ended(31).await;
    assert_eq!(rest.stop().await.done, 31);
}

/// A handler that panics makes a dead letter; the consumer and other messages go on.
pub async fn a_panic_is_a_dead_letter_and_others_go_on<S: BrokerSubject>(subject: S) {
    for body in ["1", "panics", "2"] {
        subject.publish(Message::new(body)).await;
    }
    let handle = |incoming: IncomingMessage| async move {
        // Without the hook, which would print a trace.
        if text(&incoming.message) == "panics" {
            std::panic::resume_unwind(Box::new("a planned panic"));
        }
        ok()
    };
    let mut worker = Worker::start(subject.source().await, policy(3, SHORT), plain, handle);
    worker.until_ended(3).await;
    worker.stop().await;
    let dead = subject.dead().await;
    assert_eq!(dead.iter().map(text).collect::<Vec<_>>(), ["panics"]);
    assert_eq!(DeadCause::read(&dead[0].headers).reason, "panicked");
}
