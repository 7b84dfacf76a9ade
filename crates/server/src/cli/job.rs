//! `redrive job`: bulk redrives, retries and discards, which a server runs in the background.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use super::client::{DeskClient, read};
use super::connect::ConnectArgs;
use super::output::{Output, ago, facts, plain, say, several, table, when};
use super::selector::whole;
use crate::api::wire::{JobJson, PlanJson};

/// Interval between polls of a job.
const LOOK: Duration = Duration::from_millis(250);
/// Polls without progress after which no server is assumed to run the job. A server makes a step per second.
const STILL_MAX: u32 = 12;

/// Manage jobs: list, show, watch, pause, resume, cancel
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    connect: ConnectArgs,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List the last hundred jobs, and all unfinished ones
    Ls,
    /// Show a job
    Show(JobNumber),
    /// Watch a job until it ends; Ctrl-C stops only the watching
    Watch(JobNumber),
    /// Pause a job
    Pause(JobNumber),
    /// Resume a job
    Resume(JobNumber),
    /// Cancel a job; events it already put back stay put back
    Cancel(JobNumber),
}

#[derive(Debug, clap::Args)]
struct JobNumber {
    /// The job number
    #[arg(value_name = "JOB")]
    id: u64,
}

pub(super) async fn run(Args { command, connect }: Args) -> Result<ExitCode> {
    connect
        .run(async |client, out| match command {
            Command::Ls => list(client, out).await,
            Command::Show(JobNumber { id }) => {
                let (answer, job) = show(client, id).await?;
                out.answer(&answer, |_| details(&job))?;
                Ok(ExitCode::SUCCESS)
            }
            Command::Watch(JobNumber { id }) => watch(client, out, id).await,
            Command::Pause(JobNumber { id }) => control(client, out, id, "pause").await,
            Command::Resume(JobNumber { id }) => control(client, out, id, "resume").await,
            Command::Cancel(JobNumber { id }) => control(client, out, id, "cancel").await,
        })
        .await
}

async fn list(client: &DeskClient, out: &Output) -> Result<ExitCode> {
    let answer = whole(client, "/v1/jobs", "jobs").await?;
    let jobs: Vec<JobJson> = read(&answer["jobs"])?;
    out.answer(&answer, |_| {
        let row = |job: &JobJson| {
            let JobJson { id, act, state, planned, taken, done, failed, skipped, who, .. } = job;
            let mut row = vec![id.to_string(), act.clone(), state.clone()];
            row.extend([planned, taken, done, failed, skipped].map(u64::to_string));
            row.extend([who.clone(), ago(&job.started), job.why.clone().unwrap_or_default()]);
            row
        };
        let rows: Vec<Vec<String>> = jobs.iter().map(row).collect();
        if rows.is_empty() {
            say("no jobs");
            return String::new();
        }
        let heads =
            ["JOB", "ACT", "STATE", "PLANNED", "TAKEN", "DONE", "FAILED", "SKIPPED", "WHO", "STARTED", "WHY"];
        table(&heads, &rows)
    })?;
    Ok(ExitCode::SUCCESS)
}

/// A job as the API returns it, and parsed.
async fn show(client: &DeskClient, id: u64) -> Result<(Value, JobJson)> {
    let answer = client.get(&format!("/v1/jobs/{id}"), &Vec::new()).await?;
    let job = read(&answer)?;
    Ok((answer, job))
}

fn details(job: &JobJson) -> String {
    let number = |number: Option<f64>| number.map(|number| json!(number).to_string()).unwrap_or_default();
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    facts(&[
        ("job", job.id.to_string()),
        ("act", job.act.clone()),
        ("state", job.state.clone()),
        ("why", text(&job.why)),
        ("filter", job.filter.to_string()),
        ("who", job.who.clone()),
        ("started", when(&job.started)),
        ("ended", when(&text(&job.ended))),
        ("rate", number(job.rate)),
        ("ramp", text(&job.ramp)),
        ("canary", job.canary.map(|canary| canary.to_string()).unwrap_or_default()),
        ("stop at", number(job.stop_at)),
        ("planned", job.planned.to_string()),
        ("taken", job.taken.to_string()),
        ("done", job.done.to_string()),
        ("failed again", job.failed.to_string()),
        ("ended otherwise", job.other.to_string()),
        ("in progress", job.under_way.to_string()),
        ("skipped", job.skipped.to_string()),
    ])
}

async fn control(client: &DeskClient, out: &Output, id: u64, verb: &str) -> Result<ExitCode> {
    let answer = client.post(&format!("/v1/jobs/{id}/{verb}"), &json!({})).await?;
    let job: JobJson = read(&answer)?;
    out.answer(&answer, |_| format!("job {id}: {}\n", job.state))?;
    Ok(ExitCode::SUCCESS)
}

/// Reports a job that was started. Without a server on the store it makes no progress.
pub(super) async fn started(
    client: &DeskClient,
    out: &Output,
    answer: &Value,
    is_watched: bool,
) -> Result<ExitCode> {
    let JobJson { id, act, planned, .. } = read(answer)?;
    let letters = several(planned, if act == "retry-now" { "retrying event" } else { "dead letter" });
    if is_watched {
        say(format_args!("job {id}: {act} of {letters}"));
        return watch(client, out, id).await;
    }
    out.answer(answer, |_| format!("job {id}: {act} of {letters}\n"))?;
    if client.is_file() {
        say(format_args!("job {id} starts as soon as a server runs on this file"));
    } else {
        say(format_args!("the job continues in the background; see `redrive job watch {id}`"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Watches a job until it ends.
async fn watch(client: &DeskClient, out: &Output, id: u64) -> Result<ExitCode> {
    let bar = ProgressBar::new(0);
    // Errors of the template show at once when watching.
    bar.set_style(ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} {elapsed}")?);
    let watching = tokio::select! {
        job = until_over(client, &bar, id) => job,
        _ = tokio::signal::ctrl_c() => {
            bar.finish_and_clear();
            say(format_args!("stopped watching; job {id} continues"));
            return Ok(ExitCode::from(130));
        }
    };
    bar.finish_and_clear();
    let (answer, job) = watching?;
    out.answer(&answer, |_| format!("job {id}: {}\n", summary(&job)))?;
    if job.failed > 0 {
        let (failed, see) = match job.act.as_str() {
            "retry-now" => ("still failing", "redrive failing groups"),
            _ => ("dead again", "redrive dead groups"),
        };
        say(format_args!("{} {failed}; see `{see}`", several(job.failed, "event")));
    }
    // Everything was done only if nothing failed again.
    let is_fine = job.state == "done" && job.failed == 0;
    Ok(if is_fine { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn until_over(client: &DeskClient, bar: &ProgressBar, id: u64) -> Result<(Value, JobJson)> {
    let (mut last, mut still) = (JobJson::default(), 0);
    loop {
        let (answer, job) = show(client, id).await?;
        let ended = job.done + job.failed + job.other;
        bar.set_length(job.planned.max(job.taken));
        bar.set_position(if job.act == "discard" { job.taken } else { ended });
        bar.set_message(summary(&job));
        if matches!(job.state.as_str(), "done" | "cancelled" | "stopped") {
            return Ok((answer, job));
        }
        // Without a progress bar, print the state as lines.
        if job.state != last.state && bar.is_hidden() {
            say(format_args!("job {id}: {}", summary(&job)));
        }
        still = if job == last { still + 1 } else { 0 };
        if client.is_file() && still >= STILL_MAX {
            bail!(
                "job {id} makes no progress ({}); it continues as soon as a server runs on this file",
                summary(&job)
            );
        }
        last = job;
        tokio::time::sleep(LOOK).await;
    }
}

/// A job's progress on one line.
fn summary(job: &JobJson) -> String {
    let mut words = vec![job.state.clone(), format!("{} taken", job.taken)];
    let counts = [
        (job.done, "done"),
        (job.failed, "failed again"),
        (job.other, "ended otherwise"),
        (job.skipped, "skipped"),
    ];
    words
        .extend(counts.iter().filter(|(count, _)| *count > 0).map(|(count, word)| format!("{count} {word}")));
    words.extend(job.why.as_deref().map(plain));
    words.join(", ")
}

/// A job's plan as text.
pub(super) fn plan(plan: &PlanJson) -> String {
    let queues = plan.queues.iter().map(|of| format!("{} ({})", of.queue, of.letters));
    let keys_blocked = Some(plan.keys_blocked).filter(|keys| *keys > 0);
    let mut text = facts(&[
        ("events", plan.letters.to_string()),
        ("queues", queues.collect::<Vec<_>>().join(", ")),
        ("keys", plan.keys.join(", ")),
        ("keys blocked", keys_blocked.map(|keys| keys.to_string()).unwrap_or_default()),
        ("minimum time", Some(plan.time.clone()).filter(|time| time != "0s").unwrap_or_default()),
    ]);
    for warning in &plan.warnings {
        text.push_str(&format!("warning: {}\n", plain(warning)));
    }
    text
}

/// Prints the warnings of a plan.
pub(super) fn warn(plan: &PlanJson) {
    for warning in &plan.warnings {
        say(format_args!("warning: {}", plain(warning)));
    }
}

/// Prints a plan to stdout.
pub(super) fn put_plan(out: &Output, answer: &Value) -> Result<()> {
    let planned = read(answer)?;
    out.answer(answer, |_| plan(&planned))
}
