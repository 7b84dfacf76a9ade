//! `redrive queue`: inspect and control queues.

use std::process::ExitCode;

use anyhow::{Result, bail};
use serde_json::{Value, json};

use super::client::{DeskClient, QueryParams, encoded};
use super::connect::ConnectArgs;
use super::dead::duration;
use super::output::{Output, ago, facts, plain, say, table, text, when};
use super::selector::whole;

/// Inspect and control queues: list, show, pause, resume, reroute
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    connect: ConnectArgs,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List queues with the number of events by state
    Ls,
    /// Show a queue with its active rules
    Show(QueueName),
    /// Pause a queue; running attempts finish
    Pause(Pause),
    /// Resume a queue
    Resume(QueueName),
    /// Run a queue's events with the handler of another queue
    Reroute(Reroute),
}

#[derive(Debug, clap::Args)]
struct QueueName {
    /// The queue name
    #[arg(value_name = "QUEUE")]
    queue: String,
}

/// The duration and reason of a rule.
#[derive(Debug, clap::Args)]
pub(super) struct RuleTerms {
    /// Duration, e.g. 30m; without it, until the rule is lifted
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    pub(super) time: Option<String>,
    /// The reason, shown with the rule
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(super) why: String,
}

#[derive(Debug, clap::Args)]
struct Pause {
    #[command(flatten)]
    name: QueueName,
    /// Pause only retries and redrives; first attempts continue
    #[arg(long)]
    retries: bool,
    #[command(flatten)]
    terms: RuleTerms,
}

#[derive(Debug, clap::Args)]
struct Reroute {
    #[command(flatten)]
    name: QueueName,
    /// The queue whose handler runs the events
    #[arg(long, value_name = "QUEUE", required_unless_present = "back", conflicts_with = "back")]
    to: Option<String>,
    /// Return to the queue's own handler
    #[arg(long)]
    back: bool,
    #[command(flatten)]
    terms: RuleTerms,
}

pub(super) async fn run(Args { command, connect }: Args) -> Result<ExitCode> {
    connect
        .run(async |client, out| match command {
            Command::Ls => list(client, out).await,
            Command::Show(QueueName { queue }) => {
                let answer = client.get(&format!("/v1/queues/{}", encoded(&queue)), &Vec::new()).await?;
                out.answer(&answer, told)?;
                Ok(ExitCode::SUCCESS)
            }
            Command::Pause(Pause { name, retries, terms }) => {
                let body = json!({ "retries": retries, "for": terms.time, "why": terms.why });
                let what = if retries { "its retries wait" } else { "paused" };
                change(client, out, &name.queue, "pause", &body, what).await
            }
            Command::Resume(QueueName { queue }) => {
                let resumed = change(client, out, &queue, "resume", &json!({}), "goes on").await;
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
                change(client, out, &name.queue, "reroute", &body, &what).await
            }
        })
        .await
}

async fn change(
    client: &DeskClient,
    out: &Output,
    queue: &str,
    verb: &str,
    body: &Value,
    what: &str,
) -> Result<ExitCode> {
    let answer = client.post(&format!("/v1/queues/{}/{verb}", encoded(queue)), body).await?;
    out.answer(&answer, |answer| {
        plain(&format!("1 queue changed: {queue}: {what}{}", until(answer))) + "\n"
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Formats until when a rule applies.
pub(super) fn until(rule: &Value) -> String {
    match text(rule, "until").as_str() {
        "" => String::new(),
        until => format!(" until {until}"),
    }
}

async fn list(client: &DeskClient, out: &Output) -> Result<ExitCode> {
    let answer = whole(client, "/v1/queues", "queues").await?;
    out.answer(&answer, |answer| {
        let states = ["ready", "waiting", "running", "parked", "quarantined", "dead", "discarded"];
        let row = |queue: &Value| {
            let mut row = ["queue", "delivery", "order"].map(|name| text(queue, name)).to_vec();
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
            "DELIVERY",
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
        ["queue", "delivery", "order"].into_iter().map(|name| (name, text(queue, name))).collect();
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

/// Rules as a table; empty if there are none.
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

/// Query parameters, without the absent ones.
pub(super) fn pairs(all: impl IntoIterator<Item = (&'static str, Option<String>)>) -> QueryParams {
    all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}
