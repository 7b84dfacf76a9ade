//! The API's JSON: events as they appear in every response, and the types that the server writes and the command line
//! reads.

mod audit;
mod job;
mod node;

pub use audit::{AuditLineJson, AuditPageJson};
pub use job::{JobJson, PlanJson, PlanQueueJson};
pub use node::{NodeJson, NodesJson};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::StatusCode;
use redrive::desk::Refusal;
use redrive::event::{AttemptHistory, AttemptRecord};
use redrive::{Event, EventStatus, Moment, Reply};
use serde_json::{Map, Value, json};

use super::ApiProblem;

/// A moment in RFC 3339 with milliseconds. The format ends with the year 9999 and moments end in 2554, so every
/// moment can be written.
#[must_use]
pub fn moment(moment: Moment) -> String {
    humantime::format_rfc3339_millis(moment.into()).to_string()
}

/// The state of an event: the common part of every response about one.
#[must_use]
pub fn found(found: &EventStatus) -> Value {
    let mut view = json!({
        "state": found.state.as_str(),
        "rev": found.rev,
        "published": moment(found.published),
        "attempts": found.attempts,
    });
    let Value::Object(members) = &mut view else { return view };
    let mut put = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            members.insert(name.to_owned(), value);
        }
    };
    let time = |at: Option<Moment>| at.map(|at| moment(at).into());
    put("due", time(found.due));
    put("ended", time(found.ended));
    put("until", time(found.until));
    put("reason", found.reason.map(|reason| reason.as_str().into()));
    put("cause", found.cause.map(|cause| cause.to_string().into()));
    put("route", found.route.clone().map(Value::from));
    put("edited_into", found.edited_into.clone().map(Value::from));
    put("holds_key", found.holds.then(|| true.into()));
    put("result", found.result.as_deref().map(bytes));
    view
}

/// An event with its state, without its payload.
#[must_use]
pub fn event(event: &Event, known: &EventStatus) -> Value {
    let mut members = Map::new();
    members.insert("queue".to_owned(), event.queue.clone().into());
    members.insert("tenant".to_owned(), event.tenant.clone().into());
    members.insert("id".to_owned(), event.id.clone().into());
    if let Some(key) = &event.key {
        members.insert("key".to_owned(), key.clone().into());
    }
    if let Value::Object(known) = found(known) {
        members.extend(known);
    }
    Value::Object(members)
}

/// The payload, headers and lineage of an event.
#[must_use]
pub fn contents(event: &Event) -> Map<String, Value> {
    let mut members = Map::new();
    let (name, payload) = match std::str::from_utf8(&event.payload) {
        Ok(text) => ("payload", text.to_owned()),
        Err(_) => ("payload_base64", STANDARD.encode(&event.payload)),
    };
    members.insert(name.to_owned(), payload.into());
    if let Some(meta) = &event.meta {
        let headers = meta.headers.iter().map(|(name, value)| json!([name, value]));
        members.insert("headers".to_owned(), headers.collect());
        let mut put = |name: &str, value: &Option<String>| {
            if let Some(value) = value {
                members.insert(name.to_owned(), value.clone().into());
            }
        };
        put("content_type", &meta.content_type);
        put("correlation", &meta.correlation);
        put("causation", &meta.causation);
    }
    members
}

/// Bytes as text where they are text, and as `{"base64": "…"}` otherwise.
#[must_use]
pub fn bytes(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.into(),
        Err(_) => json!({ "base64": STANDARD.encode(bytes) }),
    }
}

/// The stored attempts, oldest first.
#[must_use]
pub fn history(history: &AttemptHistory) -> Value {
    let mut records: Vec<Value> = history.first.iter().map(record).collect();
    if history.left_out > 0 {
        records.push(json!({ "left_out": history.left_out }));
    }
    records.extend(history.last.iter().map(record));
    records.into()
}

fn record(record: &AttemptRecord) -> Value {
    let at = Moment::from_nanos(record.at_ms.saturating_mul(1_000_000));
    let mut view = json!({
        "attempt": record.attempt,
        "mode": record.mode,
        "at": moment(at),
        "took_ms": record.took_ms,
        "disposition": record.disposition,
    });
    if let Some(executed) = record.executed {
        view["executed"] = executed.as_str().into();
    }
    if let Some(cause) = &record.cause {
        view["cause"] = json!({ "kind": cause.kind, "code": cause.code, "message": cause.message });
    }
    if let Some(delay) = record.delay_ms {
        view["delay_ms"] = delay.into();
    }
    view
}

/// An attempt that ended just now, without the text of its error, which may contain data.
#[must_use]
pub fn attempt(id: &str, attempt: u32, reply: &Reply) -> Value {
    let mut view = json!({
        "at": moment(Moment::from(std::time::SystemTime::now())),
        "id": id,
        "attempt": attempt,
        "disposition": reply.word(),
    });
    if let Some(cause) = reply.cause() {
        view["error"] = json!({ "kind": cause.kind, "code": cause.code });
    }
    view
}

/// An order that was refused.
#[must_use]
pub fn refused(refusal: &Refusal) -> ApiProblem {
    let detail = refusal.to_string();
    let (status, kind) = match refusal {
        Refusal::Unknown | Refusal::NoJob | Refusal::NoRule | Refusal::NoRequest => {
            (StatusCode::NOT_FOUND, "not-found")
        }
        Refusal::NoQueue { .. } => (StatusCode::NOT_FOUND, "no-such-queue"),
        Refusal::Senseless(_) => (StatusCode::UNPROCESSABLE_ENTITY, "senseless"),
        Refusal::OutOfOrder => (StatusCode::CONFLICT, "out-of-order"),
        Refusal::Changed { .. } => (StatusCode::CONFLICT, "changed"),
        _ => (StatusCode::CONFLICT, "conflict"),
    };
    ApiProblem::new(status, kind, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_moment_can_be_written() {
        let last = "2554-07-21T23:34:33.709Z";
        let far = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1 << 40);
        assert_eq!(moment(Moment::default()), "1970-01-01T00:00:00.000Z");
        assert_eq!(moment(Moment::from_nanos(u64::MAX)), last);
        assert_eq!(moment(far.into()), last, "a time of day beyond them is the last of them");
    }
}
