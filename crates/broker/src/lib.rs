//! Message brokers under Redrive's policies: one small contract, and Kafka on it.
//!
//! A message goes the way of every attempt: it is received, a handler runs, the same policy decides, and the outcome is
//! settled where the message came from.
//!
//! ```text
//!   MessageSource::receive --> KeyLanes --> handler --> decide --> MessageSource::settle
//!          ^                                                        |
//!          +---------- due again <-- retry tier, or in place <------+--> dead-letter topic
//! ```
//!
//! - [`MessageSource`] is the contract: receive, settle in batches, and say honestly what became of each item,
//! - [`Consumer`] runs handlers over any source: many keys at once, one message of a key at a time,
//! - [`metadata`] reads and writes the headers that travel with a message, also those of other programs,
//! - [`offsets`] has the rules of out-of-order commits in Kafka as pure state machines,
//! - [`sources`] has the brokers: one in memory with faults for tests, and `kafka` behind a feature.
//!
//! This crate knows no store.

pub mod message;

pub mod source;

pub mod capabilities;

pub mod sink;

pub mod metadata;

pub mod consume;

pub mod due;

pub mod offsets;

pub mod sources;

mod clock;

mod log;

#[doc(hidden)]
pub mod planted;

pub use capabilities::Capabilities;
pub use consume::{Consumer, Handled, IncomingMessage};
pub use message::{Headers, Message, Outgoing, Partition};
pub use metadata::Metadata;
pub use sink::{DeadLetters, MessageSink};
pub use source::{MessageOutcome, MessageSource, Receipt, Received, Settled, Settlement, SourceError};
