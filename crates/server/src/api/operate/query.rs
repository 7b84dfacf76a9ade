//! Query parameters: filters, times, pages.
//!
//! An unknown name is refused: a filter that ignored a misspelt name would match too much.

use std::sync::Arc;

use axum::extract::{FromRequestParts, Query as Parameters};
use http::request::Parts;
use redrive::Moment;
use redrive::desk::{CauseId, Filter, Seq};
use redrive::event::{DeadReason, State};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::super::ApiProblem;
use super::OperatorContext;
use crate::app::App;

/// The default page size.
pub(super) const PAGE: usize = 100;
/// The maximum page size.
pub(super) const PAGE_MAX: usize = 1000;

/// The parameters of an address.
pub(super) struct QueryParams<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequestParts<Arc<App>> for QueryParams<T> {
    type Rejection = ApiProblem;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<App>) -> Result<Self, ApiProblem> {
        let asked = Parameters::<T>::try_from_uri(&parts.uri);
        asked
            .map(|Parameters(asked)| Self(asked))
            .map_err(|rejection| ApiProblem::bad_request(rejection.body_text()))
    }
}

/// Which events, as a body says it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct EventFilter {
    pub(super) queue: Option<String>,
    pub(super) tenant: Option<String>,
    pub(super) key: Option<String>,
    pub(super) id: Option<String>,
    pub(super) cause: Option<String>,
    pub(super) reason: Option<String>,
    pub(super) attempts_min: Option<u32>,
    pub(super) attempts_max: Option<u32>,
    pub(super) since: Option<String>,
    pub(super) before: Option<String>,
    #[serde(rename = "match")]
    pub(super) text: Option<String>,
}

/// Which events, as an address says it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct EventQueryParams {
    state: Option<String>,
    after: Option<String>,
    limit: Option<usize>,
    queue: Option<String>,
    tenant: Option<String>,
    key: Option<String>,
    id: Option<String>,
    cause: Option<String>,
    reason: Option<String>,
    attempts_min: Option<u32>,
    attempts_max: Option<u32>,
    since: Option<String>,
    before: Option<String>,
    #[serde(rename = "match")]
    text: Option<String>,
    /// The form of an export.
    pub(super) format: Option<String>,
}

impl EventFilter {
    /// The filter, limited to the caller's tenant.
    pub(super) fn filter(self, context: &OperatorContext) -> Result<Filter, ApiProblem> {
        let cause = self.cause.map(|text| {
            let wrong = || {
                ApiProblem::bad_request(format!("`{text}` is not a cause; a cause has 16 hexadecimal digits"))
            };
            CauseId::from_text(&text).ok_or_else(wrong)
        });
        if let Some(word) = self.reason.as_deref().filter(|word| DeadReason::from_word(word).is_none()) {
            let words: Vec<_> = DeadReason::ALL.iter().map(|reason| reason.as_str()).collect();
            let detail = format!("there is no reason `{word}`; use one of {}", words.join(", "));
            return Err(ApiProblem::bad_request(detail));
        }
        // By the clock that events go by, which is not this machine's where several share a store.
        let now = context.app.redrive.now();
        let nanos = |name, text: Option<String>| text.map(|text| moment(name, &text, now)).transpose();
        let filter = Filter {
            tenant: context.caller.tenant(self.tenant.as_deref())?.map(str::to_owned),
            queue: context.caller.queue_of_filter(self.queue)?,
            key: self.key,
            id: self.id,
            cause: cause.transpose()?,
            reason: self.reason,
            attempts_min: self.attempts_min,
            attempts_max: self.attempts_max,
            since_ns: nanos("since", self.since)?.map(Moment::as_nanos),
            before_ns: nanos("before", self.before)?.map(Moment::as_nanos),
            text: self.text,
        };
        filter.check().map_err(ApiProblem::bad_request)?;
        Ok(filter)
    }

    /// Whether the filter is empty.
    pub(super) fn is_everything(&self) -> bool {
        let Self { queue, tenant, key, id, cause, reason, attempts_min, attempts_max, since, before, text } =
            self;
        let words = [queue, tenant, key, id, cause, reason, since, before, text];
        words.into_iter().all(Option::is_none) && attempts_min.is_none() && attempts_max.is_none()
    }
}

impl EventQueryParams {
    pub(super) fn filter(&self, context: &OperatorContext) -> Result<Filter, ApiProblem> {
        let asked = self.clone();
        let which = EventFilter {
            queue: asked.queue,
            tenant: asked.tenant,
            key: asked.key,
            id: asked.id,
            cause: asked.cause,
            reason: asked.reason,
            attempts_min: asked.attempts_min,
            attempts_max: asked.attempts_max,
            since: asked.since,
            before: asked.before,
            text: asked.text,
        };
        which.filter(context)
    }

    /// The state; without one, all events that have not ended.
    pub(super) fn state(&self) -> Result<Option<State>, ApiProblem> {
        let Some(word) = self.state.as_deref() else { return Ok(None) };
        let listed = |state: &&State| !state.is_ended() || **state == State::Discarded;
        let found = State::ALL.iter().filter(listed).find(|state| state.as_str() == word);
        found.copied().map(Some).ok_or_else(|| {
            let words: Vec<_> = State::ALL.iter().filter(listed).map(|state| state.as_str()).collect();
            ApiProblem::bad_request(format!(
                "events cannot be listed by state `{word}`; use one of {}",
                words.join(", ")
            ))
        })
    }

    pub(super) fn after(&self) -> Result<Option<Seq>, ApiProblem> {
        let parse = |text: &String| {
            let wrong = |_| ApiProblem::bad_request("`after` must be the `next` of the previous page");
            text.parse().map(Seq).map_err(wrong)
        };
        self.after.as_ref().map(parse).transpose()
    }

    /// The limit, if given.
    pub(super) fn limit(&self) -> Result<Option<usize>, ApiProblem> {
        self.limit.map(|limit| page(Some(limit))).transpose()
    }
}

/// How many are asked for.
pub(super) fn page(limit: Option<usize>) -> Result<usize, ApiProblem> {
    match limit {
        None => Ok(PAGE),
        Some(limit) if (1..=PAGE_MAX).contains(&limit) => Ok(limit),
        Some(_) => {
            Err(ApiProblem::bad_request(format!("`limit` must be 1 to {PAGE_MAX}; use `next` for more")))
        }
    }
}

/// A slice of a whole list; `next` says where the next one starts.
pub(super) fn slice(
    name: &str,
    list: Vec<Value>,
    after: Option<usize>,
    limit: Option<usize>,
) -> Result<Value, ApiProblem> {
    let (after, limit) = (after.unwrap_or_default(), page(limit)?);
    let more = list.len() > after.saturating_add(limit);
    let list: Vec<Value> = list.into_iter().skip(after).take(limit).collect();
    let mut answer = json!({ name: list });
    if more {
        answer["next"] = (after + limit).into();
    }
    Ok(answer)
}

/// The page of such a list.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct PageQuery {
    pub(super) after: Option<usize>,
    pub(super) limit: Option<usize>,
}

/// A time of the past: as `2026-01-31T12:00:00Z`, or how long ago, as `2h`.
fn moment(name: &str, text: &str, now: Moment) -> Result<Moment, ApiProblem> {
    if let Ok(time) = humantime::parse_rfc3339_weak(text) {
        return Ok(time.into());
    }
    let ago = humantime::parse_duration(text).map_err(|_| {
        let detail = format!(
            "`{name}` must be a time such as 2026-01-31T12:00:00Z, or an age such as 2h; not `{text}`"
        );
        ApiProblem::bad_request(detail)
    })?;
    let ago = u64::try_from(ago.as_nanos()).unwrap_or(u64::MAX);
    Ok(Moment::from_nanos(now.as_nanos().saturating_sub(ago)))
}

/// A name that cannot be left out.
pub(super) fn needed(name: &str, text: Option<String>) -> Result<String, ApiProblem> {
    text.ok_or_else(|| ApiProblem::bad_request(format!("`{name}` is missing")))
}
