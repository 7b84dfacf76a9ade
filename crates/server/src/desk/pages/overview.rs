//! The overview: what is wrong now, and where to begin.
//!
//! It counts no events: dead letters by cause and queue are kept exactly, and the rest comes from the sampler.

use std::sync::atomic::Ordering;

use askama::Template;
use axum::Router;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use http::StatusCode;

use super::flow::{self, QueueRow};
use super::groups::{FailingRow, GroupRow, failing_rows, rows};
use super::jobs::JobView;
use crate::api::ApiProblem;
use crate::config::Right;
use crate::desk::Shared;
use crate::desk::api::Problem;
use crate::desk::command::Command;
use crate::desk::filter::EventFilter;
use crate::desk::page::Frame;
use crate::desk::text::{list, number, several, share};
use crate::desk::visitor::{Form, Visitor};

/// Groups that the overview shows.
const GROUPS: usize = 6;
/// From this share of all dead letters on, in per cent, one cause is the news.
const BANNER_SHARE: u64 = 60;
/// And from so many of them.
const BANNER_LETTERS: u64 = 20;

pub(super) fn routes() -> Router<Shared> {
    Router::new()
        .route("/desk/demo", post(repair))
        .route("/desk", get(overview))
        .route("/desk/", get(async || Redirect::to("/desk")))
}

#[derive(Template)]
#[template(path = "desk/overview.html")]
struct OverviewPage {
    frame: Frame,
    banner: Option<GroupRow>,
    banner_share: String,
    dead: u64,
    dead_text: String,
    causes: String,
    keys: u64,
    keys_text: String,
    failing: u64,
    failing_text: String,
    running: Vec<JobView>,
    running_count: u64,
    groups: Vec<GroupRow>,
    more_groups: bool,
    failing_groups: Vec<FailingRow>,
    has_queues: bool,
    /// In the demo: whether its service is repaired.
    demo: Option<bool>,
    queues: Vec<QueueRow>,
}

async fn overview(visitor: Visitor) -> Response {
    visitor.answer(page(&visitor).await).into_response()
}

async fn page(visitor: &Visitor) -> Result<Response, Problem> {
    let filter = EventFilter::of(visitor);
    let (queue, tenant) = (filter.get("queue"), filter.get("tenant"));
    let query = [("queue", queue), ("tenant", tenant), ("limit", "1000")];
    let causes = visitor.get("/v1/dead/groups", &query).await?;
    let retrying = visitor.get("/v1/failing/groups", &query).await?;
    let jobs = visitor.get("/v1/jobs", &[("limit", "50")]).await?;
    let mut groups = rows(&causes, "cause", queue, tenant);
    let dead: u64 = groups.iter().map(|group| group.letters).sum();
    let keys: u64 = groups.iter().map(|group| group.keys).sum();
    let is_news =
        |group: &&GroupRow| group.letters >= BANNER_LETTERS && group.letters * 100 >= dead * BANNER_SHARE;
    let banner = groups.first().filter(is_news).cloned();
    let number_of_causes = u64::try_from(groups.len()).unwrap_or_default();
    let more_groups = groups.len() > GROUPS;
    groups.truncate(GROUPS);
    let mut failing_groups = failing_rows(&retrying, queue, tenant);
    let failing: u64 = failing_groups.iter().map(|group| group.events).sum();
    failing_groups.truncate(GROUPS);
    let jobs = list(&jobs, "jobs").iter().filter_map(JobView::of);
    let running: Vec<JobView> = jobs.filter(|job| job.is_running || job.is_paused).collect();
    let command = Command::new("dead groups").flag("queue", Some(queue)).flag("limit", Some("1000"));
    Ok(visitor.show(&OverviewPage {
        frame: visitor.frame("Overview", "Overview", command).live(3),
        banner_share: banner.as_ref().map_or(String::new(), |group| share(group.letters, dead)),
        banner,
        dead,
        dead_text: number(dead),
        causes: several(number_of_causes, "cause"),
        keys,
        keys_text: number(keys),
        failing,
        failing_text: number(failing),
        running_count: u64::try_from(running.len()).unwrap_or_default(),
        running,
        groups,
        more_groups,
        failing_groups,
        demo: visitor.app().demo.get().map(|repaired| repaired.load(Ordering::Relaxed)),
        queues: if visitor.caller.for_all_tenants("").is_ok() {
            flow::queues(visitor).await?
        } else {
            Vec::new()
        },
        has_queues: !visitor.app().live().config.queues.is_empty(),
    }))
}

/// In the demo: repairs the service, or lets it fail again.
async fn repair(form: Form) -> Response {
    let result = match form.visitor.app().demo.get() {
        _ if !form.visitor.may(Right::Operate) => Err(ApiProblem::forbidden(Right::Operate).into()),
        None => {
            Err(Problem::new(StatusCode::NOT_FOUND, "only the demo has a service that can be repaired here"))
        }
        Some(repaired) => {
            let is_repaired = form.field("service") == "repaired";
            repaired.store(is_repaired, Ordering::Relaxed);
            let told = if is_repaired {
                "The service answers. Redrive what died."
            } else {
                "The service fails again."
            };
            Ok(told.to_owned())
        }
    };
    super::acts::done(&form, "/desk", result)
}
