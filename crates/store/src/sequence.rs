//! Sequence and epoch in the caller's own database: one row for each producer, however many events it sends.
//!
//! [`redrive_core::ladder::sequence`] has the rules. The receiver's statements run inside the caller's transaction, so
//! that number and effect commit together:
//!
//! | side | call | when |
//! |---|---|---|
//! | receiver | `enrol` | a producer starts for the first time |
//! | receiver | `open` | a producer starts again; answers the last applied number |
//! | receiver | `accept` | first statement of the effect's transaction |
//! | producer | `assign` | in the transaction that decides to send; the number is stored before it is sent |
//! | producer | `abandon` | a message is given up: its number is sent as a void |
//! | producer | `pending`, `confirm` | what to send, in order; what the receiver answered |
//!
//! `sqlite` and `postgres` have the same functions; a program in memory uses
//! [`SequenceTable`](redrive_core::ladder::sequence::SequenceTable) and
//! [`ProducerLog`](redrive_core::ladder::sequence::ProducerLog). Both sides may be in different databases: the tables are
//! `redrive_receiver_epoch` and `redrive_producer` for the receiver, `redrive_producer_log` and `redrive_numbered` for
//! the producer.

#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "sqlite")]
pub mod sqlite;

/// The numbers in SQL are signed: a number beyond that is no number that a producer of ours gave out.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A number that a table of ours holds.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}
