//! Kafka, through `rdkafka`: librdkafka's own codes (negative) and the brokers' (positive).
//!
//! The meaning of a broker's code follows the Kafka protocol's table of errors; the fate of the message follows
//! librdkafka's own book-keeping. If they disagree, the more careful one counts.

use rdkafka::error::{KafkaError, RDKafkaError};
use rdkafka::types::RDKafkaErrorCode;
use redrive_core::{Executed, Fault};

/// Knows the error codes of Kafka and of librdkafka. For a whole [`KafkaError`], which says more, see
/// [`kafka`].
///
/// | code | means |
/// |---|---|
/// | leader, replica, broker, controller or coordinator not there yet, or moved | retry, not executed |
/// | `UnknownTopicOrPartition`, `UnknownTopicId` | retry, not executed |
/// | `NotEnoughReplicas`, corrupt in transit, another record of the batch invalid | retry, not executed |
/// | another transaction or operation under way | retry, not executed |
/// | `NotLeaderForPartition`, `NotEnoughReplicasAfterAppend`, `KafkaStorageError` | retry, unknown: it may have been appended |
/// | time-outs, the connection, all brokers down | retry, unknown |
/// | `QueueFull`: the producer's own queue · `ThrottlingQuotaExceeded` | overload, not executed |
/// | too large, invalid, against a policy, not authorised, not supported, already there | permanent, not executed |
/// | `UnknownTopic`, `UnknownPartition`: librdkafka has waited, and gives up | permanent, not executed |
/// | the group has gone on without this member, or is rebalancing | permanent, not executed |
/// | fenced, fatal, out of sequence | permanent, unknown |
/// | purged: by this process | permanent; in the queue not executed, in flight unknown |
/// | `Unknown` and any other | not known |
///
/// # Why so
///
/// - A topic that a broker does not know may have been created a moment ago and not propagated yet; so the protocol
///   calls it retriable. librdkafka waits for it (`topic.metadata.propagation.max.ms`) before it reports
///   `UnknownTopic` itself.
/// - With `acks=all` a leader that loses its office between the append and the replicas' word answers
///   `NotLeaderForPartition` although the record is in the log.
/// - While a group rebalances, trying to commit again in place does not help: poll first.
/// - librdkafka retries by itself, and a code is that of its last request. "Not executed" is certain only if no
///   earlier request of the message went unanswered: with idempotence on, or `retries=0`.
///
/// A message produced again is a new message, even for an idempotent producer, which recognises only its own
/// repetitions. If the effect is unknown, the consumer may see it twice; give the message an id for deduplication.
///
/// ```
/// use rdkafka::types::RDKafkaErrorCode as Code;
/// use redrive_core::Fault;
/// use redrive_retry::classify;
///
/// assert_eq!(classify::kafka_code(Code::QueueFull), Some(Fault::overload()));
/// assert_eq!(classify::kafka_code(Code::MessageTimedOut), Some(Fault::transient()));
/// ```
#[must_use]
pub fn kafka_code(code: RDKafkaErrorCode) -> Option<Fault> {
    use RDKafkaErrorCode as Code;
    match code {
        // Not there yet, or moved.
        Code::LeaderNotAvailable
        | Code::PreferredLeaderNotAvailable
        | Code::EligibleLeadersNotAvailable
        | Code::FencedLeaderEpoch
        | Code::UnknownLeaderEpoch
        | Code::ReplicaNotAvailable
        | Code::OffsetNotAvailable
        | Code::BrokerNotAvailable
        | Code::ListenerNotFound
        | Code::NotController
        | Code::CoordinatorLoadInProgress
        | Code::CoordinatorNotAvailable
        | Code::NotCoordinator
        | Code::WaitingForCoordinator
        | Code::WaitCache
        | Code::Resolve
        | Code::UnknownTopicOrPartition
        | Code::UnknownTopicId
        // Turned away this time.
        | Code::NotEnoughReplicas
        | Code::ISRInsufficient
        | Code::InvalidMessage
        | Code::InvalidDifferentRecord
        | Code::ConcurrentTransactions
        | Code::UnstableOffsetCommit
        | Code::PreviousInProgress => Some(Fault::transient().not_executed()),

        Code::NotLeaderForPartition
        | Code::NotEnoughReplicasAfterAppend
        | Code::KafkaStorageError
        | Code::RequestTimedOut
        | Code::NetworkException
        | Code::BrokerTransportFailure
        | Code::DestroyBroker
        | Code::SSL
        | Code::AllBrokersDown
        | Code::OperationTimedOut
        | Code::MessageTimedOut
        | Code::TimedOutQueue
        | Code::Retry => Some(Fault::transient()),

        Code::QueueFull | Code::ThrottlingQuotaExceeded => Some(Fault::overload()),

        // The message or the request.
        Code::MessageSizeTooLarge
        | Code::MessageBatchTooLarge
        | Code::InvalidMessageSize
        | Code::InvalidRecord
        | Code::InvalidTimestamp
        | Code::InvalidTopic
        | Code::InvalidRequiredAcks
        | Code::InvalidRequest
        | Code::InvalidArgument
        | Code::InvalidConfig
        | Code::InvalidPartitions
        | Code::InvalidReplicationFactor
        | Code::InvalidReplicaAssignment
        | Code::InvalidGroupId
        | Code::InvalidSessionTimeout
        | Code::InvalidCommitOffsetSize
        | Code::InvalidTransactionTimeout
        | Code::InconsistentGroupProtocol
        | Code::OffsetMetadataTooLarge
        | Code::OffsetOutOfRange
        | Code::GroupMaxSizeReached
        | Code::TopicAlreadyExists
        | Code::UnknownTopic
        | Code::UnknownPartition
        | Code::KeySerialization
        | Code::ValueSerialization
        | Code::PolicyViolation
        | Code::PurgeQueue
        | Code::State
        | Code::Conflict
        // Not allowed.
        | Code::TopicAuthorizationFailed
        | Code::GroupAuthorizationFailed
        | Code::ClusterAuthorizationFailed
        | Code::TransactionalIdAuthorizationFailed
        | Code::DelegationTokenAuthorizationFailed
        | Code::DelegationTokenExpired
        | Code::SaslAuthenticationFailed
        | Code::Authentication
        | Code::IllegalSASLState
        | Code::SecurityDisabled
        // Not possible.
        | Code::UnsupportedVersion
        | Code::UnsupportedForMessageFormat
        | Code::UnsupportedCompressionType
        | Code::UnsupportedSASLMechanism
        | Code::UnsupportedFeature
        | Code::NotImplemented
        | Code::NotConfigured
        // The group has gone on.
        | Code::RebalanceInProgress
        | Code::IllegalGeneration
        | Code::UnknownMemberId
        | Code::FencedMemberEpoch
        | Code::FencedInstanceId
        | Code::AssignmentLost
        | Code::PollExceeded => Some(Fault::permanent().not_executed()),

        // The producer was fenced, or no longer knows what it wrote.
        Code::Fatal
        | Code::Fenced
        | Code::ProducerFenced
        | Code::TransactionCoordinatorFenced
        | Code::InvalidProducerEpoch
        | Code::InvalidProducerIdMapping
        | Code::InvalidTransactionalState
        | Code::UnknownProducerId
        | Code::OutOfOrderSequenceNumber
        | Code::DuplicateSequenceNumber
        | Code::GaplessGuarantee
        | Code::Inconsistent
        | Code::PurgeInflight
        | Code::BrokerDestroy
        | Code::BadMessage => Some(Fault::permanent()),

        _ => None,
    }
}

/// Knows [`KafkaError`].
///
/// | error | means |
/// |---|---|
/// | one that carries a code | what [`kafka_code`] says of it |
/// | `Transaction`, fatal | permanent, unknown |
/// | `Transaction` that has to be aborted | retry, not executed, unless the code is of a refusal, which is permanent |
/// | `Transaction`, retriable | retry: the same call, which goes on where it was |
/// | `Transaction`, none of these | permanent, as librdkafka recommends |
/// | `MessageConsumptionFatal`, `Canceled`: the client is gone | permanent, unknown |
/// | `ClientConfig`, `ClientCreation`, `AdminOpCreation`, `Nul` | permanent, not executed |
/// | `NoMessageReceived`, `PartitionEOF`: answers, not faults | not known |
/// | any other | not known |
///
/// If a transaction has to be aborted, an attempt is a whole transaction: it begins it, and aborts it on failure.
///
/// A `FutureProducer` gives the message back with the error, so the closure takes the two apart:
///
/// ```
/// use rdkafka::error::KafkaError;
/// use rdkafka::types::RDKafkaErrorCode as Code;
/// use redrive_retry::{Policy, Retry, StopReason, classify};
///
/// # async fn send(_: &str) -> Result<(), (KafkaError, String)> {
/// #     Err((KafkaError::MessageProduction(Code::MessageSizeTooLarge), String::new()))
/// # }
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let produce = || async { send("hello").await.map_err(|(error, _message)| error) };
/// let stopped = produce.retry(&Policy::default()).classify(classify::kafka).await.unwrap_err();
/// assert_eq!(stopped.report.reason, StopReason::Permanent);
/// # });
/// ```
#[must_use]
pub fn kafka(error: &KafkaError) -> Option<Fault> {
    match error {
        KafkaError::Transaction(error) => TransactionStatus::of(error).fault(kafka_code(error.code())),
        KafkaError::AdminOp(code) => kafka_code(*code),
        KafkaError::MessageConsumptionFatal(_) | KafkaError::Canceled => Some(Fault::permanent()),
        KafkaError::ClientConfig(..)
        | KafkaError::ClientCreation(_)
        | KafkaError::AdminOpCreation(_)
        | KafkaError::Nul(_) => Some(Fault::permanent().not_executed()),
        coded => coded.rdkafka_error_code().and_then(kafka_code),
    }
}

/// What librdkafka says of a transaction after an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TransactionStatus {
    Fatal,
    RequiresAbort,
    Retriable,
    Unsaid,
}

impl TransactionStatus {
    fn of(error: &RDKafkaError) -> Self {
        if error.is_fatal() {
            Self::Fatal
        } else if error.txn_requires_abort() {
            Self::RequiresAbort
        } else if error.is_retriable() {
            Self::Retriable
        } else {
            Self::Unsaid
        }
    }

    fn fault(self, by_code: Option<Fault>) -> Option<Fault> {
        let refused = Fault::permanent().not_executed();
        Some(match (self, by_code) {
            (Self::Fatal, _) => Fault::permanent(),
            (Self::RequiresAbort, Some(Fault::Permanent(Executed::No))) => refused,
            (Self::RequiresAbort, _) => Fault::transient().not_executed(),
            (Self::Retriable, Some(fault @ Fault::Retry(_))) => fault,
            (Self::Retriable, _) => Fault::transient(),
            (Self::Unsaid, Some(Fault::Permanent(Executed::No))) => refused,
            (Self::Unsaid, _) => Fault::permanent(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use RDKafkaErrorCode as Code;
    use rdkafka::ClientConfig;
    use rdkafka::producer::{BaseProducer, BaseRecord, Producer};

    use super::*;

    const AGAIN: Option<Fault> = Some(Fault::transient().not_executed());
    const UNKNOWN: Option<Fault> = Some(Fault::transient());
    const REFUSED: Option<Fault> = Some(Fault::permanent().not_executed());
    const LOST: Option<Fault> = Some(Fault::permanent());

    #[test]
    fn the_codes_of_the_table_mean_what_it_says() {
        for (code, want) in [
            (Code::LeaderNotAvailable, AGAIN),
            (Code::ReplicaNotAvailable, AGAIN),
            (Code::BrokerNotAvailable, AGAIN),
            (Code::NotController, AGAIN),
            (Code::CoordinatorLoadInProgress, AGAIN),
            (Code::CoordinatorNotAvailable, AGAIN),
            (Code::NotCoordinator, AGAIN),
            (Code::UnknownTopicOrPartition, AGAIN),
            (Code::NotEnoughReplicas, AGAIN),
            (Code::InvalidMessage, AGAIN),
            (Code::InvalidDifferentRecord, AGAIN),
            (Code::ConcurrentTransactions, AGAIN),
            (Code::Resolve, AGAIN),
            (Code::NotLeaderForPartition, UNKNOWN),
            (Code::NotEnoughReplicasAfterAppend, UNKNOWN),
            (Code::KafkaStorageError, UNKNOWN),
            (Code::RequestTimedOut, UNKNOWN),
            (Code::NetworkException, UNKNOWN),
            (Code::BrokerTransportFailure, UNKNOWN),
            (Code::AllBrokersDown, UNKNOWN),
            (Code::OperationTimedOut, UNKNOWN),
            (Code::MessageTimedOut, UNKNOWN),
            (Code::TimedOutQueue, UNKNOWN),
            (Code::QueueFull, Some(Fault::overload())),
            (Code::ThrottlingQuotaExceeded, Some(Fault::overload())),
            (Code::MessageSizeTooLarge, REFUSED),
            (Code::InvalidTopic, REFUSED),
            (Code::InvalidRecord, REFUSED),
            (Code::PolicyViolation, REFUSED),
            (Code::TopicAlreadyExists, REFUSED),
            (Code::UnknownTopic, REFUSED),
            (Code::UnknownPartition, REFUSED),
            (Code::TopicAuthorizationFailed, REFUSED),
            (Code::TransactionalIdAuthorizationFailed, REFUSED),
            (Code::SaslAuthenticationFailed, REFUSED),
            (Code::UnsupportedVersion, REFUSED),
            (Code::RebalanceInProgress, REFUSED),
            (Code::IllegalGeneration, REFUSED),
            (Code::UnknownMemberId, REFUSED),
            (Code::FencedInstanceId, REFUSED),
            (Code::PurgeQueue, REFUSED),
            (Code::PurgeInflight, LOST),
            (Code::Fatal, LOST),
            (Code::Fenced, LOST),
            (Code::ProducerFenced, LOST),
            (Code::InvalidProducerEpoch, LOST),
            (Code::OutOfOrderSequenceNumber, LOST),
            (Code::DuplicateSequenceNumber, LOST),
            (Code::UnknownProducerId, LOST),
            (Code::Unknown, None),
            (Code::Fail, None),
            (Code::NoError, None),
            (Code::PartitionEOF, None),
        ] {
            assert_eq!(kafka_code(code), want, "{code:?}");
        }
    }

    #[test]
    fn an_error_is_understood_by_its_code_wherever_it_came_from() {
        for make in [
            KafkaError::AdminOp,
            KafkaError::ConsumerCommit,
            KafkaError::Flush,
            KafkaError::Global,
            KafkaError::MessageConsumption,
            KafkaError::MessageProduction,
            KafkaError::MetadataFetch,
            KafkaError::OffsetFetch,
            KafkaError::StoreOffset,
        ] {
            let timed_out = make(Code::OperationTimedOut);
            assert_eq!(kafka(&timed_out), UNKNOWN, "{timed_out:?}");
            let refused = make(Code::TopicAuthorizationFailed);
            assert_eq!(kafka(&refused), REFUSED, "{refused:?}");
        }
    }

    #[test]
    fn errors_without_a_code_mean_what_the_table_says() {
        let nul = std::ffi::CString::new("a\0b").unwrap_err();
        for (error, want) in [
            (KafkaError::MessageConsumptionFatal(Code::OperationTimedOut), LOST),
            (KafkaError::Canceled, LOST),
            (KafkaError::ClientCreation(String::new()), REFUSED),
            (KafkaError::AdminOpCreation(String::new()), REFUSED),
            (KafkaError::Nul(nul), REFUSED),
            (KafkaError::NoMessageReceived, None),
            (KafkaError::PartitionEOF(0), None),
            (KafkaError::Seek(String::new()), None),
        ] {
            assert_eq!(kafka(&error), want, "{error:?}");
        }
    }

    /// A producer without a reachable broker.
    fn producer(settings: &[(&str, &str)]) -> Result<BaseProducer, KafkaError> {
        let mut config = ClientConfig::new();
        for (name, value) in settings {
            config.set(*name, *value);
        }
        config.create()
    }

    fn record(payload: &[u8]) -> BaseRecord<'_, (), [u8]> {
        BaseRecord::to("topic").payload(payload)
    }

    #[test]
    fn a_setting_that_does_not_exist_is_permanent() {
        let error = producer(&[("no.such.setting", "1")]).err().unwrap();
        assert!(matches!(error, KafkaError::ClientConfig(..)), "{error:?}");
        assert_eq!(kafka(&error), REFUSED);
    }

    #[test]
    fn the_producers_own_full_queue_is_an_overload_and_nothing_was_sent() {
        let producer = producer(&[("queue.buffering.max.messages", "1")]).unwrap();
        producer.send(record(b"fits")).map_err(|(error, _)| error).unwrap();
        let (error, _) = producer.send(record(b"does not")).unwrap_err();
        assert_eq!(error, KafkaError::MessageProduction(Code::QueueFull));
        assert_eq!(kafka(&error), Some(Fault::overload()));
    }

    #[test]
    fn a_message_that_is_too_large_stays_too_large() {
        let producer = producer(&[("message.max.bytes", "1000")]).unwrap();
        let (error, _) = producer.send(record(&[0; 2000])).unwrap_err();
        assert_eq!(error, KafkaError::MessageProduction(Code::MessageSizeTooLarge));
        assert_eq!(kafka(&error), REFUSED);
    }

    #[test]
    fn a_transaction_whose_coordinator_is_not_found_in_time_is_tried_again() {
        let producer = producer(&[("transactional.id", "test")]).unwrap();
        let error = producer.init_transactions(Duration::from_millis(1)).unwrap_err();
        assert_eq!(error.rdkafka_error_code(), Some(Code::OperationTimedOut));
        assert_eq!(kafka(&error), UNKNOWN);
    }

    #[test]
    fn a_transaction_on_a_producer_that_has_none_is_permanent() {
        let error = producer(&[]).unwrap().begin_transaction().unwrap_err();
        assert_eq!(error.rdkafka_error_code(), Some(Code::NotConfigured));
        assert_eq!(kafka(&error), REFUSED);
    }

    #[test]
    fn a_transaction_is_judged_by_its_standing_before_its_code() {
        for (standing, code, want) in [
            (TransactionStatus::Fatal, Code::OperationTimedOut, LOST),
            (TransactionStatus::Fatal, Code::ProducerFenced, LOST),
            (TransactionStatus::RequiresAbort, Code::MessageTimedOut, AGAIN),
            (TransactionStatus::RequiresAbort, Code::OutOfOrderSequenceNumber, AGAIN),
            (TransactionStatus::RequiresAbort, Code::Fail, AGAIN),
            (TransactionStatus::RequiresAbort, Code::TopicAuthorizationFailed, REFUSED),
            (TransactionStatus::Retriable, Code::OperationTimedOut, UNKNOWN),
            (TransactionStatus::Retriable, Code::CoordinatorNotAvailable, AGAIN),
            (TransactionStatus::Retriable, Code::Fail, UNKNOWN),
            (TransactionStatus::Unsaid, Code::OperationTimedOut, LOST),
            (TransactionStatus::Unsaid, Code::State, REFUSED),
            (TransactionStatus::Unsaid, Code::Fail, LOST),
        ] {
            assert_eq!(standing.fault(kafka_code(code)), want, "{standing:?} {code:?}");
        }
    }
}
