//! `redrive ledger`: requests under idempotency keys, and how an unknown one was.

use std::io::Read as _;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::client::{DeskClient, QueryParams};
use super::connect::ConnectArgs;
use super::output::{self, Output, ago, facts, plain, say, table, text, when};

/// Maximum bytes read of a reply body.
const BODY_MAX: u64 = 8 << 20;

/// Inspect requests by idempotency key, and resolve unknown outcomes
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    connect: ConnectArgs,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List requests
    Ls(Ls),
    /// Show a request
    Show(Show),
    /// Resolve a request whose outcome is unknown
    Resolve(Resolve),
    /// Resolve all requests with unknown outcomes that match a filter
    ResolveAll(ResolveAll),
}

#[derive(Debug, clap::Args)]
struct Ls {
    /// Only requests whose outcome is unknown
    #[arg(long, conflicts_with = "state")]
    unknown: bool,
    /// Only requests in this state: in_flight, retriable, unknown, completed, tombstone
    #[arg(long, value_name = "STATE")]
    state: Option<String>,
    /// Only requests of this tenant
    #[arg(long, value_name = "TENANT")]
    tenant: Option<String>,
    /// Only requests that created this resource
    #[arg(long, value_name = "ID")]
    resource: Option<String>,
    /// Maximum number of results
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
    /// Start after this position, printed by the previous page
    #[arg(long, value_name = "PLACE")]
    after: Option<String>,
}

/// A request in the ledger.
#[derive(Debug, clap::Args)]
struct RecordRef {
    /// The idempotency key
    #[arg(value_name = "KEY")]
    key: String,
    /// The operation, e.g. `POST /bookings`; looked up if omitted
    #[arg(long, value_name = "OPERATION")]
    operation: Option<String>,
    /// The tenant; looked up if the operation is omitted
    #[arg(long, value_name = "TENANT")]
    tenant: Option<String>,
    /// The principal, if each principal has keys of its own
    #[arg(long, value_name = "NAME")]
    principal: Option<String>,
}

impl RecordRef {
    /// Its tenant, operation and key, as parameters. Without an operation the key has to be unique.
    async fn find(&self, client: &DeskClient) -> Result<Vec<(&'static str, String)>> {
        let named = |tenant: Option<String>, operation: String, principal: Option<String>| {
            let tenant = tenant.map(|tenant| ("tenant", tenant));
            let principal = principal.map(|principal| ("principal", principal));
            let rest = [("operation", operation), ("key", self.key.clone())];
            tenant.into_iter().chain(principal).chain(rest).collect()
        };
        if let Some(operation) = &self.operation {
            return Ok(named(self.tenant.clone(), operation.clone(), self.principal.clone()));
        }
        let mut query: QueryParams = vec![("key", self.key.clone())];
        query.extend(self.tenant.clone().map(|tenant| ("tenant", tenant)));
        let answer = client.get("/v1/ledger", &query).await?;
        let found = answer["requests"].as_array().cloned().unwrap_or_default();
        match &found[..] {
            [one] => {
                let principal =
                    self.principal.clone().or_else(|| one["principal"].as_str().map(str::to_owned));
                Ok(named(Some(text(one, "tenant")), text(one, "operation"), principal))
            }
            [] if answer["next"].is_null() => {
                bail!("there is no request `{}`, or it has been forgotten", plain(&self.key))
            }
            [] => bail!("`{}` was not found among the first requests; add its --operation", plain(&self.key)),
            _ => {
                let place = |one: &Value| match text(one, "tenant").as_str() {
                    "" => format!("--operation '{}'", plain(&text(one, "operation"))),
                    tenant => {
                        format!("--operation '{}' --tenant {}", plain(&text(one, "operation")), plain(tenant))
                    }
                };
                let places: Vec<String> = found.iter().map(place).collect();
                let key = plain(&self.key);
                bail!("there are {} requests `{key}`; choose one: {}", found.len(), places.join(", or "))
            }
        }
    }
}

#[derive(Debug, clap::Args)]
struct Show {
    #[command(flatten)]
    which: RecordRef,
    /// Also show the stored reply
    #[arg(long)]
    body: bool,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum ResolveAs {
    /// The effect happened: replay this reply from now on
    Completed,
    /// The effect did not happen: run the next request
    Retriable,
}

#[derive(Debug, clap::Args)]
struct Resolve {
    #[command(flatten)]
    which: RecordRef,
    #[command(flatten)]
    outcome: Outcome,
}

/// Which requests, and how they were.
#[derive(Debug, clap::Args)]
struct ResolveAll {
    /// Only requests of this operation, e.g. `POST /bookings`
    #[arg(long, value_name = "OPERATION", required_unless_present_any = ["tenant", "before"])]
    operation: Option<String>,
    /// Only requests of this tenant
    #[arg(long, value_name = "TENANT")]
    tenant: Option<String>,
    /// Only requests that became unknown before this time, e.g. 2026-01-31T12:00:00Z
    #[arg(long, value_name = "TIME")]
    before: Option<String>,
    #[command(flatten)]
    outcome: Outcome,
}

#[derive(Debug, clap::Args)]
struct Outcome {
    /// The actual outcome
    #[arg(long = "as", value_name = "HOW")]
    how: ResolveAs,
    /// The status of the reply
    #[arg(long, value_name = "STATUS")]
    status: Option<u16>,
    /// A header of the reply, e.g. `content-type: application/json`; repeatable
    #[arg(long = "header", value_name = "NAME: VALUE")]
    headers: Vec<String>,
    /// The body of the reply; @FILE reads a file, @- standard input
    #[arg(long, value_name = "BODY", conflicts_with = "gone")]
    body: Option<String>,
    /// The body is lost: repeated requests get 410
    #[arg(long)]
    gone: bool,
    /// The reason, for the audit log
    #[arg(long, value_name = "TEXT", default_value = "")]
    why: String,
}

pub(super) async fn run(Args { command, connect }: Args) -> Result<ExitCode> {
    connect
        .run(async |client, out| match command {
            Command::Ls(args) => list(client, out, args).await,
            Command::Show(args) => show(client, out, args).await,
            Command::Resolve(args) => resolve(client, out, args).await,
            Command::ResolveAll(args) => resolve_all(client, out, args).await,
        })
        .await
}

async fn list(client: &DeskClient, out: &Output, args: Ls) -> Result<ExitCode> {
    let state = if args.unknown { Some("unknown".to_owned()) } else { args.state };
    let mut query: QueryParams = vec![("limit", args.limit.to_string())];
    let words =
        [("state", state), ("tenant", args.tenant), ("resource", args.resource), ("after", args.after)];
    query.extend(words.into_iter().filter_map(|(name, value)| Some((name, value?))));
    let answer = client.get("/v1/ledger", &query).await?;
    out.answer(&answer, |answer| {
        let rows: Vec<Vec<String>> = answer["requests"].as_array().into_iter().flatten().map(row).collect();
        if rows.is_empty() {
            say("no matching requests");
            return String::new();
        }
        table(&["TENANT", "OPERATION", "KEY", "STATE", "ATTEMPT", "SINCE", "STATUS", "RESOURCE"], &rows)
    })?;
    if let Some(next) = answer["next"].as_str() {
        say(format_args!("more may follow: --after {next}"));
    }
    Ok(ExitCode::SUCCESS)
}

fn row(request: &Value) -> Vec<String> {
    let mut row = ["tenant", "operation", "key", "state", "attempt"].map(|name| text(request, name)).to_vec();
    row.extend([ago(&text(request, "since")), text(request, "status"), text(request, "resource")]);
    row
}

async fn show(client: &DeskClient, out: &Output, Show { which, body }: Show) -> Result<ExitCode> {
    let mut query: QueryParams = which.find(client).await?;
    if body {
        query.push(("contents", "1".to_owned()));
    }
    let request = client.get("/v1/ledger/request", &query).await?;
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
        ("principal", word("principal")),
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
        return "\nno key opens the stored reply\n".to_owned();
    }
    let mut told = String::from("\n");
    for header in request["headers"].as_array().into_iter().flatten() {
        let name = header[0].as_str().unwrap_or_default();
        told.push_str(&plain(&format!("{name}: {}", String::from_utf8_lossy(&bytes(&header[1])))));
        told.push('\n');
    }
    match &request["body"] {
        Value::Null => told.push_str("no reply is stored\n"),
        body => {
            told.push('\n');
            let body = bytes(body);
            let shown = if body.is_empty() { "body is empty\n".to_owned() } else { output::body(&body) };
            told.push_str(&shown);
        }
    }
    told
}

/// Decodes bytes from their JSON form.
fn bytes(value: &Value) -> Vec<u8> {
    match value {
        Value::String(text) => text.clone().into_bytes(),
        other => other["base64"].as_str().and_then(|text| STANDARD.decode(text).ok()).unwrap_or_default(),
    }
}

async fn resolve(client: &DeskClient, out: &Output, args: Resolve) -> Result<ExitCode> {
    let key = args.which.key.clone();
    let (how, mut order) = order(args.outcome)?;
    for (name, value) in args.which.find(client).await? {
        order[name] = value.into();
    }
    let answer = client.post("/v1/ledger/resolve", &order).await?;
    let told = |_: &Value| plain(&format!("1 request resolved: {key}: {how}")) + "\n";
    out.answer(&answer, told)?;
    Ok(ExitCode::SUCCESS)
}

/// Page by page, until none is left.
async fn resolve_all(client: &DeskClient, out: &Output, args: ResolveAll) -> Result<ExitCode> {
    let (how, mut order) = order(args.outcome)?;
    let filters = [("operation", args.operation), ("tenant", args.tenant), ("before", args.before)];
    for (name, value) in filters.into_iter().filter_map(|(name, value)| Some((name, value?))) {
        order[name] = value.into();
    }
    let (mut changed, mut refused) = (0, 0);
    loop {
        let answer = client.post("/v1/ledger/resolve-all", &order).await?;
        changed += answer["changed"].as_u64().unwrap_or(0);
        refused += answer["refused"].as_u64().unwrap_or(0);
        match answer["next"].as_str() {
            Some(next) => order["after"] = next.into(),
            None => break,
        }
    }
    let answer = json!({ "changed": changed, "refused": refused });
    out.answer(&answer, |_| {
        format!("requests resolved as {how}: {changed}; resolved by others meanwhile: {refused}\n")
    })?;
    Ok(ExitCode::SUCCESS)
}

/// How requests were, in a word and as the API is told.
fn order(outcome: Outcome) -> Result<(&'static str, Value)> {
    let how = match outcome.how {
        ResolveAs::Completed => "completed",
        ResolveAs::Retriable => "retriable",
    };
    let mut order = json!({ "as": how, "why": outcome.why });
    if let Some(status) = outcome.status {
        order["status"] = status.into();
    }
    if !outcome.headers.is_empty() {
        let headers: Vec<Value> = outcome.headers.iter().map(|header| pair(header)).collect::<Result<_>>()?;
        order["headers"] = headers.into();
    }
    if outcome.gone {
        order["gone"] = true.into();
    }
    if let Some(body) = outcome.body {
        match String::from_utf8(given(body)?) {
            Ok(text) => order["body"] = text.into(),
            Err(error) => order["body_base64"] = STANDARD.encode(error.as_bytes()).into(),
        }
    }
    Ok((how, order))
}

fn pair(header: &str) -> Result<Value> {
    let Some((name, value)) = header.split_once(':') else {
        bail!("`{header}` is not a header; write it as `name: value`");
    };
    Ok(json!([name.trim(), value.trim()]))
}

/// Reads a body: literal, from a file, or from standard input.
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
