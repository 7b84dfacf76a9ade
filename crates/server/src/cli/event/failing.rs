//! `redrive failing`: events that failed and are retried, before anything is dead.

use std::process::ExitCode;

use anyhow::{Result, bail, ensure};
use serde_json::{Value, json};

use super::{EventIds, by_ids};
use crate::api::wire::PlanJson;
use crate::cli::client::{DeskClient, QueryParams, read};
use crate::cli::connect::ConnectArgs;
use crate::cli::dead::{rate, share};
use crate::cli::job;
use crate::cli::output::{Output, ago, say, several, table, text};
use crate::cli::selector::EventLocation;

/// Inspect events that failed and are retried
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    connect: ConnectArgs,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Group retrying events by the cause of their last failure, largest group first
    Groups(Groups),
}

#[derive(Debug, clap::Args)]
struct Groups {
    /// Only events of this queue
    #[arg(long, value_name = "QUEUE")]
    queue: Option<String>,
    /// Only events of this tenant
    #[arg(long, value_name = "TENANT")]
    tenant: Option<String>,
    /// Maximum number of results
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
}

pub(in crate::cli) async fn run(Args { command, connect }: Args) -> Result<ExitCode> {
    connect
        .run(async |client, out| match command {
            Command::Groups(args) => groups(client, out, args).await,
        })
        .await
}

async fn groups(client: &DeskClient, out: &Output, args: Groups) -> Result<ExitCode> {
    let mut query: QueryParams = vec![("limit", args.limit.to_string())];
    query.extend(args.queue.map(|queue| ("queue", queue)));
    query.extend(args.tenant.map(|tenant| ("tenant", tenant)));
    let answer = client.get("/v1/failing/groups", &query).await?;
    out.answer(&answer, |answer| {
        let row = |group: &Value| {
            let queues = group["queues"].as_array().into_iter().flatten().map(|of| text(of, "queue"));
            vec![
                text(group, "cause"),
                text(group, "events"),
                ago(&text(group, "since")),
                ago(&text(group, "last")),
                Some(ago(&text(group, "next")))
                    .filter(|next| next.starts_with("in "))
                    .unwrap_or_else(|| "now".to_owned()),
                text(group, "attempts"),
                queues.collect::<Vec<_>>().join(","),
                text(group, "title"),
            ]
        };
        let rows: Vec<Vec<String>> = answer["groups"].as_array().into_iter().flatten().map(row).collect();
        if rows.is_empty() {
            say("no event is failing");
            return String::new();
        }
        let heads = [
            "GROUP",
            "EVENTS",
            "FAILING SINCE",
            "LAST ATTEMPT",
            "NEXT ATTEMPT",
            "ATTEMPTS",
            "QUEUES",
            "TITLE",
        ];
        table(&heads, &rows)
    })?;
    if answer["more"] == true {
        say("more groups exist; raise --limit");
    }
    if let Some(looked) = answer["looked"].as_u64() {
        say(format!("counts cover {looked} retrying events; use --queue or --tenant to narrow them down"));
    }
    Ok(ExitCode::SUCCESS)
}

/// The arguments of `redrive event retry-now`: events by id, or all retrying events that match, as a job.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct RetryNow {
    /// Event ids; without any, all retrying events that match
    #[arg(value_name = "ID")]
    ids: Vec<String>,
    #[command(flatten)]
    place: EventLocation,
    /// Act only if the event still has this `rev`
    #[arg(long, value_name = "REV")]
    rev: Option<u32>,
    /// All of this group: a cause from `redrive failing groups`, or a prefix of it
    #[arg(long, value_name = "CAUSE", conflicts_with = "ids")]
    group: Option<String>,
    /// Maximum rate, e.g. 50/s or 10/m
    #[arg(long, value_name = "RATE", value_parser = rate, conflicts_with = "ids")]
    rate: Option<f64>,
    /// Retry this many first; continue only if they succeed
    #[arg(long, value_name = "N", conflicts_with = "ids")]
    canary: Option<u32>,
    /// Stop when more than this share fails again, e.g. 20%
    #[arg(long, value_name = "SHARE", value_parser = share, conflicts_with = "ids")]
    stop_at: Option<f64>,
    /// Only show what would be done
    #[arg(long, conflicts_with = "ids")]
    dry_run: bool,
    /// Confirm an action on the events of all queues
    #[arg(long, conflicts_with = "ids")]
    yes: bool,
    /// Watch the job until it ends
    #[arg(long, conflicts_with = "ids")]
    watch: bool,
}

/// Makes waiting events due now, or starts a job that has all retrying events that match attempted at once.
pub(in crate::cli) async fn retry_now(client: &DeskClient, out: &Output, args: RetryNow) -> Result<ExitCode> {
    let RetryNow { ids, place, rev, group, rate, canary, stop_at, dry_run, yes, watch } = args;
    if !ids.is_empty() {
        return by_ids(client, out, "retry-now", EventIds { ids, place, rev }, "due now").await;
    }
    ensure!(rev.is_none(), "--rev needs exactly one id");
    let is_everything = group.is_none() && place.queue.is_none() && place.tenant.is_none();
    let cause = match group {
        None => None,
        Some(group) => Some(cause(client, &group).await?),
    };
    let filter = [("queue", place.queue), ("tenant", place.tenant), ("cause", cause)];
    let filter: Value = filter
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), Value::String(value?))))
        .collect();
    let mut wanted = json!({
        "act": "retry-now", "filter": filter, "rate": rate, "canary": canary, "stop_at": stop_at,
    });
    let answer = client.post("/v1/jobs/plan", &wanted).await?;
    let planned: PlanJson = read(&answer)?;
    if dry_run {
        job::put_plan(out, &answer)?;
        say("nothing was done");
        return Ok(ExitCode::SUCCESS);
    }
    if planned.letters == 0 {
        out.answer(&answer, |_| String::new())?;
        say(if is_everything { "no event is failing" } else { "no failing events that match" });
        return Ok(ExitCode::SUCCESS);
    }
    if is_everything && !yes {
        let events = several(planned.letters, "retrying event");
        bail!("name a --group or a --queue, or confirm with --yes that all {events} are meant");
    }
    job::warn(&planned);
    wanted["yes"] = true.into();
    let begun = client.post("/v1/jobs", &wanted).await?;
    job::started(client, out, &begun, watch).await
}

/// Resolves a group's cause from a prefix.
async fn cause(client: &DeskClient, begin: &str) -> Result<String> {
    let answer = client.get("/v1/failing/groups", &vec![("limit", "1000".to_owned())]).await?;
    let causes = answer["groups"].as_array().into_iter().flatten().map(|group| text(group, "cause"));
    let fitting: Vec<String> = causes.filter(|cause| !begin.is_empty() && cause.starts_with(begin)).collect();
    match &fitting[..] {
        [cause] => Ok(cause.clone()),
        [] => bail!("no group of failing events starts with `{begin}`; see `redrive failing groups`"),
        _ => bail!("several groups start with `{begin}`: {}", fitting.join(", ")),
    }
}
