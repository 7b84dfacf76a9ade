//! Membership: assignments that come and go.

use std::sync::Arc;
use std::time::Duration;

use redrive_broker::capabilities::MessageOrder;
use redrive_broker::{IncomingMessage, Message, MessageOutcome, Settled};
use tokio::sync::Notify;

use super::BrokerSubject;
use super::worker::{Worker, by_key, ok, policy, receive, settle};

const QUIET: Duration = Duration::from_millis(300);

/// What was received before a reassignment cannot be settled after it, and comes again.
pub async fn reassignment_voids_what_was_received<S: BrokerSubject>(subject: S) {
    subject.publish(Message::new("1")).await;
    let source = subject.source().await;
    let received = receive(&source, 1).await.remove(0);
    if !subject.reassign(&source).await {
        return;
    }
    assert_eq!(settle(&source, &received, MessageOutcome::Done).await, Settled::Lost);
    let again = receive(&source, 1).await.remove(0);
    assert!(again.receipt.epoch > received.receipt.epoch);
    assert_eq!(settle(&source, &again, MessageOutcome::Done).await, Settled::Settled);
}

/// A partition that was paused stays paused when it is assigned again.
pub async fn a_pause_survives_reassignment<S: BrokerSubject>(subject: S) {
    let source = subject.source().await;
    subject.publish(Message::new("1")).await;
    let partition = receive(&source, 1).await.remove(0).receipt.partition;
    source.pause(&partition);
    if !subject.reassign(&source).await {
        return;
    }
    assert!(source.receive(1, QUIET).await.unwrap().is_empty());
    source.resume(&partition);
    receive(&source, 1).await;
}

/// A key whose attempt of an earlier assignment still runs here waits for that attempt.
pub async fn a_key_waits_for_its_attempt_of_an_earlier_assignment<S: BrokerSubject>(_: S) {
    let subject = S::fresh(MessageOrder::Key).await;
    subject.publish(Message::new("1").key("k")).await;
    let go = Arc::new(Notify::new());
    let gate = Arc::clone(&go);
    let handle = move |_: IncomingMessage| {
        let gate = Arc::clone(&gate);
        async move {
            gate.notified().await;
            ok()
        }
    };
    let mut worker = Worker::start(subject.source().await, policy(1, QUIET), by_key, handle);
    worker.journal.until("a start", |seen| seen.len() == 1).await;
    if !subject.reassign(&worker.source).await {
        go.notify_one();
        subject.kill(worker.abort()).await;
        return;
    }
    tokio::time::sleep(QUIET).await;
    assert_eq!(worker.journal.seen().len(), 1, "it runs beside itself");
    go.notify_one();
    worker.journal.until("the second start", |seen| seen.len() == 2).await;
    go.notify_one();
    worker.until_ended(1).await;
    worker.stop().await;
}
