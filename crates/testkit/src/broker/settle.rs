//! What a settle means.

use std::sync::Arc;
use std::time::Duration;

use redrive_broker::metadata::Metadata;
use redrive_broker::{Message, MessageOutcome, Outgoing, Settled, Settlement};

use super::BrokerSubject;
use super::worker::{Worker, ok, permanent, plain, policy, receive, retry, settle, text};

/// How long a promise looks for what must not come.
const QUIET: Duration = Duration::from_millis(300);

/// A message that is done does not come again, neither to this consumer nor to the next.
pub async fn done_is_never_redelivered<S: BrokerSubject>(subject: S) {
    subject.publish(Message::new(*b"1")).await;
    let source = subject.source().await;
    let received = receive(&source, 1).await;
    assert_eq!(settle(&source, &received[0], MessageOutcome::Done).await, Settled::Settled);
    source.close(Duration::from_secs(5)).await.unwrap();
    subject.publish(Message::new(*b"2")).await;
    let source = subject.source().await;
    assert_eq!(text(&receive(&source, 1).await[0].message), "2");
    assert!(source.receive(10, QUIET).await.unwrap().is_empty());
}

/// A message that was received and not settled comes again after its consumer died.
pub async fn unsettled_is_redelivered<S: BrokerSubject>(subject: S) {
    for body in ["1", "2", "3"] {
        subject.publish(Message::new(body)).await;
    }
    let source = subject.source().await;
    let received = receive(&source, 3).await;
    let second = received.iter().find(|received| text(&received.message) == "2").unwrap();
    assert_eq!(settle(&source, second, MessageOutcome::Done).await, Settled::Settled);
    subject.kill(source).await;
    let source = subject.source().await;
    let mut again: Vec<_> =
        receive(&source, 2).await.iter().map(|received| text(&received.message)).collect();
    again.sort();
    assert_eq!(again, ["1", "3"]);
    assert!(source.receive(10, QUIET).await.unwrap().is_empty(), "what was done came again");
}

/// The second settle of one delivery changes nothing.
pub async fn settling_twice_is_harmless<S: BrokerSubject>(subject: S) {
    subject.publish(Message::new(*b"1")).await;
    let source = subject.source().await;
    let received = receive(&source, 1).await.remove(0);
    let headers = Metadata::read(
        &received.message,
        &received.receipt.partition,
        received.receipt.position,
        source.now(),
    )
    .dead_headers(&received.message.headers, 1, "permanent", None);
    let dead = MessageOutcome::Dead { headers };
    assert_eq!(settle(&source, &received, dead.clone()).await, Settled::Settled);
    let again = settle(&source, &received, dead).await;
    assert!(matches!(again, Settled::Lost | Settled::Settled), "{again:?}");
    assert_eq!(subject.dead().await.len(), 1);
}

/// A settle by a consumer that lost the message says so, and changes nothing.
pub async fn a_settle_after_loss_says_lost<S: BrokerSubject>(subject: S) {
    subject.publish(Message::new(*b"1")).await;
    let first = subject.source().await;
    let received = receive(&first, 1).await.remove(0);
    subject.kill(Arc::clone(&first)).await;
    let second = subject.source().await;
    let again = receive(&second, 1).await.remove(0);
    let late = settle(&first, &received, MessageOutcome::Done).await;
    assert!(matches!(late, Settled::Lost | Settled::Unknown), "{late:?}");
    assert_eq!(settle(&second, &again, MessageOutcome::Done).await, Settled::Settled);
}

/// A settle whose answer is lost has happened once.
pub async fn a_lost_answer_is_resolved<S: BrokerSubject>(subject: S) {
    subject.publish(Message::new(*b"1")).await;
    if !subject.lose_answer().await {
        return;
    }
    let mut worker =
        Worker::start(subject.source().await, policy(1, Duration::from_millis(10)), plain, |_| async {
            permanent()
        });
    worker.until_ended(1).await;
    worker.stop().await;
    assert_eq!(subject.dead().await.len(), 1);
}

/// One batch may hold every outcome, and each item has its answer.
pub async fn one_batch_with_all_outcomes<S: BrokerSubject>(subject: S) {
    for body in ["done", "dead", "again"] {
        subject.publish(Message::new(body)).await;
    }
    let source = subject.source().await;
    let mut batch: Vec<Settlement> = Vec::new();
    for received in receive(&source, 3).await {
        let receipt = received.receipt.clone();
        let metadata = Metadata::read(&received.message, &receipt.partition, receipt.position, source.now());
        let (at, wait) = (source.now(), Duration::ZERO);
        let outcome = match text(&received.message).as_str() {
            "done" => MessageOutcome::Done,
            "dead" => MessageOutcome::Dead {
                headers: metadata.dead_headers(&received.message.headers, 1, "permanent", None),
            },
            _ if source.capabilities().delay == redrive_broker::capabilities::DelaySupport::InPlace => {
                continue;
            }
            _ => MessageOutcome::Retry {
                at,
                headers: metadata.retry_headers(&received.message.headers, 1, wait, at),
            },
        };
        batch.push(Settlement { receipt, message: received.message, outcome, outputs: Vec::new() });
    }
    let retries = batch.len() == 3;
    let answers = source.settle(batch).await;
    assert!(answers.iter().all(|answer| *answer == Settled::Settled), "{answers:?}");
    assert_eq!(subject.dead().await.iter().map(text).collect::<Vec<_>>(), ["dead"]);
    if retries {
        assert_eq!(text(&receive(&source, 1).await[0].message), "again");
    }
    assert!(source.receive(10, QUIET).await.unwrap().is_empty());
}

/// A consumer that stops settles what runs.
pub async fn closing_drains<S: BrokerSubject>(subject: S) {
    for n in 0..20 {
        subject.publish(Message::new(n.to_string())).await;
    }
    let slow = |_| async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        ok()
    };
    let worker = Worker::start(subject.source().await, policy(1, QUIET), plain, slow);
    worker.journal.until("a start", |seen| !seen.is_empty()).await;
    let journal = Arc::clone(&worker.journal);
    let report = worker.stop().await;
    assert_eq!(report.done, journal.seen().len() as u64, "{report:?}");
    let mut rest = Worker::start(subject.source().await, policy(1, QUIET), plain, |_| async { ok() });
    rest.until_ended(20 - report.done).await;
    let mut all = [journal.bodies(), rest.journal.bodies()].concat();
    all.sort_by_key(|body| body.parse::<u32>().unwrap());
    assert_eq!(all, (0..20).map(|n| n.to_string()).collect::<Vec<_>>());
    rest.stop().await;
}

/// Outputs of a handler are published together with its settle, once each.
pub async fn outputs_are_published_with_the_settle<S: BrokerSubject>(subject: S) {
    for n in 0..10 {
        subject.publish(Message::new(n.to_string())).await;
    }
    let topic = subject.output_topic();
    let handle = move |incoming: redrive_broker::IncomingMessage| {
        let output = Outgoing::new(topic.as_str(), Message::new(format!("out {}", text(&incoming.message))));
        async move { redrive_broker::Handled { outputs: vec![output], ..ok() } }
    };
    let mut worker = Worker::start(
        subject.source().await,
        policy(1, QUIET),
        redrive_broker::Consumer::with_outputs,
        handle,
    );
    worker.until_ended(10).await;
    worker.stop().await;
    let mut outputs: Vec<_> = subject.outputs().await.iter().map(text).collect();
    outputs.sort();
    assert_eq!(outputs, (0..10).map(|n| format!("out {n}")).collect::<Vec<_>>());
}

/// A failed attempt contributes its retry alone, whatever outputs it returned.
pub async fn a_failed_attempt_publishes_nothing<S: BrokerSubject>(subject: S) {
    subject.publish(Message::new(*b"1")).await;
    let topic = subject.output_topic();
    let handle = move |incoming: redrive_broker::IncomingMessage| {
        let outputs = vec![Outgoing::new(topic.as_str(), Message::new(incoming.attempt().to_string()))];
        async move {
            let handled = if incoming.attempt() < 3 { retry() } else { ok() };
            redrive_broker::Handled { outputs, ..handled }
        }
    };
    let tune = redrive_broker::Consumer::with_outputs;
    let mut worker =
        Worker::start(subject.source().await, policy(5, Duration::from_millis(20)), tune, handle);
    worker.until_ended(1).await;
    worker.stop().await;
    assert_eq!(subject.outputs().await.iter().map(text).collect::<Vec<_>>(), ["3"]);
}
