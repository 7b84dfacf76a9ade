//! How groups, jobs, rules, requests and lines of the audit look on the wire.

use redrive::desk::{
    ActiveRule, AuditLine, FailingGroup, Group, Job, JobAct, JobPreview, LedgerRecord, RecordPhase,
    RequestScope, Rule, StoredReply,
};
use redrive::event::AttemptHistory;
use redrive::http::idempotent::protection::is_sealed;
use redrive::{Event, EventStatus};
use serde_json::{Map, Value, json};

use super::super::wire::{self, AuditLineJson, JobJson, PlanJson, PlanQueueJson};

/// An event in a list: its state and its last error.
pub(super) fn event(event: &Event, found: &EventStatus) -> Value {
    let mut view = wire::event(event, found);
    if let Some(error) = found.history.as_deref().and_then(error) {
        view["error"] = error;
    }
    view
}

/// What went wrong last.
pub(super) fn error(history: &AttemptHistory) -> Option<Value> {
    let cause = history.records().rev().find_map(|record| record.cause.as_ref())?;
    Some(json!({ "kind": cause.kind, "code": cause.code, "message": cause.message }))
}

pub(super) fn group(group: &Group) -> Value {
    let mut view = json!({
        "title": group.title,
        "queues": group.queues,
        "letters": group.letters,
        "first": wire::moment(group.first),
        "last": wire::moment(group.last),
        "keys_blocked": group.keys_blocked,
    });
    if let Some(cause) = group.cause {
        view["cause"] = cause.to_string().into();
    }
    if let Some(redriven) = group.redriven {
        view["redriven"] = json!({
            "at": wire::moment(redriven.at), "letters": redriven.letters, "failed": redriven.failed,
        });
    }
    view
}

pub(super) fn failing(group: &FailingGroup) -> Value {
    let queue = |(queue, events): &(String, u64)| json!({ "queue": queue, "events": events });
    json!({
        "cause": group.cause.to_string(),
        "title": group.title,
        "queues": group.queues.iter().map(queue).collect::<Vec<_>>(),
        "events": group.events,
        "since": wire::moment(group.since),
        "last": wire::moment(group.last),
        "next": wire::moment(group.next),
        "attempts": group.attempts,
        "keys_blocked": group.keyed,
    })
}

pub(super) fn plan(plan: &JobPreview) -> PlanJson {
    let matching = &plan.matching;
    let queues = matching.queues.iter();
    PlanJson {
        letters: matching.letters,
        keys_blocked: matching.keys_blocked,
        out_of_order: matching.out_of_order,
        redriven_before: matching.redriven_before,
        unsure: matching.unsure,
        queues: queues
            .map(|(queue, letters)| PlanQueueJson { queue: queue.clone(), letters: *letters })
            .collect(),
        keys: matching.keys.clone(),
        time: duration(plan.time),
        warnings: plan.warnings.clone(),
    }
}

/// A duration to the millisecond, as in settings.
fn duration(time: std::time::Duration) -> String {
    let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    humantime::format_duration(std::time::Duration::from_millis(millis)).to_string()
}

pub(super) fn job(job: &Job) -> JobJson {
    let strategy = job.plan.strategy;
    let ramp = std::time::Duration::from_millis(strategy.ramp_ms);
    let redrive = match &job.plan.act {
        JobAct::Redrive(how) => Some(how),
        _ => None,
    };
    JobJson {
        id: job.id.0,
        state: job.state.as_str().to_owned(),
        act: job.plan.act.word().to_owned(),
        filter: filter(&job.plan.filter),
        who: job.who.clone(),
        started: wire::moment(job.started),
        planned: job.planned,
        taken: job.taken,
        skipped: job.skipped,
        done: job.done,
        failed: job.failed,
        other: job.other,
        under_way: if job.plan.act.runs() { job.under_way() } else { 0 },
        why: Some(job.why.clone()).filter(|why| !why.is_empty()),
        ended: job.ended.map(wire::moment),
        rate: strategy.rate,
        ramp: (!ramp.is_zero()).then(|| duration(ramp)),
        canary: strategy.canary.map(u64::from),
        stop_at: strategy.stop_at,
        to: redrive.and_then(|how| how.to.clone()),
        keep_attempts: redrive.is_some_and(|how| how.keep_attempts),
        out_of_order: redrive.is_some_and(|how| how.out_of_order),
    }
}

/// A filter as it can be asked for again.
fn filter(filter: &redrive::desk::Filter) -> Value {
    let mut members = Map::new();
    let mut put = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            members.insert(name.to_owned(), value);
        }
    };
    let time =
        |nanos: Option<u64>| nanos.map(|nanos| wire::moment(redrive::Moment::from_nanos(nanos)).into());
    let word = |text: &Option<String>| text.clone().map(Value::from);
    put("queue", word(&filter.queue));
    put("tenant", word(&filter.tenant));
    put("key", word(&filter.key));
    put("id", word(&filter.id));
    put("cause", filter.cause.map(|cause| cause.to_string().into()));
    put("reason", word(&filter.reason));
    put("attempts_min", filter.attempts_min.map(Value::from));
    put("attempts_max", filter.attempts_max.map(Value::from));
    put("since", time(filter.since_ns));
    put("before", time(filter.before_ns));
    put("match", word(&filter.text));
    members.into()
}

/// A rule that holds, in the form in which it is made.
pub(super) fn control(control: &ActiveRule) -> Value {
    let mut view = rule(&control.rule);
    view["since"] = wire::moment(control.since).into();
    view["who"] = control.who.clone().into();
    if let Some(until) = control.until {
        view["until"] = wire::moment(until).into();
    }
    if !control.why.is_empty() {
        view["why"] = control.why.clone().into();
    }
    view
}

pub(super) fn rule(rule: &Rule) -> Value {
    let mut view = match rule {
        Rule::Pause { queue } | Rule::PauseRetries { queue } => json!({ "queue": queue }),
        Rule::QuarantineTenant { queue: None, tenant } => json!({ "tenant": tenant }),
        Rule::QuarantineTenant { queue, tenant } => json!({ "queue": queue, "tenant": tenant }),
        Rule::QuarantineKey { queue, tenant, key } | Rule::ParkKey { queue, tenant, key } => {
            json!({ "queue": queue, "tenant": tenant, "key": key })
        }
        Rule::Reroute { queue, to } => json!({ "queue": queue, "to": to }),
    };
    view["rule"] = rule.word().into();
    view
}

pub(super) fn line(line: &AuditLine) -> AuditLineJson {
    AuditLineJson {
        number: line.number,
        at: wire::moment(line.at),
        who: line.by.who.clone(),
        from: line.by.from.clone(),
        verb: line.verb.clone(),
        target: line.target.clone(),
        count: line.count,
        note: line.note.clone(),
    }
}

/// A request without its reply.
pub(super) fn request(scope: &RequestScope, record: &LedgerRecord) -> Value {
    let RequestScope { tenant, operation, .. } = scope;
    let mut view = json!({
        "tenant": tenant,
        "operation": operation,
        "key": scope.client_key(),
        "state": record.phase.as_str(),
        "attempt": record.attempt,
        "first": wire::moment(record.first),
    });
    let Value::Object(members) = &mut view else { return view };
    let mut put = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            members.insert(name.to_owned(), value);
        }
    };
    let time = |at: redrive::Moment| Some(wire::moment(at).into());
    put("principal", scope.principal().map(Value::from));
    put("resource", record.resource.clone().map(Value::from));
    match &record.phase {
        RecordPhase::InFlight { began, until } => {
            put("since", time(*began));
            put("lease_until", time(*until));
        }
        RecordPhase::Retriable { since, not_before } => {
            put("since", time(*since));
            put("not_before", not_before.and_then(time));
            put("until", time(*since + record.retention.answer));
        }
        RecordPhase::Unknown { since } => put("since", time(*since)),
        RecordPhase::Completed { reply, at } => {
            put("since", time(*at));
            put("status", Some(reply.status.into()));
            put("location", reply.location().map(Value::from));
            put("sealed", is_sealed(reply).then(|| true.into()));
            put("gone", reply.body.is_none().then(|| true.into()));
            put("until", time(*at + record.retention.answer));
        }
        RecordPhase::Tombstone { status, location, until } => {
            put("status", status.map(Value::from));
            put("location", location.clone().map(Value::from));
            put("gone", Some(true.into()));
            put("until", time(*until));
        }
    }
    view
}

/// Adds the reply of a request.
pub(super) fn put_contents(view: &mut Value, reply: &StoredReply) {
    let headers = reply.headers.iter().map(|(name, value)| json!([name, wire::bytes(value)]));
    view["headers"] = headers.collect();
    if let Some(body) = &reply.body {
        view["body"] = wire::bytes(body);
    }
}
