//! One call's attempts, as budget, observers and report see them.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use redrive_core::breaker::{BreakerSettings, BreakerState};
use redrive_core::limit::Permit;
use redrive_core::observe::{AttemptFinished, Observer, Outcome, RetryScheduled, RunFinished};
use redrive_core::run::{Admission, Run};
use redrive_core::{
    Backoff, Breaker, Budget, Disposition, Executed, Fault, Jitter, Limit, Moment, Policy, PolicyBuilder,
    Rate, SeededRandom, StopReason, Verdict,
};

const NOW: Moment = Moment::from_nanos(1 << 50);
const GO: Admission = Admission::Go { deadline: None };

/// Three attempts, a second between them.
fn plain() -> PolicyBuilder {
    Policy::builder().backoff(Backoff::constant(Duration::from_secs(1))).jitter(Jitter::None)
}

fn after(millis: u64) -> Moment {
    NOW + Duration::from_millis(millis)
}

fn random() -> SeededRandom {
    SeededRandom::new(1)
}

fn open_breaker() -> Breaker {
    let settings = BreakerSettings { window: 1, least_calls: 1, ..BreakerSettings::default() };
    let breaker = Breaker::new(settings).unwrap();
    breaker.admit(&NOW).unwrap().failed(NOW);
    breaker
}

#[test]
fn a_call_deposits_once_however_often_it_asks() {
    let budget = Budget::share_of(1.0).unwrap();
    let rate = Rate::new(1.0, 1).unwrap();
    rate.take(NOW).unwrap();
    let policy = plain().budget(budget.clone()).rate(rate).build().unwrap();
    let mut run = Run::new(&policy);
    for _ in 0..3 {
        assert_eq!(run.admit(&policy, &NOW, &mut random()), Admission::Wait(after(1_000)));
    }
    assert_eq!(budget.tokens(NOW), 0, "it waits for the rate and was not made yet");
    assert_eq!(run.admit(&policy, &after(1_000), &mut random()), GO);
    assert_eq!(budget.tokens(after(1_000)), 1);
    run.settle(&policy, Fault::transient(), None, &after(1_000), &mut random());
    assert_eq!(budget.tokens(after(1_000)), 0, "the retry took it");
    assert_eq!(run.admit(&policy, &after(2_000), &mut random()), GO);
    assert_eq!(budget.tokens(after(2_000)), 0, "and a retry is no first attempt");
}

#[test]
fn a_call_that_is_never_made_deposits_nothing() {
    let budget = Budget::share_of(1.0).unwrap();
    let policy = plain().budget(budget.clone()).breaker(open_breaker()).build().unwrap();
    let admission = Run::new(&policy).admit(&policy, &NOW, &mut random());
    assert_eq!(admission, Admission::Stop(StopReason::BreakerOpen));

    let policy = plain().budget(budget.clone()).build().unwrap();
    let mut late = Run::new(&policy);
    late.deadline(NOW);
    assert_eq!(late.admit(&policy, &NOW, &mut random()), Admission::Stop(StopReason::Deadline));
    assert_eq!(budget.tokens(NOW), 0);
}

#[test]
fn an_open_breaker_neither_waits_for_the_rate_nor_spends_it() {
    let rate = Rate::new(1.0, 1).unwrap();
    let policy = plain().rate(rate.clone()).breaker(open_breaker()).build().unwrap();
    for _ in 0..2 {
        let admission = Run::new(&policy).admit(&policy, &NOW, &mut random());
        assert_eq!(admission, Admission::Stop(StopReason::BreakerOpen));
    }
    assert_eq!(rate.available(NOW), 1);
}

#[test]
fn the_report_says_timed_out_of_the_last_attempt_only() {
    let policy = plain().build().unwrap();
    let mut run = Run::new(&policy);
    assert_eq!(run.admit(&policy, &NOW, &mut random()), GO);
    run.settle(&policy, Outcome::TimedOut, None, &NOW, &mut random());
    assert!(run.report(StopReason::Cancelled).timed_out);
    assert_eq!(run.report(StopReason::Cancelled).executed, Executed::Unknown);
    assert_eq!(run.admit(&policy, &after(1_000), &mut random()), GO);
    run.settle(&policy, Disposition::Ok, None, &after(1_000), &mut random());
    assert!(!run.report(StopReason::Succeeded).timed_out);
}

#[test]
fn an_effect_once_unknown_stays_unknown() {
    let policy = plain().attempts(4).no_budget().build().unwrap();
    let mut run = Run::new(&policy);
    for (fault, known) in [
        (Fault::transient().not_executed(), Executed::No),
        (Fault::transient(), Executed::Unknown),
        (Fault::transient().not_executed(), Executed::Unknown),
    ] {
        assert_eq!(run.admit(&policy, &NOW, &mut random()), GO);
        run.settle(&policy, fault, None, &NOW, &mut random());
        assert_eq!(run.report(StopReason::Cancelled).executed, known);
    }
}

#[test]
fn a_cancelled_wait_is_reported_for_as_long_as_it_lasted() {
    let policy = plain().build().unwrap();
    let mut run = Run::new(&policy);
    assert_eq!(run.admit(&policy, &NOW, &mut random()), GO);
    run.settle(&policy, Fault::transient(), None, &NOW, &mut random());
    let report = run.end(&policy, StopReason::Cancelled, &after(300));
    assert_eq!(report.waited, Duration::from_millis(300));
}

#[test]
fn what_a_layer_further_in_forbids_ends_what_would_have_been_retried_and_nothing_else() {
    let policy = plain().build().unwrap();
    let forbidden = Some(StopReason::BudgetSpent);
    for (outcome, verdict) in [
        (Disposition::Ok.into(), Verdict::Done),
        (Disposition::Drop.into(), Verdict::Drop),
        (Outcome::TimedOut, Verdict::Dead(StopReason::BudgetSpent)),
        (Fault::transient().into(), Verdict::Dead(StopReason::BudgetSpent)),
        (Outcome::Unclassified, Verdict::Dead(StopReason::Unclassified)),
        (Fault::permanent().into(), Verdict::Dead(StopReason::Permanent)),
    ] {
        let mut run = Run::new(&policy);
        assert_eq!(run.admit(&policy, &NOW, &mut random()), GO);
        let got = run.settle(&policy, outcome, forbidden, &NOW, &mut random());
        assert_eq!(got, verdict, "{outcome:?}");
    }
}

/// Records the calls of an observer.
#[derive(Clone, Default)]
struct Scribe(Arc<Mutex<Vec<String>>>);

impl Observer for Scribe {
    fn attempted(&self, attempted: AttemptFinished<'_>) {
        let line = format!("attempt {} said {}", attempted.attempt, attempted.outcome.as_str());
        self.0.lock().unwrap().push(line);
    }

    fn waiting(&self, waiting: RetryScheduled<'_>) {
        let line = format!("waits {:?} for {}", waiting.delay, waiting.class.as_str());
        self.0.lock().unwrap().push(line);
    }

    fn ended(&self, ended: RunFinished<'_>) {
        self.0.lock().unwrap().push(ended.report.to_string());
    }
}

#[test]
fn an_attempt_that_a_full_limit_refused_is_heard_of_like_any_other() {
    let (scribe, limit) = (Scribe::default(), Limit::fixed(1).unwrap());
    let breaker =
        Breaker::new(BreakerSettings { window: 1, least_calls: 1, ..BreakerSettings::default() }).unwrap();
    let policy = plain().limit(limit.clone()).breaker(breaker).observer(scribe.clone()).build().unwrap();
    let mut run = Run::new(&policy);
    let taken: Option<Permit> = limit.acquire();
    assert_eq!(run.admit(&policy, &NOW, &mut random()), Admission::Wait(after(1_000)));
    assert_eq!(run.report(StopReason::Cancelled).executed, Executed::No);
    drop(taken);
    assert_eq!(run.admit(&policy, &after(1_000), &mut random()), GO, "the breaker recorded a failure");
    run.settle(&policy, Disposition::Ok, None, &after(1_000), &mut random());
    run.end(&policy, StopReason::Succeeded, &after(1_000));
    assert_eq!(
        *scribe.0.lock().unwrap(),
        [
            "attempt 1 said retry",
            "waits 1s for overload",
            "attempt 2 said ok",
            "succeeded after 2 attempts and 1000 ms of waiting"
        ]
    );
}

#[test]
fn an_error_that_nobody_knows_says_nothing_of_the_other_sides_health() {
    let settings = BreakerSettings { window: 2, least_calls: 1, probes: 1, ..BreakerSettings::default() };
    let breaker = Breaker::new(settings).unwrap();
    breaker.admit(&NOW).unwrap().failed(NOW);
    let policy = plain().breaker(breaker.clone()).build().unwrap();
    let later = after(6_000);
    for (outcome, state) in
        [(Outcome::Unclassified, BreakerState::HalfOpen), (Fault::permanent().into(), BreakerState::Closed)]
    {
        let mut run = Run::new(&policy);
        assert_eq!(run.admit(&policy, &later, &mut random()), GO);
        run.settle(&policy, outcome, None, &later, &mut random());
        assert_eq!(breaker.state(later), state, "{outcome:?}");
    }
}

#[test]
fn the_time_that_ended_the_last_attempt_is_the_reason() {
    let deadline = after(50);
    for (policy, hurry, reason) in [
        (plain().attempts(1).build().unwrap(), Some(deadline), StopReason::Deadline),
        (plain().attempts(1).time(Duration::from_millis(50)).build().unwrap(), None, StopReason::TimeSpent),
        (
            plain().attempts(1).attempt_time(Duration::from_millis(50)).build().unwrap(),
            None,
            StopReason::AttemptsSpent,
        ),
    ] {
        let mut run = Run::new(&policy);
        hurry.into_iter().for_each(|deadline| run.deadline(deadline));
        let Admission::Go { deadline: Some(end) } = run.admit(&policy, &NOW, &mut random()) else {
            panic!("it may go")
        };
        assert_eq!(end, deadline);
        let verdict = run.settle(&policy, Outcome::TimedOut, None, &end, &mut random());
        assert_eq!(verdict, Verdict::Dead(reason));
    }
}
