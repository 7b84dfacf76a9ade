//! How groups, jobs, rules, requests and lines of the audit look on the wire.

use redrive::desk::{AuditLine, Control, Group, Job, JobAct, Phase, Plan, Record, Reply, Rule, Scope};
use redrive::event::Story;
use redrive::http::idempotent::keep::is_sealed;
use redrive::{Event, Found};
use serde_json::{Map, Value, json};

use super::super::wire;

/// An event of a list: what is known of it, and what went wrong last.
pub(super) fn event(event: &Event, found: &Found) -> Value {
    let mut view = wire::event(event, found);
    if let Some(error) = found.story.as_deref().and_then(error) {
        view["error"] = error;
    }
    view
}

/// What went wrong last.
pub(super) fn error(story: &Story) -> Option<Value> {
    let cause = story.records().rev().find_map(|record| record.cause.as_ref())?;
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

pub(super) fn plan(plan: &Plan) -> Value {
    let matching = &plan.matching;
    let queues = matching.queues.iter().map(|(queue, letters)| json!({ "queue": queue, "letters": letters }));
    json!({
        "letters": matching.letters,
        "keys_blocked": matching.keys_blocked,
        "out_of_order": matching.out_of_order,
        "redriven_before": matching.redriven_before,
        "unsure": matching.unsure,
        "queues": queues.collect::<Vec<_>>(),
        "keys": matching.keys,
        "time": duration(plan.time),
        "warnings": plan.warnings,
    })
}

/// A duration to the millisecond, as in settings.
fn duration(time: std::time::Duration) -> String {
    let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    humantime::format_duration(std::time::Duration::from_millis(millis)).to_string()
}

pub(super) fn job(job: &Job) -> Value {
    let strategy = job.plan.strategy;
    let mut view = json!({
        "id": job.id.0,
        "state": job.state.as_str(),
        "act": job.plan.act.word(),
        "filter": filter(&job.plan.filter),
        "who": job.who,
        "started": wire::moment(job.started),
        "planned": job.planned,
        "taken": job.taken,
        "skipped": job.skipped,
        "done": job.done,
        "failed": job.failed,
        "other": job.other,
        "under_way": if matches!(job.plan.act, JobAct::Redrive(_)) { job.under_way() } else { 0 },
    });
    let Value::Object(members) = &mut view else { return view };
    let mut put = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            members.insert(name.to_owned(), value);
        }
    };
    put("why", Some(job.why.as_str()).filter(|why| !why.is_empty()).map(Value::from));
    put("ended", job.ended.map(|ended| wire::moment(ended).into()));
    put("rate", strategy.rate.map(Value::from));
    let ramp = std::time::Duration::from_millis(strategy.ramp_ms);
    put("ramp", (!ramp.is_zero()).then(|| duration(ramp).into()));
    put("canary", strategy.canary.map(Value::from));
    put("stop_at", strategy.stop_at.map(Value::from));
    if let JobAct::Redrive(how) = &job.plan.act {
        put("to", how.to.clone().map(Value::from));
        put("keep_attempts", how.keep_attempts.then(|| true.into()));
        put("out_of_order", how.out_of_order.then(|| true.into()));
    }
    view
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
pub(super) fn control(control: &Control) -> Value {
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

pub(super) fn line(line: &AuditLine) -> Value {
    let mut view = json!({
        "number": line.number,
        "at": wire::moment(line.at),
        "who": line.by.who,
        "from": line.by.from,
        "verb": line.verb,
        "target": line.target,
        "count": line.count,
    });
    if !line.note.is_empty() {
        view["note"] = line.note.clone().into();
    }
    view
}

/// A request with what is known of it, without its answer.
pub(super) fn request(scope: &Scope, record: &Record) -> Value {
    let Scope { tenant, operation, key } = scope;
    let mut view = json!({
        "tenant": tenant,
        "operation": operation,
        "key": key,
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
    put("resource", record.resource.clone().map(Value::from));
    match &record.phase {
        Phase::InFlight { began, until } => {
            put("since", time(*began));
            put("lease_until", time(*until));
        }
        Phase::Retriable { since, not_before } => {
            put("since", time(*since));
            put("not_before", not_before.and_then(time));
            put("until", time(*since + record.retention.answer));
        }
        Phase::Unknown { since } => put("since", time(*since)),
        Phase::Completed { reply, at } => {
            put("since", time(*at));
            put("status", Some(reply.status.into()));
            put("location", reply.location().map(Value::from));
            put("sealed", is_sealed(reply).then(|| true.into()));
            put("gone", reply.body.is_none().then(|| true.into()));
            put("until", time(*at + record.retention.answer));
        }
        Phase::Tombstone { status, location, until } => {
            put("status", status.map(Value::from));
            put("location", location.clone().map(Value::from));
            put("gone", Some(true.into()));
            put("until", time(*until));
        }
    }
    view
}

/// What a request was answered.
pub(super) fn put_contents(view: &mut Value, reply: &Reply) {
    let headers = reply.headers.iter().map(|(name, value)| json!([name, wire::bytes(value)]));
    view["headers"] = headers.collect();
    if let Some(body) = &reply.body {
        view["body"] = wire::bytes(body);
    }
}
