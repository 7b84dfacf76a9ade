//! What arrives.

use redrive_broker::metadata::DeadCause;
use redrive_broker::{Message, MessageOutcome};
use redrive_core::scheduler::{AttemptEnd, EndedAttempt};

use super::BrokerSubject;
use super::worker::{Worker, ok, plain, policy, receive, settle};
use std::time::Duration;

/// Bytes that are no text, empty ones and large ones arrive unchanged, with key and headers.
pub async fn raw_bytes_arrive_as_they_were_sent<S: BrokerSubject>(subject: S) {
    let bodies = [vec![0, 159, 146, 150, 255], vec![], vec![7; 200_000]];
    for body in &bodies {
        subject.publish(Message::new(body.clone()).key([0xff, 0]).header("h", [1, 0, 254])).await;
    }
    let source = subject.source().await;
    let mut received = receive(&source, 3).await;
    received.sort_by_key(|received| received.receipt.position);
    for (received, body) in received.iter().zip(bodies) {
        assert_eq!(received.message.body.as_deref(), Some(&*body));
        assert_eq!(received.message.key.as_deref(), Some(&[0xff, 0][..]));
        assert_eq!(received.message.headers.get("h"), Some(&[1, 0, 254][..]));
    }
}

/// A handler that cannot decode a message makes a dead letter with the original bytes, after no attempt.
pub async fn what_cannot_be_decoded_is_dead_with_its_bytes<S: BrokerSubject>(subject: S) {
    subject.publish(Message::new([0xff, 0xfe])).await;
    subject.publish(Message::new(*b"fine")).await;
    let handle = |incoming: redrive_broker::IncomingMessage| async move {
        let is_text = std::str::from_utf8(incoming.body()).is_ok();
        if is_text { ok() } else { EndedAttempt::new(AttemptEnd::Undecodable).into() }
    };
    let mut worker =
        Worker::start(subject.source().await, policy(5, Duration::from_millis(10)), plain, handle);
    worker.until_ended(2).await;
    worker.stop().await;
    let dead = subject.dead().await;
    assert_eq!(dead.len(), 1);
    assert_eq!(dead[0].body.as_deref(), Some(&[0xff, 0xfe][..]));
    assert_eq!(DeadCause::read(&dead[0].headers).reason, "undecodable");
}

/// A message may have neither key nor body.
pub async fn a_null_body_and_a_null_key_are_messages<S: BrokerSubject>(subject: S) {
    subject.publish(Message { key: Some(b"k".to_vec()), ..Message::default() }).await;
    subject.publish(Message::default()).await;
    let source = subject.source().await;
    let received = receive(&source, 2).await;
    assert!(received.iter().all(|received| received.message.body.is_none()));
    assert!(received.iter().any(|received| received.message.key.is_none()));
    for received in &received {
        assert_eq!(settle(&source, received, MessageOutcome::Done).await, redrive_broker::Settled::Settled);
    }
}

/// A redelivery has the identity of the first delivery; so has a message with an id of its producer's.
pub async fn the_identity_stays_over_redeliveries<S: BrokerSubject>(subject: S) {
    subject.publish(Message::new(*b"plain")).await;
    subject.publish(Message::new(*b"named").header("ce_id", "order-17")).await;
    let ids = |worker: &Worker| {
        let mut ids: Vec<_> =
            worker.journal.seen().into_iter().map(|seen| (seen.body, seen.incoming.metadata.id)).collect();
        ids.sort();
        ids
    };
    let hang = |_| std::future::pending::<redrive_broker::Handled>();
    let first = Worker::start(subject.source().await, policy(5, Duration::from_millis(10)), plain, hang);
    first.journal.until("both", |seen| seen.len() == 2).await;
    let before = ids(&first);
    subject.kill(first.abort()).await;
    let mut second =
        Worker::start(subject.source().await, policy(5, Duration::from_millis(10)), plain, |_| async {
            ok()
        });
    second.until_ended(2).await;
    assert_eq!(ids(&second), before);
    assert!(before.contains(&("named".to_owned(), "order-17".to_owned())));
    second.stop().await;
}

/// A message that another program retried keeps its attempts.
pub async fn headers_of_others_are_read<S: BrokerSubject>(subject: S) {
    subject.publish(Message::new(*b"spring").header("retry_topic-attempts", 3_u32.to_be_bytes())).await;
    subject.publish(Message::new(*b"absurd").header("redrive-attempt", "minus one")).await;
    let mut worker =
        Worker::start(subject.source().await, policy(9, Duration::from_millis(10)), plain, |_| async {
            ok()
        });
    worker.until_ended(2).await;
    let mut seen: Vec<_> =
        worker.journal.seen().into_iter().map(|seen| (seen.body, seen.incoming.attempt())).collect();
    seen.sort();
    assert_eq!(seen, [("absurd".to_owned(), 1), ("spring".to_owned(), 3)]);
    worker.stop().await;
}
