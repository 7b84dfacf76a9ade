//! Kafka, through librdkafka.
//!
//! # What is promised
//!
//! Retry, dead letter, outputs and offset of a message are one Kafka transaction. The offset is the low mark of its
//! partition, and the done-set above it travels in the same transaction ([`crate::offsets`]).
//!
//! | window | closed by |
//! |---|---|
//! | the copy is written, the offset is not | one transaction |
//! | the copy belongs to a message above the low mark | the done-set, in that transaction |
//! | a process that was stopped wakes up | the group's generation, which each commit carries |
//! | a living member commits a partition that it lost | ownership is checked under the lock that a revocation takes |
//! | the answer to a commit is lost | a new producer of the same transactional id, then the committed metadata is read |
//! | a call of the client hangs | each producer has a thread of its own; a watchdog replaces both |
//! | a handler is slow | partitions are paused and polled on, so the member stays |
//!
//! # Two ways to retry
//!
//! With **tiers**, a retry moves into a topic of its own (`orders.retry.10s`), whose consumer group fires each message by
//! its due time. Order is not kept. Without tiers, a retry waits **in place**: it stays unsettled, its key waits behind
//! it, and other keys go on until the done-set is nearly full; a restart repeats it from its first attempt.

use std::sync::Arc;
use std::time::Duration;

use redrive_core::Moment;

use crate::capabilities::{Capabilities, DelaySupport, OrderSupport};
use crate::clock::WallClock;
use crate::message::Partition;
use crate::source::{
    AssignmentEvent, Lag, MessageOutcome, MessageSource, Receipt, Received, Settled, Settlement, SourceError,
    SourceFuture,
};

mod commit;
mod convert;
mod flow;
mod plan;
mod poll;
mod settings;
mod state;
mod topics;
mod transaction;

use flow::Flow;
pub use settings::KafkaSettings;

/// A source of one topic, with its retry topics.
#[derive(Debug)]
pub struct KafkaSource {
    flows: Vec<Flow>,
    settings: Arc<KafkaSettings>,
    clock: WallClock,
    message_bytes_max: usize,
}

impl KafkaSource {
    /// Joins the consumer groups. Topics that are missing are created, existing ones are checked.
    ///
    /// # Errors
    /// If the broker does not answer, or a topic is set up in a way that would lose or repeat messages.
    pub async fn open(settings: KafkaSettings) -> Result<Self, SourceError> {
        settings.check()?;
        let settings = Arc::new(settings);
        let checked = topics::prepare(&settings).await?;
        let (clock, bytes) = (WallClock::start(), checked.message_bytes_max);
        let mut flows =
            vec![Flow::start(&settings, &settings.group, vec![settings.topic.clone()], clock, bytes)?];
        if !settings.tiers.is_empty() {
            flows.push(Flow::start(&settings, &settings.retry_group, settings.tier_topics(), clock, bytes)?);
        }
        Ok(Self { flows, settings, clock, message_bytes_max: bytes })
    }

    /// The settings it was opened with.
    #[must_use]
    pub fn settings(&self) -> &KafkaSettings {
        &self.settings
    }

    fn flow(&self, partition: &Partition) -> &Flow {
        let is_source = *partition.topic == *self.settings.topic;
        self.flows.get(usize::from(!is_source)).unwrap_or(&self.flows[0])
    }
}

impl MessageSource for KafkaSource {
    fn capabilities(&self) -> Capabilities {
        let tiers = !self.settings.tiers.is_empty();
        Capabilities {
            delay: if tiers { DelaySupport::Tiers } else { DelaySupport::InPlace },
            order: if tiers { OrderSupport::None } else { OrderSupport::Key },
            atomic_publish: true,
            lease: None,
            message_bytes_max: self.message_bytes_max,
            survives_kill: true,
        }
    }

    fn now(&self) -> Moment {
        self.clock.now()
    }

    fn receive(&self, max: usize, wait: Duration) -> SourceFuture<'_, Result<Vec<Received>, SourceError>> {
        Box::pin(async move {
            let end = self.now() + wait;
            loop {
                // Registered before the look, so that no arrival in between is missed.
                let mut arrivals: Vec<_> = self.flows.iter().map(|flow| Box::pin(flow.arrived())).collect();
                arrivals.iter_mut().for_each(|arrival| {
                    arrival.as_mut().enable();
                });
                let now = self.now();
                let mut received = Vec::new();
                let mut next = end;
                for flow in &self.flows {
                    let share = (max - received.len()).min(max.div_ceil(self.flows.len()));
                    received.extend(flow.take(share, now)?);
                    next = flow.next_due().map_or(next, |due| due.min(next));
                }
                if !received.is_empty() || now >= end || max == 0 {
                    return Ok(received);
                }
                let any = async {
                    let [first, rest @ ..] = arrivals.as_mut_slice() else { return };
                    match rest.first_mut() {
                        None => first.await,
                        Some(second) => tokio::select! { () = first => {}, () = second => {} },
                    }
                };
                let _ = tokio::time::timeout(next.since(now), any).await;
            }
        })
    }

    fn settle(&self, batch: Vec<Settlement>) -> SourceFuture<'_, Vec<Settled>> {
        Box::pin(async move {
            let mut answers = Vec::with_capacity(batch.len());
            for settlement in batch {
                let is_retry = matches!(settlement.outcome, MessageOutcome::Retry { .. });
                if is_retry && self.settings.tiers.is_empty() {
                    let why = "there are no retry tiers; a retry waits in place, unsettled".to_owned();
                    answers.push(Err(Settled::Refused(why)));
                } else {
                    answers.push(Ok(self.flow(&settlement.receipt.partition).settle(settlement)));
                }
            }
            let mut settled = Vec::with_capacity(answers.len());
            for answer in answers {
                settled.push(match answer {
                    Err(refused) => refused,
                    Ok(answer) => answer.await.unwrap_or(Settled::Unknown),
                });
            }
            settled
        })
    }

    fn extend(&self, receipts: Vec<Receipt>, _: Moment) -> SourceFuture<'_, Vec<Settled>> {
        // There are no leases: a member owns its partitions until they are revoked.
        Box::pin(async move {
            let owns = |receipt: Receipt| match self.flow(&receipt.partition).owns(&receipt) {
                true => Settled::Settled,
                false => Settled::Lost,
            };
            receipts.into_iter().map(owns).collect()
        })
    }

    fn pause(&self, partition: &Partition) {
        self.flow(partition).pause(partition, true);
    }

    fn resume(&self, partition: &Partition) {
        self.flow(partition).pause(partition, false);
    }

    fn assignments(&self) -> Vec<AssignmentEvent> {
        self.flows.iter().flat_map(Flow::assignments).collect()
    }

    fn lag(&self) -> SourceFuture<'_, Result<Vec<Lag>, SourceError>> {
        Box::pin(async move {
            let mut all = Vec::new();
            for flow in &self.flows {
                all.extend(flow.lag().await?);
            }
            Ok(all)
        })
    }

    fn close(&self, drain: Duration) -> SourceFuture<'_, Result<(), SourceError>> {
        Box::pin(async move {
            for flow in &self.flows {
                flow.close(drain).await;
            }
            Ok(())
        })
    }
}
