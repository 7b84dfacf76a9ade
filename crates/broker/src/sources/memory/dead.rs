//! Publishing to the broker in memory, and its dead letters.

use std::sync::Arc;

use super::MemoryBroker;
use crate::message::{Message, Outgoing, Partition};
use crate::metadata::Metadata;
use crate::sink::{DeadLetters, DeadMessage, DeadPage, DeadPosition, MessageSink};
use crate::source::{Settled, SourceError, SourceFuture};

impl MessageSink for MemoryBroker {
    fn publish(&self, batch: Vec<Outgoing>) -> SourceFuture<'_, Vec<Settled>> {
        Box::pin(async move {
            let limit = self.0.options.message_bytes_max;
            let publish = |output: Outgoing| {
                if output.message.size() > limit {
                    return Settled::Refused(format!("the message is larger than {limit} bytes"));
                }
                self.add(&output.topic, output.message);
                Settled::Settled
            };
            batch.into_iter().map(publish).collect()
        })
    }
}

/// The dead letters of one queue of a [`MemoryBroker`].
#[derive(Debug)]
pub struct MemoryDeadLetters {
    broker: MemoryBroker,
    queue: Arc<str>,
}

impl MemoryDeadLetters {
    pub(super) fn new(broker: MemoryBroker, queue: &str) -> Self {
        Self { broker, queue: queue.into() }
    }

    fn letter(&self, position: i64, message: &Message) -> DeadMessage {
        let partition = Partition::new(Arc::clone(&self.queue), 0);
        DeadMessage { at: DeadPosition { partition, position }, message: Arc::new(message.clone()) }
    }

    /// Takes a dead letter away, once.
    fn take(&self, at: &DeadPosition) -> Option<Message> {
        self.broker.lock().queue(&self.queue).dead.remove(&at.position)
    }
}

impl DeadLetters for MemoryDeadLetters {
    fn browse(
        &self,
        from: Option<DeadPosition>,
        max: usize,
    ) -> SourceFuture<'_, Result<DeadPage, SourceError>> {
        Box::pin(async move {
            let mut state = self.broker.lock();
            let dead = &state.queue(&self.queue).dead;
            let mut rest = dead.range(from.map_or(0, |from| from.position)..);
            let letters = rest.by_ref().take(max).map(|(at, message)| self.letter(*at, message)).collect();
            let next = rest.next().map(|(at, message)| self.letter(*at, message).at);
            Ok(DeadPage { letters, next })
        })
    }

    fn get(&self, at: DeadPosition) -> SourceFuture<'_, Result<Option<DeadMessage>, SourceError>> {
        Box::pin(async move {
            let mut state = self.broker.lock();
            let found = state.queue(&self.queue).dead.get(&at.position);
            Ok(found.map(|message| self.letter(at.position, message)))
        })
    }

    fn redrive(&self, which: Vec<DeadPosition>) -> SourceFuture<'_, Result<Vec<Settled>, SourceError>> {
        Box::pin(async move {
            let redrive = |at: DeadPosition| {
                let Some(mut message) = self.take(&at) else { return Settled::Lost };
                let now = self.broker.now();
                let metadata = Metadata::read(&message, &at.partition, at.position, now);
                message.headers = metadata.redrive_headers(&message.headers, now);
                self.broker.add(&self.queue, message);
                Settled::Settled
            };
            Ok(which.into_iter().map(redrive).collect())
        })
    }

    fn discard(&self, which: Vec<DeadPosition>) -> SourceFuture<'_, Result<Vec<Settled>, SourceError>> {
        Box::pin(async move {
            let discard = |at: DeadPosition| self.take(&at).map_or(Settled::Lost, |_| Settled::Settled);
            Ok(which.iter().cloned().map(discard).collect())
        })
    }
}
