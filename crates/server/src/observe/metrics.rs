//! Metrics, as `/metrics` shows them.
//!
//! What is counted as it happens goes through one recorder of the process; what can be asked for at any time (events
//! by state, budgets, the store's figures) is sampled when somebody asks.

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

/// The recorder of this process. None where somebody else installed another one: then that one has the counters.
static RECORDER: OnceLock<Option<PrometheusHandle>> = OnceLock::new();

/// Installs the recorder, once for the process. To be called before queues are set up: what is counted before it is
/// lost.
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
    describe_counter!(metric::DUPLICATES, "What came a second time, by where that was noticed");
    describe_counter!(metric::ATTEMPTS, "Attempts, by disposition");
    describe_counter!(metric::RETRIES, "Retries that were planned, by class of the failure before them");
    describe_counter!(metric::SUCCESS_AFTER_RETRY, "Events that were done, but not at first");
    describe_counter!(metric::DEAD, "Dead letters, by reason");
    describe_counter!(metric::DEAD_UNKNOWN, "Dead letters whose last attempt may have had its effect");
    describe_counter!(metric::DROPPED, "Events whose handler said that they are not needed");
    describe_counter!(metric::EXPIRED, "Events whose time was over");
    describe_counter!(metric::FENCED, "Writes of an owner that was one no more; they changed nothing");
    describe_gauge!(metric::SHARDS, "Shards that this process owns");
    describe_counter!(
        metric::TAKE_OVERS,
        "Shards that were taken from an owner that was not heard of any more"
    );
    describe_counter!(metric::LEDGER, "Requests under idempotency keys, by what became of them");
    describe_counter!(metric::LEDGER_SAME_BODY, "Requests that ask what another key asked lately");
    describe_counter!(metric::HTTP_REQUESTS, "Requests that were answered");
    describe_histogram!(metric::HTTP_SECONDS, "How long requests took");
    describe_histogram!(metric::ATTEMPT_SECONDS, "How long attempts took");
    describe_histogram!(metric::LATENESS_SECONDS, "How long after its time an attempt began");
    describe_histogram!(metric::RETRY_DELAY_SECONDS, "The waits that were chosen");
}

/// Shows what can go wrong in a queue before it does: a counter that begins at one has not grown for whoever alerts on
/// its growth, and the first dead letter would be missed.
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

/// Puts what was counted in order. To be called now and then, also where nobody asks for metrics: what is recorded
/// in between is kept one by one.
pub fn keep_small() {
    if let Some(Some(handle)) = RECORDER.get() {
        handle.run_upkeep();
    }
}

/// The version of the format.
pub const FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Everything, in Prometheus' text format.
pub async fn render(app: &App) -> String {
    let targets = target::targets(&app.live().config);
    with_samples(&app.samples, &app.redrive, &targets).await
}

/// What was counted as it happened, and what can be asked of this engine.
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
