//! What the client's spans say, in OpenTelemetry's words.
#![allow(clippy::unwrap_used, reason = "a panic is a test's way to fail")]
#![cfg(all(feature = "reqwest", feature = "tracing"))]

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use redrive_core::{Backoff, Policy};
use redrive_http::Client;
use redrive_testkit::{Reply, Scripted};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

type Fields = BTreeMap<&'static str, String>;

/// Keeps the fields of every span called `HTTP`, in order.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Vec<(u64, Fields)>>>);

struct Into<'a>(&'a mut Fields);

impl Visit for Into<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}").trim_matches('"').to_owned());
    }
}

impl<S: tracing::Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Spans {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, _: Context<'_, S>) {
        if attributes.metadata().name() == "HTTP" {
            let mut fields = Fields::new();
            attributes.record(&mut Into(&mut fields));
            self.0.lock().unwrap().push((id.into_u64(), fields));
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, _: Context<'_, S>) {
        let mut spans = self.0.lock().unwrap();
        if let Some((_, fields)) = spans.iter_mut().rev().find(|(span, _)| *span == id.into_u64()) {
            values.record(&mut Into(fields));
        }
    }
}

#[tokio::test]
async fn every_attempt_has_a_span_and_all_but_the_first_count_the_resends() {
    let spans = Spans::default();
    let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(spans.clone()));
    let server = Scripted::start([Reply::status(500), Reply::Cut]).await;
    let policy = Policy::builder().backoff(Backoff::NONE).build().unwrap();
    let client = Client::new(reqwest::Client::new(), policy);
    client.get(server.url("/page?token=secret")).send().await.unwrap();

    let spans = spans.0.lock().unwrap();
    let column =
        |name| spans.iter().map(|(_, fields)| fields.get(name).map(String::as_str)).collect::<Vec<_>>();
    assert_eq!(column("http.request.resend_count"), [None, Some("1"), Some("2")]);
    assert_eq!(column("http.response.status_code"), [Some("500"), None, Some("200")]);
    assert_eq!(column("error.type"), [Some("500"), Some("request"), None]);
    assert_eq!(column("http.request.method"), [Some("GET"); 3]);
    let said = format!("{spans:?}");
    assert!(!said.contains("secret"), "{said}");
}
