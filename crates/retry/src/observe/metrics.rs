//! Retries in numbers, through the `metrics` facade.

use metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use redrive_core::StopReason;
use redrive_core::names::{label, metric};
use redrive_core::observe::{AttemptFinished, Observer, RetryScheduled, RunFinished};

/// Counts attempts, retries and ends, for whichever exporter the process has installed.
///
/// Every metric has the label `target`, which is the policy's name:
///
/// | metric | kind | further labels | is |
/// |---|---|---|---|
/// | `redrive_attempts_total` | counter | `disposition` | attempts that ended, by what they said |
/// | `redrive_attempt_seconds` | histogram | | how long they took |
/// | `redrive_retries_total` | counter | `class` | waits before another attempt, by why it may help |
/// | `redrive_retry_delay_seconds` | histogram | | how long those waits are |
/// | `redrive_stopped_total` | counter | `reason` | calls that ended, by stop reason; `succeeded` is one of them |
/// | `redrive_success_after_retry_total` | counter | | calls that worked, but not at first |
/// | `redrive_budget_tokens` | gauge | | retries that the budget would allow now |
/// | `redrive_budget_spent_total` | counter | | retries paid for by the budget |
/// | `redrive_breaker_state` | gauge | | 0 closed, 1 half open, 2 open |
///
/// Watch the share of successes after a retry, which shows flapping that no error rate shows, and
/// `redrive_stopped_total` with the reason `unclassified`, which shows a gap in a classifier.
///
/// Budget and breaker are read when a call ends, so their gauges do not change without calls. If several policies
/// share a budget, each reports it under its own name, and the sum over targets counts it several times.
///
/// # What it costs
///
/// Each event asks the recorder for its metric and copies the policy's name. A policy without an observer
/// pays nothing.
///
/// ```
/// use metrics_util::debugging::DebuggingRecorder;
/// use redrive_retry::blocking::Retry;
/// use redrive_retry::Policy;
/// use redrive_retry::observe::Metrics;
///
/// let policy = Policy::builder().name("payments").observer(Metrics).build()?;
///
/// // Where the process installs its exporter, for example the one for Prometheus:
/// let recorder = DebuggingRecorder::new();
/// let seen = recorder.snapshotter();
/// metrics::with_local_recorder(&recorder, || {
///     Metrics::describe();
///     (|| Ok::<_, ()>(())).retry(&policy).call().unwrap();
/// });
/// let snapshot = seen.snapshot().into_vec();
/// assert!(snapshot.iter().any(|(key, ..)| key.key().name() == "redrive_attempts_total"));
/// # Ok::<(), redrive_core::PolicyError>(())
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct Metrics;

impl Metrics {
    /// Describes the metrics and their units to the recorder. Call it once, after the exporter is installed;
    /// exporters show it as help.
    pub fn describe() {
        describe_counter!(metric::ATTEMPTS, Unit::Count, "Attempts that ended, by disposition.");
        describe_histogram!(metric::ATTEMPT_SECONDS, Unit::Seconds, "Duration of attempts.");
        describe_counter!(metric::RETRIES, Unit::Count, "Retries, by class of the preceding fault.");
        describe_histogram!(metric::RETRY_DELAY_SECONDS, Unit::Seconds, "Delays chosen before retries.");
        describe_counter!(metric::STOPPED, Unit::Count, "Calls that ended, by reason.");
        describe_counter!(
            metric::SUCCESS_AFTER_RETRY,
            Unit::Count,
            "Calls that succeeded after at least one retry."
        );
        describe_gauge!(metric::BUDGET_TOKENS, Unit::Count, "Retries the budget allows right now.");
        describe_counter!(metric::BUDGET_SPENT, Unit::Count, "Retries paid for by the budget.");
        describe_gauge!(
            metric::BREAKER_STATE,
            "State of the circuit breaker: 0 closed, 1 half open, 2 open."
        );
    }
}

impl Observer for Metrics {
    fn attempted(&self, attempted: AttemptFinished<'_>) {
        let target = attempted.policy.name().to_owned();
        let disposition = attempted.outcome.as_str();
        histogram!(metric::ATTEMPT_SECONDS, label::TARGET => target.clone()).record(attempted.took);
        counter!(metric::ATTEMPTS, label::TARGET => target, label::DISPOSITION => disposition).increment(1);
    }

    fn waiting(&self, waiting: RetryScheduled<'_>) {
        let target = waiting.policy.name().to_owned();
        let class = waiting.class.as_str();
        histogram!(metric::RETRY_DELAY_SECONDS, label::TARGET => target.clone()).record(waiting.delay);
        counter!(metric::RETRIES, label::TARGET => target, label::CLASS => class).increment(1);
    }

    fn ended(&self, ended: RunFinished<'_>) {
        let target = || ended.policy.name().to_owned();
        let reason = ended.report.reason;
        counter!(metric::STOPPED, label::TARGET => target(), label::REASON => reason.as_str()).increment(1);
        if reason == StopReason::Succeeded && ended.report.attempts > 1 {
            counter!(metric::SUCCESS_AFTER_RETRY, label::TARGET => target()).increment(1);
        }
        if let Some(budget) = ended.policy.budget() {
            counter!(metric::BUDGET_SPENT, label::TARGET => target()).absolute(budget.spent());
        }
        if let Some(tokens) = ended.budget_tokens() {
            #[allow(clippy::cast_precision_loss, reason = "a gauge is a double; exact up to 2⁵³ tokens")]
            gauge!(metric::BUDGET_TOKENS, label::TARGET => target()).set(tokens as f64);
        }
        if let Some(state) = ended.breaker() {
            gauge!(metric::BREAKER_STATE, label::TARGET => target()).set(state.as_number());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::future::ready;
    use std::time::Duration;

    use metrics_util::debugging::{DebugValue, DebuggingRecorder};
    use redrive_core::breaker::{Breaker, BreakerSettings};
    use redrive_core::{Backoff, Budget, Disposition, Fault, Jitter, Policy, PolicyBuilder};

    use super::*;
    use crate::Retry;

    fn policy() -> PolicyBuilder {
        Policy::builder()
            .name("payments")
            .backoff(Backoff::exponential(Duration::from_millis(250), 2.0, Duration::from_secs(10)))
            .jitter(Jitter::None)
            .observer(Metrics)
    }

    /// Records the metrics, by name and labels, of calls whose attempts have these outcomes. Each takes `took`.
    fn measured(policy: &Policy, took: Duration, calls: &[&[Disposition]]) -> BTreeMap<String, DebugValue> {
        let recorder = DebuggingRecorder::new();
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        metrics::with_local_recorder(&recorder, || {
            for says in calls {
                let mut says = says.iter().copied();
                let call = move || {
                    let said = says.next().expect("no more attempts than dispositions");
                    async move {
                        tokio::time::sleep(took).await;
                        if said == Disposition::Ok { Ok(()) } else { Err(said) }
                    }
                };
                let _ =
                    runtime.block_on(async { call.retry(policy).classify(|said: &Disposition| *said).await });
            }
        });
        let named = |(key, _, _, value): (metrics_util::CompositeKey, _, _, _)| {
            let labels: Vec<_> =
                key.key().labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
            (format!("{}{{{}}}", key.key().name(), labels.join(",")), value)
        };
        recorder.snapshotter().snapshot().into_vec().into_iter().map(named).collect()
    }

    fn all<const N: usize>(of: [(&str, DebugValue); N]) -> BTreeMap<String, DebugValue> {
        of.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    fn count(count: u64) -> DebugValue {
        DebugValue::Counter(count)
    }

    fn level(value: f64) -> DebugValue {
        DebugValue::Gauge(value.into())
    }

    fn seconds(values: &[f64]) -> DebugValue {
        DebugValue::Histogram(values.iter().map(|value| (*value).into()).collect())
    }

    fn transient() -> Disposition {
        Fault::transient().into()
    }

    #[test]
    fn every_metric_has_the_value_of_what_happened() {
        let policy =
            policy().budget(Budget::share_of(1.0).unwrap()).breaker(Breaker::default()).build().unwrap();
        let calls = [
            &[Disposition::Ok] as &[_],
            &[transient(), Fault::overload().into(), Disposition::Ok],
            &[Fault::permanent().into()],
        ];
        assert_eq!(
            measured(&policy, Duration::from_millis(500), &calls),
            all([
                ("redrive_attempts_total{target=payments,disposition=ok}", count(2)),
                ("redrive_attempts_total{target=payments,disposition=retry}", count(2)),
                ("redrive_attempts_total{target=payments,disposition=permanent}", count(1)),
                ("redrive_attempt_seconds{target=payments}", seconds(&[0.5; 5])),
                ("redrive_retries_total{target=payments,class=transient}", count(1)),
                ("redrive_retries_total{target=payments,class=overload}", count(1)),
                ("redrive_retry_delay_seconds{target=payments}", seconds(&[0.25, 0.5])),
                ("redrive_success_after_retry_total{target=payments}", count(1)),
                ("redrive_stopped_total{target=payments,reason=succeeded}", count(2)),
                ("redrive_stopped_total{target=payments,reason=permanent}", count(1)),
                ("redrive_budget_tokens{target=payments}", level(1.0)),
                ("redrive_budget_spent_total{target=payments}", count(2)),
                ("redrive_breaker_state{target=payments}", level(0.0)),
            ])
        );
    }

    #[test]
    fn a_breaker_that_opened_is_seen_open() {
        let settings = BreakerSettings { window: 2, least_calls: 2, ..BreakerSettings::default() };
        let policy = policy().breaker(Breaker::new(settings).unwrap()).build().unwrap();
        let metrics = measured(&policy, Duration::ZERO, &[&[transient(); 2]]);
        assert_eq!(metrics["redrive_breaker_state{target=payments}"], level(2.0));
        assert_eq!(metrics["redrive_stopped_total{target=payments,reason=breaker_open}"], count(1));
    }

    #[test]
    fn without_budget_and_breaker_nothing_is_said_of_them() {
        let policy = policy().no_budget().build().unwrap();
        let metrics = measured(&policy, Duration::ZERO, &[&[Disposition::Ok]]);
        assert_eq!(
            metrics.keys().collect::<Vec<_>>(),
            [
                "redrive_attempt_seconds{target=payments}",
                "redrive_attempts_total{target=payments,disposition=ok}",
                "redrive_stopped_total{target=payments,reason=succeeded}",
            ]
        );
    }

    #[test]
    fn every_metric_is_described() {
        let recorder = DebuggingRecorder::new();
        let policy = policy().breaker(Breaker::default()).build().unwrap();
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        metrics::with_local_recorder(&recorder, || {
            Metrics::describe();
            let mut failed = false;
            let call = || ready(if std::mem::replace(&mut failed, true) { Ok(()) } else { Err(()) });
            runtime
                .block_on(async { call.retry(&policy).classify(|_: &()| Fault::transient()).await })
                .unwrap();
        });
        let snapshot = recorder.snapshotter().snapshot().into_vec();
        for (key, unit, description, _) in &snapshot {
            let name = key.key().name();
            assert!(description.is_some(), "{name}");
            assert_eq!(*unit == Some(Unit::Seconds), name.ends_with("_seconds"), "{name}");
        }
        let told: BTreeSet<_> = snapshot.iter().map(|(key, ..)| key.key().name()).collect();
        assert_eq!(
            told,
            BTreeSet::from([
                metric::ATTEMPTS,
                metric::ATTEMPT_SECONDS,
                metric::RETRIES,
                metric::RETRY_DELAY_SECONDS,
                metric::STOPPED,
                metric::SUCCESS_AFTER_RETRY,
                metric::BUDGET_TOKENS,
                metric::BUDGET_SPENT,
                metric::BREAKER_STATE,
            ])
        );
    }
}
