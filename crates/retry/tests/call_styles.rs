//! All call styles behave alike.
//!
//! A scenario is a script: what the first call answers, what the second, and so on. Every scenario goes
//! through postfix, session and blocking, and all three must give the same value or error and the same
//! report.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::time::Duration;

use redrive_core::{Backoff, Budget, Disposition, Fault, Jitter};
use redrive_retry::{Policy, Report, Reported, Retry, Start, StopReason, blocking, classify};
use tokio::time::Instant;

/// What a call fails with: the classifier's words themselves.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Says {
    Transient,
    NotBefore(u64),
    Overload,
    Permanent,
    Unheard,
    NotNeeded,
}

fn classifier(says: &Says) -> Option<Disposition> {
    match *says {
        Says::Transient => Some(Fault::transient().into()),
        Says::NotBefore(millis) => Some(Fault::transient().not_before(Duration::from_millis(millis)).into()),
        Says::Overload => Some(Fault::overload().into()),
        Says::Permanent => Some(Fault::permanent().into()),
        Says::Unheard => None,
        Says::NotNeeded => Some(Disposition::Drop),
    }
}

type Answer = Result<u32, Says>;

/// How a scenario ended in a call style, and how long it took by its clock.
#[derive(Debug, PartialEq)]
struct Ending {
    result: Result<Option<u32>, Option<Says>>,
    report: Report,
    took: Duration,
}

async fn postfix(policy: &Policy, script: &[Answer]) -> Ending {
    let (mut script, start) = (script.iter().copied(), Instant::now());
    let call = || {
        let answer = script.next().expect("a call more than the script has");
        async move { answer }
    };
    let Reported { result, report } = call.retry(policy).classify(classifier).report().await;
    Ending { result, report, took: start.elapsed() }
}

async fn session(policy: &Policy, script: &[Answer]) -> Ending {
    let (mut script, start) = (script.iter().copied(), Instant::now());
    let mut session = policy.start();
    let mut given = None;
    while session.next().await.is_some() {
        let answer = script.next().expect("a call more than the script has");
        if let Some(value) = session.run(async { answer }, classifier).await {
            given = Some(value);
        }
    }
    let stopped = session.stopped();
    Ending { result: given.ok_or(stopped.error), report: stopped.report, took: start.elapsed() }
}

/// Waits by adding up; nothing sleeps.
fn blocking(policy: &Policy, script: &[Answer]) -> Ending {
    let (mut script, mut took) = (script.iter().copied(), Duration::ZERO);
    let call = || script.next().expect("a call more than the script has");
    let Reported { result, report } = blocking::Retry::retry(call, policy)
        .classify(classifier)
        .wait_with(|wait| {
            took += wait;
            true
        })
        .report();
    Ending { result, report, took }
}

/// Four attempts, 100 ms and twice as long each time, to the millisecond.
fn exact() -> Policy {
    let backoff = Backoff::exponential(Duration::from_millis(100), 2.0, Duration::from_secs(10));
    let builder = Policy::builder().attempts(4).backoff(backoff);
    builder.jitter(Jitter::None).build().unwrap()
}

fn without_budget() -> Policy {
    Policy::builder().no_budget().build().unwrap()
}

/// One token, and that only after the first call of a run.
fn one_token() -> Policy {
    let builder = Policy::builder().attempts(9).budget(Budget::share_of(1.0).unwrap());
    builder.backoff(Backoff::constant(Duration::from_millis(100))).jitter(Jitter::None).build().unwrap()
}

#[tokio::test(start_paused = true)]
async fn all_call_styles_end_every_script_alike() {
    use Says::{NotBefore, NotNeeded, Overload, Permanent, Transient, Unheard};
    use StopReason as Stop;
    type Row<'a> = (fn() -> Policy, &'a [Answer], Result<Option<u32>, Says>, Stop, u32, u64);
    let table: &[Row<'_>] = &[
        (exact, &[Ok(7)], Ok(Some(7)), Stop::Succeeded, 1, 0),
        (exact, &[Err(Transient), Err(Transient), Ok(7)], Ok(Some(7)), Stop::Succeeded, 3, 300),
        (exact, &[Err(Transient); 4], Err(Transient), Stop::AttemptsSpent, 4, 700),
        (exact, &[Err(Transient), Err(Permanent)], Err(Permanent), Stop::Permanent, 2, 100),
        (exact, &[Err(Unheard)], Err(Unheard), Stop::Unclassified, 1, 0),
        (exact, &[Err(Transient), Err(NotNeeded)], Ok(None), Stop::Dropped, 2, 100),
        (without_budget, &[Err(Overload)], Err(Overload), Stop::BudgetSpent, 1, 0),
        (exact, &[Err(Overload), Ok(7)], Ok(Some(7)), Stop::Succeeded, 2, 100),
        (one_token, &[Err(Transient); 2], Err(Transient), Stop::BudgetSpent, 2, 100),
        (exact, &[Err(NotBefore(2_500)), Ok(7)], Ok(Some(7)), Stop::Succeeded, 2, 2_500),
        (exact, &[Err(NotBefore(40)), Ok(7)], Ok(Some(7)), Stop::Succeeded, 2, 100),
        (exact, &[Err(NotBefore(300_001))], Err(NotBefore(300_001)), Stop::NotBeforeTooFar, 1, 0),
    ];
    for &(policy, script, result, reason, attempts, waited) in table {
        let endings = [
            ("postfix", postfix(&policy(), script).await),
            ("session", session(&policy(), script).await),
            ("blocking", blocking(&policy(), script)),
        ];
        for (style, ending) in endings {
            let what = format!("{style}: {script:?}");
            assert_eq!(ending.result, result.map_err(Some), "{what}");
            let Report { reason: got, attempts: made, .. } = ending.report;
            assert_eq!((got, made), (reason, attempts), "{what}");
            assert_eq!(ending.report.waited, Duration::from_millis(waited), "{what}");
            assert_eq!(ending.took, Duration::from_millis(waited), "{what}: waited as reported");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_same_seed_waits_the_same_in_every_call_style() {
    let seeded = || Policy::builder().attempts(6).no_budget().seed(99).build().unwrap();
    let script = [Err(Says::Transient); 6];
    let at_postfix = postfix(&seeded(), &script).await.report;
    assert_eq!(session(&seeded(), &script).await.report, at_postfix);
    assert_eq!(blocking(&seeded(), &script).report, at_postfix);
    assert!(!at_postfix.waited.is_zero());

    let policy = seeded();
    let (first, second) = (postfix(&policy, &script).await.report, postfix(&policy, &script).await.report);
    assert_eq!(first, at_postfix);
    assert_ne!(second.waited, first.waited, "the next run of one policy waits otherwise");
}

/// A classifier that cannot discard gives the bare value, one that can gives an option: the annotations are the test.
#[tokio::test(start_paused = true)]
async fn only_a_classifier_that_can_discard_makes_an_option_of_the_value() {
    let policy = Policy::default();
    let call = || async { Ok::<u32, Says>(7) };
    let bare: u32 = call.retry(&policy).classify(classify::all).await.unwrap();
    let option: Option<u32> = call.retry(&policy).classify(classifier).await.unwrap();
    assert_eq!(option, Some(bare));

    let mut session = policy.start();
    session.next().await;
    let bare: Option<u32> = session.run(call(), classify::all).await;
    assert_eq!(bare, Some(7));

    let call = || Ok::<u32, Says>(7);
    let bare: u32 = blocking::Retry::retry(call, &policy).classify(classify::all).call().unwrap();
    let option: Option<u32> = blocking::Retry::retry(call, &policy).classify(classifier).call().unwrap();
    assert_eq!(option, Some(bare));
}

#[tokio::test(start_paused = true)]
async fn without_a_classifier_nothing_is_repeated() {
    let policy = Policy::default();
    let down = || async { Err::<(), _>("down") };
    let stopped = down.retry(&policy).await.unwrap_err();
    assert_eq!((stopped.error, stopped.report.reason), (Some("down"), StopReason::Unclassified));
    assert_eq!(stopped.report.attempts, 1);
}
