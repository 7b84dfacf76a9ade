//! Which events a command is about: by filter, or by id.

use anyhow::{Result, bail};
use serde_json::{Map, Value, json};

use super::client::{DeskClient, QueryParams};
use super::output::text;

/// Events per page requested.
const PAGE: usize = 500;

/// A filter: events that match every given option.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "EventSelector")]
pub(super) struct EventSelector {
    /// Only events of this queue
    #[arg(long, value_name = "QUEUE")]
    pub(super) queue: Option<String>,
    /// Only events of this tenant
    #[arg(long, value_name = "TENANT")]
    pub(super) tenant: Option<String>,
    /// Only events with this ordering key
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Only this group: a cause from `redrive dead groups`, or a prefix of it
    #[arg(long, value_name = "CAUSE")]
    group: Option<String>,
    /// Only dead letters with this reason
    #[arg(long, value_name = "REASON")]
    reason: Option<String>,
    /// Minimum number of attempts
    #[arg(long, value_name = "N")]
    attempts_min: Option<u32>,
    /// Maximum number of attempts
    #[arg(long, value_name = "N")]
    attempts_max: Option<u32>,
    /// Since this time, or this long ago, e.g. 2h
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Until this time, or this long ago
    #[arg(long, value_name = "TIME")]
    before: Option<String>,
    /// Only events with this text in id, key or error
    #[arg(long = "match", value_name = "TEXT")]
    text: Option<String>,
}

impl EventSelector {
    /// Whether the filter is empty.
    pub(super) fn is_everything(&self) -> bool {
        self.pairs_of(None).is_empty() && self.group.is_none()
    }

    /// Whether the filter has nothing but queue and tenant.
    pub(super) fn is_place(&self) -> bool {
        Self { queue: None, tenant: None, ..self.clone() }.is_everything()
    }

    /// As query parameters.
    pub(super) async fn pairs(&self, client: &DeskClient) -> Result<QueryParams> {
        let cause = match &self.group {
            None => None,
            Some(group) => Some(cause(client, group).await?),
        };
        Ok(self.pairs_of(cause))
    }

    /// As a filter in a request body.
    pub(super) async fn filter(&self, client: &DeskClient) -> Result<Value> {
        let number = |(name, text): (&'static str, String)| match name {
            "attempts_min" | "attempts_max" => {
                (name.to_owned(), text.parse::<u32>().map_or(Value::Null, Value::from))
            }
            name => (name.to_owned(), text.into()),
        };
        Ok(Value::Object(self.pairs(client).await?.into_iter().map(number).collect::<Map<_, _>>()))
    }

    fn pairs_of(&self, cause: Option<String>) -> QueryParams {
        let all = [
            ("queue", self.queue.clone()),
            ("tenant", self.tenant.clone()),
            ("key", self.key.clone()),
            ("cause", cause),
            ("reason", self.reason.clone()),
            ("attempts_min", self.attempts_min.map(|number| number.to_string())),
            ("attempts_max", self.attempts_max.map(|number| number.to_string())),
            ("since", self.since.clone()),
            ("before", self.before.clone()),
            ("match", self.text.clone()),
        ];
        all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }
}

/// Resolves a group's cause from a prefix.
async fn cause(client: &DeskClient, begin: &str) -> Result<String> {
    if begin.len() == 16 {
        return Ok(begin.to_owned());
    }
    let answer = client.get("/v1/dead/groups", &vec![("limit", "1000".to_owned())]).await?;
    let causes = answer["groups"].as_array().into_iter().flatten().map(|group| text(group, "cause"));
    let fitting: Vec<String> = causes.filter(|cause| !begin.is_empty() && cause.starts_with(begin)).collect();
    match &fitting[..] {
        [cause] => Ok(cause.clone()),
        [] => bail!("no group starts with `{begin}`; see `redrive dead groups`"),
        _ => bail!("several groups start with `{begin}`: {}", fitting.join(", ")),
    }
}

/// An event by its id. Queue and tenant are looked up if absent.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct EventLocation {
    /// The event's queue; looked up if omitted
    #[arg(long, value_name = "QUEUE")]
    pub(super) queue: Option<String>,
    /// The event's tenant; looked up if queue and tenant are omitted
    #[arg(long, value_name = "TENANT")]
    pub(super) tenant: Option<String>,
}

impl EventLocation {
    /// The event as `{queue, tenant, id}`.
    pub(super) async fn find(&self, client: &DeskClient, id: &str) -> Result<Value> {
        let named = |queue: &str, tenant: &str| json!({ "queue": queue, "tenant": tenant, "id": id });
        if let Some(queue) = &self.queue {
            // A token with a tenant uses its own; otherwise an absent tenant is the empty tenant.
            let mut named = named(queue, "");
            named["tenant"] = self.tenant.clone().into();
            return Ok(named);
        }
        let mut query: QueryParams = vec![("id", id.to_owned())];
        query.extend(self.tenant.clone().map(|tenant| ("tenant", tenant)));
        let answer = client.get("/v1/lookup", &query).await?;
        let found = answer["events"].as_array().cloned().unwrap_or_default();
        match &found[..] {
            [one] => Ok(named(&text(one, "queue"), &text(one, "tenant"))),
            [] if answer["complete"] == true => bail!("there is no event `{id}`, or it has been forgotten"),
            [] => bail!(
                "`{id}` was not found among the first events; add its --queue, and its --tenant if it has one"
            ),
            _ => {
                let place = |event: &Value| match text(event, "tenant").as_str() {
                    "" => format!("--queue {}", text(event, "queue")),
                    tenant => format!("--queue {} --tenant {tenant}", text(event, "queue")),
                };
                let places: Vec<String> = found.iter().map(place).collect();
                bail!("there are {} events `{id}`; choose one: {}", found.len(), places.join(", or "))
            }
        }
    }
}

/// Fetches a whole list with numbered pages.
pub(super) async fn whole(client: &DeskClient, path: &str, name: &str) -> Result<Value> {
    let (mut list, mut after) = (Vec::new(), 0);
    loop {
        let query = vec![("limit", PAGE.to_string()), ("after", after.to_string())];
        let mut answer = client.get(path, &query).await?;
        if let Value::Array(more) = answer[name].take() {
            list.extend(more);
        }
        match answer["next"].as_u64() {
            Some(next) => after = next,
            None => return Ok(json!({ name: list })),
        }
    }
}

/// Fetches matching events page by page, up to a limit; returns where the next page starts. Pages may be empty.
pub(super) async fn events(
    client: &DeskClient,
    mut query: QueryParams,
    state: Option<&str>,
    after: Option<String>,
    most: usize,
) -> Result<Value> {
    query.extend(state.map(|state| ("state", state.to_owned())));
    let (mut events, mut next, mut damaged) = (Vec::new(), after, Vec::new());
    loop {
        let mut page: QueryParams = query.clone();
        page.push(("limit", PAGE.min(most - events.len()).to_string()));
        page.extend(next.take().map(|after| ("after", after)));
        let mut answer = client.get("/v1/events", &page).await?;
        let take = |list: Value| if let Value::Array(list) = list { list } else { Vec::new() };
        events.extend(take(answer["events"].take()));
        damaged.extend(take(answer["damaged"].take()));
        next = answer["next"].as_str().map(str::to_owned);
        if next.is_none() || events.len() >= most {
            break;
        }
    }
    let mut answer = json!({ "events": events });
    if let Some(next) = next {
        answer["next"] = next.into();
    }
    if !damaged.is_empty() {
        answer["damaged"] = damaged.into();
    }
    Ok(answer)
}
