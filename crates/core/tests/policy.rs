//! Which policies are refused, and what a policy decides.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::time::Duration;

use proptest::prelude::*;
use redrive_core::breaker::BreakerSettings;
use redrive_core::budget::BudgetSettings;
use redrive_core::observe::Outcome;
use redrive_core::run::RetryState;
use redrive_core::{
    Backoff, Breaker, Budget, Disposition, Fault, Jitter, Limit, Moment, Policy, PolicyBuilder, PolicyError,
    Rate, SeededRandom, StopReason, Verdict,
};

const MS: fn(u64) -> Duration = Duration::from_millis;
const NOW: Moment = Moment::from_nanos(1 << 50);

#[test]
fn nonsense_is_refused_and_told_what_to_change() {
    type Built = Result<Policy, PolicyError>;
    fn backoff(backoff: Backoff) -> Built {
        Policy::builder().backoff(backoff).build()
    }
    fn budget(share: f64, floor: f64, window: Duration) -> Built {
        let settings = BudgetSettings { share, floor, window };
        Policy::builder().budget(Budget::new(settings)?).build()
    }
    let second = Duration::from_secs(1);
    let table: [(Built, &str); 20] = [
        (Policy::builder().attempts(0).build(), "use at least 1"),
        (backoff(Backoff::linear(second, second, MS(999))), "raise the cap or lower the base"),
        (backoff(Backoff::exponential(second, 2.0, MS(999))), "raise the cap or lower the base"),
        (backoff(Backoff::exponential(second, 0.9, second)), "use a finite number of at least 1"),
        (backoff(Backoff::exponential(second, f64::NAN, second)), "use a finite number of at least 1"),
        (backoff(Backoff::exponential(second, f64::INFINITY, second)), "use a finite number of at least 1"),
        (backoff(Backoff::exponential(Duration::ZERO, 2.0, second)), "raise the base"),
        (backoff(Backoff::table([])), "give at least one"),
        (
            Policy::builder().backoff(Backoff::constant(second)).jitter(Jitter::Decorrelated).build(),
            "raise the cap, or use full jitter",
        ),
        (
            Policy::builder().time(Duration::ZERO).build(),
            "a time in all of zero ends every call before it starts; leave it out",
        ),
        (
            Policy::builder().attempt_time(Duration::ZERO).build(),
            "an attempt time-out of zero ends every call before it starts; leave it out",
        ),
        (budget(1.01, 0.0, second), "0.1 lets retries add a tenth"),
        (budget(-0.1, 0.0, second), "0.1 lets retries add a tenth"),
        (budget(0.1, -1.0, second), "use a number from 0 (no floor)"),
        (budget(0.1, 0.0, Duration::from_nanos(9)), "use some seconds"),
        (
            Breaker::new(BreakerSettings { probes: 0, ..BreakerSettings::default() })
                .and_then(|breaker| Policy::builder().breaker(breaker).build()),
            "probes 1 to 1000",
        ),
        (
            Limit::fixed(0).and_then(|limit| Policy::builder().limit(limit).build()),
            "least must be at least 1",
        ),
        (
            Limit::adaptive(2, 1).and_then(|limit| Policy::builder().limit(limit).build()),
            "most at least as large",
        ),
        (Rate::new(0.0, 1).and_then(|rate| Policy::builder().rate(rate).build()), "use a number above zero"),
        (Rate::new(1.0, 0).and_then(|rate| Policy::builder().rate(rate).build()), "use at least 1"),
    ];
    for (built, hint) in table {
        let refused = built.expect_err(hint).to_string();
        assert!(refused.contains(hint), "{refused:?} does not say {hint:?}");
    }
}

/// Three attempts, 100 ms between them, to the millisecond.
fn plain() -> PolicyBuilder {
    Policy::builder().backoff(Backoff::constant(MS(100))).jitter(Jitter::None).no_budget()
}

const FIRST: RetryState = RetryState {
    attempts: 1,
    attempts_max: 3,
    nested: false,
    started: None,
    deadline: None,
    previous: Duration::ZERO,
};

fn open_breaker() -> Breaker {
    let settings = BreakerSettings {
        window: 1,
        least_calls: 1,
        open_for: Duration::from_secs(1),
        ..BreakerSettings::default()
    };
    let breaker = Breaker::new(settings).unwrap();
    breaker.admit(&NOW).unwrap().failed(NOW);
    breaker
}

#[test]
fn each_attempt_gets_the_verdict_that_the_table_says() {
    let transient = Outcome::from(Fault::transient());
    let overload = Outcome::from(Fault::overload());
    let asks = |wait| Outcome::from(Fault::transient().not_before(wait));
    let again = |millis| Verdict::RetryAt(NOW + MS(millis));
    let until = |millis| RetryState { deadline: Some(NOW + MS(millis)), ..FIRST };
    let since = |millis: u64| RetryState {
        started: Some(Moment::from_nanos(NOW.as_nanos() - millis * 1_000_000)),
        ..FIRST
    };
    let last = RetryState { attempts: 3, ..FIRST };
    let once = RetryState { attempts_max: 1, ..FIRST };
    let timed = || plain().time(MS(1_000));
    let empty = || Budget::share_of(0.0).unwrap();
    use StopReason as Stop;
    use Verdict::{Dead, Done, Drop};
    let table: [(PolicyBuilder, RetryState, Outcome, Verdict); 31] = [
        (plain(), FIRST, Disposition::Ok.into(), Done),
        (plain(), last, Disposition::Ok.into(), Done),
        (plain(), FIRST, Disposition::Drop.into(), Drop),
        (plain(), FIRST, Fault::permanent().into(), Dead(Stop::Permanent)),
        (plain(), FIRST, Outcome::Unclassified, Dead(Stop::Unclassified)),
        (plain(), FIRST, transient, again(100)),
        (plain(), FIRST, Outcome::TimedOut, again(100)),
        (plain(), last, transient, Dead(Stop::AttemptsSpent)),
        (plain(), last, Outcome::TimedOut, Dead(Stop::AttemptsSpent)),
        (plain(), once, transient, Dead(Stop::AttemptsSpent)),
        // A wait that ends at the deadline leaves no time to call.
        (plain(), until(101), transient, again(100)),
        (plain(), until(100), transient, Dead(Stop::Deadline)),
        (plain(), until(0), transient, Dead(Stop::Deadline)),
        (timed(), since(899), transient, again(100)),
        (timed(), since(900), transient, Dead(Stop::TimeSpent)),
        (timed(), FIRST, transient, again(100)),
        // The downstream's requested wait is a floor.
        (plain(), FIRST, asks(MS(50)), again(100)),
        (plain(), FIRST, asks(MS(700)), again(700)),
        (plain(), until(700), asks(MS(700)), Dead(Stop::Deadline)),
        (timed(), since(300), asks(MS(700)), Dead(Stop::TimeSpent)),
        (plain(), FIRST, asks(MS(300_000)), again(300_000)),
        (plain(), FIRST, asks(MS(300_001)), Dead(Stop::NotBeforeTooFar)),
        (plain(), once, asks(MS(300_001)), Dead(Stop::NotBeforeTooFar)),
        (plain().not_before_max(MS(9)), FIRST, asks(MS(10)), Dead(Stop::NotBeforeTooFar)),
        // Overload is retried out of a budget only.
        (plain(), FIRST, overload, Dead(Stop::BudgetSpent)),
        (plain(), once, overload, Dead(Stop::BudgetSpent)),
        (plain().budget(Budget::default()), FIRST, overload, again(100)),
        (plain().budget(empty()), FIRST, overload, Dead(Stop::BudgetSpent)),
        (plain().budget(empty()), FIRST, transient, Dead(Stop::BudgetSpent)),
        // A breaker that is still open when the wait ends would refuse the attempt.
        (plain().breaker(open_breaker()), FIRST, transient, Dead(Stop::BreakerOpen)),
        (plain().breaker(open_breaker()), FIRST, asks(MS(1_001)), again(1_001)),
    ];
    for (row, (builder, history, outcome, want)) in table.into_iter().enumerate() {
        let policy = builder.build().unwrap();
        let got = policy.decide(&history, outcome, NOW, &mut SeededRandom::new(1));
        assert_eq!(got, want, "row {row}: {history:?} {outcome:?}");
    }
}

#[test]
fn a_retry_that_is_refused_for_another_reason_costs_no_token() {
    let budget = Budget::share_of(1.0).unwrap();
    budget.deposit(&NOW);
    let asks = Outcome::from(Fault::transient().not_before(MS(300_001)));
    let spent = RetryState { attempts: 3, ..FIRST };
    let late = RetryState { deadline: Some(NOW + MS(100)), ..FIRST };
    let over = RetryState { started: Some(NOW), ..FIRST };
    let with_it = || plain().budget(budget.clone());
    for (builder, history, outcome) in [
        (with_it(), FIRST, Fault::permanent().into()),
        (with_it(), FIRST, Outcome::Unclassified),
        (with_it(), spent, Fault::overload().into()),
        (with_it(), late, Fault::transient().into()),
        (with_it().time(MS(100)), over, Fault::transient().into()),
        (with_it(), FIRST, asks),
        (with_it().breaker(open_breaker()), FIRST, Fault::transient().into()),
    ] {
        let policy = builder.build().unwrap();
        let verdict = policy.decide(&history, outcome, NOW, &mut SeededRandom::new(1));
        assert!(matches!(verdict, Verdict::Dead(_)), "{verdict:?}");
        assert_eq!((budget.tokens(NOW), budget.spent()), (1, 0), "{verdict:?}");
    }
    let policy = with_it().build().unwrap();
    let verdict = policy.decide(&FIRST, Fault::transient().into(), NOW, &mut SeededRandom::new(1));
    assert_eq!(verdict, Verdict::RetryAt(NOW + MS(100)));
    assert_eq!((budget.tokens(NOW), budget.spent()), (0, 1));
}

fn any_policy() -> impl Strategy<Value = PolicyBuilder> {
    let jitters = vec![Jitter::None, Jitter::Full, Jitter::Equal, Jitter::Decorrelated];
    let settings = (1u64..2_000, 1.0..4.0f64, 1u64..10_000, prop::sample::select(jitters));
    settings.prop_map(|(base, factor, above, jitter)| {
        Policy::builder()
            .backoff(Backoff::exponential(MS(base), factor, MS(base + above)))
            .jitter(jitter)
            .attempts(u32::MAX)
            .no_budget()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_wait_is_planned_that_ends_after_the_deadline_or_the_time(
        builder in any_policy(), seed: u64, attempts in 1u32..20, time in 1u64..20_000, elapsed in 0u64..20_000,
        left in 0u64..20_000, asks in prop::option::of(0u64..20_000),
    ) {
        let policy = builder.time(MS(time)).build().unwrap();
        let started = Moment::from_nanos(NOW.as_nanos() - elapsed * 1_000_000);
        let history = RetryState { attempts, attempts_max: u32::MAX, nested: false, started: Some(started), deadline: Some(NOW + MS(left)), previous: MS(time) };
        let fault = asks.map_or(Fault::transient(), |asks| Fault::transient().not_before(MS(asks)));
        match policy.decide(&history, fault.into(), NOW, &mut SeededRandom::new(seed)) {
            Verdict::RetryAt(at) => {
                prop_assert!(at < NOW + MS(left), "after the deadline");
                prop_assert!(at < started + MS(time), "after the time in all");
            }
            Verdict::Dead(reason) => prop_assert!(matches!(reason, StopReason::Deadline | StopReason::TimeSpent)),
            other => prop_assert!(false, "{other:?}"),
        }
    }

    #[test]
    fn what_the_other_side_asks_for_is_a_floor_and_jitter_goes_upwards_from_it(
        builder in any_policy(), seed: u64, attempts in 1u32..20, asks in 0u64..600_000, max in 0u64..600_000,
    ) {
        let policy = builder.not_before_max(MS(max)).build().unwrap();
        let history = RetryState { attempts, attempts_max: u32::MAX, ..FIRST };
        let outcome = Outcome::from(Fault::transient().not_before(MS(asks)));
        match policy.decide(&history, outcome, NOW, &mut SeededRandom::new(seed)) {
            Verdict::RetryAt(at) => {
                let (wait, backoff) = (at.since(NOW), &policy.settings().backoff);
                let spread = backoff.ceiling(attempts).max(MS(asks) / 10);
                prop_assert!(asks <= max);
                prop_assert!(wait >= MS(asks), "{wait:?} is sooner than asked");
                prop_assert!(wait <= (MS(asks) + spread).max(backoff.cap()), "{wait:?} is too late");
            }
            verdict => {
                prop_assert_eq!(verdict, Verdict::Dead(StopReason::NotBeforeTooFar));
                prop_assert!(asks > max);
            }
        }
    }
}

#[test]
fn callers_who_were_told_the_same_floor_do_not_come_back_together() {
    let policy = Policy::builder().no_budget().build().unwrap();
    let outcome = Outcome::from(Fault::transient().not_before(Duration::from_secs(60)));
    let waits: std::collections::HashSet<_> = (0..1_000)
        .map(|seed| match policy.decide(&FIRST, outcome, NOW, &mut SeededRandom::new(seed)) {
            Verdict::RetryAt(at) => at.since(NOW).as_millis(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert!(waits.len() > 800, "{} different milliseconds", waits.len());
}
