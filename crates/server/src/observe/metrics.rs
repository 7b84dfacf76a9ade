//! Metrics, as `/metrics` shows them.
//!
//! Counters go through one recorder per process; values that can be read at any time (events by state, budgets, store
//! figures) are sampled on request.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use metrics::{counter, describe_counter, describe_gauge, describe_histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use redrive::Redrive;
use redrive::event::DeadReason;
use redrive::names::{label, metric};

use crate::app::App;
use crate::observe::Samples;
use crate::push::target::{self, Target};

/// Bounds for what takes from a millisecond to a minute.
const SECONDS: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.25, 1.0, 2.5, 10.0, 30.0, 60.0];
/// Bounds for waits, which may be days.
const WAITS: [f64; 11] = [0.05, 0.25, 1.0, 5.0, 15.0, 60.0, 300.0, 1_800.0, 7_200.0, 43_200.0, 172_800.0];

/// The recorder of this process. `None` if another one is installed: then that one has the counters.
static RECORDER: OnceLock<Option<PrometheusHandle>> = OnceLock::new();

/// Installs the recorder, once per process. Call it before queues are set up: earlier counts are lost.
pub fn install() {
    RECORDER.get_or_init(|| {
        let recorder = builder().ok()?.build_recorder();
        let handle = recorder.handle();
        metrics::set_global_recorder(recorder).ok()?;
        describe();
        Some(handle)
    });
}

fn builder() -> Result<PrometheusBuilder, metrics_exporter_prometheus::BuildError> {
    let waits = [metric::RETRY_DELAY_SECONDS, metric::LATENESS_SECONDS];
    let builder = PrometheusBuilder::new().set_buckets(&SECONDS)?;
    waits.iter().try_fold(builder, |builder, name| {
        builder.set_buckets_for_metric(Matcher::Full((*name).to_owned()), &WAITS)
    })
}

fn describe() {
    describe_counter!(metric::PUBLISHED, "Publishes, by result");
    describe_counter!(metric::DUPLICATES, "Duplicates, by where they were recognised");
    describe_counter!(metric::ATTEMPTS, "Attempts, by disposition");
    describe_counter!(metric::RETRIES, "Retries planned, by class of the preceding failure");
    describe_counter!(metric::SUCCESS_AFTER_RETRY, "Events done after at least one retry");
    describe_counter!(metric::DEAD, "Dead letters, by reason");
    describe_counter!(metric::DEAD_UNKNOWN, "Dead letters whose last attempt may have taken effect");
    describe_counter!(metric::DROPPED, "Events that a handler dropped");
    describe_counter!(metric::EXPIRED, "Events that expired");
    describe_counter!(metric::FENCED, "Writes rejected because their owner had lost the shard");
    describe_gauge!(metric::SHARDS, "Shards this process owns");
    describe_gauge!(metric::STALLED_SHARDS, "Shards that had an event to run but ran nothing; a bug");
    describe_counter!(metric::TAKE_OVERS, "Shards taken over from an owner whose lease ran out");
    describe_counter!(metric::LEDGER, "Requests with idempotency keys, by result");
    describe_counter!(metric::LEDGER_SAME_BODY, "Requests identical to a recent one under another key");
    describe_counter!(metric::LEDGER_FAILURES, "Writes of the ledger that failed, by which");
    describe_counter!(metric::TRACE_EXPORT_FAILURES, "Batches of traces that could not be exported");
    describe_counter!(metric::HTTP_REQUESTS, "HTTP requests answered");
    describe_histogram!(metric::HTTP_SECONDS, "Duration of HTTP requests");
    describe_histogram!(metric::ATTEMPT_SECONDS, "Duration of attempts");
    describe_histogram!(metric::LATENESS_SECONDS, "Delay between the due time and the start of an attempt");
    describe_histogram!(metric::RETRY_DELAY_SECONDS, "Retry delays chosen");
}

/// Registers a queue's counters at zero: an alert on growth would miss a counter that starts at one, and with it the
/// first dead letter.
pub fn begin<'a>(queues: impl IntoIterator<Item = &'a String>) {
    for queue in queues {
        let queue = || queue.clone();
        for reason in DeadReason::ALL {
            counter!(metric::DEAD, label::QUEUE => queue(), label::REASON => reason.as_str()).absolute(0);
        }
        for name in [metric::DEAD_UNKNOWN, metric::SUCCESS_AFTER_RETRY] {
            counter!(name, label::QUEUE => queue()).absolute(0);
        }
    }
}

/// Compacts recorded values. Call it now and then, also if metrics are never read: values are buffered one by one in
/// between.
pub fn keep_small() {
    if let Some(Some(handle)) = RECORDER.get() {
        handle.run_upkeep();
    }
}

/// Everything, in Prometheus' text format.
pub async fn render(app: &App) -> String {
    let targets = target::targets(&app.live().config);
    with_samples(&app.samples, &app.redrive, &targets).await
}

/// The counters, and the values of this engine.
pub(crate) async fn with_samples(
    samples: &Samples,
    redrive: &Redrive,
    targets: &BTreeMap<String, Target>,
) -> String {
    let mut text = match RECORDER.get() {
        Some(Some(handle)) => handle.render(),
        _ => String::new(),
    };
    samples.write(redrive, targets, &mut text).await;
    text
}
