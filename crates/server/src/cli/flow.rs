//! `redrive queue`, `redrive quarantine` and `redrive key`: what is held back, and letting it go.

use std::process::ExitCode;

use anyhow::{Result, bail};
use serde_json::{Value, json};

use super::dead::duration;
use super::line::{Line, Pairs, encoded};
use super::out::{Out, ago, facts, plain, say, table, text, when};
use super::reach::Reach;
use super::which::whole;

pub(super) mod key;
pub(super) mod quarantine;

/// Queues: what is in them, pause, resume, reroute
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    reach: Reach,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List them with how many events are in which state
    Ls,
    /// Show one with the rules that hold it
    Show(Name),
    /// Start nothing of it any more; what runs goes on
    Pause(Pause),
    /// Let it go on
    Resume(Name),
    /// Have its events run by the handler of another queue
    Reroute(Reroute),
}

#[derive(Debug, clap::Args)]
struct Name {
    /// Its name
    #[arg(value_name = "QUEUE")]
    queue: String,
}

/// How long a rule holds, and why.
#[derive(Debug, clap::Args)]
pub(super) struct Terms {
    /// For how long, as 30m; until somebody ends it where it is not said
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    time: Option<String>,
    /// Why, for whoever finds it
    #[arg(long, value_name = "TEXT", default_value = "")]
    why: String,
}

#[derive(Debug, clap::Args)]
struct Pause {
    #[command(flatten)]
    name: Name,
    /// Only what ran before; first attempts go on
    #[arg(long)]
    retries: bool,
    #[command(flatten)]
    terms: Terms,
}

#[derive(Debug, clap::Args)]
struct Reroute {
    #[command(flatten)]
    name: Name,
    /// Whose handler
    #[arg(long, value_name = "QUEUE", required_unless_present = "back", conflicts_with = "back")]
    to: Option<String>,
    /// Have its own handler run them again
    #[arg(long)]
    back: bool,
    #[command(flatten)]
    terms: Terms,
}

pub(super) async fn run(Args { command, reach }: Args) -> Result<ExitCode> {
    reach
        .run(async |line, out| match command {
            Command::Ls => list(line, out).await,
            Command::Show(Name { queue }) => {
                let answer = line.get(&format!("/v1/queues/{}", encoded(&queue)), &Vec::new()).await?;
                out.answer(&answer, told)?;
                Ok(ExitCode::SUCCESS)
            }
            Command::Pause(Pause { name, retries, terms }) => {
                let body = json!({ "retries": retries, "for": terms.time, "why": terms.why });
                let what = if retries { "its retries wait" } else { "paused" };
                change(line, out, &name.queue, "pause", &body, what).await
            }
            Command::Resume(Name { queue }) => {
                let resumed = change(line, out, &queue, "resume", &json!({}), "goes on").await;
                match resumed {
                    Err(error) if error.to_string() == "there is no such rule" => {
                        bail!("the queue {} is not paused", plain(&queue))
                    }
                    other => other,
                }
            }
            Command::Reroute(Reroute { name, to, terms, .. }) => {
                let body = json!({ "to": to, "for": terms.time, "why": terms.why });
                let what = match &to {
                    Some(to) => format!("its events go to {to}"),
                    None => "its events go to its own handler".to_owned(),
                };
                change(line, out, &name.queue, "reroute", &body, &what).await
            }
        })
        .await
}

async fn change(
    line: &Line,
    out: &Out,
    queue: &str,
    verb: &str,
    body: &Value,
    what: &str,
) -> Result<ExitCode> {
    let answer = line.post(&format!("/v1/queues/{}/{verb}", encoded(queue)), body).await?;
    out.answer(&answer, |answer| {
        plain(&format!("1 queue changed: {queue}: {what}{}", until(answer))) + "\n"
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Until when a rule holds, after what it says.
pub(super) fn until(rule: &Value) -> String {
    match text(rule, "until").as_str() {
        "" => String::new(),
        until => format!(" until {until}"),
    }
}

async fn list(line: &Line, out: &Out) -> Result<ExitCode> {
    let answer = whole(line, "/v1/queues", "queues").await?;
    out.answer(&answer, |answer| {
        let states = ["ready", "waiting", "running", "parked", "quarantined", "dead", "discarded"];
        let row = |queue: &Value| {
            let mut row = ["queue", "goes", "order"].map(|name| text(queue, name)).to_vec();
            row.extend(states.map(|state| text(&queue["events"], state)));
            let rules = queue["rules"].as_array().into_iter().flatten();
            let rules: Vec<String> =
                rules.map(|rule| format!("{}{}", text(rule, "rule"), until(rule))).collect();
            row.push(rules.join(", "));
            row
        };
        let rows: Vec<Vec<String>> = answer["queues"].as_array().into_iter().flatten().map(row).collect();
        if rows.is_empty() {
            say("no queues");
            return String::new();
        }
        let heads = [
            "QUEUE",
            "GOES",
            "ORDER",
            "READY",
            "WAITING",
            "RUNNING",
            "PARKED",
            "QUARANTINED",
            "DEAD",
            "DISCARDED",
            "RULES",
        ];
        table(&heads, &rows)
    })?;
    Ok(ExitCode::SUCCESS)
}

fn told(queue: &Value) -> String {
    let mut pairs: Vec<(&str, String)> =
        ["queue", "goes", "order"].into_iter().map(|name| (name, text(queue, name))).collect();
    let states = ["ready", "waiting", "running", "parked", "quarantined", "dead", "discarded"];
    pairs.extend(states.map(|state| (state, text(&queue["events"], state))));
    let mut told = facts(&pairs);
    let rules = rules(&queue["rules"]);
    if !rules.is_empty() {
        told.push('\n');
        told.push_str(&rules);
    }
    told
}

/// Rules as a table; empty where there are none.
pub(super) fn rules(list: &Value) -> String {
    let row = |rule: &Value| {
        let mut row = ["rule", "queue", "tenant", "key", "to", "who"].map(|name| text(rule, name)).to_vec();
        row.extend([ago(&text(rule, "since")), when(&text(rule, "until")), text(rule, "why")]);
        row
    };
    let rows: Vec<Vec<String>> = list.as_array().into_iter().flatten().map(row).collect();
    if rows.is_empty() {
        return String::new();
    }
    table(&["RULE", "QUEUE", "TENANT", "KEY", "TO", "WHO", "SINCE", "UNTIL", "WHY"], &rows)
}

/// Parameters without those that are not said.
fn pairs(all: impl IntoIterator<Item = (&'static str, Option<String>)>) -> Pairs {
    all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}
