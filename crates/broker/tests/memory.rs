//! The broker in memory keeps every promise, and each planted bug breaks one.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redrive_broker::capabilities::MessageOrder;
use redrive_broker::sources::memory::{MemoryBroker, MemoryFault, MemoryOptions, MemorySource};
use redrive_broker::{Message, MessageSource};
use redrive_testkit::broker::BrokerSubject;

struct Memory {
    broker: MemoryBroker,
    sources: Mutex<Vec<Arc<MemorySource>>>,
}

const QUEUE: &str = "orders";

impl Memory {
    /// In one thread, with time that passes only when nothing else happens.
    fn in_runtime(promise: impl FnOnce() -> Pin<Box<dyn Future<Output = ()>>>) {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap()
            .block_on(promise());
    }

    fn find(&self, source: &Arc<dyn MessageSource>) -> Arc<MemorySource> {
        let sources = self.sources.lock().unwrap();
        let at =
            |known: &Arc<MemorySource>| Arc::as_ptr(known).cast::<()>() == Arc::as_ptr(source).cast::<()>();
        Arc::clone(sources.iter().find(|known| at(known)).unwrap())
    }
}

impl BrokerSubject for Memory {
    async fn fresh(order: MessageOrder) -> Self {
        let options = MemoryOptions { ordered: order == MessageOrder::Key, ..MemoryOptions::default() };
        Self { broker: MemoryBroker::new(options), sources: Mutex::default() }
    }

    async fn source(&self) -> Arc<dyn MessageSource> {
        let source = Arc::new(self.broker.source(QUEUE));
        self.sources.lock().unwrap().push(Arc::clone(&source));
        source
    }

    async fn kill(&self, source: Arc<dyn MessageSource>) {
        self.find(&source).kill();
    }

    async fn kill_broker(&self) -> bool {
        false
    }

    async fn publish(&self, message: Message) {
        self.broker.add(QUEUE, message);
    }

    async fn dead(&self) -> Vec<Message> {
        self.broker.dead(QUEUE)
    }

    async fn outputs(&self) -> Vec<Message> {
        self.broker.messages("outputs").iter().map(|message| (**message).clone()).collect()
    }

    fn output_topic(&self) -> String {
        "outputs".to_owned()
    }

    async fn break_dead_place(&self, broken: bool) -> bool {
        self.broker.has_dead_place(!broken);
        true
    }

    async fn reassign(&self, source: &Arc<dyn MessageSource>) -> bool {
        self.find(source).reassign();
        true
    }

    async fn lose_answer(&self) -> bool {
        self.broker.fault(MemoryFault::AnswerLost);
        true
    }

    fn late_max() -> Duration {
        Duration::from_millis(20)
    }
}

redrive_testkit::broker_tests!(Memory);

/// Bugs of consumers and brokers; those of offsets are planted in `offsets.rs`.
#[cfg(feature = "planted")]
#[test]
fn each_planted_bug_breaks_a_promise() {
    use redrive_broker::planted::{BrokerBug, plant};

    let bugs = [
        BrokerBug::NullKeysShareLane,
        BrokerBug::BouncedKeyRunsTwice,
        BrokerBug::RetryEarly,
        BrokerBug::StaleReceiptSettles,
        BrokerBug::UnknownMakesTwo,
        BrokerBug::HeadersAppended,
        BrokerBug::DeadWithoutPlaceDropped,
        BrokerBug::IdentityRenewed,
        BrokerBug::PauseForgotten,
        BrokerBug::RedeliveryCharged,
        BrokerBug::RatioSettlesTripper,
    ];
    let promises = redrive_testkit::broker_promises! { [redrive_testkit::broker_promise_list] Memory };
    // Panics are expected here by the dozen; their traces would hide a real one.
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let finds = |bug: BrokerBug, promise: fn() -> Pin<Box<dyn Future<Output = ()>>>| {
        std::thread::spawn(move || {
            plant(Some(bug));
            Memory::in_runtime(promise);
        })
        .join()
        .is_err()
    };
    let found: Vec<_> = bugs
        .into_iter()
        .map(|bug| (bug, promises.iter().find(|(_, promise)| finds(bug, *promise)).map(|(name, _)| *name)))
        .collect();
    std::panic::set_hook(usual);
    eprintln!("{found:#?}");
    assert!(found.iter().all(|(_, name)| name.is_some()), "not found: {found:?}");
}

#[tokio::test(start_paused = true)]
async fn dead_letters_are_redriven_one_by_one_and_keep_their_identity() {
    use redrive_broker::{DeadLetters, MessageSink, Metadata, Outgoing, Settled};
    use redrive_testkit::broker::worker::{Worker, ok, permanent, plain, policy};

    let memory = Memory::fresh(MessageOrder::None).await;
    let batch = ["a", "b", "c"].map(|body| Outgoing::new(QUEUE, Message::new(body).header("ce_id", body)));
    assert_eq!(memory.broker.publish(batch.into()).await, vec![Settled::Settled; 3]);
    let mut worker =
        Worker::start(memory.source().await, policy(1, Duration::from_millis(1)), plain, |_| async {
            permanent()
        });
    worker.until_ended(3).await;
    worker.stop().await;

    let letters = memory.broker.dead_letters(QUEUE);
    let page = letters.browse(None, 2).await.unwrap();
    let rest = letters.browse(page.next.clone(), 9).await.unwrap();
    assert_eq!((page.letters.len(), rest.letters.len(), rest.next), (2, 1, None));
    let [first, second] = [&page.letters[0], &page.letters[1]].map(|letter| letter.at.clone());
    assert_eq!(letters.redrive(vec![first.clone()]).await.unwrap(), [Settled::Settled]);
    assert_eq!(letters.redrive(vec![first.clone()]).await.unwrap(), [Settled::Lost], "once");
    assert_eq!(letters.discard(vec![second, first]).await.unwrap(), [Settled::Settled, Settled::Lost]);
    assert!(letters.get(rest.letters[0].at.clone()).await.unwrap().is_some());
    assert_eq!(memory.broker.dead(QUEUE).len(), 1);

    let mut worker =
        Worker::start(memory.source().await, policy(1, Duration::from_millis(1)), plain, |_| async { ok() });
    worker.until_ended(1).await;
    let Metadata { id, attempts, mode, .. } = worker.journal.seen()[0].incoming.metadata.clone();
    assert_eq!((id.as_str(), attempts, mode.as_str()), ("a", 0, "redrive"));
    worker.stop().await;
}
