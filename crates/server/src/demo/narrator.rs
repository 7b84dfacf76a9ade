//! Tells what happens, in plain words, a line for each thing worth telling.

use std::future::Future;
use std::io::IsTerminal;

use redrive::Policy;
use redrive::disposition::Class;
use redrive::observe::{Attempted, Ended, Observer, Outcome, Waiting};
use redrive::{Disposition, StopReason};

use super::downstream::Downstream;
use super::say::{counted, say};

tokio::task_local! {
    static ORDER: u32;
}

/// Runs an order's call so that the narrator knows which order it is.
pub(crate) async fn telling<F: Future>(order: u32, call: F) -> F::Output {
    ORDER.scope(order, call).await
}

/// What the demo is about to do.
pub(crate) fn opening(downstream: &Downstream, policy: &Policy, orders: u32, rate: u32) {
    let settings = policy.settings();
    say(format_args!("Placing {}, {rate} a second, at {}.", counted(orders, "order"), downstream.url()));
    say("It has good and bad moments: 503 with Retry-After, requests that are never answered, and answers");
    say("that are lost after the order took effect. To a client the last two look the same.\n");
    say(format_args!(
        "The policy: {} attempts within {:?}, {:?} each, exponential backoff with full jitter,",
        settings.attempts,
        settings.time.unwrap_or_default(),
        settings.attempt_time.unwrap_or_default(),
    ));
    say("retries at most half as many as orders plus 10 a second, a breaker, one key for each order.");
    say("Told below: whatever does not succeed at once.\n");
}

/// An observer that prints.
#[derive(Debug)]
pub(crate) struct Narrator;

impl Observer for Narrator {
    fn attempted(&self, attempted: Attempted<'_>) {
        let Attempted { attempt, outcome, took, .. } = attempted;
        let what = match outcome {
            Outcome::Said(Disposition::Ok) if attempt == 1 => return,
            Outcome::Said(Disposition::Ok) => "answered".to_owned(),
            Outcome::Said(Disposition::Discard) => "not needed any more".to_owned(),
            Outcome::Said(Disposition::Permanent(_)) => "refused for good".to_owned(),
            Outcome::Said(Disposition::Retry(again)) => match (again.class, again.not_before) {
                (Class::Overload, Some(wait)) => format!("overloaded; it asks for {wait:?} of peace"),
                (Class::Overload, None) => "overloaded".to_owned(),
                (Class::Transient, _) => format!("failed; executed: {}", again.executed.as_str()),
            },
            Outcome::Unclassified => "failed, and nobody knows the error".to_owned(),
            Outcome::TimedOut => {
                format!("no answer within {} ms; it may have taken effect", took.as_millis())
            }
        };
        line(attempt, &what, Tone::of(outcome));
    }

    fn waiting(&self, waiting: Waiting<'_>) {
        line(waiting.attempt, &format!("  again in {} ms", waiting.delay.as_millis()), Tone::Quiet);
    }

    fn ended(&self, ended: Ended<'_>) {
        let report = ended.report;
        if report.reason != StopReason::Succeeded {
            let what = if report.attempts == 0 { "not sent" } else { "given up" };
            line(report.attempts, &format!("{what}: {report}"), Tone::Bad);
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Tone {
    Good,
    Quiet,
    Doubtful,
    Bad,
}

impl Tone {
    const fn of(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Said(Disposition::Ok | Disposition::Discard) => Self::Good,
            Outcome::Said(Disposition::Retry(_)) | Outcome::TimedOut => Self::Doubtful,
            Outcome::Said(Disposition::Permanent(_)) | Outcome::Unclassified => Self::Bad,
        }
    }

    const fn colour(self) -> &'static str {
        match self {
            Self::Good => "32",
            Self::Quiet => "2",
            Self::Doubtful => "33",
            Self::Bad => "31",
        }
    }
}

fn line(attempt: u32, what: &str, tone: Tone) {
    let order = ORDER.try_with(|order| *order).unwrap_or_default();
    let plain = std::env::var_os("NO_COLOR").is_some() || !std::io::stdout().is_terminal();
    if plain {
        say(format_args!("order {order:>3}  attempt {attempt}  {what}"));
    } else {
        say(format_args!("order {order:>3}  attempt {attempt}  \x1b[{}m{what}\x1b[0m", tone.colour()));
    }
}
