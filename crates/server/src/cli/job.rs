//! `redrive job`: redrives and discards of many, which go on in the background of a server.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use super::line::Line;
use super::out::{Out, ago, facts, put, say, several, table, text, when};
use super::reach::Reach;
use super::which::whole;

/// How often a job is looked at.
const LOOK: Duration = Duration::from_millis(250);
/// How many looks at a file may show no change before nobody is taken to run the job. A server takes a step a second.
const STILL_MAX: u32 = 12;

/// Jobs: how far redrives of many are; pause, resume, cancel them
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    reach: Reach,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List the last hundred, and all that are not over
    Ls,
    /// Show one
    Show(Number),
    /// Watch one until it is over; Ctrl-C stops the watching alone
    Watch(Number),
    /// Let it put back no more for now
    Pause(Number),
    /// Let it go on
    Resume(Number),
    /// End it; what it put back stays put back
    Cancel(Number),
}

#[derive(Debug, clap::Args)]
struct Number {
    /// Its number
    #[arg(value_name = "JOB")]
    id: u64,
}

pub(super) async fn run(Args { command, reach }: Args) -> Result<ExitCode> {
    reach
        .run(async |line, out| match command {
            Command::Ls => list(line, out).await,
            Command::Show(Number { id }) => {
                let job = line.get(&format!("/v1/jobs/{id}"), &Vec::new()).await?;
                out.answer(&job, told)?;
                Ok(ExitCode::SUCCESS)
            }
            Command::Watch(Number { id }) => watch(line, out, id).await,
            Command::Pause(Number { id }) => turn(line, out, id, "pause").await,
            Command::Resume(Number { id }) => turn(line, out, id, "resume").await,
            Command::Cancel(Number { id }) => turn(line, out, id, "cancel").await,
        })
        .await
}

async fn list(line: &Line, out: &Out) -> Result<ExitCode> {
    let answer = whole(line, "/v1/jobs", "jobs").await?;
    out.answer(&answer, |answer| {
        let row = |job: &Value| {
            let words = ["id", "act", "state", "planned", "taken", "done", "failed", "skipped", "who"];
            let mut row = words.map(|name| text(job, name)).to_vec();
            row.extend([ago(&text(job, "started")), text(job, "why")]);
            row
        };
        let rows: Vec<Vec<String>> = answer["jobs"].as_array().into_iter().flatten().map(row).collect();
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

fn told(job: &Value) -> String {
    let word = |name: &str| text(job, name);
    facts(&[
        ("job", word("id")),
        ("act", word("act")),
        ("state", word("state")),
        ("why", word("why")),
        ("filter", job["filter"].to_string()),
        ("who", word("who")),
        ("started", when(&word("started"))),
        ("ended", when(&word("ended"))),
        ("rate", word("rate")),
        ("ramp", word("ramp")),
        ("canary", word("canary")),
        ("stop at", word("stop_at")),
        ("planned", word("planned")),
        ("taken", word("taken")),
        ("done", word("done")),
        ("failed again", word("failed")),
        ("ended otherwise", word("other")),
        ("under way", word("under_way")),
        ("skipped", word("skipped")),
    ])
}

async fn turn(line: &Line, out: &Out, id: u64, verb: &str) -> Result<ExitCode> {
    let job = line.post(&format!("/v1/jobs/{id}/{verb}"), &json!({})).await?;
    out.answer(&job, |job| format!("job {id}: {}\n", text(job, "state")))?;
    Ok(ExitCode::SUCCESS)
}

/// A job that began. In a file nobody takes it further by itself.
pub(super) async fn started(line: &Line, out: &Out, job: &Value, is_watched: bool) -> Result<ExitCode> {
    let id = job["id"].as_u64().unwrap_or_default();
    let letters = several(job["planned"].as_u64().unwrap_or_default(), "dead letter");
    if is_watched {
        say(format_args!("job {id}: {} of {letters}", text(job, "act")));
        return watch(line, out, id).await;
    }
    out.answer(job, |job| format!("job {id}: {} of {letters}\n", text(job, "act")))?;
    if line.is_file() {
        say(format_args!("job {id} starts when a server runs on this file"));
    } else {
        say(format_args!("it goes on in the background; see `redrive job watch {id}`"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Watches a job until it is over.
async fn watch(line: &Line, out: &Out, id: u64) -> Result<ExitCode> {
    let bar = ProgressBar::new(0);
    // What is wrong with the form is seen by everybody who watches, at once.
    bar.set_style(ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} {elapsed}")?);
    let watching = tokio::select! {
        job = until_over(line, &bar, id) => job,
        _ = tokio::signal::ctrl_c() => {
            bar.finish_and_clear();
            say(format_args!("not watching any more; job {id} goes on"));
            return Ok(ExitCode::from(130));
        }
    };
    bar.finish_and_clear();
    let job = watching?;
    out.answer(&job, |job| format!("job {id}: {}\n", summary(job)))?;
    Ok(if job["state"] == "done" { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn until_over(line: &Line, bar: &ProgressBar, id: u64) -> Result<Value> {
    let (mut last, mut still) = (Value::Null, 0);
    loop {
        let job = line.get(&format!("/v1/jobs/{id}"), &Vec::new()).await?;
        let number = |name: &str| job[name].as_u64().unwrap_or_default();
        let ended = number("done") + number("failed") + number("other");
        let is_redrive = job["act"] == "redrive";
        bar.set_length(number("planned").max(number("taken")));
        bar.set_position(if is_redrive { ended } else { number("taken") });
        bar.set_message(summary(&job));
        if matches!(job["state"].as_str(), Some("done" | "cancelled" | "stopped") | None) {
            return Ok(job);
        }
        if job["state"] != last["state"] {
            // Where there is no bar, somebody reads along.
            if bar.is_hidden() {
                say(format_args!("job {id}: {}", summary(&job)));
            }
        }
        still = if job == last { still + 1 } else { 0 };
        if line.is_file() && still >= STILL_MAX {
            bail!(
                "nobody takes job {id} further ({}); it goes on when a server runs on this file",
                summary(&job)
            );
        }
        last = job;
        tokio::time::sleep(LOOK).await;
    }
}

/// Where a job is, on a line.
fn summary(job: &Value) -> String {
    let number = |name: &str| job[name].as_u64().unwrap_or_default();
    let mut words = vec![text(job, "state"), format!("{} taken", number("taken"))];
    for (name, word) in [("done", "done"), ("failed", "failed again"), ("other", "ended otherwise")] {
        if number(name) > 0 {
            words.push(format!("{} {word}", number(name)));
        }
    }
    if number("skipped") > 0 {
        words.push(format!("{} skipped", number("skipped")));
    }
    if let Some(why) = job["why"].as_str() {
        words.push(super::out::plain(why));
    }
    words.join(", ")
}

/// What a job would do, for people.
pub(super) fn plan(plan: &Value) -> String {
    let names = |list: &Value, one: &dyn Fn(&Value) -> String| -> String {
        list.as_array().into_iter().flatten().map(one).collect::<Vec<_>>().join(", ")
    };
    let some = |name: &str| Some(text(plan, name)).filter(|number| number != "0").unwrap_or_default();
    let mut told = facts(&[
        ("letters", text(plan, "letters")),
        ("queues", names(&plan["queues"], &|of| format!("{} ({})", text(of, "queue"), text(of, "letters")))),
        ("keys", names(&plan["keys"], &|key| key.as_str().unwrap_or_default().to_owned())),
        ("keys held up", some("keys_blocked")),
        ("time at least", Some(text(plan, "time")).filter(|time| time != "0s").unwrap_or_default()),
    ]);
    for warning in plan["warnings"].as_array().into_iter().flatten() {
        told.push_str(&format!("mind: {}\n", super::out::plain(warning.as_str().unwrap_or_default())));
    }
    told
}

/// Says what is to be thought of before a job begins.
pub(super) fn warn(plan: &Value) {
    for warning in plan["warnings"].as_array().into_iter().flatten() {
        say(format_args!("mind: {}", super::out::plain(warning.as_str().unwrap_or_default())));
    }
}

/// Shows a plan on stdout.
pub(super) fn put_plan(out: &Out, planned: &Value) -> Result<()> {
    if out.json { put(&format!("{planned:#}\n")) } else { put(&plan(planned)) }
}
