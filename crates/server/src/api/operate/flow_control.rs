//! Holding back: queues with what holds them, pauses, reroutes, and rules of every kind.
//!
//! A rule is flat, `{"rule": "park-key", "queue": …, "tenant": …, "key": …, "for": "30m", "why": …}`, and is listed
//! in the form in which it is set. A token with a tenant sees only the rules over that tenant's keys: it may not lift
//! a quarantine of the whole tenant.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use axum::routing::{get, post};
use axum::{Json, Router};
use redrive::desk::{ActiveRule, Rule};
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::{ApiProblem, Path, RequestBody};
use super::inspect::is_yes;
use super::query::{QueryParams, needed, slice};
use super::{OperatorContext, to_json};
use crate::app::App;
use crate::config::{Config, Order};

/// The kinds of rules.
const WORDS: [&str; 6] =
    ["pause", "pause-retries", "quarantine-tenant", "quarantine-key", "park-key", "reroute"];

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/queues", get(queues))
        .route("/v1/queues/{queue}", get(queue))
        .route("/v1/queues/{queue}/pause", post(pause))
        .route("/v1/queues/{queue}/resume", post(resume))
        .route("/v1/queues/{queue}/reroute", post(reroute))
        .route("/v1/rules", get(rules).post(set))
        .route("/v1/rules/lift", post(lift))
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct QueuesQuery {
    counts: Option<String>,
    after: Option<usize>,
    limit: Option<usize>,
}

async fn queues(
    context: OperatorContext,
    QueryParams(QueuesQuery { counts, after, limit }): QueryParams<QueuesQuery>,
) -> Result<Json<Value>, ApiProblem> {
    context.may_read()?;
    context.caller.for_all_tenants("a list of queues")?;
    let counts = counts.is_none() || is_yes("counts", counts.as_deref())?;
    let mut states = states(&context, counts).await?;
    states.retain(|queue, _| context.caller.sees(queue));
    Ok(Json(slice("queues", states.into_values().collect(), after, limit)?))
}

async fn queue(context: OperatorContext, Path(queue): Path<String>) -> Result<Json<Value>, ApiProblem> {
    context.may_read()?;
    context.caller.for_all_tenants("a queue")?;
    context.caller.queue(&queue)?;
    let state = states(&context, true).await?.remove(&queue);
    state.map(Json).ok_or_else(|| ApiProblem::no_queue(&queue))
}

/// Every queue that is configured, that the store knows, or that has a rule. Counting reads every event.
async fn states(context: &OperatorContext, counts: bool) -> Result<BTreeMap<String, Value>, ApiProblem> {
    let has_counts = counts;
    let counts = if counts { context.app.redrive.counts().await? } else { Vec::new() };
    let pressures = context.app.redrive.pressures();
    let rules = context.desk.rules().await?.list;
    let known = context.app.redrive.queue_names().await?;
    let live = context.app.live();
    let mut names: BTreeSet<&str> = live.config.queues.keys().map(String::as_str).collect();
    names.extend(known.iter().map(String::as_str).filter(|name| *name != crate::notify::QUEUE));
    names.extend(counts.iter().map(|count| count.queue.as_str()));
    names.extend(rules.iter().filter_map(|control| queue_of(&control.rule)));
    let state = |name: &str| {
        let mut view = settings(&live.config, name);
        let of_queue = counts.iter().filter(|count| count.queue == name);
        if has_counts {
            view["events"] =
                of_queue.map(|count| (count.state.as_str().to_owned(), json!(count.events))).collect();
        }
        if let Some(pressure) = pressures.iter().find(|pressure| pressure.queue == name) {
            if let Some(tokens) = pressure.budget_tokens {
                view["budget"] = tokens.into();
            }
            if let Some(breaker) = pressure.breaker {
                view["breaker"] = breaker_word(breaker.as_number()).into();
            }
        }
        let held = rules.iter().filter(|control| queue_of(&control.rule) == Some(name));
        view["rules"] = held.map(to_json::control).collect();
        (name.to_owned(), view)
    };
    Ok(names.into_iter().map(state).collect())
}

/// The state of a breaker in a word.
const fn breaker_word(state: u8) -> &'static str {
    match state {
        0 => "closed",
        1 => "half-open",
        _ => "open",
    }
}

/// The configuration of a queue. An unconfigured queue may still have events.
fn settings(config: &Config, name: &str) -> Value {
    let Some(settings) = config.queues.get(name) else { return json!({ "queue": name }) };
    let order = if settings.order == Order::Key { "key" } else { "none" };
    let delivery = if settings.pull.is_some() { "pull" } else { "push" };
    json!({ "queue": name, "delivery": delivery, "order": order })
}

fn queue_of(rule: &Rule) -> Option<&str> {
    match rule {
        Rule::QuarantineTenant { queue, .. } => queue.as_deref(),
        Rule::Pause { queue }
        | Rule::PauseRetries { queue }
        | Rule::QuarantineKey { queue, .. }
        | Rule::ParkKey { queue, .. }
        | Rule::Reroute { queue, .. } => Some(queue),
    }
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct PauseRequest {
    #[serde(rename = "for", with = "redrive::config::optional")]
    time: Option<Duration>,
    retries: bool,
    why: String,
}

async fn pause(
    context: OperatorContext,
    Path(queue): Path<String>,
    body: RequestBody,
) -> Result<Json<Value>, ApiProblem> {
    context.may_operate()?;
    context.caller.for_all_tenants("a queue")?;
    context.caller.queue(&queue)?;
    let PauseRequest { time, retries, why } = body.object_or_default()?;
    let rule = if retries { Rule::PauseRetries { queue } } else { Rule::Pause { queue } };
    make(&context, rule, time, &why).await
}

async fn resume(
    context: OperatorContext,
    Path(queue): Path<String>,
    _: RequestBody,
) -> Result<Json<Value>, ApiProblem> {
    context.may_operate()?;
    context.caller.for_all_tenants("a queue")?;
    context.caller.queue(&queue)?;
    context.desk.resume(&queue).await?;
    Ok(Json(json!({ "queue": queue, "changed": 1 })))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RerouteRequest {
    to: Option<String>,
    #[serde(default, rename = "for", with = "redrive::config::optional")]
    time: Option<Duration>,
    #[serde(default)]
    why: String,
}

/// Reroutes a queue to the handler of another one; back to its own if `to` is null.
async fn reroute(
    context: OperatorContext,
    Path(queue): Path<String>,
    body: RequestBody,
) -> Result<Json<Value>, ApiProblem> {
    context.may_operate()?;
    context.caller.for_all_tenants("a queue")?;
    context.caller.queue(&queue)?;
    let RerouteRequest { to, time, why } = body.object()?;
    context.may_send_to(to.as_deref())?;
    if let Some(to) = to {
        return make(&context, Rule::Reroute { queue, to }, time, &why).await;
    }
    let rules = context.desk.rules().await?.list;
    let is_route =
        |control: &ActiveRule| matches!(&control.rule, Rule::Reroute { queue: of, .. } if *of == queue);
    let Some(control) = rules.into_iter().find(is_route) else {
        return Err(ApiProblem::not_found(format!("the queue `{queue}` is not rerouted")));
    };
    context.desk.lift(control.rule).await?;
    Ok(Json(json!({ "queue": queue, "changed": 1 })))
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct RulesQuery {
    rule: Option<String>,
    after: Option<usize>,
    limit: Option<usize>,
}

async fn rules(
    context: OperatorContext,
    QueryParams(asked): QueryParams<RulesQuery>,
) -> Result<Json<Value>, ApiProblem> {
    context.may_read()?;
    if let Some(word) = asked.rule.as_deref().filter(|word| !WORDS.contains(word)) {
        return Err(no_rule(word));
    }
    let mut rules = context.desk.rules().await?.list;
    rules.retain(|control| {
        let wanted = asked.rule.as_deref().is_none_or(|word| word == control.rule.word());
        let caller = &context.caller;
        let of_tenant = caller.tenant.as_deref().is_none_or(|own| tenant_of(&control.rule) == Some(own));
        let of_queue =
            queue_of(&control.rule).map_or(!caller.is_for_some_queues(), |queue| caller.sees(queue));
        wanted && of_tenant && of_queue
    });
    let rules = rules.iter().map(to_json::control).collect();
    Ok(Json(slice("rules", rules, asked.after, asked.limit)?))
}

fn no_rule(word: &str) -> ApiProblem {
    ApiProblem::bad_request(format!("`rule` must be one of {}; not `{word}`", WORDS.join(", ")))
}

fn tenant_of(rule: &Rule) -> Option<&str> {
    match rule {
        Rule::QuarantineTenant { tenant, .. }
        | Rule::QuarantineKey { tenant, .. }
        | Rule::ParkKey { tenant, .. } => Some(tenant),
        Rule::Pause { .. } | Rule::PauseRetries { .. } | Rule::Reroute { .. } => None,
    }
}

/// A rule as requested.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct RuleRequest {
    rule: String,
    queue: Option<String>,
    tenant: Option<String>,
    key: Option<String>,
    to: Option<String>,
    #[serde(rename = "for", with = "redrive::config::optional")]
    time: Option<Duration>,
    why: String,
}

impl RuleRequest {
    /// Parses the rule; members that do not apply are refused.
    fn rule(&mut self, context: &OperatorContext) -> Result<Rule, ApiProblem> {
        let word = std::mem::take(&mut self.rule);
        let [queue, key, to] = [self.queue.take(), self.key.take(), self.to.take()];
        let (has_key, has_to, has_tenant) = (key.is_some(), to.is_some(), self.tenant.is_some());
        let tenant = self.tenant.take();
        let of_key = |queue, key| -> Result<[String; 3], ApiProblem> {
            Ok([needed("queue", queue)?, context.tenant(tenant.as_deref())?, needed("key", key)?])
        };
        let (rule, spare) = match word.as_str() {
            "pause" | "pause-retries" => {
                context.caller.for_all_tenants("a queue")?;
                let queue = needed("queue", queue)?;
                let rule = if word == "pause" { Rule::Pause { queue } } else { Rule::PauseRetries { queue } };
                (rule, has_key || has_to || has_tenant)
            }
            "quarantine-tenant" => {
                context.caller.for_all_tenants("a tenant's quarantine")?;
                let tenant = needed("tenant", tenant)?;
                (Rule::QuarantineTenant { queue, tenant }, has_key || has_to)
            }
            "quarantine-key" => {
                let [queue, tenant, key] = of_key(queue, key)?;
                (Rule::QuarantineKey { queue, tenant, key }, has_to)
            }
            "park-key" => {
                let [queue, tenant, key] = of_key(queue, key)?;
                (Rule::ParkKey { queue, tenant, key }, has_to)
            }
            "reroute" => {
                context.caller.for_all_tenants("a queue")?;
                let (queue, to) = (needed("queue", queue)?, needed("to", to)?);
                (Rule::Reroute { queue, to }, has_key || has_tenant)
            }
            _ => return Err(no_rule(&word)),
        };
        match queue_of(&rule) {
            Some(queue) => context.caller.queue(queue)?,
            None => context.caller.for_all_queues("a tenant's quarantine without a queue")?,
        }
        if spare {
            return Err(ApiProblem::bad_request(format!("{word} does not take all of these members")));
        }
        Ok(rule)
    }
}

async fn set(context: OperatorContext, body: RequestBody) -> Result<Json<Value>, ApiProblem> {
    context.may_operate()?;
    let mut wanted: RuleRequest = body.object()?;
    let rule = wanted.rule(&context)?;
    if let Rule::Reroute { to, .. } = &rule {
        context.may_send_to(Some(to))?;
    }
    make(&context, rule, wanted.time, &wanted.why).await
}

async fn lift(context: OperatorContext, body: RequestBody) -> Result<Json<Value>, ApiProblem> {
    context.may_operate()?;
    let mut wanted: RuleRequest = body.object()?;
    let rule = wanted.rule(&context)?;
    if wanted.time.is_some() || !wanted.why.is_empty() {
        return Err(ApiProblem::bad_request("`for` and `why` do not apply when a rule is lifted"));
    }
    let mut answer = to_json::rule(&rule);
    context.desk.lift(rule).await?;
    answer["changed"] = 1.into();
    Ok(Json(answer))
}

/// Makes a rule, and answers with it as it holds.
pub(super) async fn make(
    context: &OperatorContext,
    rule: Rule,
    time: Option<Duration>,
    why: &str,
) -> Result<Json<Value>, ApiProblem> {
    context.desk.set(rule.clone(), time, why).await?;
    let rules = context.desk.rules().await?.list;
    let made = rules.iter().find(|control| control.rule == rule);
    // A rule that ends at once is already over.
    let mut answer = made.map_or_else(|| to_json::rule(&rule), to_json::control);
    answer["changed"] = 1.into();
    Ok(Json(answer))
}
