//! `redrive key`: what holds up a key, and letting it go.

use std::process::ExitCode;

use anyhow::Result;
use serde_json::{Value, json};

use super::client::DeskClient;
use super::connect::ConnectArgs;
use super::output::{Output, ago, facts, plain, say, table, text};
use super::queue::{RuleTerms, pairs, rules, until};

/// Inspect and act on ordering keys: show, park, unpark, skip the head
#[derive(Debug, clap::Args)]
pub(in super::super) struct Args {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    connect: ConnectArgs,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Show the events of a key in order, and what blocks them
    Show(OrderingKey),
    /// Park a key: start none of its events
    Park(Park),
    /// Unpark a key: neither rules nor dead letters block it any longer
    Unpark(OrderingKey),
    /// Unblock the events behind the dead letter at the head; the head stays dead
    SkipHead(OrderingKey),
}

#[derive(Debug, clap::Args)]
struct OrderingKey {
    /// The ordering key
    #[arg(value_name = "KEY")]
    key: String,
    /// The queue of the key
    #[arg(long, value_name = "QUEUE")]
    queue: String,
    /// The tenant of the key
    #[arg(long, value_name = "TENANT")]
    tenant: Option<String>,
}

#[derive(Debug, clap::Args)]
struct Park {
    #[command(flatten)]
    key: OrderingKey,
    #[command(flatten)]
    terms: RuleTerms,
}

pub(in super::super) async fn run(Args { command, connect }: Args) -> Result<ExitCode> {
    connect
        .run(async |client, out| match command {
            Command::Show(key) => show(client, out, key).await,
            Command::Park(Park { key, terms }) => {
                let mut body = named(&key);
                (body["for"], body["why"]) = (terms.time.into(), terms.why.into());
                change(client, out, &key, "park", &body, "parked").await
            }
            Command::Unpark(key) => change(client, out, &key, "unpark", &named(&key), "goes on").await,
            Command::SkipHead(key) => {
                change(client, out, &key, "skip-head", &named(&key), "head skipped").await
            }
        })
        .await
}

fn named(OrderingKey { key, queue, tenant }: &OrderingKey) -> Value {
    json!({ "queue": queue, "tenant": tenant, "key": key })
}

async fn change(
    client: &DeskClient,
    out: &Output,
    key: &OrderingKey,
    verb: &str,
    body: &Value,
    what: &str,
) -> Result<ExitCode> {
    let answer = client.post(&format!("/v1/keys/{verb}"), body).await?;
    let told = |answer: &Value| plain(&format!("1 key changed: {}: {what}{}", key.key, until(answer))) + "\n";
    out.answer(&answer, told)?;
    Ok(ExitCode::SUCCESS)
}

async fn show(
    client: &DeskClient,
    out: &Output,
    OrderingKey { key, queue, tenant }: OrderingKey,
) -> Result<ExitCode> {
    let query = pairs([("queue", Some(queue)), ("tenant", tenant), ("key", Some(key))]);
    let answer = client.get("/v1/keys", &query).await?;
    out.answer(&answer, told)?;
    if answer["more"] == true {
        say("more events of this key may exist");
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
        ("blocked by", held.to_owned()),
    ]);
    let row = |event: &Value| {
        let head = if event["holds_key"] == true { "blocks the key" } else { "" };
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
