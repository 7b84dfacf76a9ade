//! The promises of every message broker, one function each.
//!
//! A backend is a small file: a [`BrokerSubject`], and [`broker_tests!`](crate::broker_tests), which makes a test of
//! every promise. A promise that lies outside the capabilities of a source is tested as a refusal at start.

#![allow(clippy::unwrap_used, clippy::missing_panics_doc, reason = "test code: a panic is its way to fail")]

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use redrive_broker::capabilities::MessageOrder;
use redrive_broker::{Message, MessageSource};

mod attempts;
mod dead;
mod delay;
mod intake;
mod member;
mod order;
mod settle;
pub mod worker;

pub use attempts::*;
pub use dead::*;
pub use delay::*;
pub use intake::*;
pub use member::*;
pub use order::*;
pub use settle::*;

/// A broker under test, with a queue or topic of its own.
pub trait BrokerSubject: Sized + Send + Sync + 'static {
    /// An empty queue or topic.
    fn fresh(order: MessageOrder) -> impl Future<Output = Self> + Send;

    /// Joins as a new consumer.
    fn source(&self) -> impl Future<Output = Arc<dyn MessageSource>> + Send;

    /// The consumer dies without settling anything more.
    fn kill(&self, source: Arc<dyn MessageSource>) -> impl Future<Output = ()> + Send;

    /// The broker is stopped hard and started again. Returns false if it keeps nothing over a stop.
    fn kill_broker(&self) -> impl Future<Output = bool> + Send;

    /// Publishes a message.
    fn publish(&self, message: Message) -> impl Future<Output = ()> + Send;

    /// The dead letters, oldest first.
    fn dead(&self) -> impl Future<Output = Vec<Message>> + Send;

    /// What handlers published to [`output_topic`](Self::output_topic), as a reader of committed messages sees it.
    fn outputs(&self) -> impl Future<Output = Vec<Message>> + Send;

    /// The name of the topic for outputs.
    fn output_topic(&self) -> String;

    /// Breaks or mends the place of dead letters. Returns false if it cannot be broken here.
    fn break_dead_place(&self, broken: bool) -> impl Future<Output = bool> + Send;

    /// The partitions are taken from the consumer and given back. Returns false if that cannot be forced here.
    fn reassign(&self, source: &Arc<dyn MessageSource>) -> impl Future<Output = bool> + Send;

    /// The next settled item gets no answer, though it happens. Returns false if that cannot be forced here.
    fn lose_answer(&self) -> impl Future<Output = bool> + Send;

    /// How late a retry may be, on a machine under load.
    fn late_max() -> Duration;
}

/// A promise, with its name.
pub type BrokerPromise = (&'static str, fn() -> Pin<Box<dyn Future<Output = ()>>>);

/// Passes every promise to a macro: `broker_promises!([name] S)` becomes `name! { S; promise, … }`.
#[doc(hidden)]
#[macro_export]
macro_rules! broker_promises {
    ([$($with:tt)*] $subject:ty) => {
        $($with)*! { $subject;
            raw_bytes_arrive_as_they_were_sent,
            what_cannot_be_decoded_is_dead_with_its_bytes,
            a_null_body_and_a_null_key_are_messages,
            the_identity_stays_over_redeliveries,
            headers_of_others_are_read,
            done_is_never_redelivered,
            unsettled_is_redelivered,
            settling_twice_is_harmless,
            a_settle_after_loss_says_lost,
            a_lost_answer_is_resolved,
            one_batch_with_all_outcomes,
            closing_drains,
            outputs_are_published_with_the_settle,
            a_failed_attempt_publishes_nothing,
            a_retry_is_never_early_and_hardly_late,
            a_short_wait_is_not_behind_a_long_one,
            a_waiting_retry_blocks_no_other_message,
            a_waiting_retry_survives_the_consumer,
            a_waiting_retry_survives_the_broker,
            attempts_are_counted_once,
            a_redelivery_charges_no_attempt,
            headers_do_not_grow,
            a_message_that_fails_for_good_is_one_dead_letter,
            a_dead_letter_has_its_cause,
            a_missing_place_for_dead_letters_loses_nothing,
            too_many_dead_letters_stop_the_consumer,
            a_panic_is_a_dead_letter_and_others_go_on,
            order_is_kept_or_refused,
            a_failing_key_holds_its_followers_alone,
            messages_without_a_key_run_at_once,
            many_keys_run_at_once_and_each_in_order,
            work_is_shared_and_nothing_is_lost,
            reassignment_voids_what_was_received,
            a_pause_survives_reassignment,
            a_key_waits_for_its_attempt_of_an_earlier_assignment,
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! broker_tests_of {
    ($subject:ty; $($promise:ident,)+) => {
        $(
            #[test]
            fn $promise() {
                <$subject>::in_runtime(|| {
                    Box::pin(async {
                        let subject = <$subject as $crate::broker::BrokerSubject>::fresh(Default::default()).await;
                        $crate::broker::$promise(subject).await;
                    })
                });
            }
        )+
    };
}

/// Makes a test of every promise. The subject has a function `in_runtime`, which runs a future.
#[macro_export]
macro_rules! broker_tests {
    ($subject:ty) => {
        $crate::broker_promises! { [$crate::broker_tests_of] $subject }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! broker_promise_list {
    ($subject:ty; $($promise:ident,)+) => {{
        let promises: Vec<$crate::broker::BrokerPromise> = vec![$((stringify!($promise), || {
            Box::pin(async {
                let subject = <$subject as $crate::broker::BrokerSubject>::fresh(Default::default()).await;
                $crate::broker::$promise(subject).await;
            })
        }),)+];
        promises
    }};
}
