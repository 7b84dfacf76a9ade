//! `redrive key`: what holds up a key, and letting it go.

use std::process::ExitCode;

use anyhow::Result;
use serde_json::{Value, json};

use super::super::line::Line;
use super::super::out::{Out, ago, facts, plain, say, table, text};
use super::super::reach::Reach;
use super::{Terms, pairs, rules, until};

/// Ordering keys: what holds one up; park, unpark, skip its head
#[derive(Debug, clap::Args)]
pub(in super::super) struct Args {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    reach: Reach,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Show its events in order, and what holds them up
    Show(Key),
    /// Start nothing of it any more
    Park(Park),
    /// Let everything of it go on: rules and dead letters hold it up no more
    Unpark(Key),
    /// Let those go on that wait behind the dead letter at its head; that stays dead
    SkipHead(Key),
}

#[derive(Debug, clap::Args)]
struct Key {
    /// The key
    #[arg(value_name = "KEY")]
    key: String,
    /// Of this queue
    #[arg(long, value_name = "QUEUE")]
    queue: String,
    /// Of this tenant
    #[arg(long, value_name = "TENANT")]
    tenant: Option<String>,
}

#[derive(Debug, clap::Args)]
struct Park {
    #[command(flatten)]
    key: Key,
    #[command(flatten)]
    terms: Terms,
}

pub(in super::super) async fn run(Args { command, reach }: Args) -> Result<ExitCode> {
    reach
        .run(async |line, out| match command {
            Command::Show(key) => show(line, out, key).await,
            Command::Park(Park { key, terms }) => {
                let mut body = named(&key);
                (body["for"], body["why"]) = (terms.time.into(), terms.why.into());
                change(line, out, &key, "park", &body, "parked").await
            }
            Command::Unpark(key) => change(line, out, &key, "unpark", &named(&key), "goes on").await,
            Command::SkipHead(key) => {
                change(line, out, &key, "skip-head", &named(&key), "its head is skipped").await
            }
        })
        .await
}

fn named(Key { key, queue, tenant }: &Key) -> Value {
    json!({ "queue": queue, "tenant": tenant, "key": key })
}

async fn change(line: &Line, out: &Out, key: &Key, verb: &str, body: &Value, what: &str) -> Result<ExitCode> {
    let answer = line.post(&format!("/v1/keys/{verb}"), body).await?;
    let told = |answer: &Value| plain(&format!("1 key changed: {}: {what}{}", key.key, until(answer))) + "\n";
    out.answer(&answer, told)?;
    Ok(ExitCode::SUCCESS)
}

async fn show(line: &Line, out: &Out, Key { key, queue, tenant }: Key) -> Result<ExitCode> {
    let query = pairs([("queue", Some(queue)), ("tenant", tenant), ("key", Some(key))]);
    let answer = line.get("/v1/keys", &query).await?;
    out.answer(&answer, told)?;
    if answer["more"] == true {
        say("there may be more events of this key");
    }
    Ok(ExitCode::SUCCESS)
}

fn told(answer: &Value) -> String {
    let held = match (
        answer["held_by_dead"] == true,
        answer["rules"].as_array().is_some_and(|list| !list.is_empty()),
    ) {
        (true, true) => "a dead letter and rules",
        (true, false) => "a dead letter",
        (false, true) => "rules",
        (false, false) => "nothing",
    };
    let word = |name: &str| text(answer, name);
    let mut told = facts(&[
        ("key", word("key")),
        ("queue", word("queue")),
        ("tenant", word("tenant")),
        ("held up by", held.to_owned()),
    ]);
    let row = |event: &Value| {
        let head = if event["holds_key"] == true { "holds up" } else { "" };
        let mut row = ["id", "state", "attempts"].map(|name| text(event, name)).to_vec();
        row.extend([ago(&text(event, "published")), text(event, "reason"), head.to_owned()]);
        row
    };
    let rows: Vec<Vec<String>> = answer["events"].as_array().into_iter().flatten().map(row).collect();
    for part in [
        rules(&answer["rules"]),
        if rows.is_empty() {
            "no events\n".to_owned()
        } else {
            table(&["ID", "STATE", "ATTEMPTS", "PUBLISHED", "REASON", ""], &rows)
        },
    ] {
        if !part.is_empty() {
            told.push('\n');
            told.push_str(&part);
        }
    }
    told
}
