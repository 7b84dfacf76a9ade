//! The engine's logs and spans.

use redrive_core::names::header;
use redrive_core::queue_entry::{EventChange, EventProgress, Seq};
use redrive_core::scheduler::{DispatchedAttempt, EndedAttempt, SettledEvent};
use redrive_core::triage::Operator;
use redrive_core::{Event, Executed};
use redrive_store::StoreError;
use redrive_store::operate::CommandResult;
use tracing::field::Empty;
use tracing::{Instrument, error, info, info_span, warn};

pub(super) fn told(told: &SettledEvent) {
    let Event { tenant, queue, id, key, meta, .. } = &*told.entry.event;
    let key = key.as_deref();
    let correlation = meta.as_ref().and_then(|meta| meta.correlation.as_deref());
    let (mode, trace_id) = (told.entry.progress.mode.as_str(), trace_id(&told.entry.event));
    match &told.change {
        EventChange::Retry(progress) => {
            let Last { disposition, executed, kind, code } = last(progress);
            let reason = failure_word(disposition, code.or(kind));
            let (attempt, next_delay_ms) = (progress.attempts, millis(progress.previous));
            info!(
                queue,
                id,
                key,
                tenant,
                attempt,
                mode,
                disposition,
                executed,
                reason,
                kind,
                code,
                next_delay_ms,
                correlation,
                trace_id,
                "retrying"
            );
        }
        EventChange::Dead { reason, progress, .. } => {
            let Last { disposition, executed, kind, code } = last(progress);
            let (attempt, reason) = (progress.attempts, reason.as_str());
            warn!(
                queue,
                id,
                key,
                tenant,
                attempt,
                mode,
                disposition,
                executed,
                reason,
                kind,
                code,
                correlation,
                trace_id,
                "dead letter"
            );
        }
        EventChange::Dropped { attempts: attempt, .. } => {
            info!(queue, id, key, tenant, attempt, mode, correlation, trace_id, "dropped by its handler");
        }
        EventChange::Expired { attempts: attempt, .. } => {
            info!(queue, id, key, tenant, attempt, mode, correlation, trace_id, "expired");
        }
        EventChange::DoneWith { attempts: attempt, .. } if *attempt > 1 => {
            info!(queue, id, key, tenant, attempt, mode, correlation, trace_id, "done after retrying");
        }
        _ => {}
    }
}

/// The publisher's trace: the second part of a `traceparent`.
fn trace_id(event: &Event) -> Option<&str> {
    let headers = &event.meta.as_ref()?.headers;
    let (_, value) = headers.iter().find(|(name, _)| name.eq_ignore_ascii_case(header::TRACEPARENT))?;
    value.split('-').nth(1).filter(|id| id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Why an attempt failed, in one word: the time-out or the panic, else the error's code or kind.
fn failure_word<'a>(disposition: &'a str, error: Option<&'a str>) -> &'a str {
    match disposition {
        "timeout" | "panic" => disposition,
        _ => error.unwrap_or(disposition),
    }
}

/// The last attempt's disposition, whether it had its effect, and its cause: by kind and code. The message stays in
/// the attempt history, because a destination may repeat in it what it was sent.
#[derive(Default)]
struct Last<'a> {
    disposition: &'a str,
    executed: &'static str,
    kind: Option<&'a str>,
    code: Option<&'a str>,
}

fn last(progress: &EventProgress) -> Last<'_> {
    let record = progress.history.as_deref().and_then(|history| history.records().next_back());
    record.map_or_else(Last::default, |record| Last {
        disposition: record.disposition.as_str(),
        executed: record.executed.map_or("", Executed::as_str),
        kind: record.cause.as_ref().map(|cause| cause.kind.as_str()),
        code: record.cause.as_ref().and_then(|cause| cause.code.as_deref()),
    })
}

fn millis(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A span around an attempt, in OpenTelemetry's words for consumers of messages.
#[derive(Clone)]
pub(in crate::engine) struct Span(tracing::Span);

impl Span {
    pub(in crate::engine) fn of(ticket: &DispatchedAttempt) -> Self {
        let event = &*ticket.entry.event;
        let Event { tenant, queue, id, key, .. } = event;
        let (key, mode) = (key.as_deref(), ticket.entry.progress.mode.as_str());
        // Exporters write a signed number as a number, and an unsigned one as a text.
        let (attempt, trace_id) = (i64::from(ticket.attempt), trace_id(event));
        Self(info_span!(
            "redrive.attempt",
            otel.kind = "consumer",
            otel.status_code = Empty,
            error.type = Empty,
            messaging.system = "redrive",
            messaging.operation.type = "process",
            messaging.operation.name = "attempt",
            messaging.destination.name = queue,
            messaging.message.id = id,
            queue,
            id,
            key,
            tenant,
            attempt,
            mode,
            trace_id
        ))
    }

    /// Records how the attempt ended: an error, by its kind or code, unless it was done or dropped. The message stays
    /// in the attempt history.
    pub(in crate::engine) fn ended(&self, ended: &EndedAttempt) {
        let word = ended.end.as_str();
        if matches!(word, "ok" | "drop" | "discard") {
            return;
        }
        let error = ended.cause.as_ref().map(|cause| cause.code.as_deref().unwrap_or(&cause.kind));
        self.0.record("error.type", failure_word(word, error));
        self.0.record("otel.status_code", "ERROR");
    }

    pub(in crate::engine) fn around<F: Future>(self, attempt: F) -> impl Future<Output = F::Output> {
        attempt.instrument(self.0)
    }
}

/// An operator changed something, or tried to.
pub(in crate::engine) fn ordered(verb: &str, by: &Operator, done: &CommandResult) {
    let (who, from, changed, refused) = (&*by.who, &*by.from, done.changed, done.refused.len());
    info!(verb, who, from, changed, refused, "ordered");
}

/// There are events of a queue without a handler in this process: its name may have changed.
pub(in crate::engine) fn unhandled(queue: &str) {
    warn!(queue, "there are events of this queue, and no handler for it in this process");
}

/// A row is damaged. It stays where it is, and does not run.
pub(in crate::engine) fn damaged(row: &str) {
    error!(row, "damaged: its checksum does not match; it is not run");
}

/// A shard has another owner, or our own lease ran out.
pub(in crate::engine) fn lost(shard: u32) {
    warn!(shard, "this process lost the shard; results of its running attempts are refused");
}

/// A shard has work and stands still, which is a bug of the engine.
pub(in crate::engine) fn stalled(shard: u32, waiting: Seq) {
    let seq = waiting.0;
    error!(
        shard,
        seq,
        "this shard stalled: an event could run, but nothing ran; the shard is taken again; please report this"
    );
}

/// The store cannot write for now; the engine tries again.
pub(in crate::engine) fn in_trouble(error: &StoreError) {
    warn!(%error, "the store cannot write; trying again");
}

/// The time of day is behind what an earlier process wrote.
pub(in crate::engine) fn clock_is_behind(by: std::time::Duration) {
    error!(
        seconds = by.as_secs(),
        "the clock is behind the newest time in the store; the engine continues from that time until the clock has caught up; set the clock"
    );
}

/// The store failed for good.
pub(in crate::engine) fn failed(error: &StoreError) {
    error!(%error, "the engine stops");
}
