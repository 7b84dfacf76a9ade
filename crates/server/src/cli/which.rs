//! Which events a command is about: by filter, or by id.

use anyhow::{Result, bail};
use serde_json::{Map, Value, json};

use super::line::{Line, Pairs};
use super::out::text;

/// How many events there are on a page that is asked for.
const PAGE: usize = 500;

/// Which events: those that fit everything that is said.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Which")]
pub(super) struct Which {
    /// Of this queue
    #[arg(long, value_name = "QUEUE")]
    pub(super) queue: Option<String>,
    /// Of this tenant
    #[arg(long, value_name = "TENANT")]
    pub(super) tenant: Option<String>,
    /// With this ordering key
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Of this group: its cause as `redrive dead groups` shows it, or how it begins
    #[arg(long, value_name = "CAUSE")]
    group: Option<String>,
    /// Dead for this reason
    #[arg(long, value_name = "REASON")]
    reason: Option<String>,
    /// With so many attempts at least
    #[arg(long, value_name = "N")]
    attempts_min: Option<u32>,
    /// With so many attempts at most
    #[arg(long, value_name = "N")]
    attempts_max: Option<u32>,
    /// Not before: a time, or how long ago, as 2h
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Before: a time, or how long ago
    #[arg(long, value_name = "TIME")]
    before: Option<String>,
    /// With this text in id, key or error
    #[arg(long = "match", value_name = "TEXT")]
    text: Option<String>,
}

impl Which {
    /// Whether nothing is said.
    pub(super) fn is_everything(&self) -> bool {
        self.pairs_of(None).is_empty() && self.group.is_none()
    }

    /// Whether nothing is said but queue and tenant.
    pub(super) fn is_place(&self) -> bool {
        Self { queue: None, tenant: None, ..self.clone() }.is_everything()
    }

    /// As parameters of an address.
    pub(super) async fn pairs(&self, line: &Line) -> Result<Pairs> {
        let cause = match &self.group {
            None => None,
            Some(group) => Some(cause(line, group).await?),
        };
        Ok(self.pairs_of(cause))
    }

    /// As a filter in a body.
    pub(super) async fn filter(&self, line: &Line) -> Result<Value> {
        let number = |(name, text): (&'static str, String)| match name {
            "attempts_min" | "attempts_max" => {
                (name.to_owned(), text.parse::<u32>().map_or(Value::Null, Value::from))
            }
            name => (name.to_owned(), text.into()),
        };
        Ok(Value::Object(self.pairs(line).await?.into_iter().map(number).collect::<Map<_, _>>()))
    }

    fn pairs_of(&self, cause: Option<String>) -> Pairs {
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

/// The cause of a group, whole or how it begins.
async fn cause(line: &Line, begin: &str) -> Result<String> {
    if begin.len() == 16 {
        return Ok(begin.to_owned());
    }
    let answer = line.get("/v1/dead/groups", &vec![("limit", "1000".to_owned())]).await?;
    let causes = answer["groups"].as_array().into_iter().flatten().map(|group| text(group, "cause"));
    let fitting: Vec<String> = causes.filter(|cause| !begin.is_empty() && cause.starts_with(begin)).collect();
    match &fitting[..] {
        [cause] => Ok(cause.clone()),
        [] => bail!("no group begins with `{begin}`; see `redrive dead groups`"),
        _ => bail!("several groups begin with `{begin}`: {}", fitting.join(", ")),
    }
}

/// An event by its id. Queue and tenant are looked up where they are not said.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct Place {
    /// The queue it is of; looked up where it is not said
    #[arg(long, value_name = "QUEUE")]
    pub(super) queue: Option<String>,
    /// The tenant it is of; looked up where neither queue nor tenant is said
    #[arg(long, value_name = "TENANT")]
    pub(super) tenant: Option<String>,
}

impl Place {
    /// The event that is meant, as `{queue, tenant, id}`.
    pub(super) async fn find(&self, line: &Line, id: &str) -> Result<Value> {
        let named = |queue: &str, tenant: &str| json!({ "queue": queue, "tenant": tenant, "id": id });
        if let Some(queue) = &self.queue {
            // A token with a tenant has its own; without one, no tenant is one too.
            let mut named = named(queue, "");
            named["tenant"] = self.tenant.clone().into();
            return Ok(named);
        }
        let mut query: Pairs = vec![("id", id.to_owned())];
        query.extend(self.tenant.clone().map(|tenant| ("tenant", tenant)));
        let answer = line.get("/v1/lookup", &query).await?;
        let found = answer["events"].as_array().cloned().unwrap_or_default();
        match &found[..] {
            [one] => Ok(named(&text(one, "queue"), &text(one, "tenant"))),
            [] if answer["complete"] == true => bail!("there is no event `{id}`, or it is forgotten"),
            [] => bail!(
                "`{id}` was not found among the first events; say its --queue, and its --tenant if it has one"
            ),
            _ => {
                let place = |event: &Value| match text(event, "tenant").as_str() {
                    "" => format!("--queue {}", text(event, "queue")),
                    tenant => format!("--queue {} --tenant {tenant}", text(event, "queue")),
                };
                let places: Vec<String> = found.iter().map(place).collect();
                bail!("there are {} events `{id}`; say which: {}", found.len(), places.join(", or "))
            }
        }
    }
}

/// A whole list whose pages begin at numbers.
pub(super) async fn whole(line: &Line, path: &str, name: &str) -> Result<Value> {
    let (mut list, mut after) = (Vec::new(), 0);
    loop {
        let query = vec![("limit", PAGE.to_string()), ("after", after.to_string())];
        let mut answer = line.get(path, &query).await?;
        if let Value::Array(more) = answer[name].take() {
            list.extend(more);
        }
        match answer["next"].as_u64() {
            Some(next) => after = next,
            None => return Ok(json!({ name: list })),
        }
    }
}

/// Events that fit, page by page until there are so many; gives where the next begins. Pages may be empty.
pub(super) async fn events(
    line: &Line,
    mut query: Pairs,
    state: Option<&str>,
    after: Option<String>,
    most: usize,
) -> Result<Value> {
    query.extend(state.map(|state| ("state", state.to_owned())));
    let (mut events, mut next, mut damaged) = (Vec::new(), after, Vec::new());
    loop {
        let mut page: Pairs = query.clone();
        page.push(("limit", PAGE.min(most - events.len()).to_string()));
        page.extend(next.take().map(|after| ("after", after)));
        let mut answer = line.get("/v1/events", &page).await?;
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
