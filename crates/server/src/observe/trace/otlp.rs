//! Sending traces by OTLP over HTTP.

use std::fmt;
use std::str::FromStr as _;
use std::time::Duration;

use anyhow::{Context as _, Result};
use bytes::Bytes;
use opentelemetry::trace::{
    SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState, TracerProvider as _,
};
use opentelemetry_http::{HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tokio::runtime::Handle;
use tracing::{Span, Subscriber};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::registry::LookupSpan;

/// How long the receiver may take over one lot.
const TIME: Duration = Duration::from_secs(10);
/// How large its answer may be.
const ANSWER_MAX: usize = 1 << 20;

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
    let resource = Resource::builder().with_service_name("redrive").build();
    let provider = SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("redrive"));
    // The spans of attempts. What is logged has its own filter.
    let ours = Targets::new().with_target("redrive", LevelFilter::INFO);
    Ok((layer.with_filter(ours).boxed(), Exporting(provider)))
}

impl Exporting {
    /// Sends what was not sent yet.
    pub(in crate::observe) async fn end(self) {
        // It waits for a thread of its own, which sends on this runtime.
        let ending = tokio::task::spawn_blocking(move || self.0.shutdown());
        if let Ok(Err(error)) = ending.await {
            tracing::warn!(%error, "some traces were not sent");
        }
    }
}

/// Links the span that this runs in to the publisher's; gives the `traceparent` of the former. None where it is not
/// traced.
pub(super) fn link(parent: Option<&str>, state: Option<&str>) -> Option<String> {
    let span = Span::current();
    if let Some(publisher) = parent.and_then(|parent| context(parent, state)) {
        span.add_link(publisher);
    }
    let own = span.context();
    let own = own.span();
    let own = own.span_context();
    let flags = own.trace_flags().to_u8();
    own.is_valid().then(|| format!("00-{}-{}-{flags:02x}", own.trace_id(), own.span_id()))
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
}

impl Client {
    fn new() -> Result<Self> {
        let client = reqwest::Client::builder().timeout(TIME).redirect(reqwest::redirect::Policy::none());
        let client = client.build().context("a client")?;
        Ok(Self { client, runtime: Handle::try_current().context("there is no runtime")? })
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
                    return Err("the receiver says too much".into());
                }
                body.extend_from_slice(&chunk);
            }
            Ok::<_, HttpError>(response.body(body.into())?)
        });
        sending.await?
    }
}
