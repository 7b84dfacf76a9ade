//! Signing secrets. The server returns a value once, when it generates it, and never again.
//!
//! | request | does |
//! |---|---|
//! | `GET /v1/secrets?after=&limit=` | names, versions and times |
//! | `PUT /v1/secrets/{name}` | sets it: `{"value": "whsec_…"}`, or a new one is made |
//! | `POST /v1/secrets/{name}/rotate` | a newer one beside the old, which signs for `{"keep_old": "1day"}` |
//! | `POST /v1/secrets/{name}/drop-old` | the newest alone |
//! | `DELETE /v1/secrets/{name}` | removes it |

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Query, State};
use axum::routing::{get, post, put};
use axum::{Json, Router};
use http::StatusCode;
use redrive::desk::Desk;
use serde::Deserialize;
use serde_json::json;

use super::operate::OperatorContext;
use super::{ApiProblem, Path, RequestBody, wire};
use crate::app::App;
use crate::audit::noted;
use crate::auth::Caller;
use crate::config::Right;
use crate::secrets::{SecretError, SecretValue, SecretVersion};

/// How long the old version keeps signing by default.
const KEEP_OLD: Duration = Duration::from_secs(86_400);
/// The maximum: a longer change-over is an error.
const KEEP_OLD_MAX: Duration = Duration::from_secs(90 * 86_400);
/// Secrets a page.
const PAGE: usize = 100;

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/secrets", get(list))
        .route("/v1/secrets/{name}", put(set).delete(remove))
        .route("/v1/secrets/{name}/rotate", post(rotate))
        .route("/v1/secrets/{name}/drop-old", post(drop_old))
}

fn check(caller: &Caller) -> Result<(), ApiProblem> {
    caller.may(Right::Operate)?;
    caller.for_everything("a signing secret")
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct SecretsQuery {
    after: Option<String>,
    limit: Option<usize>,
}

async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    page: Result<Query<SecretsQuery>, axum::extract::rejection::QueryRejection>,
) -> Result<Json<serde_json::Value>, ApiProblem> {
    check(&caller)?;
    let Query(SecretsQuery { after, limit }) =
        page.map_err(|error| ApiProblem::bad_request(error.body_text()))?;
    let limit = limit.unwrap_or(PAGE).clamp(1, PAGE);
    let after = after.unwrap_or_default();
    let mut left = app.secrets.list().into_iter().filter(|(name, _)| *name > after);
    let page: Vec<_> = left.by_ref().take(limit).collect();
    let next = left.next().and_then(|_| page.last().map(|(name, _)| name.clone()));
    let secrets: Vec<_> = page.iter().map(|(name, versions)| shown(name, versions)).collect();
    Ok(Json(json!({ "secrets": secrets, "next": next })))
}

fn shown(name: &str, versions: &[SecretVersion]) -> serde_json::Value {
    let version = |version: &SecretVersion| {
        let until = version.until.map(|until| wire::moment(until.into()));
        json!({
            "version": version.version,
            "created": wire::moment(version.created.into()),
            "signs_until": until,
            "open": version.is_open(),
        })
    };
    json!({ "name": name, "versions": versions.iter().rev().map(version).collect::<Vec<_>>() })
}

/// A secret as given. Its `Debug` output shows nothing.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct SecretRequest {
    value: Option<String>,
    #[serde(with = "redrive::config::optional")]
    keep_old: Option<Duration>,
}

impl SecretRequest {
    /// Parses the body; errors never repeat it.
    fn read(body: &RequestBody) -> Result<Self, ApiProblem> {
        if body.bytes.is_empty() {
            return Ok(Self::default());
        }
        body.shaped().map_err(|error| {
            let at = error.map_or("it".to_owned(), |error| {
                format!("line {}, column {}", error.line(), error.column())
            });
            ApiProblem::bad_request(format!(
                "the body is {{\"value\": \"whsec_…\", \"keep_old\": \"1day\"}} or a part of it; {at} is not valid"
            ))
        })
    }

    /// The value, and whether it was made here.
    fn value(&self) -> Result<(SecretValue, bool), SecretError> {
        match &self.value {
            Some(text) => Ok((SecretValue::parse(text)?, false)),
            None => Ok((SecretValue::mint()?, true)),
        }
    }
}

/// The response to a set secret. A generated one is included, this once.
fn told(name: &str, version: u32, value: &SecretValue, made: bool) -> Json<serde_json::Value> {
    let mut told = json!({ "name": name, "version": version });
    if made {
        told["value"] = value.reveal().into();
    }
    Json(told)
}

async fn set(
    OperatorContext { app, caller, desk }: OperatorContext,
    Path(name): Path<String>,
    body: RequestBody,
) -> Result<Json<serde_json::Value>, ApiProblem> {
    check(&caller)?;
    let written = SecretRequest::read(&body)?;
    if written.keep_old.is_some() {
        return Err(ApiProblem::bad_request(
            "`keep_old` applies to a rotation only; setting a secret replaces all versions",
        ));
    }
    let (value, made) = written.value()?;
    let version = in_audit(&desk, "set-secret", &name, app.secrets.set(&app.redrive, &name, &value)).await?;
    tracing::info!(who = &*caller.name, secret = name, version, "secret set");
    Ok(told(&name, version, &value, made))
}

async fn rotate(
    OperatorContext { app, caller, desk }: OperatorContext,
    Path(name): Path<String>,
    body: RequestBody,
) -> Result<Json<serde_json::Value>, ApiProblem> {
    check(&caller)?;
    let written = SecretRequest::read(&body)?;
    let keep_old = written.keep_old.unwrap_or(KEEP_OLD);
    if keep_old > KEEP_OLD_MAX {
        let most = humantime::format_duration(KEEP_OLD_MAX);
        return Err(ApiProblem::bad_request(format!("`keep_old` must be at most {most}")));
    }
    let (value, made) = written.value()?;
    let version =
        in_audit(&desk, "rotate-secret", &name, app.secrets.rotate(&app.redrive, &name, &value, keep_old))
            .await?;
    tracing::info!(who = &*caller.name, secret = name, version, "secret rotated");
    Ok(told(&name, version, &value, made))
}

async fn drop_old(
    OperatorContext { app, caller, desk }: OperatorContext,
    Path(name): Path<String>,
) -> Result<Json<serde_json::Value>, ApiProblem> {
    check(&caller)?;
    in_audit(&desk, "drop-old-secret", &name, app.secrets.drop_old(&app.redrive, &name)).await?;
    tracing::info!(who = &*caller.name, secret = name, "old versions of a secret dropped");
    Ok(Json(json!({ "name": name })))
}

async fn remove(
    OperatorContext { app, caller, desk }: OperatorContext,
    Path(name): Path<String>,
) -> Result<Json<serde_json::Value>, ApiProblem> {
    check(&caller)?;
    in_audit(&desk, "remove-secret", &name, app.secrets.remove(&app.redrive, &name)).await?;
    tracing::info!(who = &*caller.name, secret = name, "secret removed");
    Ok(Json(json!({ "name": name, "removed": true })))
}

/// Changes a secret, with an audit line that has its name.
async fn in_audit<T>(
    desk: &Desk,
    verb: &'static str,
    name: &str,
    change: impl Future<Output = Result<T, SecretError>>,
) -> Result<T, ApiProblem> {
    noted(desk, verb, &format!("secret {name}"), async { Ok(change.await?) }).await
}

impl From<SecretError> for ApiProblem {
    fn from(error: SecretError) -> Self {
        let detail = error.to_string();
        match error {
            SecretError::NoKey => Self::new(StatusCode::CONFLICT, "no-key", detail),
            SecretError::Unknown(_) => Self::not_found(detail),
            SecretError::Name(_) | SecretError::Value => {
                Self::new(StatusCode::UNPROCESSABLE_ENTITY, "not-a-secret", detail)
            }
            SecretError::TooMany => Self::new(StatusCode::CONFLICT, "too-many", detail),
            SecretError::Store(redrive::engine::TransactError::Store(error)) => error.into(),
            SecretError::Store(_)
            | SecretError::Chance
            | SecretError::Ring(_)
            | SecretError::KeyFile { .. } => Self::new(StatusCode::INTERNAL_SERVER_ERROR, "secrets", detail),
        }
    }
}
