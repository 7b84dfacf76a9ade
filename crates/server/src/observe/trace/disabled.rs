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
