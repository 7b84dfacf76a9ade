//! Keys: what holds one up, what waits, and letting it go.

use std::sync::Arc;
use std::time::Duration;

use axum::routing::{get, post};
use axum::{Json, Router};
use redrive::Query;
use redrive::desk::{Filter, Rule};
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::{Body, Problem};
use super::asked::{Asked, PAGE, needed};
use super::{Seat, flow, view};
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
struct Key {
    queue: Option<String>,
    tenant: Option<String>,
    key: Option<String>,
    #[serde(rename = "for", with = "redrive::config::optional")]
    time: Option<Duration>,
    why: String,
}

impl Key {
    /// Queue, tenant, key.
    fn name(self, seat: &Seat) -> Result<[String; 3], Problem> {
        let tenant = seat.tenant(self.tenant.as_deref())?;
        Ok([needed("queue", self.queue)?, tenant, needed("key", self.key)?])
    }

    /// The same, where there is nothing else to say.
    fn plain_name(self, seat: &Seat) -> Result<[String; 3], Problem> {
        if self.time.is_some() || !self.why.is_empty() {
            return Err(Problem::bad_request("`for` and `why` are for what is parked"));
        }
        self.name(seat)
    }
}

/// A key: the rules over it, and its events that have not ended, the head first.
async fn show(seat: Seat, Asked(asked): Asked<Key>) -> Result<Json<Value>, Problem> {
    seat.may_read()?;
    let [queue, tenant, key] = asked.plain_name(&seat)?;
    let rules = seat.desk.rules().await?.list;
    let rules = rules.iter().filter(|control| {
        let of_tenant = matches!(&control.rule, Rule::QuarantineTenant { queue: of, tenant: whose }
            if *whose == tenant && of.as_ref().is_none_or(|of| *of == queue));
        of_tenant || control.rule.key() == Some((queue.as_str(), tenant.as_str(), key.as_str()))
    });
    let rules: Vec<Value> = rules.map(view::control).collect();
    let (of_queue, of_tenant) = (Some(queue.clone()), Some(tenant.clone()));
    let filter = Filter { queue: of_queue, tenant: of_tenant, key: Some(key.clone()), ..Filter::default() };
    let mut query = Query { filter, state: None, after: None, limit: PAGE };
    let mut events: Vec<Value> = Vec::new();
    for _ in 0..WALKED_MAX {
        let page = seat.desk.list(query.clone()).await?;
        events.extend(page.events.iter().map(|(event, found)| view::event(event, found)));
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

async fn park(seat: Seat, body: Body) -> Result<Json<Value>, Problem> {
    seat.may_operate()?;
    let mut asked: Key = body.object()?;
    let (time, why) = (asked.time.take(), std::mem::take(&mut asked.why));
    let [queue, tenant, key] = asked.name(&seat)?;
    flow::make(&seat, Rule::ParkKey { queue, tenant, key }, time, &why).await
}

async fn unpark(seat: Seat, body: Body) -> Result<Json<Value>, Problem> {
    seat.may_operate()?;
    let [queue, tenant, key] = body.object::<Key>()?.plain_name(&seat)?;
    seat.desk.unpark(&queue, &tenant, &key).await?;
    Ok(Json(json!({ "queue": queue, "tenant": tenant, "key": key, "changed": 1 })))
}

async fn skip_head(seat: Seat, body: Body) -> Result<Json<Value>, Problem> {
    seat.may_operate()?;
    let [queue, tenant, key] = body.object::<Key>()?.plain_name(&seat)?;
    seat.desk.skip_head(&queue, &tenant, &key).await?;
    Ok(Json(json!({ "queue": queue, "tenant": tenant, "key": key, "changed": 1 })))
}
