//! A consumer with a handler that the promises script, and a record of what it did.

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redrive_broker::capabilities::MessageOrder;
use redrive_broker::consume::{ConsumeError, ConsumerReport};
use redrive_broker::{Consumer, Handled, IncomingMessage, Message, MessageSource};
use redrive_core::event::Cause;
use redrive_core::scheduler::{AttemptEnd, EndedAttempt};
use redrive_core::{Backoff, Disposition, Fault, Jitter, Policy};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

/// How long a promise waits for something that must happen; generous, for loaded machines.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A policy whose every wait is `wait`.
#[must_use]
pub fn policy(attempts: u32, wait: Duration) -> Policy {
    let backoff = Backoff::exponential(wait, 1.0, wait);
    Policy::builder().attempts(attempts).backoff(backoff).jitter(Jitter::None).no_budget().build().unwrap()
}

/// One attempt, as the handler saw it.
#[derive(Debug, Clone)]
pub struct Seen {
    /// The body, as text.
    pub body: String,
    /// The key, as text.
    pub key: Option<String>,
    /// The message.
    pub incoming: IncomingMessage,
    /// When it began, by the clock of the source.
    pub at: redrive_core::Moment,
}

/// What handlers did.
#[derive(Debug, Default)]
pub struct Journal {
    seen: Mutex<Vec<Seen>>,
    changed: Notify,
}

impl Journal {
    /// The attempts so far.
    #[must_use]
    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    /// The bodies of the attempts so far.
    #[must_use]
    pub fn bodies(&self) -> Vec<String> {
        self.seen().into_iter().map(|seen| seen.body).collect()
    }

    /// How many attempts a body had.
    #[must_use]
    pub fn count(&self, body: &str) -> usize {
        self.bodies().iter().filter(|seen| *seen == body).count()
    }

    /// Waits until the attempts are as `is_there` wants them.
    pub async fn until(&self, what: &str, is_there: impl Fn(&[Seen]) -> bool) {
        let wait = async {
            loop {
                let changed = self.changed.notified();
                if is_there(&self.seen()) {
                    return;
                }
                changed.await;
            }
        };
        let in_time = tokio::time::timeout(PATIENCE, wait).await;
        assert!(in_time.is_ok(), "waited in vain for {what}: {:?}", self.bodies());
    }

    fn add(&self, seen: Seen) {
        self.seen.lock().unwrap().push(seen);
        self.changed.notify_waiters();
    }
}

/// A running consumer.
#[derive(Debug)]
pub struct Worker {
    /// What its handler did.
    pub journal: Arc<Journal>,
    /// Its source.
    pub source: Arc<dyn MessageSource>,
    stop: watch::Sender<bool>,
    report: watch::Receiver<ConsumerReport>,
    task: JoinHandle<Result<ConsumerReport, ConsumeError>>,
}

impl Worker {
    /// Starts a consumer. `tune` changes it; `handle` says how an attempt ends.
    pub fn start<F, Fut>(
        source: Arc<dyn MessageSource>,
        policy: Policy,
        tune: impl FnOnce(Consumer) -> Consumer,
        handle: F,
    ) -> Self
    where
        F: Fn(IncomingMessage) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Handled> + Send + 'static,
    {
        let journal = Arc::new(Journal::default());
        let (log, clock) = (Arc::clone(&journal), Arc::clone(&source));
        let handler = move |incoming: IncomingMessage| {
            log.add(Seen {
                body: text(&incoming.message),
                key: incoming.key().map(|key| String::from_utf8_lossy(key).into_owned()),
                at: clock.now(),
                incoming: incoming.clone(),
            });
            handle(incoming)
        };
        let consumer = Consumer::new(Arc::clone(&source), "orders", policy, handler).drain(PATIENCE);
        let (stop, mut stopped) = watch::channel(false);
        let consumer = tune(consumer);
        let report = consumer.watch();
        let run = consumer.run(async move {
            let _ = stopped.wait_for(|stop| *stop).await;
        });
        Self { journal, source, stop, report, task: tokio::spawn(run) }
    }

    /// Stops it: running attempts end and are settled.
    pub async fn stop(self) -> ConsumerReport {
        self.stop.send_replace(true);
        tokio::time::timeout(PATIENCE * 2, self.task).await.expect("stopped in time").unwrap().unwrap()
    }

    /// Waits until it stops by itself.
    pub async fn failed(self) -> ConsumeError {
        tokio::time::timeout(PATIENCE, self.task).await.expect("stopped by itself").unwrap().unwrap_err()
    }

    /// Ends it without a word.
    pub fn abort(self) -> Arc<dyn MessageSource> {
        self.task.abort();
        self.source
    }

    /// Waits until so many messages have ended and are settled.
    pub async fn until_ended(&mut self, count: u64) {
        let wait = self.report.wait_for(|report| report.done + report.dead >= count);
        let in_time = tokio::time::timeout(PATIENCE, wait).await.is_ok();
        let report = *self.report.borrow();
        assert!(in_time, "{count} messages have not ended: {report:?}, {:?}", self.journal.bodies());
    }
}

/// The body as text.
#[must_use]
pub fn text(message: &Message) -> String {
    String::from_utf8_lossy(message.body.as_deref().unwrap_or_default()).into_owned()
}

/// It worked.
#[must_use]
pub fn ok() -> Handled {
    EndedAttempt::new(AttemptEnd::Outcome(Disposition::Ok.into())).into()
}

/// It failed, and another attempt may help.
#[must_use]
pub fn retry() -> Handled {
    fault(Fault::transient())
}

/// It failed for good.
#[must_use]
pub fn permanent() -> Handled {
    fault(Fault::permanent())
}

fn fault(fault: Fault) -> Handled {
    let cause = Some(Cause::new("Refused", "no such account"));
    EndedAttempt { cause, ..EndedAttempt::new(AttemptEnd::Outcome(fault.into())) }.into()
}

/// Receives at least `count` messages straight from a source.
pub async fn receive(source: &Arc<dyn MessageSource>, count: usize) -> Vec<redrive_broker::Received> {
    let mut all = Vec::new();
    let wait = async {
        while all.len() < count {
            all.extend(source.receive(count - all.len(), Duration::from_secs(1)).await.unwrap());
        }
    };
    let in_time = tokio::time::timeout(PATIENCE, wait).await;
    assert!(in_time.is_ok(), "{} of {count} messages came", all.len());
    all
}

/// Settles a received message.
pub async fn settle(
    source: &Arc<dyn MessageSource>,
    received: &redrive_broker::Received,
    outcome: redrive_broker::MessageOutcome,
) -> redrive_broker::Settled {
    let (receipt, message) = (received.receipt.clone(), Arc::clone(&received.message));
    let batch = vec![redrive_broker::Settlement { receipt, message, outcome, outputs: Vec::new() }];
    source.settle(batch).await.remove(0)
}

/// Leaves the consumer as it is.
#[must_use]
pub fn plain(consumer: Consumer) -> Consumer {
    consumer
}

/// Keeps the order of keys.
#[must_use]
pub fn by_key(consumer: Consumer) -> Consumer {
    consumer.order(MessageOrder::Key)
}
