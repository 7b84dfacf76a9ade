//! Attempts and headers.

use std::time::Duration;

use redrive_broker::Message;

use super::BrokerSubject;
use super::worker::{Worker, ok, permanent, plain, policy, retry};

const SHORT: Duration = Duration::from_millis(20);

/// A message that fails each time has as many attempts as the policy allows, numbered from 1.
pub async fn attempts_are_counted_once<S: BrokerSubject>(subject: S) {
    subject.publish(Message::new("1")).await;
    let mut worker = Worker::start(subject.source().await, policy(4, SHORT), plain, |_| async { retry() });
    worker.until_ended(1).await;
    let attempts: Vec<_> = worker.journal.seen().iter().map(|seen| seen.incoming.attempt()).collect();
    assert_eq!(attempts, [1, 2, 3, 4]);
    let ids: std::collections::HashSet<_> =
        worker.journal.seen().iter().map(|seen| seen.incoming.metadata.id.clone()).collect();
    assert_eq!(ids.len(), 1, "{ids:?}");
    worker.stop().await;
    assert_eq!(subject.dead().await[0].headers.text("redrive-dead-attempts"), Some("4"));
}

/// A message whose consumer died in its attempt comes again under the same attempt number.
pub async fn a_redelivery_charges_no_attempt<S: BrokerSubject>(subject: S) {
    subject.publish(Message::new("1")).await;
    for _ in 0..2 {
        let hang = |_| std::future::pending::<redrive_broker::Handled>();
        let worker = Worker::start(subject.source().await, policy(2, SHORT), plain, hang);
        worker.journal.until("a start", |seen| seen.len() == 1).await;
        assert_eq!(worker.journal.seen()[0].incoming.attempt(), 1);
        subject.kill(worker.abort()).await;
    }
    let mut worker = Worker::start(subject.source().await, policy(2, SHORT), plain, |_| async { ok() });
    worker.until_ended(1).await;
    assert_eq!(worker.journal.seen()[0].incoming.attempt(), 1);
    worker.stop().await;
}

/// After many attempts each header is there once, and the user's own are kept.
pub async fn headers_do_not_grow<S: BrokerSubject>(subject: S) {
    subject.publish(Message::new("1").header("own", "kept")).await;
    let handle = |incoming: redrive_broker::IncomingMessage| async move {
        if incoming.attempt() < 8 { retry() } else { permanent() }
    };
    let mut worker = Worker::start(subject.source().await, policy(20, SHORT), plain, handle);
    worker.until_ended(1).await;
    worker.stop().await;
    let dead = subject.dead().await;
    assert_eq!(dead.len(), 1);
    let headers = &dead[0].headers;
    for (name, _) in headers.iter() {
        assert_eq!(headers.count(name), 1, "{name}");
    }
    assert_eq!(headers.text("own"), Some("kept"));
    assert!(headers.size() < 2_000, "{headers:?}");
}
