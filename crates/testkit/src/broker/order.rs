//! The order of a key.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use redrive_broker::capabilities::{MessageOrder, OrderSupport};
use redrive_broker::consume::ConsumeError;
use redrive_broker::{Consumer, IncomingMessage, Message};

use super::BrokerSubject;
use super::worker::{Worker, by_key, ok, plain, policy, retry, text};

const SHORT: Duration = Duration::from_millis(20);

/// A source that cannot keep the order of keys refuses a consumer that wants it, and says what to do.
pub async fn order_is_kept_or_refused<S: BrokerSubject>(subject: S) {
    let source = subject.source().await;
    if source.capabilities().order == OrderSupport::Key {
        return;
    }
    let worker = Worker::start(source, policy(3, SHORT), by_key, |_| async { ok() });
    let error = worker.failed().await;
    assert!(matches!(error, ConsumeError::Source(_)), "{error}");
    assert!(error.to_string().contains("order"), "{error}");
}

/// Where order is kept: while a message waits for its retry, its followers wait behind it and other keys go on.
pub async fn a_failing_key_holds_its_followers_alone<S: BrokerSubject>(_: S) {
    let subject = S::fresh(MessageOrder::Key).await;
    for body in ["a1", "b1", "a2", "b2", "a3"] {
        subject.publish(Message::new(body).key(&body[..1])).await;
    }
    let handle = |incoming: IncomingMessage| async move {
        if text(&incoming.message) == "a1" && incoming.attempt() < 3 { retry() } else { ok() }
    };
    let wait = Duration::from_millis(300);
    let mut worker = Worker::start(subject.source().await, policy(5, wait), by_key, handle);
    worker.until_ended(5).await;
    let bodies = worker.journal.bodies();
    let of = |key: &str| bodies.iter().filter(|body| body.starts_with(key)).cloned().collect::<Vec<_>>();
    assert_eq!(of("a"), ["a1", "a1", "a1", "a2", "a3"]);
    assert_eq!(of("b"), ["b1", "b2"]);
    let at = |body: &str| bodies.iter().position(|seen| seen == body).unwrap();
    assert!(at("b2") < at("a2"), "{bodies:?}");
    worker.stop().await;
}

/// Messages without a key do not wait for each other, even where order is kept.
pub async fn messages_without_a_key_run_at_once<S: BrokerSubject>(_: S) {
    let subject = S::fresh(MessageOrder::Key).await;
    for n in 0..8 {
        subject.publish(Message::new(n.to_string())).await;
    }
    let together = Arc::new(tokio::sync::Barrier::new(8));
    let handle = move |_| {
        let together = Arc::clone(&together);
        async move {
            together.wait().await;
            ok()
        }
    };
    let tune = |consumer: Consumer| by_key(consumer).concurrency(8);
    let mut worker = Worker::start(subject.source().await, policy(1, SHORT), tune, handle);
    worker.until_ended(8).await;
    worker.stop().await;
}

/// Many keys run at once, up to the concurrency; each key one at a time, in order.
pub async fn many_keys_run_at_once_and_each_in_order<S: BrokerSubject>(_: S) {
    let subject = S::fresh(MessageOrder::Key).await;
    for n in 0..10 {
        for key in 0..6 {
            subject.publish(Message::new(n.to_string()).key(key.to_string())).await;
        }
    }
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let peak = Arc::clone(&most);
    let handle = move |_| {
        let (running, most) = (Arc::clone(&running), Arc::clone(&most));
        async move {
            most.fetch_max(running.fetch_add(1, SeqCst) + 1, SeqCst);
            tokio::time::sleep(Duration::from_millis(5)).await;
            running.fetch_sub(1, SeqCst);
            ok()
        }
    };
    let tune = |consumer: Consumer| by_key(consumer).concurrency(4);
    let mut worker = Worker::start(subject.source().await, policy(1, SHORT), tune, handle);
    worker.until_ended(60).await;
    let mut by_key: HashMap<_, Vec<u32>> = HashMap::new();
    for seen in worker.journal.seen() {
        by_key.entry(seen.key).or_default().push(seen.body.parse().unwrap());
    }
    assert_eq!(by_key.len(), 6);
    assert!(by_key.values().all(|bodies| bodies.iter().copied().eq(0..10)), "{by_key:?}");
    let peak = peak.load(SeqCst);
    assert!((2..=4).contains(&peak), "{peak} at once");
    worker.stop().await;
}

/// Several consumers, one of which dies: every message ends, and those that were settled do not come again.
pub async fn work_is_shared_and_nothing_is_lost<S: BrokerSubject>(subject: S) {
    for n in 0..60 {
        subject.publish(Message::new(n.to_string()).key(n.to_string())).await;
    }
    let handle = |incoming: IncomingMessage| async move {
        if incoming.attempt() == 1 && incoming.position % 3 == 0 { retry() } else { ok() }
    };
    let doomed = Worker::start(subject.source().await, policy(5, SHORT), plain, handle);
    doomed.journal.until("some", |seen| seen.len() >= 10).await;
    let other = Worker::start(subject.source().await, policy(5, SHORT), plain, handle);
    let journals = [Arc::clone(&doomed.journal), Arc::clone(&other.journal)];
    subject.kill(doomed.abort()).await;
    other
        .journal
        .until("all", |_| (0..60).all(|n| journals.iter().any(|journal| journal.count(&n.to_string()) > 0)))
        .await;
    let attempts: usize = journals.iter().map(|journal| journal.seen().len()).sum();
    assert!(attempts < 60 + 20 + 60, "what was settled came again: {attempts} attempts");
    other.stop().await;
    assert!(subject.dead().await.is_empty());
}
