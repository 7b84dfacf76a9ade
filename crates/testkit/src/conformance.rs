//! The promises of every store, one function each.
//!
//! A backend is a small file: a [`Subject`], and [`conformance_tests!`](crate::conformance_tests), which
//! makes a test of every promise. Each promise has a store of its own, and its name says what must hold. The
//! test passes in the time, and nothing sleeps.
//!
//! Promises go as far as the contract goes. If two stores may differ, a promise accepts either; if the
//! difference matters to the engine, it does not.

#![allow(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "this is test code: a panic is its way to fail"
)]

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use redrive_store::{Store, Tx};

mod operators;

mod owner;

mod worker;

mod identity;

mod endings;

mod order;

mod fence;

mod loads;

mod near;

mod deaths;

mod work;

mod looking;

mod leases;

mod answers;

mod requests;

mod late;

use operators::{audits, desk, editing, failing, groups, jobs, keeping, orders, parking, redrives, rules};

pub use answers::*;
pub use audits::*;
pub use deaths::*;
pub use editing::*;
pub use endings::*;
pub use failing::*;
pub use fence::*;
pub use groups::*;
pub use identity::*;
pub use jobs::*;
pub use keeping::*;
pub use late::*;
pub use leases::*;
pub use loads::*;
pub use looking::*;
pub use near::*;
pub use order::*;
pub use orders::*;
pub use parking::*;
pub use redrives::*;
pub use requests::*;
pub use rules::*;
pub use work::*;

/// A store under test.
pub trait Subject: Sized + Send + Sync + 'static {
    /// An empty store, with a table of the user's own in its domain.
    fn fresh() -> impl Future<Output = Self> + Send;

    /// The store.
    fn store(&self) -> Arc<dyn Store>;

    /// The process dies: nothing is released or closed, and the same data is opened again.
    fn crash_and_reopen(self) -> impl Future<Output = Self> + Send;

    /// Writes an effect into the user's own table. Writing it twice makes two rows.
    fn effect(tx: &mut dyn Tx, name: &str);

    /// How many effects are in the user's own table.
    fn effects(&self) -> impl Future<Output = usize> + Send;
}

/// A promise, with its name.
pub type Promise = (&'static str, fn() -> Pin<Box<dyn Future<Output = ()>>>);

/// Passes every promise to a macro: `promises!([name] S)` becomes `name! { S; promise, … }`.
#[doc(hidden)]
#[macro_export]
macro_rules! promises {
    ([$($with:tt)*] $subject:ty) => {
        $($with)*! { $subject;
            a_second_request_is_given_the_first_answer,
            one_of_many_requests_runs,
            requests_of_others_are_others,
            a_run_that_was_taken_over_changes_nothing,
            the_fence_holds_inside_a_transaction,
            an_unknown_outcome_waits_until_it_is_resolved,
            requests_are_forgotten_in_time,
            requests_are_found_by_what_they_made,
            resolving_a_request_leaves_a_line,
            requests_are_listed_by_phase,
            lists_of_requests_have_no_bodies,
            second_publish_is_answered_with_the_first,
            another_payload_under_one_id_is_refused,
            tenants_have_ids_of_their_own,
            queues_have_ids_of_their_own,
            concurrent_publishes_of_one_id_accept_one,
            one_id_twice_in_a_batch_is_one_event,
            identity_outlives_its_event,
            a_receipt_is_forgotten_in_time,
            a_living_event_is_never_forgotten,
            late_settle_stamps_the_receipt_anew,
            a_delay_counts_before_the_horizon,
            an_event_has_a_horizon_of_its_own,
            an_undeclared_queue_is_refused,
            a_declared_queue_survives_a_crash,
            a_queue_may_be_declared_again,
            what_cannot_be_kept_is_refused_alone,
            what_was_accepted_survives_a_crash,
            a_result_is_given_to_who_publishes_again,
            done_after_retries_keeps_its_story,
            a_dropped_event_is_remembered_as_dropped,
            an_expired_event_is_remembered_as_expired,
            state_and_story_of_a_dead_letter_are_found,
            a_dead_letter_stays_until_it_is_dealt_with,
            progress_comes_back_as_it_was_settled,
            seqs_grow_in_the_order_of_publishing,
            only_the_head_of_a_key_is_handed_out,
            a_delayed_head_holds_up_its_key,
            a_retry_holds_up_its_key,
            next_of_a_key_comes_with_the_settle_of_the_one_before,
            next_of_a_key_can_be_settled_as_it_was_given,
            unordered_queues_ignore_keys,
            events_without_a_key_wait_for_nobody,
            a_dead_letter_parks_its_key,
            a_dead_letter_lets_its_key_go_on_where_that_is_asked,
            parking_ends_at_its_count,
            parking_ends_at_its_time,
            a_dead_letter_without_order_parks_nobody,
            only_a_dead_letter_can_go_on,
            a_stale_rev_changes_nothing,
            a_stale_epoch_changes_nothing,
            another_incarnation_changes_nothing,
            a_grant_is_for_its_own_shard,
            a_stale_epoch_owns_nothing,
            every_change_raises_the_rev,
            a_refused_settle_is_refused_alone,
            a_batch_is_settled_in_its_order,
            loads_skip_what_the_owner_has,
            loads_find_everything_whatever_its_seq,
            flows_are_loaded_apart,
            a_load_says_when_the_next_is_due,
            loads_keep_to_their_shard,
            an_event_without_a_key_is_where_its_publisher_wishes,
            a_key_stays_together_whatever_is_wished,
            arrivals_are_told_after_the_commit,
            an_arrival_is_as_a_load_would_give_it,
            the_end_of_parking_is_told,
            no_arrival_is_told_after_its_end,
            a_first_take_is_clean,
            a_death_leaves_an_unclean_shard,
            what_was_noted_is_suspect_after_an_unclean_end,
            a_clean_release_leaves_no_suspects,
            the_last_note_counts,
            a_strike_outlives_the_death_it_foresaw,
            a_death_charges_no_attempt,
            the_streams_of_a_shard_are_named,
            work_and_settle_commit_together,
            what_work_publishes_is_told,
            work_after_retries_keeps_its_story,
            failed_work_leaves_nothing,
            a_panicking_work_leaves_nothing,
            stale_claims_do_not_run,
            one_claim_takes_effect_once,
            what_a_program_keeps_commits_with_its_work,
            a_marker_is_set_once,
            a_marker_is_forgotten_in_time,
            work_may_go_on_after_a_refused_publish,
            nothing_is_known_of_what_was_never_published,
            an_id_is_found_in_every_queue_and_tenant,
            lists_are_paged,
            a_page_has_a_bound_in_bytes,
            lists_show_what_was_asked_for,
            events_are_counted,
            a_closed_store_says_so,
            a_redrive_keeps_identity_and_place,
            a_redrive_may_keep_its_attempts,
            only_a_dead_letter_is_redriven,
            an_order_for_an_older_rev_is_refused,
            a_refusal_leaves_the_others_done,
            too_many_targets_are_refused_as_one,
            a_redriven_head_goes_before_those_that_wait,
            a_letter_that_becomes_the_head_holds_up_no_more_than_it_may,
            a_settle_brings_no_dead_letter_back,
            a_letter_whose_time_is_over_is_not_put_back,
            what_is_pulled_takes_no_other_way,
            what_ran_out_of_order_stays_marked,
            what_was_passed_is_redriven_out_of_order_alone,
            redriven_letters_keep_the_order_of_their_key,
            what_has_no_order_is_never_out_of_it,
            a_reroute_keeps_queue_order_and_identity,
            what_is_discarded_lets_its_key_go_on,
            whatever_has_not_ended_can_be_discarded,
            a_discarded_identity_is_remembered,
            what_was_discarded_can_be_restored,
            what_never_died_is_restored_as_killed,
            nothing_restorable_outlives_its_receipt,
            what_is_killed_is_a_dead_letter,
            what_waits_can_be_due_now,
            what_is_due_now_still_waits_for_its_turn,
            a_parked_key_goes_on_without_its_head,
            an_edit_takes_the_place_of_the_original,
            an_edit_cannot_be_undone,
            an_edit_that_cannot_be_is_refused,
            an_edit_of_what_was_passed_is_out_of_order,
            an_edited_identity_is_remembered,
            a_settle_of_the_original_is_stale_after_an_edit,
            letters_from_elsewhere_are_kept,
            rules_hold_until_they_are_lifted,
            a_rule_replaces_the_one_before,
            a_senseless_rule_is_refused,
            a_change_of_rules_is_recalled,
            nothing_of_a_withheld_key_is_handed_out,
            a_lifted_key_goes_on_with_its_head,
            what_runs_is_settled_though_its_key_is_withheld,
            a_redrive_to_a_withheld_key_waits,
            a_withheld_suspect_is_not_handed_out,
            one_order_frees_a_key,
            a_rule_ends_at_its_time,
            what_is_held_back_is_listed_as_such,
            a_job_is_known_from_its_start,
            a_senseless_plan_is_refused,
            a_job_goes_on_where_it_was,
            a_step_is_taken_once,
            a_job_takes_what_its_filter_means,
            two_jobs_put_a_letter_back_once,
            a_job_passes_over_what_would_run_out_of_order,
            a_job_hears_what_became_of_its_letters,
            a_job_can_be_paused_and_ended,
            what_a_job_puts_back_is_told,
            retrying_events_of_one_cause_are_a_group,
            a_job_has_what_is_retried_attempted_at_once,
            a_job_hears_that_what_it_had_retried_failed_again,
            what_runs_is_settled_though_a_job_has_it_retried,
            a_job_has_no_others_retried,
            letters_of_one_cause_are_a_group,
            letters_are_put_together_as_asked,
            letters_are_put_together_by_type_and_key,
            groups_count_what_is_dead_now,
            a_group_tells_what_became_of_its_last_redrive,
            a_job_is_one_redrive_of_a_group,
            what_a_filter_means_can_be_asked,
            a_filter_means_what_it_says,
            old_letters_are_given_up,
            the_oldest_letters_are_given_up_first,
            a_letter_that_parks_is_never_given_up,
            what_can_be_restored_is_listed,
            every_order_leaves_a_line,
            the_audit_is_paged,
            a_note_is_a_line_and_nothing_else,
            only_a_pulled_queue_is_leased,
            what_is_pulled_is_not_for_an_owner,
            a_lease_is_one_attempt,
            a_lease_is_settled_by_its_attempt,
            a_failed_lease_is_leased_again_when_it_is_due,
            a_lapsed_lease_is_an_attempt,
            a_lapse_is_as_of_its_lease,
            a_late_answer_counts_until_it_is_leased_again,
            an_answer_after_it_was_leased_again_is_a_conflict,
            an_answer_to_what_is_settled_otherwise_is_a_conflict,
            a_late_answer_ends_the_letter_of_its_lapse,
            a_late_answer_ends_a_letter_that_was_passed,
            a_late_failure_is_the_cause_of_its_letter,
            a_late_failure_brings_nobody_back_out_of_order,
            a_late_failure_may_be_tried_again,
            a_letter_that_was_touched_takes_no_late_answer,
            a_job_and_a_late_answer_have_a_letter_once,
            a_late_answer_is_judged_by_attempts_that_a_handler_made_since,
            a_made_up_token_settles_nothing,
            only_who_did_it_is_told_so,
            a_lease_can_be_made_longer,
            a_lease_that_is_over_is_not_made_longer,
            leases_keep_the_order_of_keys,
            parking_ends_at_its_time_where_it_is_pulled,
            rules_hold_back_leases,
            leases_are_fair_to_tenants,
            a_lease_for_a_tenant_sees_no_other,
            a_lease_has_a_bound_in_bytes,
            an_expired_event_is_not_leased,
            what_is_out_of_order_is_leased_alone_in_its_key,
            a_retry_is_leased_before_what_came_later,
            leases_of_a_queue_that_is_no_longer_pulled_lapse,
            a_job_that_is_not_over_is_told_however_old_it_is,
            a_suspect_behind_another_is_not_handed_out,
            what_is_leased_runs,
            the_last_jobs_are_told,
            some_keys_are_named,
            too_many_causes_are_one_group,
        }
    };
}

/// Makes a test of every promise for a [`Subject`](crate::conformance::Subject).
#[macro_export]
macro_rules! conformance_tests {
    ($subject:ty) => {
        $crate::promises!([$crate::conformance_tests_of] $subject);
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! conformance_tests_of {
    ($subject:ty; $($promise:ident,)*) => {
        $(
            #[tokio::test]
            async fn $promise() {
                $crate::conformance::$promise(<$subject as $crate::conformance::Subject>::fresh().await).await;
            }
        )*
    };
}

macro_rules! table_of {
    ($subject:ty; $($promise:ident,)*) => {
        vec![$((stringify!($promise), || Box::pin(async { $promise(<$subject>::fresh().await).await }))),*]
    };
}

/// Every promise, for a runner other than `#[tokio::test]`.
#[must_use]
pub fn all<S: Subject>() -> Vec<Promise> {
    crate::promises!([table_of] S)
}
