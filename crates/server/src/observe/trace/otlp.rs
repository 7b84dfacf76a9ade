//! Sending traces by OTLP over HTTP.

use std::fmt;
use std::str::FromStr as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use opentelemetry::KeyValue;
use opentelemetry::trace::{
    SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState, TracerProvider as _,
};
use opentelemetry_http::{HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use redrive::names::metric;
use tokio::runtime::Handle;
use tracing::{Span, Subscriber};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::registry::LookupSpan;

/// How long the receiver may take over one lot.
const TIME: Duration = Duration::from_secs(10);
/// How often it is told that it cannot be reached, while that stays so.
const TOLD_EVERY: Duration = Duration::from_secs(600);
/// How large its answer may be.
const ANSWER_MAX: usize = 1 << 20;

/// Whether this process exports traces.
static EXPORTS: AtomicBool = AtomicBool::new(false);

/// Whether spans are exported, so that it is worth making them.
pub(super) fn exports() -> bool {
    EXPORTS.load(Ordering::Relaxed)
}

/// Sends traces until it is ended.
#[derive(Debug)]
pub(in crate::observe) struct Exporting(SdkTracerProvider);

/// A layer that sends traces to a receiver.
pub(in crate::observe) fn exporting<S>(url: &str) -> Result<(Box<dyn Layer<S> + Send + Sync>, Exporting)>
where
    S: Subscriber + for<'a> LookupSpan<'a> + Send + Sync,
{
    let exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(Client::new()?)
        .with_protocol(Protocol::HttpBinary)
        .with_endpoint(url)
        .with_timeout(TIME)
        .build()?;
    let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    let resource = Resource::builder().with_service_name("redrive").with_attribute(version).build();
    let provider = SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build();
    // Where a span is made is this program's matter, not the collector's.
    let layer = tracing_opentelemetry::layer()
        .with_tracer(provider.tracer("redrive"))
        .with_location(false)
        .with_threads(false)
        .with_target(false)
        .with_tracked_inactivity(false);
    EXPORTS.store(true, Ordering::Relaxed);
    // The spans of attempts. Log lines have their own filter.
    let ours = Targets::new().with_target("redrive", LevelFilter::INFO);
    Ok((layer.with_filter(ours).boxed(), Exporting(provider)))
}

impl Exporting {
    /// Exports the remaining traces.
    pub(in crate::observe) async fn end(self) {
        // Waits for its own thread, which exports on this runtime.
        let ending = tokio::task::spawn_blocking(move || self.0.shutdown());
        if let Ok(Err(error)) = ending.await {
            tracing::warn!(%error, "some traces were not exported");
        }
    }
}

/// Links the current span to the publisher's and returns its `traceparent`; `None` if it is not traced.
pub(super) fn link(parent: Option<&str>, state: Option<&str>) -> Option<String> {
    let span = Span::current();
    if let Some(publisher) = parent.and_then(|parent| context(parent, state)) {
        span.add_link(publisher);
    }
    own(&span)
}

/// The `traceparent` of a span; `None` if it is not traced.
pub(super) fn own(span: &Span) -> Option<String> {
    let own = span.context();
    let own = own.span();
    let own = own.span_context();
    let flags = own.trace_flags().to_u8();
    own.is_valid().then(|| format!("00-{}-{}-{flags:02x}", own.trace_id(), own.span_id()))
}

/// Has a new span continue the trace that a request brings.
pub(super) fn continues(span: &Span, parent: &str, state: Option<&str>) {
    if let Some(parent) = context(parent, state) {
        // Fails only for a span that has begun to be exported, and this one is new.
        let _ = span.set_parent(opentelemetry::Context::new().with_remote_span_context(parent));
    }
}

/// The span that a `traceparent` names.
fn context(parent: &str, state: Option<&str>) -> Option<SpanContext> {
    let mut parts = parent.split('-').skip(1);
    let trace = TraceId::from_hex(parts.next()?).ok()?;
    let span = SpanId::from_hex(parts.next()?).ok()?;
    let flags = TraceFlags::new(u8::from_str_radix(parts.next()?, 16).ok()?);
    let state = state.and_then(|state| TraceState::from_str(state).ok()).unwrap_or_default();
    Some(SpanContext::new(trace, span, flags, true, state))
}

/// The client that the rest of the server uses, for an exporter that has a thread without a runtime.
struct Client {
    client: reqwest::Client,
    runtime: Handle,
    outcome: ExportOutcome,
}

impl Client {
    fn new() -> Result<Self> {
        let client = reqwest::Client::builder().timeout(TIME).redirect(reqwest::redirect::Policy::none());
        let client = client.build().context("a client")?;
        let runtime = Handle::try_current().context("there is no runtime")?;
        Ok(Self { client, runtime, outcome: ExportOutcome::default() })
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Client")
    }
}

#[async_trait::async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let client = self.client.clone();
        let sending = self.runtime.spawn(async move {
            let mut answer = client.execute(request.try_into()?).await?;
            let mut response = Response::builder().status(answer.status());
            if let Some(headers) = response.headers_mut() {
                *headers = std::mem::take(answer.headers_mut());
            }
            let mut body = Vec::new();
            while let Some(chunk) = answer.chunk().await? {
                if body.len() + chunk.len() > ANSWER_MAX {
                    return Err("the collector's response is too large".into());
                }
                body.extend_from_slice(&chunk);
            }
            Ok::<_, HttpError>(response.body(body.into())?)
        });
        let sent = sending.await.map_err(HttpError::from).flatten();
        self.outcome.note(&sent);
        sent
    }
}

/// Tells that traces cannot be exported: at first, rarely while it stays so, and when it is over. The exporter itself
/// says nothing of it.
#[derive(Debug, Default)]
struct ExportOutcome(Mutex<Failing>);

/// Since when exports fail, and when that was told last.
#[derive(Debug, Default)]
struct Failing {
    batches: u64,
    told: Option<Instant>,
}

impl ExportOutcome {
    fn note(&self, sent: &Result<Response<Bytes>, HttpError>) {
        let why = match sent {
            Ok(response) if response.status().is_success() => None,
            Ok(response) => Some(format!("the collector answered {}", response.status())),
            Err(error) => Some(innermost(&**error)),
        };
        let mut failing = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(why) = why else {
            if failing.told.take().is_some() {
                tracing::info!(lost = failing.batches, "traces are exported again");
            }
            failing.batches = 0;
            return;
        };
        failing.batches += 1;
        metrics::counter!(metric::TRACE_EXPORT_FAILURES).increment(1);
        if failing.told.is_none_or(|told| told.elapsed() >= TOLD_EVERY) {
            failing.told = Some(Instant::now());
            let lost = failing.batches;
            tracing::warn!(
                error = why,
                lost,
                "cannot export traces to observe.otlp; events are not affected"
            );
        }
    }
}

/// The cause that says most.
fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut why = error;
    while let Some(source) = why.source() {
        why = source;
    }
    why.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_that_cannot_be_reached_is_told_once_and_then_rarely() {
        let outcome = ExportOutcome::default();
        let refused = || Err(Box::<dyn std::error::Error + Send + Sync>::from("connection refused"));
        let told = |outcome: &ExportOutcome| outcome.0.lock().expect("unpoisoned").told;
        outcome.note(&refused());
        let first = told(&outcome).expect("the first failure is told");
        outcome.note(&refused());
        assert_eq!(told(&outcome), Some(first), "the next ones are not, for a while");
        assert_eq!(outcome.0.lock().expect("unpoisoned").batches, 2);
        let answer =
            |status: u16| Ok(Response::builder().status(status).body(Bytes::new()).expect("a response"));
        outcome.note(&answer(503));
        assert_eq!(outcome.0.lock().expect("unpoisoned").batches, 3);
        outcome.note(&answer(200));
        assert_eq!(told(&outcome), None);
    }
}
