//! Built without the feature `otlp`: nothing is sent.

use anyhow::{Result, bail};
use tracing::Subscriber;
use tracing_subscriber::Layer;

#[derive(Debug)]
pub(in crate::observe) struct Exporting;

pub(in crate::observe) fn exporting<S: Subscriber>(
    _: &str,
) -> Result<(Box<dyn Layer<S> + Send + Sync>, Exporting)> {
    bail!("this program was built without the feature `otlp`")
}

impl Exporting {
    #[allow(clippy::unused_async, reason = "the enabled variant needs it")]
    pub(in crate::observe) async fn end(self) {}
}

pub(super) const fn link(_: Option<&str>, _: Option<&str>) -> Option<String> {
    None
}

/// Nothing is exported.
pub(super) const fn exports() -> bool {
    false
}

/// No span is traced.
pub(super) const fn own(_: &tracing::Span) -> Option<String> {
    None
}

/// There is no trace to continue.
pub(super) const fn continues(_: &tracing::Span, _: &str, _: Option<&str>) {}
