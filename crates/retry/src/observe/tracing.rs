//! Retries in the log, through `tracing`.

use std::time::Duration;

use redrive_core::observe::{AttemptFinished, Observer, RetryScheduled, RunFinished};
use redrive_core::{Report, StopReason};
use tracing::{debug, info, trace, warn};

/// Says in the log when something was retried, and how it ended.
///
/// A log is read when something is wrong, so what went well at the first attempt is not in it. Events have
/// the target `redrive`:
///
/// | level | message | when | fields beside `policy` and `attempt` |
/// |---|---|---|---|
/// | warn | `retrying` | an attempt failed and another follows | `reason`: `transient` or `overload`; `next_delay_ms` |
/// | info | `succeeded after retry` | it worked, but not at first | `waited_ms` |
/// | warn | `gave up` | it failed for good | `reason`: the stop reason; `executed`: `no` or `unknown` |
/// | info | `gave up` | as above, because the caller cancelled it | as above |
/// | debug | `gave up` | as above, because the first attempt got a permanent answer: nothing to retry | as above |
/// | debug | `dropped` | the classifier said that it is not needed any more | |
/// | trace | `attempted` | an attempt ended, however | `disposition`, `took_ms` |
///
/// `attempt` is the attempt that has just ended, and at the end the number of attempts. `policy` is the policy's
/// name. The error itself is not logged, because it may contain a payload; the caller gets it in the
/// [`Stopped`](redrive_core::Stopped).
///
/// ```
/// use redrive_retry::Policy;
/// use redrive_retry::observe::Tracing;
///
/// let policy = Policy::builder().name("payments").observer(Tracing).build()?;
/// // WARN redrive: retrying policy="payments" attempt=1 reason="transient" next_delay_ms=74
/// // INFO redrive: succeeded after retry policy="payments" attempt=2 waited_ms=74
/// # Ok::<(), redrive_core::PolicyError>(())
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct Tracing;

impl Observer for Tracing {
    fn attempted(&self, attempted: AttemptFinished<'_>) {
        trace!(
            target: "redrive",
            policy = attempted.policy.name(),
            attempt = attempted.attempt,
            disposition = attempted.outcome.as_str(),
            took_ms = millis(attempted.took),
            "attempted"
        );
    }

    fn waiting(&self, waiting: RetryScheduled<'_>) {
        warn!(
            target: "redrive",
            policy = waiting.policy.name(),
            attempt = waiting.attempt,
            reason = waiting.class.as_str(),
            next_delay_ms = millis(waiting.delay),
            "retrying"
        );
    }

    fn ended(&self, ended: RunFinished<'_>) {
        let policy = ended.policy.name();
        let Report { reason, attempts: attempt, waited, executed, .. } = *ended.report;
        // The level of an event is fixed at its call site, hence three of the same.
        macro_rules! gave_up {
            ($at_level:ident) => {
                $at_level!(
                    target: "redrive",
                    policy,
                    attempt,
                    reason = reason.as_str(),
                    executed = executed.as_str(),
                    "gave up"
                )
            };
        }
        match reason {
            StopReason::Succeeded if attempt <= 1 => {}
            StopReason::Succeeded => {
                info!(target: "redrive", policy, attempt, waited_ms = millis(waited), "succeeded after retry");
            }
            StopReason::Dropped => debug!(target: "redrive", policy, attempt, "dropped"),
            StopReason::Cancelled => gave_up!(info),
            StopReason::Permanent if attempt <= 1 => gave_up!(debug),
            _ => gave_up!(warn),
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::future::ready;
    use std::sync::{Arc, Mutex};

    use redrive_core::classify::unknown;
    use redrive_core::{Backoff, Disposition, Fault, Jitter, Policy};
    use tracing::field::{Field, Visit};
    use tracing::{Event, Subscriber};
    use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

    use super::*;
    use crate::Retry;

    /// An event as it was logged: level, target, message, and the other fields.
    #[derive(Debug, Clone, Default, PartialEq, Eq)]
    struct Line {
        level: String,
        target: String,
        message: String,
        fields: BTreeMap<&'static str, String>,
    }

    impl Visit for Line {
        fn record_u64(&mut self, field: &Field, value: u64) {
            self.fields.insert(field.name(), value.to_string());
        }

        fn record_str(&mut self, field: &Field, value: &str) {
            self.fields.insert(field.name(), value.to_owned());
        }

        fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
            assert_eq!(field.name(), "message", "numbers and words only, no Debug output of anything");
            self.message = format!("{value:?}");
        }
    }

    #[derive(Clone, Default)]
    struct Capture(Arc<Mutex<Vec<Line>>>);

    impl<S: Subscriber> Layer<S> for Capture {
        fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
            let metadata = event.metadata();
            let mut line = Line {
                level: metadata.level().to_string(),
                target: metadata.target().to_owned(),
                ..Line::default()
            };
            event.record(&mut line);
            self.0.lock().unwrap().push(line);
        }
    }

    fn line(level: &str, message: &str, fields: &[(&'static str, &str)]) -> Line {
        Line {
            level: level.to_owned(),
            target: "redrive".to_owned(),
            message: message.to_owned(),
            fields: fields.iter().map(|(name, value)| (*name, (*value).to_owned())).collect(),
        }
    }

    /// The log lines of a call whose attempts have these outcomes.
    fn log(says: &[Disposition]) -> Vec<Line> {
        let policy = Policy::builder()
            .name("payments")
            .backoff(Backoff::exponential(Duration::from_millis(20), 2.0, Duration::from_secs(1)))
            .jitter(Jitter::None)
            .observer(Tracing)
            .build()
            .unwrap();
        let mut says = says.iter().copied();
        let call = move || {
            ready(match says.next().expect("no more attempts than dispositions") {
                Disposition::Ok => Ok(()),
                fault => Err(fault),
            })
        };
        captured(async {
            let _ = call.retry(&policy).classify(|said: &Disposition| *said).await;
        })
    }

    fn captured(work: impl Future<Output = ()>) -> Vec<Line> {
        let capture = Capture::default();
        let subscriber = tracing_subscriber::registry().with(capture.clone());
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        tracing::subscriber::with_default(subscriber, || runtime.block_on(work));
        let mut lines = capture.0.lock().unwrap().split_off(0);
        lines.retain(|line| line.target == "redrive");
        lines
    }

    fn without_trace(mut lines: Vec<Line>) -> Vec<Line> {
        lines.retain(|line| line.level != "TRACE");
        lines
    }

    fn transient() -> Disposition {
        Fault::transient().not_executed().into()
    }

    #[test]
    fn a_retry_says_which_attempt_why_and_how_long() {
        let overload = Fault::overload().into();
        assert_eq!(
            without_trace(log(&[transient(), overload, Disposition::Ok])),
            [
                line(
                    "WARN",
                    "retrying",
                    &[
                        ("policy", "payments"),
                        ("attempt", "1"),
                        ("reason", "transient"),
                        ("next_delay_ms", "20"),
                    ]
                ),
                line(
                    "WARN",
                    "retrying",
                    &[
                        ("policy", "payments"),
                        ("attempt", "2"),
                        ("reason", "overload"),
                        ("next_delay_ms", "40"),
                    ]
                ),
                line(
                    "INFO",
                    "succeeded after retry",
                    &[("policy", "payments"), ("attempt", "3"), ("waited_ms", "60")]
                ),
            ]
        );
    }

    #[test]
    fn what_works_at_first_is_not_in_the_log() {
        assert_eq!(without_trace(log(&[Disposition::Ok])), []);
    }

    #[test]
    fn giving_up_says_why_and_what_is_known_of_the_effect() {
        let unknown = Fault::transient().into();
        for (says, level, attempt, reason, executed) in [
            (&[transient(); 3] as &[_], "WARN", "3", "attempts_spent", "no"),
            (&[transient(), unknown, transient()], "WARN", "3", "attempts_spent", "unknown"),
            (&[transient(), Fault::permanent().into()], "WARN", "2", "permanent", "unknown"),
            (&[Fault::permanent().not_executed().into()], "DEBUG", "1", "permanent", "no"),
        ] {
            let want = line(
                level,
                "gave up",
                &[("policy", "payments"), ("attempt", attempt), ("reason", reason), ("executed", executed)],
            );
            assert_eq!(log(says).last(), Some(&want));
        }
    }

    #[test]
    fn an_error_that_nobody_knows_is_warned_of_at_once() {
        let policy = Policy::builder().observer(Tracing).build().unwrap();
        let lines = captured(async {
            let call = || ready(Err::<(), _>("what is this"));
            let _ = call.retry(&policy).classify(unknown).await;
        });
        let last = lines.last().unwrap();
        assert_eq!((last.level.as_str(), last.fields["reason"].as_str()), ("WARN", "unclassified"));
    }

    #[test]
    fn a_cancelled_or_dropped_call_is_no_warning() {
        let policy = Policy::builder().observer(Tracing).build().unwrap();
        let lines = captured(async {
            let call = || ready(Err::<(), _>(()));
            let _ = call.retry(&policy).classify(|_: &()| Fault::transient()).cancel_on(ready(())).await;
        });
        let last = lines.last().unwrap();
        assert_eq!((last.level.as_str(), last.fields["reason"].as_str()), ("INFO", "cancelled"));
        let dropped = line("DEBUG", "dropped", &[("policy", "payments"), ("attempt", "1")]);
        assert_eq!(log(&[Disposition::Drop]).last(), Some(&dropped));
    }

    #[test]
    fn every_attempt_is_traced_with_what_it_said() {
        let lines = log(&[transient(), Disposition::Ok]);
        let traced: Vec<_> = lines.iter().filter(|line| line.level == "TRACE").collect();
        for (traced, attempt, disposition) in [(traced[0], "1", "retry"), (traced[1], "2", "ok")] {
            let want = line(
                "TRACE",
                "attempted",
                &[
                    ("policy", "payments"),
                    ("attempt", attempt),
                    ("disposition", disposition),
                    ("took_ms", "0"),
                ],
            );
            assert_eq!(*traced, want);
        }
        assert_eq!(traced.len(), 2);
    }
}
