//! Logs, to standard error: lines for people, or a JSON object a line.
//!
//! `docs/reference/names.md` lists the log lines. The filter comes from `REDRIVE_LOG`, or from `observe.log`.

use std::io::IsTerminal as _;

use anyhow::{Context, Result};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use super::trace::{self, Exporting};
use crate::config::{LogForm, ObserveSettings, log_filter};

/// The variable that overrides the configured filter.
const VARIABLE: &str = "REDRIVE_LOG";

/// Logs and traces of this process, until they are [ended](Self::end).
#[derive(Debug)]
pub struct Telemetry {
    exporting: Option<Exporting>,
    text: bool,
}

/// Starts logging, and exporting traces if configured. Once per process.
///
/// # Errors
/// If the filter is invalid, or another logger is installed.
pub fn start(settings: &ObserveSettings) -> Result<Telemetry> {
    let asked = std::env::var(VARIABLE).ok().filter(|asked| !asked.is_empty());
    let (place, asked) = match &asked {
        Some(asked) => (VARIABLE, asked.as_str()),
        None => ("observe.log", settings.log.as_str()),
    };
    let filter = log_filter(place, asked).map_err(anyhow::Error::msg)?;
    let (tracing, exporting) = match &settings.otlp {
        None => (None, None),
        Some(url) => {
            let (layer, exporting) = trace::exporting(url).context("observe.otlp")?;
            (Some(layer), Some(exporting))
        }
    };
    let text = match settings.log_form {
        LogForm::Text => true,
        LogForm::Json => false,
        LogForm::Auto => std::io::stderr().is_terminal(),
    };
    let lines = lines(text).with_filter(filter);
    tracing_subscriber::registry().with(tracing).with(lines).try_init().context("cannot log")?;
    Ok(Telemetry { exporting, text })
}

/// The writer of lines.
fn lines<S>(text: bool) -> Box<dyn Layer<S> + Send + Sync>
where
    S: tracing::Subscriber + for<'a> tracing_subscriber::registry::LookupSpan<'a>,
{
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    if text {
        lines.with_ansi(std::io::stderr().is_terminal()).boxed()
    } else {
        lines.json().flatten_event(true).with_current_span(true).with_span_list(false).boxed()
    }
}

impl Telemetry {
    /// Whether a person looks on.
    #[must_use]
    pub const fn is_text(&self) -> bool {
        self.text
    }

    /// Exports the remaining traces.
    pub async fn end(self) {
        if let Some(exporting) = self.exporting {
            exporting.end().await;
        }
    }
}
