//! Keys: what holds one up, what waits, and letting it go.

use std::sync::Arc;
use std::time::Duration;

use axum::routing::{get, post};
use axum::{Json, Router};
use redrive::EventQuery;
use redrive::desk::{Filter, Rule};
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::{ApiProblem, RequestBody};
use super::query::{PAGE, QueryParams, needed};
use super::{OperatorContext, flow_control, to_json};
use crate::app::App;

/// How many pages are walked for the events of a key; a page looks at ten thousand events of its queue.
const WALKED_MAX: usize = 20;

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/keys", get(show))
        .route("/v1/keys/park", post(park))
        .route("/v1/keys/unpark", post(unpark))
        .route("/v1/keys/skip-head", post(skip_head))
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct OrderingKeyRef {
    queue: Option<String>,
    tenant: Option<String>,
    key: Option<String>,
    #[serde(rename = "for", with = "redrive::config::optional")]
    time: Option<Duration>,
    why: String,
}

impl OrderingKeyRef {
    /// Queue, tenant, key.
    fn name(self, context: &OperatorContext) -> Result<[String; 3], ApiProblem> {
        let tenant = context.tenant(self.tenant.as_deref())?;
        let queue = needed("queue", self.queue)?;
        context.caller.queue(&queue)?;
        Ok([queue, tenant, needed("key", self.key)?])
    }

    /// The same, refusing all other members.
    fn plain_name(self, context: &OperatorContext) -> Result<[String; 3], ApiProblem> {
        if self.time.is_some() || !self.why.is_empty() {
            return Err(ApiProblem::bad_request("`for` and `why` apply to parking only"));
        }
        self.name(context)
    }
}

/// A key: the rules over it, and its events that have not ended, the head first.
async fn show(
    context: OperatorContext,
    QueryParams(asked): QueryParams<OrderingKeyRef>,
) -> Result<Json<Value>, ApiProblem> {
    context.may_read()?;
    let [queue, tenant, key] = asked.plain_name(&context)?;
    let rules = context.desk.rules().await?.list;
    let rules = rules.iter().filter(|control| {
        let of_tenant = matches!(&control.rule, Rule::QuarantineTenant { queue: of, tenant: whose }
            if *whose == tenant && of.as_ref().is_none_or(|of| *of == queue));
        of_tenant || control.rule.key() == Some((queue.as_str(), tenant.as_str(), key.as_str()))
    });
    let rules: Vec<Value> = rules.map(to_json::control).collect();
    let (of_queue, of_tenant) = (Some(queue.clone()), Some(tenant.clone()));
    let filter = Filter { queue: of_queue, tenant: of_tenant, key: Some(key.clone()), ..Filter::default() };
    let mut query = EventQuery { filter, state: None, after: None, limit: PAGE };
    let mut events: Vec<Value> = Vec::new();
    for _ in 0..WALKED_MAX {
        let page = context.desk.list(query.clone()).await?;
        events.extend(page.events.iter().map(|(event, found)| to_json::event(event, found)));
        query.after = page.next;
        if query.after.is_none() || events.len() >= PAGE {
            break;
        }
    }
    events.truncate(PAGE);
    let is_held = events.iter().any(|event| event["holds_key"] == true);
    let more = query.after.is_some();
    Ok(Json(json!({
        "queue": queue, "tenant": tenant, "key": key,
        "held_by_dead": is_held, "rules": rules, "events": events, "more": more,
    })))
}

async fn park(context: OperatorContext, body: RequestBody) -> Result<Json<Value>, ApiProblem> {
    context.may_operate()?;
    let mut asked: OrderingKeyRef = body.object()?;
    let (time, why) = (asked.time.take(), std::mem::take(&mut asked.why));
    let [queue, tenant, key] = asked.name(&context)?;
    flow_control::make(&context, Rule::ParkKey { queue, tenant, key }, time, &why).await
}

async fn unpark(context: OperatorContext, body: RequestBody) -> Result<Json<Value>, ApiProblem> {
    context.may_operate()?;
    let [queue, tenant, key] = body.object::<OrderingKeyRef>()?.plain_name(&context)?;
    context.desk.unpark(&queue, &tenant, &key).await?;
    Ok(Json(json!({ "queue": queue, "tenant": tenant, "key": key, "changed": 1 })))
}

async fn skip_head(context: OperatorContext, body: RequestBody) -> Result<Json<Value>, ApiProblem> {
    context.may_operate()?;
    let [queue, tenant, key] = body.object::<OrderingKeyRef>()?.plain_name(&context)?;
    context.desk.skip_head(&queue, &tenant, &key).await?;
    Ok(Json(json!({ "queue": queue, "tenant": tenant, "key": key, "changed": 1 })))
}
