//! The promises of every receiver and producer of numbered messages (P16), one function each, and weaker receivers
//! that some promise must find.
//!
//! A backend implements [`Numbered`]; [`sequence_tests!`](crate::sequence_tests) makes a test of every promise.

#![allow(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "this is test code: a panic is its way to fail"
)]

use std::collections::BTreeMap;

use redrive_core::ladder::sequence::{
    NumberedMessage, OpenedProducer, ProducerLog, SequenceTable, SequenceVerdict,
};

/// A receiver with its effects, and a producer. The effect of a message is a row with its payload, in the transaction
/// that takes its number.
pub trait Numbered {
    /// Makes a producer known and opens it.
    fn enrol(&mut self, stream: &str, producer: &str) -> OpenedProducer;
    /// Opens a known producer.
    fn open(&mut self, stream: &str, producer: &str) -> Option<OpenedProducer>;
    /// Receives a message: judges it and, unless it is a void, has its effect in the same transaction; rolls back if
    /// `crash`.
    fn receive(
        &mut self,
        stream: &str,
        producer: &str,
        epoch: u64,
        message: &NumberedMessage,
        crash: bool,
    ) -> SequenceVerdict;
    /// Forgets all producers.
    fn forget_all(&mut self);
    /// The payloads of all effects, in order.
    fn effects(&mut self) -> Vec<Vec<u8>>;
    /// How many rows the receiver keeps, without its effects.
    fn rows(&mut self) -> usize;
    /// The producer gives a message its number.
    fn assign(&mut self, stream: &str, producer: &str, payload: &[u8]) -> u64;
    /// The producer gives a message up.
    fn abandon(&mut self, stream: &str, producer: &str, number: u64) -> bool;
    /// The producer hears that it was opened.
    fn opened(&mut self, stream: &str, producer: &str, opened: OpenedProducer);
    /// The producer hears that messages are applied.
    fn confirm(&mut self, stream: &str, producer: &str, number: u64);
    /// What the producer has to send.
    fn pending(&mut self, stream: &str, producer: &str, from: u64) -> Vec<NumberedMessage>;
}

/// All promises, by name.
pub type Promise = (&'static str, fn(&mut dyn Numbered));

/// Makes a test of every promise; `$open` returns a fresh backend.
#[macro_export]
macro_rules! sequence_tests {
    ($open:path) => {
        $crate::sequence_tests! { $open;
            a_duplicate_has_no_effect,
            a_gap_is_held_until_it_is_filled,
            an_older_epoch_is_fenced_and_numbers_go_on,
            an_unknown_producer_is_refused_and_never_new,
            producers_of_one_stream_have_numbers_of_their_own,
            a_crash_before_the_commit_takes_no_number,
            what_is_given_up_is_sent_as_a_void,
            a_restarted_producer_goes_on_behind_what_was_applied,
            the_rows_are_one_for_each_producer,
        }
    };
    ($open:path; $($promise:ident,)*) => {
        $(
            #[test]
            fn $promise() {
                $crate::sequence::$promise(&mut $open());
            }
        )*
    };
}

/// The list of all promises.
pub const PROMISES: &[Promise] = &[
    ("a_duplicate_has_no_effect", a_duplicate_has_no_effect),
    ("a_gap_is_held_until_it_is_filled", a_gap_is_held_until_it_is_filled),
    ("an_older_epoch_is_fenced_and_numbers_go_on", an_older_epoch_is_fenced_and_numbers_go_on),
    ("an_unknown_producer_is_refused_and_never_new", an_unknown_producer_is_refused_and_never_new),
    ("producers_of_one_stream_have_numbers_of_their_own", producers_of_one_stream_have_numbers_of_their_own),
    ("a_crash_before_the_commit_takes_no_number", a_crash_before_the_commit_takes_no_number),
    ("what_is_given_up_is_sent_as_a_void", what_is_given_up_is_sent_as_a_void),
    (
        "a_restarted_producer_goes_on_behind_what_was_applied",
        a_restarted_producer_goes_on_behind_what_was_applied,
    ),
    ("the_rows_are_one_for_each_producer", the_rows_are_one_for_each_producer),
];

const PAY: &str = "payments";
const SHOP: &str = "shop";

fn message(number: u64) -> NumberedMessage {
    NumberedMessage { number, payload: Some(number.to_string().into_bytes()) }
}

fn send(it: &mut dyn Numbered, producer: &str, epoch: u64, number: u64) -> SequenceVerdict {
    it.receive(PAY, producer, epoch, &message(number), false)
}

/// The same message again: applied once.
pub fn a_duplicate_has_no_effect(it: &mut dyn Numbered) {
    let epoch = it.enrol(PAY, SHOP).epoch;
    assert_eq!(send(it, SHOP, epoch, 1), SequenceVerdict::Apply);
    assert_eq!(send(it, SHOP, epoch, 1), SequenceVerdict::Duplicate);
    assert_eq!(send(it, SHOP, epoch, 2), SequenceVerdict::Apply);
    assert_eq!(send(it, SHOP, epoch, 1), SequenceVerdict::Duplicate);
    assert_eq!(it.effects(), [b"1", b"2"]);
}

/// A message overtakes another: it waits.
pub fn a_gap_is_held_until_it_is_filled(it: &mut dyn Numbered) {
    let epoch = it.enrol(PAY, SHOP).epoch;
    assert_eq!(send(it, SHOP, epoch, 2), SequenceVerdict::Gap { expected: 1 });
    assert_eq!(send(it, SHOP, epoch, 1), SequenceVerdict::Apply);
    assert_eq!(send(it, SHOP, epoch, 3), SequenceVerdict::Gap { expected: 2 });
    assert_eq!(send(it, SHOP, epoch, 2), SequenceVerdict::Apply);
    assert_eq!(send(it, SHOP, epoch, 3), SequenceVerdict::Apply);
    assert_eq!(it.effects(), [b"1", b"2", b"3"]);
}

/// `EpochForgetsSequence`: (e1, 1) is applied, its answer is lost, the producer restarts. If numbers began again, 1
/// would take effect twice.
pub fn an_older_epoch_is_fenced_and_numbers_go_on(it: &mut dyn Numbered) {
    let first = it.enrol(PAY, SHOP);
    assert_eq!(send(it, SHOP, first.epoch, 1), SequenceVerdict::Apply);
    let second = it.open(PAY, SHOP).unwrap();
    assert!(second.epoch > first.epoch);
    assert_eq!(second.last, 1, "numbers go on");
    assert_eq!(send(it, SHOP, second.epoch, 1), SequenceVerdict::Duplicate);
    assert_eq!(send(it, SHOP, first.epoch, 2), SequenceVerdict::Fenced { epoch: second.epoch });
    assert_eq!(send(it, SHOP, second.epoch, 2), SequenceVerdict::Apply);
    let again = it.enrol(PAY, SHOP);
    assert_eq!(again.last, 2, "enrolling what is known forgets nothing");
    assert_eq!(it.effects(), [b"1", b"2"]);
}

/// `ExpiredProducerIsNew`: the row is forgotten, and a message that was applied arrives once more.
pub fn an_unknown_producer_is_refused_and_never_new(it: &mut dyn Numbered) {
    assert_eq!(it.open(PAY, SHOP), None);
    assert_eq!(send(it, SHOP, 1, 1), SequenceVerdict::UnknownProducer);
    let first = it.enrol(PAY, SHOP);
    assert_eq!(send(it, SHOP, first.epoch, 1), SequenceVerdict::Apply);
    assert_eq!(send(it, SHOP, first.epoch + 1, 2), SequenceVerdict::UnknownProducer, "never given out");
    it.forget_all();
    assert_eq!(send(it, SHOP, first.epoch, 1), SequenceVerdict::UnknownProducer);
    assert_eq!(send(it, SHOP, first.epoch, 2), SequenceVerdict::UnknownProducer);
    assert_eq!(it.open(PAY, SHOP), None);
    let second = it.enrol(PAY, SHOP);
    assert!(second.epoch > first.epoch, "epochs are never given out twice");
    assert_eq!(send(it, SHOP, first.epoch, 1), SequenceVerdict::Fenced { epoch: second.epoch });
    assert_eq!(it.effects(), [b"1"]);
}

/// `SequencePerTopic`: one row for the stream takes the second producer's 1 for a duplicate.
pub fn producers_of_one_stream_have_numbers_of_their_own(it: &mut dyn Numbered) {
    let (shop, till) = (it.enrol(PAY, SHOP), it.enrol(PAY, "till"));
    assert!(till.epoch > shop.epoch, "one counter for all");
    assert_eq!(send(it, SHOP, shop.epoch, 1), SequenceVerdict::Apply);
    assert_eq!(send(it, "till", till.epoch, 1), SequenceVerdict::Apply);
    assert_eq!(send(it, SHOP, shop.epoch, 2), SequenceVerdict::Apply);
    assert_eq!(it.effects().len(), 3);
    let other = it.enrol("orders", SHOP);
    assert_eq!(other.last, 0, "another stream has numbers of its own");
}

/// The receiver dies before the commit: number and effect go together.
pub fn a_crash_before_the_commit_takes_no_number(it: &mut dyn Numbered) {
    let epoch = it.enrol(PAY, SHOP).epoch;
    assert_eq!(it.receive(PAY, SHOP, epoch, &message(1), true), SequenceVerdict::Apply);
    assert_eq!(it.effects(), Vec::<Vec<u8>>::new());
    assert_eq!(send(it, SHOP, epoch, 1), SequenceVerdict::Apply);
    assert_eq!(it.effects(), [b"1"]);
}

/// A message that is given up leaves no hole behind.
pub fn what_is_given_up_is_sent_as_a_void(it: &mut dyn Numbered) {
    let opened = it.enrol(PAY, SHOP);
    it.opened(PAY, SHOP, opened);
    let numbers: Vec<u64> = [b"a", b"b", b"c"].map(|payload| it.assign(PAY, SHOP, payload)).into();
    assert_eq!(numbers, [1, 2, 3]);
    assert!(it.abandon(PAY, SHOP, 2));
    assert!(!it.abandon(PAY, SHOP, 2), "given up before");
    for message in it.pending(PAY, SHOP, 1) {
        assert_eq!(it.receive(PAY, SHOP, opened.epoch, &message, false), SequenceVerdict::Apply);
        it.confirm(PAY, SHOP, message.number);
    }
    assert_eq!(it.effects(), [b"a", b"c"]);
    assert_eq!(it.pending(PAY, SHOP, 0), []);
    assert!(!it.abandon(PAY, SHOP, 1), "confirmed");
}

/// The producer dies with messages on their way, and with answers that it never heard.
pub fn a_restarted_producer_goes_on_behind_what_was_applied(it: &mut dyn Numbered) {
    let first = it.enrol(PAY, SHOP);
    it.opened(PAY, SHOP, first);
    for payload in [b"a", b"b", b"c"] {
        it.assign(PAY, SHOP, payload);
    }
    let sent = it.pending(PAY, SHOP, 1);
    for message in &sent[..2] {
        it.receive(PAY, SHOP, first.epoch, message, false);
    }
    // It heard of neither, and starts again.
    let second = it.open(PAY, SHOP).unwrap();
    it.opened(PAY, SHOP, second);
    assert_eq!(it.assign(PAY, SHOP, b"d"), 4);
    let messages = it.pending(PAY, SHOP, 0);
    assert_eq!(messages.iter().map(|message| message.number).collect::<Vec<_>>(), [3, 4]);
    for message in &messages {
        assert_eq!(it.receive(PAY, SHOP, second.epoch, message, false), SequenceVerdict::Apply);
    }
    assert!(matches!(it.receive(PAY, SHOP, first.epoch, &sent[2], false), SequenceVerdict::Fenced { .. }));
    assert_eq!(it.effects(), [b"a", b"b", b"c", b"d"]);
}

/// However many messages: the receiver keeps a row for each producer.
pub fn the_rows_are_one_for_each_producer(it: &mut dyn Numbered) {
    let shops: Vec<_> =
        (0..3).map(|n| (format!("shop-{n}"), it.enrol(PAY, &format!("shop-{n}")).epoch)).collect();
    for number in 1..=100 {
        for (shop, epoch) in &shops {
            let void = NumberedMessage { number, payload: None };
            assert_eq!(it.receive(PAY, shop, *epoch, &void, false), SequenceVerdict::Apply);
        }
    }
    assert_eq!(it.rows(), 3);
}

/// A weaker rule, planted in the receiver in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeakerRule {
    /// Numbering starts again with every epoch.
    EpochForgetsSequence,
    /// A producer whose row was forgotten is taken for a new one.
    ExpiredProducerIsNew,
    /// One row for a stream, whichever producer sends.
    SequencePerTopic,
}

impl WeakerRule {
    /// All weaker rules.
    pub const ALL: [Self; 3] =
        [Self::EpochForgetsSequence, Self::ExpiredProducerIsNew, Self::SequencePerTopic];
}

/// Both sides in memory, with a weaker rule if asked for.
#[derive(Debug, Default)]
pub struct InMemory {
    table: SequenceTable,
    known: Vec<(String, String)>,
    logs: BTreeMap<(String, String), ProducerLog>,
    effects: Vec<Vec<u8>>,
    weaker: Option<WeakerRule>,
}

impl InMemory {
    /// With this weaker rule.
    #[must_use]
    pub fn weaker(rule: WeakerRule) -> Self {
        Self { weaker: Some(rule), ..Self::default() }
    }

    fn name(&self, producer: &str) -> String {
        if self.weaker == Some(WeakerRule::SequencePerTopic) { String::new() } else { producer.to_owned() }
    }

    fn log(&mut self, stream: &str, producer: &str) -> &mut ProducerLog {
        self.logs.entry((stream.to_owned(), producer.to_owned())).or_default()
    }

    fn reset(&mut self, stream: &str, producer: &str) {
        if self.weaker == Some(WeakerRule::EpochForgetsSequence) {
            self.table.forget(stream, producer);
            self.table.enrol(stream, producer);
        }
    }
}

impl Numbered for InMemory {
    fn enrol(&mut self, stream: &str, producer: &str) -> OpenedProducer {
        let name = self.name(producer);
        self.known.push((stream.to_owned(), name.clone()));
        self.reset(stream, &name);
        self.table.enrol(stream, &name)
    }

    fn open(&mut self, stream: &str, producer: &str) -> Option<OpenedProducer> {
        let name = self.name(producer);
        self.table.open(stream, &name)?;
        self.reset(stream, &name);
        self.table.open(stream, &name)
    }

    fn receive(
        &mut self,
        stream: &str,
        producer: &str,
        epoch: u64,
        message: &NumberedMessage,
        crash: bool,
    ) -> SequenceVerdict {
        let name = self.name(producer);
        let before = self.table.clone();
        let mut verdict = self.table.accept(stream, &name, epoch, message.number);
        if verdict == SequenceVerdict::UnknownProducer
            && self.weaker == Some(WeakerRule::ExpiredProducerIsNew)
        {
            let opened = self.table.enrol(stream, &name);
            (1..message.number).for_each(|number| {
                self.table.accept(stream, &name, opened.epoch, number);
            });
            verdict = self.table.accept(stream, &name, opened.epoch, message.number);
        }
        if crash {
            self.table = before;
        } else if verdict == SequenceVerdict::Apply {
            self.effects.extend(message.payload.clone());
        }
        verdict
    }

    fn forget_all(&mut self) {
        for (stream, producer) in std::mem::take(&mut self.known) {
            self.table.forget(&stream, &producer);
        }
    }

    fn effects(&mut self) -> Vec<Vec<u8>> {
        self.effects.clone()
    }

    fn rows(&mut self) -> usize {
        self.table.len()
    }

    fn assign(&mut self, stream: &str, producer: &str, payload: &[u8]) -> u64 {
        self.log(stream, producer).assign(payload.to_vec())
    }

    fn abandon(&mut self, stream: &str, producer: &str, number: u64) -> bool {
        self.log(stream, producer).abandon(number)
    }

    fn opened(&mut self, stream: &str, producer: &str, opened: OpenedProducer) {
        self.log(stream, producer).opened(opened);
    }

    fn confirm(&mut self, stream: &str, producer: &str, number: u64) {
        self.log(stream, producer).confirm(number);
    }

    fn pending(&mut self, stream: &str, producer: &str, from: u64) -> Vec<NumberedMessage> {
        self.log(stream, producer).pending(from).collect()
    }
}
