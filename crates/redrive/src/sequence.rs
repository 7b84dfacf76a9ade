//! Sequence and epoch: a receiver that drops duplicates with one row for each producer.
//!
//! The rules, the table in memory and the producer's log are those of [`redrive_core::ladder::sequence`]; `sqlite` and
//! `postgres` keep them in the caller's own database and transaction. `docs/guides/ladder.md` says when to take this
//! rung.

pub use redrive_core::ladder::fence::{FenceFormatError, StartFence, StartFences};
pub use redrive_core::ladder::sequence::{
    NumberedMessage, OpenedProducer, ProducerLog, ProducerNext, ProducerState, SequenceTable, SequenceVerdict,
};
#[cfg(feature = "postgres")]
pub use redrive_store::sequence::postgres;
#[cfg(feature = "sqlite")]
pub use redrive_store::sequence::sqlite;
