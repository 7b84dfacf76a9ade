//! Holding back: queues with what holds them, pauses, reroutes, and rules of every kind.
//!
//! A rule is flat, `{"rule": "park-key", "queue": …, "tenant": …, "key": …, "for": "30m", "why": …}`, and is listed in
//! the form in which it is made. A token with a tenant has the rules over that tenant's keys alone: a quarantine of
//! the whole tenant is somebody else's to lift.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use axum::routing::{get, post};
use axum::{Json, Router};
use redrive::desk::{Control, Rule};
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::{Body, Path, Problem};
use super::asked::{Asked, Part, needed, slice};
use super::{Seat, view};
use crate::app::App;
use crate::config::{Config, Order};

/// The rules that there are.
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

async fn queues(seat: Seat, Asked(Part { after, limit }): Asked<Part>) -> Result<Json<Value>, Problem> {
    seat.may_read()?;
    seat.for_all_tenants("a list of queues")?;
    let states = states(&seat).await?;
    Ok(Json(slice("queues", states.into_values().collect(), after, limit)?))
}

async fn queue(seat: Seat, Path(queue): Path<String>) -> Result<Json<Value>, Problem> {
    seat.may_read()?;
    seat.for_all_tenants("a queue")?;
    let state = states(&seat).await?.remove(&queue);
    state.map(Json).ok_or_else(|| Problem::no_queue(&queue))
}

/// Every queue that is configured, has events, or is held by a rule.
async fn states(seat: &Seat) -> Result<BTreeMap<String, Value>, Problem> {
    let counts = seat.app.redrive.counts().await?;
    let rules = seat.desk.rules().await?.list;
    let live = seat.app.live();
    let mut names: BTreeSet<&str> = live.config.queues.keys().map(String::as_str).collect();
    names.extend(counts.iter().map(|count| count.queue.as_str()));
    names.extend(rules.iter().filter_map(|control| queue_of(&control.rule)));
    let state = |name: &str| {
        let mut view = settings(&live.config, name);
        let of_queue = counts.iter().filter(|count| count.queue == name);
        view["events"] =
            of_queue.map(|count| (count.state.as_str().to_owned(), json!(count.events))).collect();
        let held = rules.iter().filter(|control| queue_of(&control.rule) == Some(name));
        view["rules"] = held.map(view::control).collect();
        (name.to_owned(), view)
    };
    Ok(names.into_iter().map(state).collect())
}

/// What the configuration says of a queue. One that it does not know has events in the store all the same.
fn settings(config: &Config, name: &str) -> Value {
    let Some(settings) = config.queues.get(name) else { return json!({ "queue": name }) };
    let order = if settings.order == Order::Key { "key" } else { "none" };
    let goes = if settings.pull.is_some() { "pull" } else { "push" };
    json!({ "queue": name, "goes": goes, "order": order })
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
struct Pause {
    #[serde(rename = "for", with = "redrive::config::optional")]
    time: Option<Duration>,
    retries: bool,
    why: String,
}

async fn pause(seat: Seat, Path(queue): Path<String>, body: Body) -> Result<Json<Value>, Problem> {
    seat.may_operate()?;
    seat.for_all_tenants("a queue")?;
    let Pause { time, retries, why } = body.object_or_default()?;
    let rule = if retries { Rule::PauseRetries { queue } } else { Rule::Pause { queue } };
    make(&seat, rule, time, &why).await
}

async fn resume(seat: Seat, Path(queue): Path<String>, _: Body) -> Result<Json<Value>, Problem> {
    seat.may_operate()?;
    seat.for_all_tenants("a queue")?;
    seat.desk.resume(&queue).await?;
    Ok(Json(json!({ "queue": queue, "changed": 1 })))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Reroute {
    to: Option<String>,
    #[serde(default, rename = "for", with = "redrive::config::optional")]
    time: Option<Duration>,
    #[serde(default)]
    why: String,
}

/// Sends a queue's events to the handler of another one; back to its own where `to` is null.
async fn reroute(seat: Seat, Path(queue): Path<String>, body: Body) -> Result<Json<Value>, Problem> {
    seat.may_operate()?;
    seat.for_all_tenants("a queue")?;
    let Reroute { to, time, why } = body.object()?;
    if let Some(to) = to {
        return make(&seat, Rule::Reroute { queue, to }, time, &why).await;
    }
    let rules = seat.desk.rules().await?.list;
    let is_route =
        |control: &Control| matches!(&control.rule, Rule::Reroute { queue: of, .. } if *of == queue);
    let Some(control) = rules.into_iter().find(is_route) else {
        return Err(Problem::not_found(format!("the queue `{queue}` is not rerouted")));
    };
    seat.desk.lift(control.rule).await?;
    Ok(Json(json!({ "queue": queue, "changed": 1 })))
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Rules {
    rule: Option<String>,
    after: Option<usize>,
    limit: Option<usize>,
}

async fn rules(seat: Seat, Asked(asked): Asked<Rules>) -> Result<Json<Value>, Problem> {
    seat.may_read()?;
    if let Some(word) = asked.rule.as_deref().filter(|word| !WORDS.contains(word)) {
        return Err(no_rule(word));
    }
    let mut rules = seat.desk.rules().await?.list;
    rules.retain(|control| {
        let wanted = asked.rule.as_deref().is_none_or(|word| word == control.rule.word());
        wanted && seat.caller.tenant.as_deref().is_none_or(|own| tenant_of(&control.rule) == Some(own))
    });
    let rules = rules.iter().map(view::control).collect();
    Ok(Json(slice("rules", rules, asked.after, asked.limit)?))
}

fn no_rule(word: &str) -> Problem {
    Problem::bad_request(format!("`rule` is one of {}; not `{word}`", WORDS.join(", ")))
}

fn tenant_of(rule: &Rule) -> Option<&str> {
    match rule {
        Rule::QuarantineTenant { tenant, .. }
        | Rule::QuarantineKey { tenant, .. }
        | Rule::ParkKey { tenant, .. } => Some(tenant),
        Rule::Pause { .. } | Rule::PauseRetries { .. } | Rule::Reroute { .. } => None,
    }
}

/// A rule as somebody wants it.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Wanted {
    rule: String,
    queue: Option<String>,
    tenant: Option<String>,
    key: Option<String>,
    to: Option<String>,
    #[serde(rename = "for", with = "redrive::config::optional")]
    time: Option<Duration>,
    why: String,
}

impl Wanted {
    /// The rule that is meant; members that it has no use for are refused.
    fn rule(&mut self, seat: &Seat) -> Result<Rule, Problem> {
        let word = std::mem::take(&mut self.rule);
        let [queue, key, to] = [self.queue.take(), self.key.take(), self.to.take()];
        let (has_key, has_to, has_tenant) = (key.is_some(), to.is_some(), self.tenant.is_some());
        let tenant = self.tenant.take();
        let of_key = |queue, key| -> Result<[String; 3], Problem> {
            Ok([needed("queue", queue)?, seat.tenant(tenant.as_deref())?, needed("key", key)?])
        };
        let (rule, spare) = match word.as_str() {
            "pause" | "pause-retries" => {
                seat.for_all_tenants("a queue")?;
                let queue = needed("queue", queue)?;
                let rule = if word == "pause" { Rule::Pause { queue } } else { Rule::PauseRetries { queue } };
                (rule, has_key || has_to || has_tenant)
            }
            "quarantine-tenant" => {
                seat.for_all_tenants("a tenant's quarantine")?;
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
                seat.for_all_tenants("a queue")?;
                let (queue, to) = (needed("queue", queue)?, needed("to", to)?);
                (Rule::Reroute { queue, to }, has_key || has_tenant)
            }
            _ => return Err(no_rule(&word)),
        };
        if spare {
            return Err(Problem::bad_request(format!("{word} has no use for all of these members")));
        }
        Ok(rule)
    }
}

async fn set(seat: Seat, body: Body) -> Result<Json<Value>, Problem> {
    seat.may_operate()?;
    let mut wanted: Wanted = body.object()?;
    let rule = wanted.rule(&seat)?;
    make(&seat, rule, wanted.time, &wanted.why).await
}

async fn lift(seat: Seat, body: Body) -> Result<Json<Value>, Problem> {
    seat.may_operate()?;
    let mut wanted: Wanted = body.object()?;
    let rule = wanted.rule(&seat)?;
    if wanted.time.is_some() || !wanted.why.is_empty() {
        return Err(Problem::bad_request("what is lifted has no `for` and no `why`"));
    }
    let mut answer = view::rule(&rule);
    seat.desk.lift(rule).await?;
    answer["changed"] = 1.into();
    Ok(Json(answer))
}

/// Makes a rule, and answers with it as it holds.
pub(super) async fn make(
    seat: &Seat,
    rule: Rule,
    time: Option<Duration>,
    why: &str,
) -> Result<Json<Value>, Problem> {
    seat.desk.set(rule.clone(), time, why).await?;
    let rules = seat.desk.rules().await?.list;
    let made = rules.iter().find(|control| control.rule == rule);
    // One that ends at once is over already.
    let mut answer = made.map_or_else(|| view::rule(&rule), view::control);
    answer["changed"] = 1.into();
    Ok(Json(answer))
}
