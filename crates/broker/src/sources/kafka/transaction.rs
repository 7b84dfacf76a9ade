//! A producer on a thread of its own, because the client's transaction calls block, and some ignore their time-out.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use rdkafka::TopicPartitionList;
use rdkafka::consumer::ConsumerGroupMetadata;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseProducer, Producer, PurgeConfig};

use super::convert;
use super::settings::KafkaSettings;
use crate::message::Outgoing;

/// How long each call may take.
const CALL: Duration = Duration::from_secs(9);
/// After this the thread is given up: longer than all calls of a transaction together should take.
const WATCHDOG: Duration = Duration::from_secs(40);

/// What is done in one transaction.
pub(super) struct Transaction {
    pub(super) records: Vec<Outgoing>,
    pub(super) offsets: TopicPartitionList,
    pub(super) group: ConsumerGroupMetadata,
}

/// What became of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TransactionEnd {
    /// It happened.
    Committed,
    /// It did not happen; another one may.
    Aborted(String),
    /// It did not happen, and will not until an operator acts.
    Refused(String),
    /// Its outcome is unknown, or the producer is of no use any more: replace it under the same transactional id.
    Unknown(String),
}

/// A producer with its thread.
#[derive(Debug)]
pub(super) struct Worker {
    jobs: Sender<(Transaction, Sender<TransactionEnd>)>,
}

impl Worker {
    /// Starts a producer under a transactional id. This ends what an earlier producer of that id left open: it is
    /// committed if its commit had been answered, otherwise aborted, and the earlier one is fenced.
    pub(super) fn start(settings: &KafkaSettings, id: &str) -> Result<Self, String> {
        let config = settings.producer(id);
        let (jobs, line) = mpsc::channel::<(Transaction, Sender<TransactionEnd>)>();
        let (ready, is_ready) = mpsc::channel();
        let run = move || {
            let producer: BaseProducer = match config.create() {
                Ok(producer) => producer,
                Err(error) => {
                    let _ = ready.send(Err(error.to_string()));
                    return;
                }
            };
            let started = producer.init_transactions(CALL).map_err(|error| error.to_string());
            let is_up = started.is_ok();
            let _ = ready.send(started);
            if !is_up {
                return;
            }
            while let Ok((transaction, answer)) = line.recv() {
                let end = perform(&producer, &transaction);
                let is_over = matches!(end, TransactionEnd::Unknown(_));
                let _ = answer.send(end);
                if is_over {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("redrive-kafka-producer".to_owned());
        thread.spawn(run).map_err(|error| error.to_string())?;
        match is_ready.recv_timeout(WATCHDOG) {
            Ok(started) => started.map(|()| Self { jobs }),
            Err(_) => Err("the producer did not start in time".to_owned()),
        }
    }

    /// Performs a transaction. If the thread hangs, it is given up and the outcome is unknown.
    pub(super) fn perform(&self, transaction: Transaction) -> TransactionEnd {
        let (answer, end) = mpsc::channel();
        if self.jobs.send((transaction, answer)).is_err() {
            return TransactionEnd::Unknown("the producer has stopped".to_owned());
        }
        match end.recv_timeout(WATCHDOG) {
            Ok(end) => end,
            Err(RecvTimeoutError::Timeout) => {
                TransactionEnd::Unknown("a call of the client hangs".to_owned())
            }
            Err(RecvTimeoutError::Disconnected) => {
                TransactionEnd::Unknown("the producer has stopped".to_owned())
            }
        }
    }
}

fn perform(producer: &BaseProducer, transaction: &Transaction) -> TransactionEnd {
    if let Err(error) = producer.begin_transaction() {
        return TransactionEnd::Unknown(error.to_string());
    }
    let written = write(producer, transaction);
    let committed = written.and_then(|()| {
        let end = Instant::now() + CALL;
        loop {
            match producer.commit_transaction(CALL) {
                // The first commit may be on its way: the same call asks again.
                Err(error) if is_retriable(&error) && Instant::now() < end => {}
                Err(error) if requires_abort(&error) => return Err(Failed::Abort(error)),
                Err(error) => return Err(Failed::Unknown(error)),
                Ok(()) => return Ok(()),
            }
        }
    });
    match committed {
        Ok(()) => TransactionEnd::Committed,
        Err(Failed::Unknown(error)) => TransactionEnd::Unknown(error.to_string()),
        Err(Failed::Abort(error)) => abort(producer, &error),
    }
}

enum Failed {
    /// It certainly did not happen.
    Abort(KafkaError),
    Unknown(KafkaError),
}

fn write(producer: &BaseProducer, transaction: &Transaction) -> Result<(), Failed> {
    let end = Instant::now() + CALL;
    for Outgoing { topic, partition, message } in &transaction.records {
        loop {
            match producer.send(convert::record(topic, *partition, message)) {
                Ok(()) => break,
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), _))
                    if Instant::now() < end =>
                {
                    producer.poll(Duration::from_millis(1));
                }
                Err((error, _)) => return Err(Failed::Abort(error)),
            }
        }
    }
    // The crate's own flush waits in steps of 100 ms.
    while producer.in_flight_count() > 0 && Instant::now() < end {
        producer.poll(Duration::from_millis(1));
    }
    loop {
        match producer.send_offsets_to_transaction(&transaction.offsets, &transaction.group, CALL) {
            Ok(()) => return Ok(()),
            Err(error) if is_retriable(&error) && Instant::now() < end => {}
            // Without a commit nothing of it can happen.
            Err(error) => return Err(Failed::Abort(error)),
        }
    }
}

fn abort(producer: &BaseProducer, cause: &KafkaError) -> TransactionEnd {
    let end = Instant::now() + CALL;
    // The client aborts when it has told about every record, and tells inside polls.
    producer.purge(PurgeConfig::default().queue().inflight());
    while producer.in_flight_count() > 0 && Instant::now() < end {
        producer.poll(Duration::from_millis(1));
    }
    loop {
        match producer.abort_transaction(CALL) {
            Ok(()) => break,
            Err(error) if is_retriable(&error) && Instant::now() < end => {}
            // A new producer of the same id aborts it.
            Err(error) => return TransactionEnd::Unknown(format!("{cause}; then {error}")),
        }
    }
    let code = cause.rdkafka_error_code();
    if code.is_some_and(|code| REFUSALS.contains(&code)) {
        return TransactionEnd::Refused(cause.to_string());
    }
    TransactionEnd::Aborted(cause.to_string())
}

/// Errors that stay until an operator acts.
const REFUSALS: [RDKafkaErrorCode; 7] = [
    RDKafkaErrorCode::UnknownTopic,
    RDKafkaErrorCode::UnknownTopicOrPartition,
    RDKafkaErrorCode::UnknownPartition,
    RDKafkaErrorCode::TopicAuthorizationFailed,
    RDKafkaErrorCode::MessageSizeTooLarge,
    RDKafkaErrorCode::InvalidTopic,
    RDKafkaErrorCode::TransactionalIdAuthorizationFailed,
];

fn is_retriable(error: &KafkaError) -> bool {
    matches!(error, KafkaError::Transaction(error) if error.is_retriable() && !error.txn_requires_abort())
}

fn requires_abort(error: &KafkaError) -> bool {
    matches!(error, KafkaError::Transaction(error) if error.txn_requires_abort())
}
