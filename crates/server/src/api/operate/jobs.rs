//! Jobs: a change to every dead letter that fits a filter, planned first and done in the background.
//!
//! A job over everything is started only by who says `"yes": true`; without it the answer is the problem `say-yes`,
//! with the plan.

use std::sync::Arc;
use std::time::Duration;

use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use http::StatusCode;
use redrive::desk::{How, Job, JobAct, JobId, JobPlan, Strategy};
use serde::Deserialize;
use serde_json::Value;

use super::super::body::Needs;
use super::super::{Body, Path, Problem};
use super::asked::{Asked, Part, Which, slice};
use super::{Seat, view};
use crate::app::App;
use crate::config::Right;

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/jobs", get(list).post(start))
        .route("/v1/jobs/plan", post(plan).layer(Extension(Needs(Right::Read))))
        .route("/v1/jobs/{id}", get(show))
        .route("/v1/jobs/{id}/pause", post(async |seat, id, body| turn(seat, id, body, Turn::Pause).await))
        .route("/v1/jobs/{id}/resume", post(async |seat, id, body| turn(seat, id, body, Turn::Resume).await))
        .route("/v1/jobs/{id}/cancel", post(async |seat, id, body| turn(seat, id, body, Turn::Cancel).await))
}

/// A job as somebody wants it.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Wanted {
    act: Option<String>,
    filter: Which,
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

impl Wanted {
    fn plan(self, seat: &Seat) -> Result<JobPlan, Problem> {
        let how = How { keep_attempts: self.keep_attempts, to: self.to, out_of_order: self.out_of_order };
        let act = match self.act.as_deref() {
            Some("redrive") => JobAct::Redrive(how),
            Some("discard") if how == How::default() => JobAct::Discard,
            Some("discard") => {
                let detail = "`to`, `keep_attempts` and `out_of_order` are for redrives alone";
                return Err(Problem::bad_request(detail));
            }
            _ => return Err(Problem::bad_request("`act` is redrive or discard")),
        };
        let ramp = self.ramp.unwrap_or_default();
        let ramp_ms = u64::try_from(ramp.as_millis()).unwrap_or(u64::MAX);
        let strategy = Strategy { rate: self.rate, ramp_ms, canary: self.canary, stop_at: self.stop_at };
        Ok(JobPlan { filter: self.filter.filter(seat)?, act, strategy })
    }
}

async fn plan(seat: Seat, body: Body) -> Result<Json<Value>, Problem> {
    seat.may_read()?;
    let plan = body.object::<Wanted>()?.plan(&seat)?;
    Ok(Json(view::plan(&seat.desk.plan(&plan).await?)))
}

async fn start(seat: Seat, body: Body) -> Result<Response, Problem> {
    seat.may_operate()?;
    let wanted: Wanted = body.object()?;
    let is_sure = wanted.yes || !wanted.filter.is_everything();
    let plan = wanted.plan(&seat)?;
    let planned = seat.desk.plan(&plan).await?;
    if !is_sure {
        let detail =
            format!("this is about all {} dead letters; say \"yes\": true", planned.matching.letters);
        let problem = Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "say-yes", detail);
        return Err(problem.with("plan", view::plan(&planned)));
    }
    let id = seat.desk.start(plan).await?;
    let job = seat.desk.job(id).await?.ok_or_else(|| no_job(id))?;
    Ok((StatusCode::ACCEPTED, Json(view::job(&job))).into_response())
}

async fn list(seat: Seat, Asked(Part { after, limit }): Asked<Part>) -> Result<Json<Value>, Problem> {
    seat.may_read()?;
    let jobs = seat.desk.jobs().await?;
    let jobs: Vec<Value> = jobs.iter().filter(|job| is_theirs(&seat, job)).map(view::job).collect();
    Ok(Json(slice("jobs", jobs, after, limit)?))
}

async fn show(seat: Seat, Path(id): Path<String>) -> Result<Json<Value>, Problem> {
    seat.may_read()?;
    let (_, job) = find(&seat, &id).await?;
    Ok(Json(view::job(&job)))
}

enum Turn {
    Pause,
    Resume,
    Cancel,
}

async fn turn(seat: Seat, Path(id): Path<String>, _: Body, to: Turn) -> Result<Json<Value>, Problem> {
    seat.may_operate()?;
    let (id, _) = find(&seat, &id).await?;
    match to {
        Turn::Pause => seat.desk.pause_job(id).await?,
        Turn::Resume => seat.desk.resume_job(id).await?,
        Turn::Cancel => seat.desk.cancel_job(id).await?,
    }
    let job = seat.desk.job(id).await?.ok_or_else(|| no_job(id))?;
    Ok(Json(view::job(&job)))
}

/// A job that the caller may know of.
async fn find(seat: &Seat, id: &str) -> Result<(JobId, Job), Problem> {
    let number = id.parse().map_err(|_| Problem::not_found(format!("`{id}` is no job; it is a number")))?;
    let id = JobId(number);
    let job = seat.desk.job(id).await?.filter(|job| is_theirs(seat, job));
    job.map(|job| (id, job)).ok_or_else(|| no_job(id))
}

/// Whether a job is about nothing that is not the caller's.
fn is_theirs(seat: &Seat, job: &Job) -> bool {
    let own = seat.caller.tenant.as_deref();
    own.is_none() || own == job.plan.filter.tenant.as_deref()
}

fn no_job(JobId(id): JobId) -> Problem {
    Problem::not_found(format!("there is no job {id}"))
}
