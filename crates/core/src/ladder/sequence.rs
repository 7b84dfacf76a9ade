//! Sequence and epoch: a receiver that drops duplicates with one row for each producer, not one for each event.
//!
//! # The rules
//!
//! The receiver keeps, for each stream and producer, the epoch and the last number that it applied.
//!
//! - **The receiver gives out epochs**, from one counter for all producers. `open` answers the new epoch and the last
//!   applied number, and numbering goes on from there.
//! - **The first statement of the effect's transaction** is the conditional update of the producer's row. The number
//!   after the last is applied; one that is not larger is a duplicate; a larger one waits ([`SequenceVerdict::Gap`]);
//!   an older epoch is fenced.
//! - **An unknown producer is refused, never new.** Only `enrol` makes one. A producer whose row was forgotten would
//!   otherwise repeat what was applied before.
//! - **The producer stores a number before it first sends it**, and uses it up. What it gives up is sent as a void:
//!   otherwise a hole would hold back everything behind it for ever.
//!
//! *What weaker rules break:* (epoch 1, number 7) is applied and its answer is lost, the producer restarts and numbers
//! from (epoch 2, 1): 7 takes effect twice. A producer gives up on 7: everything behind it waits. A row is kept for
//! each stream instead of each producer: the second producer's 1 is dropped as a duplicate.

use std::collections::BTreeMap;

/// What a receiver knows of a producer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ProducerState {
    /// The epoch of its last `open`.
    pub epoch: u64,
    /// The last number that was applied; 0 if none was.
    pub last: u64,
}

impl ProducerState {
    /// What a message with this epoch and number means.
    ///
    /// ```
    /// use redrive_core::ladder::sequence::{ProducerState, SequenceVerdict};
    ///
    /// let known = ProducerState { epoch: 4, last: 7 };
    /// assert_eq!(known.judge(4, 8), SequenceVerdict::Apply);
    /// assert_eq!(known.judge(4, 7), SequenceVerdict::Duplicate);
    /// assert_eq!(known.judge(4, 9), SequenceVerdict::Gap { expected: 8 });
    /// assert_eq!(known.judge(3, 8), SequenceVerdict::Fenced { epoch: 4 });
    /// ```
    #[must_use]
    pub const fn judge(self, epoch: u64, number: u64) -> SequenceVerdict {
        if epoch < self.epoch {
            return SequenceVerdict::Fenced { epoch: self.epoch };
        }
        if epoch > self.epoch {
            return SequenceVerdict::UnknownProducer;
        }
        let expected = self.last + 1;
        if number == expected {
            SequenceVerdict::Apply
        } else if number < expected {
            SequenceVerdict::Duplicate
        } else {
            SequenceVerdict::Gap { expected }
        }
    }
}

/// What a receiver does with a numbered message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SequenceVerdict {
    /// It is the next one: apply it in this transaction. The row has its number already.
    Apply,
    /// It was applied before: answer success and do nothing.
    Duplicate,
    /// Earlier messages are missing: refuse it, and the producer sends from `expected`.
    Gap {
        /// The number that is applied next.
        expected: u64,
    },
    /// The producer was opened again elsewhere: this sender must stop.
    Fenced {
        /// The present epoch.
        epoch: u64,
    },
    /// No producer of this name is enrolled, or it was forgotten, or this epoch was never given out. An operator has
    /// to decide, because the receiver cannot tell what it applied before.
    UnknownProducer,
}

/// The answer to `open`: what the producer goes on with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OpenedProducer {
    /// Its epoch: earlier ones are fenced.
    pub epoch: u64,
    /// The last number that was applied.
    pub last: u64,
}

/// The receiver's table in memory: the reference, and the state of tests.
#[derive(Debug, Clone, Default)]
pub struct SequenceTable {
    epochs: u64,
    producers: BTreeMap<(String, String), ProducerState>,
}

impl SequenceTable {
    /// Makes a producer known, unless it is, and opens it. For its very first start.
    pub fn enrol(&mut self, stream: &str, producer: &str) -> OpenedProducer {
        self.epochs += 1;
        let fresh = ProducerState { epoch: 0, last: 0 };
        let state = self.producers.entry((stream.to_owned(), producer.to_owned())).or_insert(fresh);
        state.epoch = self.epochs;
        OpenedProducer { epoch: state.epoch, last: state.last }
    }

    /// Opens a known producer under a new epoch; `None` if it is not known.
    pub fn open(&mut self, stream: &str, producer: &str) -> Option<OpenedProducer> {
        let state = self.producers.get_mut(&(stream.to_owned(), producer.to_owned()))?;
        self.epochs += 1;
        state.epoch = self.epochs;
        Some(OpenedProducer { epoch: state.epoch, last: state.last })
    }

    /// Judges a message, and takes its number if it is to be applied.
    pub fn accept(&mut self, stream: &str, producer: &str, epoch: u64, number: u64) -> SequenceVerdict {
        let Some(state) = self.producers.get_mut(&(stream.to_owned(), producer.to_owned())) else {
            return SequenceVerdict::UnknownProducer;
        };
        let verdict = state.judge(epoch, number);
        if verdict == SequenceVerdict::Apply {
            state.last = number;
        }
        verdict
    }

    /// Forgets a producer. Messages of it are refused from now on.
    pub fn forget(&mut self, stream: &str, producer: &str) -> bool {
        self.producers.remove(&(stream.to_owned(), producer.to_owned())).is_some()
    }

    /// How many producers it knows: what its size depends on.
    #[must_use]
    pub fn len(&self) -> usize {
        self.producers.len()
    }

    /// Whether it knows none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.producers.is_empty()
    }
}

/// A message with its number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NumberedMessage {
    /// Its number, from 1.
    pub number: u64,
    /// The payload. `None` is a void: the receiver takes the number and does nothing.
    pub payload: Option<Vec<u8>>,
}

/// What a producer does with the answer to a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProducerNext {
    /// It is applied: confirm it, and send the next.
    Confirm,
    /// Send from this number.
    SendFrom(u64),
    /// Stop: another process has this producer.
    Stop,
    /// Stop, and let an operator look: the receiver does not know this producer.
    Ask,
}

impl From<SequenceVerdict> for ProducerNext {
    fn from(verdict: SequenceVerdict) -> Self {
        match verdict {
            SequenceVerdict::Apply | SequenceVerdict::Duplicate => Self::Confirm,
            SequenceVerdict::Gap { expected } => Self::SendFrom(expected),
            SequenceVerdict::Fenced { .. } => Self::Stop,
            SequenceVerdict::UnknownProducer => Self::Ask,
        }
    }
}

/// What a producer has stored: the numbers it gave out and what it has not seen confirmed. In memory, for tests and
/// for messages that end with the process.
#[derive(Debug, Clone, Default)]
pub struct ProducerLog {
    last: u64,
    pending: BTreeMap<u64, Option<Vec<u8>>>,
}

impl ProducerLog {
    /// Gives a message its number. Store this before you send it.
    pub fn assign(&mut self, payload: Vec<u8>) -> u64 {
        self.last += 1;
        self.pending.insert(self.last, Some(payload));
        self.last
    }

    /// Gives a message up: its number is sent as a void. `false` if it is confirmed already.
    pub fn abandon(&mut self, number: u64) -> bool {
        self.pending.get_mut(&number).is_some_and(|payload| payload.take().is_some())
    }

    /// The receiver opened this producer: what it applied is confirmed, and numbers go on behind it.
    pub fn opened(&mut self, opened: OpenedProducer) {
        self.confirm(opened.last);
        self.last = self.last.max(opened.last);
    }

    /// Everything up to this number is applied.
    pub fn confirm(&mut self, number: u64) {
        self.pending = self.pending.split_off(&(number + 1));
    }

    /// What is to be sent, in order, from this number.
    pub fn pending(&self, from: u64) -> impl Iterator<Item = NumberedMessage> + '_ {
        let messages = self.pending.range(from..);
        messages.map(|(number, payload)| NumberedMessage { number: *number, payload: payload.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restart_goes_on_with_the_numbers_and_nothing_is_applied_twice() {
        let (mut table, mut log) = (SequenceTable::default(), ProducerLog::default());
        let first = table.enrol("orders", "shop");
        log.opened(first);
        for n in 1..=3_u8 {
            log.assign(vec![n]);
        }
        let mut applied = Vec::new();
        // 1 and 2 are applied; the answer to 2 is lost, and the producer dies.
        for message in log.pending(1).take(2) {
            assert_eq!(table.accept("orders", "shop", first.epoch, message.number), SequenceVerdict::Apply);
            applied.push(message.number);
        }
        log.confirm(1);
        let second = table.open("orders", "shop").unwrap();
        log.opened(second);
        assert!(log.abandon(3), "it gives 3 up");
        log.assign(vec![4]);
        let messages: Vec<_> = log.pending(0).collect();
        assert_eq!(messages[0], NumberedMessage { number: 3, payload: None }, "a void");
        for message in messages {
            assert_eq!(table.accept("orders", "shop", second.epoch, message.number), SequenceVerdict::Apply);
            applied.push(message.number);
        }
        assert_eq!(applied, [1, 2, 3, 4]);
        let late = table.accept("orders", "shop", first.epoch, 3);
        assert_eq!(late, SequenceVerdict::Fenced { epoch: second.epoch });
    }

    #[test]
    fn a_producer_that_lost_its_log_goes_on_behind_what_was_applied() {
        let mut log = ProducerLog::default();
        log.opened(OpenedProducer { epoch: 9, last: 41 });
        assert_eq!(log.assign(Vec::new()), 42);
    }

    #[test]
    fn the_table_grows_with_producers_and_not_with_events() {
        let mut table = SequenceTable::default();
        let epochs: Vec<u64> = (0..3).map(|n| table.enrol("s", &n.to_string()).epoch).collect();
        for number in 1..=1_000_000_u64 / 3 {
            for (n, epoch) in epochs.iter().enumerate() {
                assert_eq!(table.accept("s", &n.to_string(), *epoch, number), SequenceVerdict::Apply);
            }
        }
        assert_eq!(table.len(), 3);
    }
}
