//! `redrive event`: list events, show one with its attempt history, and act on those that have not ended.

use std::process::ExitCode;

use anyhow::Result;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::client::{DeskClient, QueryParams};
use super::connect::ConnectArgs;
use super::output::{self, Output, ago, facts, say, several, table, text, when};
use super::selector::{self, EventLocation, EventSelector};

pub(super) mod failing;
pub(super) mod publish;
pub(super) mod tail;

use failing::{RetryNow, retry_now};

/// Inspect and act on events that have not ended
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    connect: ConnectArgs,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List events that have not ended
    Ls(Ls),
    /// Show one event with its attempts and the events blocked behind it
    Show(Show),
    /// Attempt waiting events now: by id, or all that fail by group or queue
    RetryNow(RetryNow),
    /// Skip events so that those behind them proceed; `redrive dead restore` brings them back
    Skip(EventIds),
    /// Turn waiting events into dead letters
    Kill(EventIds),
}

#[derive(Debug, clap::Args)]
struct Ls {
    /// Only events in this state: ready, waiting, running, parked, quarantined, dead, discarded
    #[arg(long, value_name = "STATE")]
    state: Option<String>,
    #[command(flatten)]
    page: Page,
    #[command(flatten)]
    which: EventSelector,
}

/// The size and start of a page.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct Page {
    /// Maximum number of results
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,
    /// Start after this position, printed by the previous page
    #[arg(long, value_name = "PLACE")]
    after: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(super) struct Show {
    /// The event id
    #[arg(value_name = "ID")]
    id: String,
    #[command(flatten)]
    place: EventLocation,
    /// Also show headers and payload
    #[arg(long)]
    body: bool,
    /// No effect: attempts are always shown
    #[arg(long, hide = true)]
    attempts: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct EventIds {
    /// Event ids
    #[arg(value_name = "ID", required = true)]
    pub(super) ids: Vec<String>,
    #[command(flatten)]
    pub(super) place: EventLocation,
    /// Act only if the event still has this `rev`
    #[arg(long, value_name = "REV")]
    pub(super) rev: Option<u32>,
}

pub(super) async fn run(Args { command, connect }: Args) -> Result<ExitCode> {
    connect
        .run(async |client, out| match command {
            Command::Ls(Ls { state, page, which }) => list(client, out, &which, state.as_deref(), page).await,
            Command::Show(args) => show(client, out, args).await,
            Command::RetryNow(args) => retry_now(client, out, args).await,
            Command::Skip(ids) => by_ids(client, out, "discard", ids, "discarded").await,
            Command::Kill(ids) => by_ids(client, out, "kill", ids, "dead now").await,
        })
        .await
}

/// Lists events in a state.
pub(super) async fn list(
    client: &DeskClient,
    out: &Output,
    which: &EventSelector,
    state: Option<&str>,
    page: Page,
) -> Result<ExitCode> {
    let most = usize::try_from(page.limit)?;
    let answer = selector::events(client, which.pairs(client).await?, state, page.after, most).await?;
    let noun = match state {
        Some("dead") => "dead letters".to_owned(),
        Some(state) => format!("{state} events"),
        None => "events".to_owned(),
    };
    out.answer(&answer, |answer| {
        let rows: Vec<Vec<String>> = answer["events"].as_array().into_iter().flatten().map(row).collect();
        if rows.is_empty() {
            let that = if which.is_everything() { "" } else { " that match" };
            say(format_args!("no {noun}{that}"));
            return String::new();
        }
        table(&["QUEUE", "TENANT", "ID", "KEY", "STATE", "ATTEMPTS", "WHEN", "REASON", "ERROR"], &rows)
    })?;
    if let Some(next) = answer["next"].as_str() {
        say(format_args!("more may follow: --after {next}"));
    }
    for row in answer["damaged"].as_array().into_iter().flatten() {
        say(format_args!("cannot be read, left out: {}", row.as_str().unwrap_or_default()));
    }
    Ok(ExitCode::SUCCESS)
}

fn row(event: &Value) -> Vec<String> {
    let time = ["ended", "due", "published"].into_iter().map(|name| text(event, name));
    let time = time.into_iter().find(|time| !time.is_empty()).unwrap_or_default();
    let words = ["queue", "tenant", "id", "key", "state", "attempts"].map(|name| text(event, name));
    let mut row = words.to_vec();
    row.extend([ago(&time), text(event, "reason"), error(event)]);
    row
}

/// The last error, on one line.
fn error(event: &Value) -> String {
    let error = &event["error"];
    let words = [text(error, "kind"), text(error, "code")];
    let words: Vec<String> = words.into_iter().filter(|word| !word.is_empty()).collect();
    match text(error, "message").as_str() {
        "" => words.join(" "),
        message => format!("{}: {message}", words.join(" ")),
    }
}

/// Shows one event.
pub(super) async fn show(client: &DeskClient, out: &Output, args: Show) -> Result<ExitCode> {
    let Show { id, place, body, .. } = args;
    let name = place.find(client, &id).await?;
    let mut query: QueryParams = vec![("queue", text(&name, "queue")), ("id", id)];
    query.extend(name["tenant"].as_str().map(|tenant| ("tenant", tenant.to_owned())));
    if body {
        query.push(("contents", "1".to_owned()));
    }
    let event = client.get("/v1/event", &query).await?;
    out.answer(&event, |event| told(event, body))?;
    Ok(ExitCode::SUCCESS)
}

fn told(event: &Value, with_body: bool) -> String {
    let word = |name: &str| text(event, name);
    let is_over = matches!(word("state").as_str(), "done" | "dropped" | "expired" | "discarded");
    let holds = if event["holds_key"] == true { "the events behind it on its key" } else { "" };
    let mut told = facts(&[
        ("id", word("id")),
        ("queue", word("queue")),
        ("tenant", word("tenant")),
        ("key", word("key")),
        ("state", word("state")),
        ("reason", word("reason")),
        ("waits", text(&event["waits"], "text")),
        (if is_over { "last error" } else { "error" }, error(event)),
        ("group", word("cause")),
        ("blocks", holds.to_owned()),
        ("rerouted to", word("route")),
        ("edited into", word("edited_into")),
        ("published", when(&word("published"))),
        ("due", when(&word("due"))),
        ("ended", when(&word("ended"))),
        ("until", when(&word("until"))),
        ("attempts", word("attempts")),
        ("result", result(&event["result"])),
        ("rev", word("rev")),
    ]);
    told.push_str(&history(&event["history"]));
    let short = |event: &Value| {
        let mut row = ["id", "state", "attempts"].map(|name| text(event, name)).to_vec();
        row.push(ago(&text(event, "published")));
        row
    };
    let behind: Vec<Vec<String>> = event["behind"].as_array().into_iter().flatten().map(short).collect();
    if !behind.is_empty() {
        told.push_str("\nbehind it on its key:\n");
        told.push_str(&table(&["ID", "STATE", "ATTEMPTS", "PUBLISHED"], &behind));
    }
    if with_body {
        told.push_str(&contents(event));
    }
    told
}

/// What the handler or the destination left, on one line.
fn result(result: &Value) -> String {
    match &result["base64"] {
        Value::String(bytes) => format!("{bytes} (base64)"),
        _ => result.as_str().unwrap_or_default().to_owned(),
    }
}

fn history(history: &Value) -> String {
    let row = |record: &Value| {
        if let Some(left_out) = record["left_out"].as_u64() {
            return vec!["…".to_owned(), format!("{} left out", several(left_out, "attempt"))];
        }
        let error = json!({ "error": record["cause"] });
        let took = record["took_ms"].as_u64().map_or(String::new(), |took| format!("{took} ms"));
        let wait = record["delay_ms"].as_u64().map_or(String::new(), |wait| format!("{wait} ms"));
        let words = ["attempt", "mode", "at"].map(|name| text(record, name));
        let mut row = words.to_vec();
        row.extend([took, text(record, "disposition"), text(record, "executed"), wait, self::error(&error)]);
        row
    };
    let rows: Vec<Vec<String>> = history.as_array().into_iter().flatten().map(row).collect();
    if rows.is_empty() {
        return String::new();
    }
    let heads = ["ATTEMPT", "MODE", "AT", "TOOK", "SAID", "EXECUTED", "WAIT", "ERROR"];
    format!("\n{}", table(&heads, &rows))
}

fn contents(event: &Value) -> String {
    let mut told = String::from("\n");
    let names = ["content_type", "correlation", "causation"].map(|name| (name, text(event, name)));
    told.push_str(&facts(&names));
    for header in event["headers"].as_array().into_iter().flatten() {
        let part = |at: usize| header[at].as_str().unwrap_or_default();
        told.push_str(&output::plain(&format!("{}: {}", part(0), part(1))));
        told.push('\n');
    }
    let payload = match (&event["payload"], &event["payload_base64"]) {
        (Value::String(text), _) => text.clone().into_bytes(),
        (_, Value::String(text)) => STANDARD.decode(text).unwrap_or_default(),
        _ => return format!("{told}\npayload no longer stored\n"),
    };
    told.push('\n');
    told.push_str(&if payload.is_empty() { "payload is empty\n".to_owned() } else { output::body(&payload) });
    told
}

/// Acts on events by id.
pub(super) async fn by_ids(
    client: &DeskClient,
    out: &Output,
    verb: &str,
    ids: EventIds,
    done: &str,
) -> Result<ExitCode> {
    let targets = targets(client, &ids).await?;
    order(client, out, verb, json!({ "targets": targets }), done).await
}

/// The events with these ids, with the expected rev.
pub(super) async fn targets(client: &DeskClient, ids: &EventIds) -> Result<Vec<Value>> {
    let mut targets = Vec::new();
    anyhow::ensure!(ids.rev.is_none() || ids.ids.len() == 1, "--rev needs exactly one id");
    for id in &ids.ids {
        let mut target = ids.place.find(client, id).await?;
        target["rev"] = ids.rev.into();
        targets.push(target);
    }
    Ok(targets)
}

/// Sends an action and prints its result.
pub(super) async fn order(
    client: &DeskClient,
    out: &Output,
    verb: &str,
    body: Value,
    done: &str,
) -> Result<ExitCode> {
    let answer = client.post(&format!("/v1/events/{verb}"), &body).await?;
    let changed = answer["changed"].as_u64().unwrap_or_default();
    out.answer(&answer, |_| format!("{} {done}\n", several(changed, "event")))?;
    Ok(refusals(&answer))
}

/// Prints each refusal.
pub(super) fn refusals(answer: &Value) -> ExitCode {
    let refused = answer["refused"].as_array().map_or(&[][..], Vec::as_slice);
    for one in refused {
        let which = match one["line"].as_u64() {
            Some(line) => format!("line {line}"),
            None => format!("{}/{}", text(one, "queue"), text(one, "id")),
        };
        let hint = if one["reason"] == "out-of-order" { " (--out-of-order)" } else { "" };
        say(output::plain(&format!("refused: {which}: {}{hint}", text(one, "detail"))));
    }
    if refused.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
