//! `redrive ledger`: requests under idempotency keys, and how an unknown one was.

use std::io::Read as _;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::line::{Line, Pairs};
use super::out::{self, Out, ago, facts, plain, say, table, text, when};
use super::reach::Reach;

/// How many bytes of an answer are read, at most: more than one that is given here may have.
const BODY_MAX: u64 = 8 << 20;

/// Requests under idempotency keys: list them, look at one, say how an unknown one was
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    reach: Reach,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List requests
    Ls(Ls),
    /// Show one
    Show(Show),
    /// Say how a request was whose outcome is unknown
    Resolve(Resolve),
}

#[derive(Debug, clap::Args)]
struct Ls {
    /// Those whose outcome is unknown
    #[arg(long, conflicts_with = "state")]
    unknown: bool,
    /// In this state: in_flight, retriable, unknown, completed, tombstone
    #[arg(long, value_name = "STATE")]
    state: Option<String>,
    /// Of this tenant
    #[arg(long, value_name = "TENANT")]
    tenant: Option<String>,
    /// That made this
    #[arg(long, value_name = "ID")]
    resource: Option<String>,
    /// How many at most
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
    /// From where the page before said
    #[arg(long, value_name = "PLACE")]
    after: Option<String>,
}

/// Which request.
#[derive(Debug, clap::Args)]
struct Which {
    /// Its idempotency key
    #[arg(value_name = "KEY")]
    key: String,
    /// Of this operation, as `POST /bookings`
    #[arg(long, value_name = "OPERATION")]
    operation: String,
    /// Of this tenant
    #[arg(long, value_name = "TENANT")]
    tenant: Option<String>,
}

#[derive(Debug, clap::Args)]
struct Show {
    #[command(flatten)]
    which: Which,
    /// Show what it was answered too
    #[arg(long)]
    body: bool,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum How {
    /// It happened: its answer is given from now on
    Completed,
    /// It did not happen: the next request runs
    Retriable,
}

#[derive(Debug, clap::Args)]
struct Resolve {
    #[command(flatten)]
    which: Which,
    /// How it was
    #[arg(long = "as", value_name = "HOW")]
    how: How,
    /// The status of its answer
    #[arg(long, value_name = "STATUS")]
    status: Option<u16>,
    /// A header of its answer, as `content-type: application/json`; several in their order
    #[arg(long = "header", value_name = "NAME: VALUE")]
    headers: Vec<String>,
    /// The body of its answer; @FILE for that of a file, @- for standard input
    #[arg(long, value_name = "BODY", conflicts_with = "gone")]
    body: Option<String>,
    /// Nobody has its body: who asks again is told so (410)
    #[arg(long)]
    gone: bool,
    /// Why, for whoever reads the audit
    #[arg(long, value_name = "TEXT", default_value = "")]
    why: String,
}

pub(super) async fn run(Args { command, reach }: Args) -> Result<ExitCode> {
    reach
        .run(async |line, out| match command {
            Command::Ls(args) => list(line, out, args).await,
            Command::Show(args) => show(line, out, args).await,
            Command::Resolve(args) => resolve(line, out, args).await,
        })
        .await
}

async fn list(line: &Line, out: &Out, args: Ls) -> Result<ExitCode> {
    let state = if args.unknown { Some("unknown".to_owned()) } else { args.state };
    let mut query: Pairs = vec![("limit", args.limit.to_string())];
    let words =
        [("state", state), ("tenant", args.tenant), ("resource", args.resource), ("after", args.after)];
    query.extend(words.into_iter().filter_map(|(name, value)| Some((name, value?))));
    let answer = line.get("/v1/ledger", &query).await?;
    out.answer(&answer, |answer| {
        let rows: Vec<Vec<String>> = answer["requests"].as_array().into_iter().flatten().map(row).collect();
        if rows.is_empty() {
            say("no requests that fit");
            return String::new();
        }
        table(&["TENANT", "OPERATION", "KEY", "STATE", "ATTEMPT", "SINCE", "STATUS", "RESOURCE"], &rows)
    })?;
    if let Some(next) = answer["next"].as_str() {
        say(format_args!("there may be more: --after {next}"));
    }
    Ok(ExitCode::SUCCESS)
}

fn row(request: &Value) -> Vec<String> {
    let mut row = ["tenant", "operation", "key", "state", "attempt"].map(|name| text(request, name)).to_vec();
    row.extend([ago(&text(request, "since")), text(request, "status"), text(request, "resource")]);
    row
}

async fn show(line: &Line, out: &Out, Show { which, body }: Show) -> Result<ExitCode> {
    let Which { key, operation, tenant } = which;
    let mut query: Pairs = vec![("operation", operation), ("key", key)];
    query.extend(tenant.map(|tenant| ("tenant", tenant)));
    if body {
        query.push(("contents", "1".to_owned()));
    }
    let request = line.get("/v1/ledger/request", &query).await?;
    out.answer(&request, |request| told(request, body))?;
    Ok(ExitCode::SUCCESS)
}

fn told(request: &Value, with_body: bool) -> String {
    let word = |name: &str| text(request, name);
    let answer = match (request["gone"] == true, request["sealed"] == true) {
        (true, _) => "gone",
        (false, true) => "sealed",
        (false, false) => "",
    };
    let mut told = facts(&[
        ("key", word("key")),
        ("operation", word("operation")),
        ("tenant", word("tenant")),
        ("state", word("state")),
        ("attempt", word("attempt")),
        ("first", when(&word("first"))),
        ("since", when(&word("since"))),
        ("lease until", when(&word("lease_until"))),
        ("not before", when(&word("not_before"))),
        ("until", when(&word("until"))),
        ("status", word("status")),
        ("location", word("location")),
        ("resource", word("resource")),
        ("answer", answer.to_owned()),
    ]);
    if with_body {
        told.push_str(&contents(request));
    }
    told
}

fn contents(request: &Value) -> String {
    if request["unopened"] == true {
        return "\nno key opens its answer\n".to_owned();
    }
    let mut told = String::from("\n");
    for header in request["headers"].as_array().into_iter().flatten() {
        let name = header[0].as_str().unwrap_or_default();
        told.push_str(&plain(&format!("{name}: {}", String::from_utf8_lossy(&bytes(&header[1])))));
        told.push('\n');
    }
    match &request["body"] {
        Value::Null => told.push_str("it has no answer that is kept\n"),
        body => {
            told.push('\n');
            let body = bytes(body);
            let shown = if body.is_empty() { "its body is empty\n".to_owned() } else { out::body(&body) };
            told.push_str(&shown);
        }
    }
    told
}

/// Bytes as they stand in JSON.
fn bytes(value: &Value) -> Vec<u8> {
    match value {
        Value::String(text) => text.clone().into_bytes(),
        other => other["base64"].as_str().and_then(|text| STANDARD.decode(text).ok()).unwrap_or_default(),
    }
}

async fn resolve(line: &Line, out: &Out, args: Resolve) -> Result<ExitCode> {
    let Which { key, operation, tenant } = args.which;
    let how = match args.how {
        How::Completed => "completed",
        How::Retriable => "retriable",
    };
    let mut order =
        json!({ "operation": operation, "tenant": tenant, "key": key, "as": how, "why": args.why });
    if let Some(status) = args.status {
        order["status"] = status.into();
    }
    if !args.headers.is_empty() {
        let headers: Vec<Value> = args.headers.iter().map(|header| pair(header)).collect::<Result<_>>()?;
        order["headers"] = headers.into();
    }
    if args.gone {
        order["gone"] = true.into();
    }
    if let Some(body) = args.body {
        match String::from_utf8(given(body)?) {
            Ok(text) => order["body"] = text.into(),
            Err(error) => order["body_base64"] = STANDARD.encode(error.as_bytes()).into(),
        }
    }
    let answer = line.post("/v1/ledger/resolve", &order).await?;
    let told = |_: &Value| plain(&format!("1 request resolved: {key}: {how}")) + "\n";
    out.answer(&answer, told)?;
    Ok(ExitCode::SUCCESS)
}

fn pair(header: &str) -> Result<Value> {
    let Some((name, value)) = header.split_once(':') else {
        bail!("`{header}` is no header; one is `name: value`");
    };
    Ok(json!([name.trim(), value.trim()]))
}

/// A body that is given as it is, by its file, or on standard input.
fn given(body: String) -> Result<Vec<u8>> {
    let Some(file) = body.strip_prefix('@') else { return Ok(body.into_bytes()) };
    let mut bytes = Vec::new();
    if file == "-" {
        std::io::stdin().take(BODY_MAX).read_to_end(&mut bytes).context("cannot read standard input")?;
    } else {
        let opened = std::fs::File::open(file).with_context(|| format!("cannot open {file}"))?;
        opened.take(BODY_MAX).read_to_end(&mut bytes).with_context(|| format!("cannot read {file}"))?;
    }
    Ok(bytes)
}
