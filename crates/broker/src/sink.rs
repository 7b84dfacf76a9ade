//! Where messages go: topics that are published to, and the place of dead letters.

use std::sync::Arc;

use crate::message::{Message, Outgoing, Partition};
use crate::source::{Settled, SourceError, SourceFuture};

/// Publishes messages.
pub trait MessageSink: Send + Sync + std::fmt::Debug {
    /// Publishes a batch and answers for each message. `Settled` means that the broker has it.
    fn publish(&self, batch: Vec<Outgoing>) -> SourceFuture<'_, Vec<Settled>>;
}

/// The dead letters of a source.
pub trait DeadLetters: Send + Sync + std::fmt::Debug {
    /// Reads up to `max` dead letters from `from` on, without changing anything. Dead letters that were redriven or
    /// discarded are left out.
    fn browse(
        &self,
        from: Option<DeadPosition>,
        max: usize,
    ) -> SourceFuture<'_, Result<DeadPage, SourceError>>;

    /// Reads one dead letter.
    fn get(&self, at: DeadPosition) -> SourceFuture<'_, Result<Option<DeadMessage>, SourceError>>;

    /// Puts dead letters back, to be handled by their own group alone. Answers for each; a dead letter that was redriven
    /// or discarded before is [`Settled::Lost`].
    fn redrive(&self, which: Vec<DeadPosition>) -> SourceFuture<'_, Result<Vec<Settled>, SourceError>>;

    /// Discards dead letters. Answers for each, as [`redrive`](Self::redrive) does.
    fn discard(&self, which: Vec<DeadPosition>) -> SourceFuture<'_, Result<Vec<Settled>, SourceError>>;
}

/// Where a dead letter is.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeadPosition {
    /// The partition of the dead-letter topic.
    pub partition: Partition,
    /// The offset in it.
    pub position: i64,
}

/// A dead letter of a broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadMessage {
    /// Where it is.
    pub at: DeadPosition,
    /// The message, with the headers that say why it died.
    pub message: Arc<Message>,
}

/// Some dead letters, and where to go on.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeadPage {
    /// The dead letters.
    pub letters: Vec<DeadMessage>,
    /// Where the next page begins; `None` at the end.
    pub next: Option<DeadPosition>,
}
