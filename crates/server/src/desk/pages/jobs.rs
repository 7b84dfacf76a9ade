//! Jobs: what runs in the background, how far it is, and pause, resume and cancel.

use std::convert::Infallible;
use std::time::Duration;

use askama::Template;
use axum::Router;
use axum::extract::Path;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures_util::stream;
use http::StatusCode;
use serde_json::{Value, json};

use crate::api::wire::JobJson;
use crate::desk::Shared;
use crate::desk::api::Problem;
use crate::desk::charts::{self, Segment};
use crate::desk::command::Command;
use crate::desk::filter::{Chip, EventFilter};
use crate::desk::page::Frame;
use crate::desk::text::{Time, duration, list, number, several, share, since};
use crate::desk::visitor::{Form, Visitor};

/// How often a stream looks at its job.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

pub(super) fn routes() -> Router<Shared> {
    Router::new()
        .route("/desk/jobs", get(jobs))
        .route("/desk/jobs/{id}", get(job))
        .route("/desk/jobs/{id}/stream", get(follow))
        .route("/desk/jobs/{id}/{verb}", post(turn))
}

/// A job, as a row and as a page.
#[derive(Debug, Clone)]
pub(super) struct JobView {
    pub(super) id: u64,
    pub(super) state: String,
    pub(super) act: String,
    pub(super) who: String,
    pub(super) started: Time,
    pub(super) ended: Time,
    pub(super) why: String,
    pub(super) planned: String,
    pub(super) done: String,
    pub(super) failed: String,
    pub(super) failed_share: String,
    pub(super) has_failed: bool,
    pub(super) other: u64,
    pub(super) skipped: String,
    pub(super) under_way: String,
    pub(super) left: String,
    pub(super) percent: u64,
    pub(super) stop_at: String,
    pub(super) strategy: String,
    pub(super) left_time: String,
    pub(super) segments: Vec<Segment>,
    /// Where the canary ends, in per mille of the bar.
    pub(super) canary_at: u64,
    pub(super) canary: String,
    pub(super) runs: bool,
    pub(super) is_running: bool,
    pub(super) is_paused: bool,
    pub(super) scope: String,
}

impl JobView {
    /// A job of the API.
    pub(super) fn of(job: &Value) -> Option<Self> {
        let job: JobJson = serde_json::from_value(job.clone()).ok()?;
        let runs = job.act != "discard";
        let (is_running, is_paused) = (job.state == "running", job.state == "paused");
        let gone = job.taken + job.skipped;
        let left = if is_running || is_paused { job.planned.saturating_sub(gone) } else { 0 };
        let ended = job.done + job.failed + job.other;
        let whole = job.planned.max(gone).max(1);
        let finished = if runs { ended + job.skipped } else { gone };
        let parts = if runs {
            vec![
                ("done", job.done),
                ("again", job.failed),
                ("other", job.other),
                ("way", job.under_way),
                ("skip", job.skipped),
            ]
        } else {
            vec![("done", job.taken), ("skip", job.skipped)]
        };
        let strategy = [
            job.rate.map(|rate| format!("{rate}/s")),
            job.ramp.as_ref().map(|ramp| format!("ramp {ramp}")),
            job.canary.map(|canary| format!("canary {canary}")),
            job.stop_at.map(|share| format!("stops above {:.0} %", share * 100.0)),
            job.to.as_ref().map(|to| format!("to {to}")),
            job.keep_attempts.then(|| "attempts kept".to_owned()),
            job.out_of_order.then(|| "out of order".to_owned()),
        ];
        let strategy: Vec<String> = strategy.into_iter().flatten().collect();
        let canary_at = job.canary.map_or(0, |canary| (canary * 1000 / whole).min(1000));
        let filter = EventFilter::of_json(&job.filter);
        let scope: Vec<String> = filter.pairs().map(|(name, value)| format!("{name} {value}")).collect();
        Some(Self {
            left_time: left_time(&job, finished, left),
            canary: match job.canary {
                None => String::new(),
                Some(canary) if ended >= canary => format!("canary of {canary} has ended"),
                Some(canary) => format!("canary: {} of {canary} ended", ended.min(canary)),
            },
            id: job.id,
            act: job.act,
            who: job.who,
            started: Time::of(&job.started),
            ended: job.ended.as_deref().map(Time::of).unwrap_or_default(),
            why: job.why.unwrap_or_default(),
            planned: number(job.planned),
            done: number(if runs { job.done } else { job.taken }),
            failed: number(job.failed),
            failed_share: share(job.failed, ended),
            has_failed: job.failed > 0,
            other: job.other,
            skipped: if job.skipped == 0 { String::new() } else { number(job.skipped) },
            under_way: number(job.under_way),
            left: number(left),
            percent: (finished.min(whole) * 100) / whole,
            stop_at: job.stop_at.map_or(String::new(), |share| format!("{:.0} %", share * 100.0)),
            strategy: strategy.join(" · "),
            segments: charts::bar(&parts, whole),
            canary_at,
            runs,
            is_running,
            is_paused,
            scope: if scope.is_empty() { "everything".to_owned() } else { scope.join(", ") },
            state: job.state,
        })
    }
}

/// How long it takes at the rate that was measured.
fn left_time(job: &JobJson, finished: u64, left: u64) -> String {
    let Some(time) = since(&job.started).filter(|_| job.state == "running" && finished > 0) else {
        return String::new();
    };
    #[allow(clippy::cast_precision_loss, reason = "an estimate")]
    let seconds = time.as_secs_f64() * (left + job.under_way) as f64 / finished as f64;
    Duration::try_from_secs_f64(seconds)
        .map_or(String::new(), |left| format!("about {} left", duration(left)))
}

#[derive(Template)]
#[template(path = "desk/jobs.html")]
struct JobsPage {
    frame: Frame,
    jobs: Vec<JobView>,
    running: String,
}

async fn jobs(visitor: Visitor) -> Response {
    visitor.answer(jobs_page(&visitor).await)
}

async fn jobs_page(visitor: &Visitor) -> Result<Response, Problem> {
    let answer = visitor.get("/v1/jobs", &[("limit", "200")]).await?;
    let jobs: Vec<JobView> = list(&answer, "jobs").iter().filter_map(JobView::of).collect();
    let running = jobs.iter().filter(|job| job.is_running).count();
    Ok(visitor.show(&JobsPage {
        frame: visitor.frame("Jobs", "Jobs", Command::new("job ls")).live(2),
        jobs,
        running: several(running.try_into().unwrap_or_default(), "running job"),
    }))
}

#[derive(Template)]
#[template(path = "desk/job.html")]
struct JobPage {
    frame: Frame,
    job: JobView,
    chips: Vec<Chip>,
    look: String,
    again: String,
    left_alone: String,
}

async fn find(visitor: &Visitor, id: &str) -> Result<Value, Problem> {
    let id: u64 = id.parse().map_err(|_| Problem::new(StatusCode::NOT_FOUND, "a job has a number"))?;
    visitor.get(&format!("/v1/jobs/{id}"), &[]).await
}

async fn job(visitor: Visitor, Path(id): Path<String>) -> Response {
    visitor.answer(job_page(&visitor, &id).await)
}

async fn job_page(visitor: &Visitor, id: &str) -> Result<Response, Problem> {
    let answer = find(visitor, id).await?;
    let Some(job) = JobView::of(&answer) else {
        return Err(Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "this job cannot be read"));
    };
    let filter = EventFilter::of_json(&answer["filter"]);
    let command = Command::new("job watch").word(&job.id.to_string());
    let state = if job.act == "retry-now" { "failing" } else { "" };
    Ok(visitor.show(&JobPage {
        frame: visitor.frame(format!("Job {}", job.id), "Jobs", command).live(if job.is_running {
            1
        } else {
            0
        }),
        chips: filter.chips("/desk/events", &[]),
        look: filter.address("/desk/events", &[("state", state)]),
        again: filter.address("/desk/redrive", &[("act", &job.act)]),
        left_alone: left_alone(visitor, &job, &answer).await,
        job,
    }))
}

/// What came after the plan, and is not in the job.
async fn left_alone(visitor: &Visitor, job: &JobView, answer: &Value) -> String {
    if job.act == "retry-now" || !(job.is_running || job.is_paused) {
        return String::new();
    }
    let body = json!({ "act": job.act, "filter": answer["filter"] });
    let Ok(now) = visitor.post("/v1/jobs/plan", &body).await else { return String::new() };
    let dead = now["letters"].as_u64().unwrap_or_default();
    let open = answer["planned"].as_u64().unwrap_or_default();
    let taken = answer["taken"].as_u64().unwrap_or_default() + answer["skipped"].as_u64().unwrap_or_default();
    let newer = dead.saturating_sub(open.saturating_sub(taken));
    if newer == 0 {
        String::new()
    } else {
        format!("{} that died since are left alone", several(newer, "dead letter"))
    }
}

/// A stream that says when the job has changed, until it has ended or the server stops. The page then asks for itself.
async fn follow(visitor: Visitor, Path(id): Path<String>) -> Response {
    let Ok(place) = visitor.shared.streams.clone().try_acquire_owned() else {
        let problem =
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too many streams; the page polls instead");
        return visitor.answer(Err(problem));
    };
    if let Err(problem) = find(&visitor, &id).await {
        return visitor.answer(Err(problem));
    }
    let stopping = visitor.app().stopping.subscribe();
    let begin = (visitor, id, Value::Null, stopping, place);
    let changes = stream::unfold(Some(begin), |state| async move {
        let (visitor, id, mut last, mut stopping, place) = state?;
        loop {
            let now = find(&visitor, &id).await.ok()?;
            let is_over = !matches!(now["state"].as_str(), Some("running" | "paused"));
            if now != last {
                last = now;
                let event =
                    Event::default().event("changed").data(last["state"].as_str().unwrap_or_default());
                let next = (!is_over).then_some((visitor, id, last, stopping, place));
                return Some((Ok::<_, Infallible>(event), next));
            }
            tokio::select! {
                () = tokio::time::sleep(LOOK_AGAIN) => {}
                _ = stopping.wait_for(|is_stopping| *is_stopping) => return None,
            }
        }
    });
    Sse::new(changes).keep_alive(KeepAlive::default()).into_response()
}

async fn turn(Path((id, verb)): Path<(String, String)>, form: Form) -> Response {
    let done = match verb.as_str() {
        "pause" => "is paused; events that it put back go on",
        "resume" => "goes on",
        "cancel" => "is cancelled; events that it put back stay so",
        _ => {
            return form.visitor.answer(Err(Problem::new(
                StatusCode::NOT_FOUND,
                "a job can be paused, resumed or cancelled",
            )));
        }
    };
    let result = async {
        let id: u64 = id.parse().map_err(|_| Problem::new(StatusCode::NOT_FOUND, "a job has a number"))?;
        form.visitor.post(&format!("/v1/jobs/{id}/{verb}"), &json!({})).await
    };
    let result = result.await.map(|_| format!("Job {id} {done}."));
    super::acts::done(&form, &format!("/desk/jobs/{}", crate::desk::link::encoded(&id)), result)
}
