//! Messages of Kafka under a policy: retries, dead letters, order by key, outputs in one transaction.
//!
//! ```no_run
//! use redrive::kafka;
//! use redrive::prelude::*;
//! use std::time::Duration;
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! kafka::consume("127.0.0.1:9092", "orders", "orders-consumer")
//!     .policy(Policy::builder().attempts(6).build()?)
//!     .tiers([Duration::from_secs(10), Duration::from_secs(60)])
//!     .handle(async |order: kafka::IncomingMessage| {
//!         println!("{} for the {}. time", order.id(), order.attempt());
//!         Ok::<(), std::io::Error>(())
//!     })
//!     .await?
//!     .run(async { tokio::signal::ctrl_c().await.unwrap_or_default() })
//!     .await?;
//! # Ok(())
//! # }
//! ```
//!
//! What is promised, and where it ends, is in `docs/guides/kafka.md`.

use std::error::Error;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use redrive_broker::sources::kafka::KafkaSource;
use redrive_broker::{Consumer, Handled};
use redrive_core::observe::Outcome;
use redrive_core::scheduler::{AttemptEnd, EndedAttempt};
use redrive_core::{Classify, Policy};

use crate::engine::queue_builder::classified;
use crate::engine::{IntoReply, Reply};

pub use redrive_broker::capabilities::MessageOrder;
pub use redrive_broker::consume::{ConsumeError, ConsumerReport, DeadRatio};
pub use redrive_broker::sources::kafka::KafkaSettings;
pub use redrive_broker::{IncomingMessage, Message, Outgoing, SourceError};

/// Consumes a topic as a member of a consumer group.
#[must_use]
pub fn consume(servers: &str, topic: &str, group: &str) -> KafkaConsumer {
    KafkaConsumer {
        settings: KafkaSettings::new(servers, topic, group),
        policy: Policy::default(),
        concurrency: 16,
        order: MessageOrder::None,
        dead_ratio: None,
    }
}

/// A consumer that is being set up.
#[derive(Debug, Clone)]
pub struct KafkaConsumer {
    settings: KafkaSettings,
    policy: Policy,
    concurrency: u32,
    order: MessageOrder,
    dead_ratio: Option<DeadRatio>,
}

impl KafkaConsumer {
    /// The policy of retries. Default: [`Policy::default`].
    #[must_use]
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// Retry topics with these waits. Default: none, and a retry waits in place.
    #[must_use]
    pub fn tiers(mut self, tiers: impl IntoIterator<Item = Duration>) -> Self {
        self.settings = self.settings.tiers(tiers);
        self
    }

    /// How many attempts run at once. Default: 16.
    #[must_use]
    pub const fn concurrency(mut self, concurrency: u32) -> Self {
        self.concurrency = concurrency;
        self
    }

    /// Which order is kept. Default: none. The order of keys needs retries in place.
    #[must_use]
    pub const fn order(mut self, order: MessageOrder) -> Self {
        self.order = order;
        self
    }

    /// Stops when too large a share of recent messages died. Default: never.
    #[must_use]
    pub const fn dead_ratio(mut self, limit: DeadRatio) -> Self {
        self.dead_ratio = Some(limit);
        self
    }

    /// Changes the settings of the source: names of topics and groups, TLS, SASL.
    #[must_use]
    pub fn settings(mut self, change: impl FnOnce(KafkaSettings) -> KafkaSettings) -> Self {
        self.settings = change(self.settings);
        self
    }

    /// Joins the group and runs `handler` for each message. An error that `?` makes a failure of is permanent, unless it
    /// is said to be transient ([`Failure`](crate::Failure)).
    ///
    /// # Errors
    /// If the broker does not answer, or topics are set up in a way that would lose messages.
    pub async fn handle<F, Fut, T>(self, handler: F) -> Result<Consumer, SourceError>
    where
        F: Fn(IncomingMessage) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = T> + Send + 'static,
        T: IntoReply,
    {
        self.start(move |message| {
            let reply = handler(message);
            async move { Handled::from(ended(reply.await.into_reply())) }
        })
        .await
    }

    /// The same with a classifier that says which errors are transient.
    ///
    /// # Errors
    /// As [`handle`](Self::handle).
    pub async fn handle_with<C, F, Fut, T, E>(
        self,
        classifier: C,
        handler: F,
    ) -> Result<Consumer, SourceError>
    where
        C: Classify<E> + Send + Sync + 'static,
        F: Fn(IncomingMessage) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T, E>> + Send + 'static,
        T: IntoReply,
        E: Error + 'static,
    {
        let classifier = Arc::new(classifier);
        self.start(move |message| {
            let (reply, classifier) = (handler(message), Arc::clone(&classifier));
            async move { Handled::from(ended(classified(&*classifier, reply.await))) }
        })
        .await
    }

    /// The handler returns messages, which are published in the transaction that settles the one it was given: after
    /// `Ok` each is there once, and a failed attempt publishes nothing. A reader sees them with
    /// `isolation.level=read_committed`.
    ///
    /// # Errors
    /// As [`handle`](Self::handle).
    pub async fn map_in_transaction<F, Fut, E>(self, handler: F) -> Result<Consumer, SourceError>
    where
        F: Fn(IncomingMessage) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Vec<Outgoing>, E>> + Send + 'static,
        E: Into<crate::Failure>,
    {
        let handler = move |message| {
            let outputs = handler(message);
            async move {
                match outputs.await {
                    Ok(outputs) => Handled { ended: ended(Reply::ok()), outputs },
                    Err(error) => Handled::from(ended(Reply::from(error.into()))),
                }
            }
        };
        Ok(self.start(handler).await?.with_outputs())
    }

    async fn start<F, Fut>(self, handler: F) -> Result<Consumer, SourceError>
    where
        F: Fn(IncomingMessage) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Handled> + Send + 'static,
    {
        let Self { settings, policy, concurrency, order, dead_ratio } = self;
        let (topic, group) = (settings.topic.clone(), settings.group.clone());
        let source = Arc::new(KafkaSource::open(settings).await?);
        let consumer =
            Consumer::new(source, &topic, policy, handler).group(group).concurrency(concurrency).order(order);
        Ok(match dead_ratio {
            Some(limit) => consumer.dead_ratio(limit),
            None => consumer,
        })
    }
}

/// A reply as the end of an attempt.
fn ended(reply: Reply) -> EndedAttempt {
    let outcome = Outcome::from(reply.disposition);
    let end = if reply.is_put_off { AttemptEnd::NotKept } else { AttemptEnd::Outcome(outcome) };
    EndedAttempt { cause: reply.cause, ..EndedAttempt::new(end) }
}
