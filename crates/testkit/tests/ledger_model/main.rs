//! The ledger's rules over every order of steps of three workers, two keys, the clock, an operator and a
//! fault.
//!
//! `api` lists what can happen, `step` what follows from it, `rules` what must hold. The model asks only
//! `redrive_core::ledger` what happens to a record, as a store does, so it checks the code that runs in
//! production. A rule that is removed must make a difference: each has a test that finds the schedule which
//! breaks it.
//!
//! The size of each model is part of its test: a model that shrinks by mistake would still pass.

mod api;
mod row;
mod rules;
mod step;
mod world;

use std::time::Duration;

use redrive_core::ledger::{Effects, OnUnknown};
use stateright::{Checker, HasDiscoveries, Model};

use api::{Api, Planted, SETTLING};
use rules::{ANSWER, ONE_AT_A_TIME, ONE_EFFECT, ONE_RUN, ZOMBIE};

const HOLD: Effects = Effects::Opaque(OnUnknown::Hold);
const RERUN: Effects = Effects::Opaque(OnUnknown::Rerun);
const PROBE: Effects = Effects::Opaque(OnUnknown::Probe { settling: Duration::from_secs(SETTLING as u64) });

/// Goes through all states.
fn holds(api: Api, states: usize) {
    // A model that breaks a rule, or has grown far beyond its size, is not searched to its end.
    let checker = api.checker().threads(2).finish_when(HasDiscoveries::AnyFailures);
    let checker = checker.target_state_count(10 * states).spawn_bfs().join();
    checker.assert_properties();
    assert_eq!(
        checker.unique_state_count(),
        states,
        "the size of the model, which docs/internals/protocols.md tells"
    );
}

/// Finds a schedule that breaks a rule.
fn breaks(api: Api, rule: &'static str) {
    let what = format!("{:?} without {:?}", api.effects, api.planted);
    let first = HasDiscoveries::AnyOf([rule].into());
    let checker = api.checker().finish_when(first).spawn_bfs().join();
    let path = checker.discovery(rule).unwrap_or_else(|| panic!("{what}: no schedule breaks \"{rule}\""));
    println!("{what} breaks \"{rule}\": {:?}", path.into_actions());
}

#[test]
fn transactional_requests_have_one_effect_each() {
    holds(Api::of(Effects::Transactional), 26_065);
}

#[test]
fn requests_under_derived_keys_have_one_effect_each() {
    holds(Api::of(Effects::Keyed), 172_999);
}

#[test]
fn what_is_held_runs_once_unless_somebody_says_that_it_may() {
    holds(Api::of(HOLD), 207_765);
}

#[test]
fn what_may_be_repeated_is_repeated_one_at_a_time_and_answered_once() {
    holds(Api::of(RERUN), 83_957);
}

#[test]
fn what_is_probed_has_one_effect_because_its_run_ends_with_its_lease() {
    holds(Api::of(PROBE), 166_984);
}

#[test]
fn clocks_that_differ_take_over_early_and_do_no_harm() {
    holds(Api { clocks_differ: true, keys: 1, ..Api::of(Effects::Transactional) }, 6_577);
}

/// A reply that lives for a tick is forgotten after four, and its client repeats the request.
const FORGETFUL: Api = Api { keys: 1, end: 7, retention: 1, dated: true, ..Api::of(Effects::Transactional) };

#[test]
fn what_is_forgotten_does_not_run_again_for_a_client_that_says_when_it_began() {
    holds(FORGETFUL, 6_631);
}

#[test]
fn what_is_forgotten_runs_again_for_a_client_that_does_not() {
    breaks(Api { dated: false, ..FORGETFUL }, ONE_EFFECT);
}

#[test]
fn without_the_fence_there_are_two_effects_and_answers_change() {
    let api = Api::of(Effects::Transactional).without(Planted::FenceOut);
    for rule in [ONE_EFFECT, ZOMBIE, ANSWER] {
        breaks(api.clone(), rule);
    }
}

#[test]
fn without_the_epoch_a_zombie_answers_for_whoever_took_over() {
    for effects in [Effects::Transactional, Effects::Keyed, RERUN] {
        breaks(Api::of(effects).without(Planted::EpochIgnored), ZOMBIE);
    }
}

#[test]
fn two_that_look_before_either_writes_run_together() {
    for effects in [Effects::Transactional, Effects::Keyed, HOLD, RERUN, PROBE] {
        breaks(Api::of(effects).without(Planted::CheckThenAct), ONE_AT_A_TIME);
    }
    breaks(Api::of(HOLD).without(Planted::CheckThenAct), ONE_RUN);
}

#[test]
fn a_lease_whose_end_is_a_deletion_runs_again_what_is_unknown() {
    breaks(Api::of(HOLD).without(Planted::ExpiryDeletes), ONE_RUN);
    breaks(Api::of(PROBE).without(Planted::ExpiryDeletes), ONE_EFFECT);
}

#[test]
fn a_probe_that_does_not_wait_overlooks_what_is_on_its_way() {
    breaks(Api::of(PROBE).without(Planted::NoSettling), ONE_EFFECT);
}

#[test]
fn a_run_that_sends_after_its_lease_is_overlooked_by_a_probe() {
    breaks(Api::of(PROBE).without(Planted::LateSender), ONE_EFFECT);
}
