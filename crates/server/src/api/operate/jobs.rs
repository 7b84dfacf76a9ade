//! Jobs: an action on every dead letter, or on every retrying event, that matches a filter; planned first and run in the
//! background.
//!
//! A job without a filter needs `"yes": true`; without it the response is the problem `say-yes` with the plan.

use std::sync::Arc;
use std::time::Duration;

use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use http::StatusCode;
use redrive::desk::{How, Job, JobAct, JobId, JobPlan, JobStrategy};
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::body::RequiredRight;
use super::super::wire::{JobJson, PlanJson};
use super::super::{ApiProblem, Path, RequestBody};
use super::query::{EventFilter, PageQuery, QueryParams, slice};
use super::{OperatorContext, to_json};
use crate::app::App;
use crate::config::Right;

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/jobs", get(list).post(start))
        .route("/v1/jobs/plan", post(plan).layer(Extension(RequiredRight(Right::Read))))
        .route("/v1/jobs/{id}", get(show))
        .route(
            "/v1/jobs/{id}/pause",
            post(async |context, id, body| turn(context, id, body, JobControl::Pause).await),
        )
        .route(
            "/v1/jobs/{id}/resume",
            post(async |context, id, body| turn(context, id, body, JobControl::Resume).await),
        )
        .route(
            "/v1/jobs/{id}/cancel",
            post(async |context, id, body| turn(context, id, body, JobControl::Cancel).await),
        )
}

/// A job as requested.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct JobRequest {
    act: Option<String>,
    filter: EventFilter,
    to: Option<String>,
    keep_attempts: bool,
    out_of_order: bool,
    rate: Option<f64>,
    #[serde(with = "redrive::config::optional")]
    ramp: Option<Duration>,
    canary: Option<u32>,
    stop_at: Option<f64>,
    yes: bool,
}

impl JobRequest {
    fn plan(self, context: &OperatorContext) -> Result<JobPlan, ApiProblem> {
        let how = How { keep_attempts: self.keep_attempts, to: self.to, out_of_order: self.out_of_order };
        let act = match self.act.as_deref() {
            Some("redrive") => JobAct::Redrive(how),
            Some("discard") if how == How::default() => JobAct::Discard,
            Some("retry-now") if how == How::default() => JobAct::RetryNow,
            Some("discard" | "retry-now") => {
                let detail = "`to`, `keep_attempts` and `out_of_order` apply to redrives only";
                return Err(ApiProblem::bad_request(detail));
            }
            _ => return Err(ApiProblem::bad_request("`act` must be redrive, discard or retry-now")),
        };
        let ramp = self.ramp.unwrap_or_default();
        let ramp_ms = u64::try_from(ramp.as_millis()).unwrap_or(u64::MAX);
        let strategy = JobStrategy { rate: self.rate, ramp_ms, canary: self.canary, stop_at: self.stop_at };
        Ok(JobPlan { filter: self.filter.filter(context)?, act, strategy })
    }
}

async fn plan(context: OperatorContext, body: RequestBody) -> Result<Json<PlanJson>, ApiProblem> {
    context.may_read()?;
    let plan = body.object::<JobRequest>()?.plan(&context)?;
    Ok(Json(to_json::plan(&context.desk.plan(&plan).await?)))
}

async fn start(context: OperatorContext, body: RequestBody) -> Result<Response, ApiProblem> {
    context.may_operate()?;
    let wanted: JobRequest = body.object()?;
    context.may_send_to(wanted.to.as_deref())?;
    let is_sure = wanted.yes || !wanted.filter.is_everything();
    let plan = wanted.plan(&context)?;
    let planned = context.desk.plan(&plan).await?;
    if !is_sure {
        let what = if plan.act == JobAct::RetryNow { "retrying events" } else { "dead letters" };
        let detail =
            format!("this affects all {} {what}; confirm with \"yes\": true", planned.matching.letters);
        let problem = ApiProblem::new(StatusCode::UNPROCESSABLE_ENTITY, "say-yes", detail);
        return Err(problem.with("plan", json!(to_json::plan(&planned))));
    }
    let id = context.desk.start(plan).await?;
    let job = context.desk.job(id).await?.ok_or_else(|| no_job(id))?;
    Ok((StatusCode::ACCEPTED, Json(to_json::job(&job))).into_response())
}

async fn list(
    context: OperatorContext,
    QueryParams(PageQuery { after, limit }): QueryParams<PageQuery>,
) -> Result<Json<Value>, ApiProblem> {
    context.may_read()?;
    let jobs = context.desk.jobs().await?;
    let theirs = jobs.iter().filter(|job| is_theirs(&context, job));
    let jobs: Vec<Value> = theirs.map(|job| json!(to_json::job(job))).collect();
    Ok(Json(slice("jobs", jobs, after, limit)?))
}

async fn show(context: OperatorContext, Path(id): Path<String>) -> Result<Json<JobJson>, ApiProblem> {
    context.may_read()?;
    let (_, job) = find(&context, &id).await?;
    Ok(Json(to_json::job(&job)))
}

enum JobControl {
    Pause,
    Resume,
    Cancel,
}

async fn turn(
    context: OperatorContext,
    Path(id): Path<String>,
    _: RequestBody,
    to: JobControl,
) -> Result<Json<JobJson>, ApiProblem> {
    context.may_operate()?;
    let (id, _) = find(&context, &id).await?;
    match to {
        JobControl::Pause => context.desk.pause_job(id).await?,
        JobControl::Resume => context.desk.resume_job(id).await?,
        JobControl::Cancel => context.desk.cancel_job(id).await?,
    }
    let job = context.desk.job(id).await?.ok_or_else(|| no_job(id))?;
    Ok(Json(to_json::job(&job)))
}

/// A job that the caller may know of.
async fn find(context: &OperatorContext, id: &str) -> Result<(JobId, Job), ApiProblem> {
    let number = id.parse().map_err(|_| ApiProblem::not_found(format!("`{id}` is not a job number")))?;
    let id = JobId(number);
    let job = context.desk.job(id).await?.filter(|job| is_theirs(context, job));
    job.map(|job| (id, job)).ok_or_else(|| no_job(id))
}

/// Whether a job covers only the caller's tenant and queues.
fn is_theirs(context: &OperatorContext, job: &Job) -> bool {
    let caller = &context.caller;
    let of_tenant = caller.tenant.is_none() || caller.tenant.as_deref() == job.plan.filter.tenant.as_deref();
    let queue = job.plan.filter.queue.as_deref();
    of_tenant && queue.map_or(!caller.is_for_some_queues(), |queue| caller.sees(queue))
}

fn no_job(JobId(id): JobId) -> ApiProblem {
    ApiProblem::not_found(format!("there is no job {id}"))
}
