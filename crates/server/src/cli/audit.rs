//! `redrive audit`: the audit log.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use serde_json::Value;

use super::client::{DeskClient, QueryParams, read};
use super::connect::ConnectArgs;
use super::output::{Output, put, say, several, table};
use crate::api::wire::{AuditLineJson, AuditPageJson};
use crate::audit::chain::{self, ChainKey};
use crate::secrets::master_key::MasterKey;

/// Lines per request.
const PAGE: u64 = 500;

/// Show the audit log of operator actions
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    connect: ConnectArgs,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List audit lines, latest first
    Ls(Ls),
    /// Write the whole audit log to stdout as JSON lines, latest first
    Export,
    /// Verify that no sealed line was changed, added or removed
    Verify(Verify),
}

#[derive(Debug, clap::Args)]
struct Verify {
    /// The file of secrets.key_file; the keys before it as well, while the log has seals of them
    #[arg(long, value_name = "FILE", required = true)]
    key_file: Vec<PathBuf>,
    /// A head that a server logged, which the log must still have
    #[arg(long, value_name = "HEAD")]
    head: Vec<String>,
}

#[derive(Debug, clap::Args)]
struct Ls {
    /// Only lines before this number
    #[arg(long, value_name = "NUMBER")]
    before: Option<u64>,
    /// Maximum number of results
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
    #[command(flatten)]
    which: LineFilter,
}

/// Which lines.
#[derive(Debug, Default, clap::Args)]
struct LineFilter {
    /// Only lines whose target contains this text
    #[arg(long, value_name = "TEXT")]
    target: Option<String>,
    /// Only lines of this operator
    #[arg(long, value_name = "NAME")]
    who: Option<String>,
    /// Only lines with this action
    #[arg(long, value_name = "WORD")]
    verb: Option<String>,
}

pub(super) async fn run(Args { command, connect }: Args) -> Result<ExitCode> {
    connect
        .run(async |client, out| match command {
            Command::Ls(asked) => list(client, out, asked).await,
            Command::Export => export(client).await,
            Command::Verify(asked) => verify(client, asked).await,
        })
        .await
}

async fn page(
    client: &DeskClient,
    which: &LineFilter,
    before: Option<u64>,
    limit: u64,
) -> Result<(Value, AuditPageJson)> {
    let mut query: QueryParams = vec![("limit", limit.to_string())];
    query.extend(before.map(|before| ("before", before.to_string())));
    let filters = [("target", &which.target), ("who", &which.who), ("verb", &which.verb)];
    query.extend(filters.into_iter().filter_map(|(name, text)| Some((name, text.clone()?))));
    let answer = client.get("/v1/audit", &query).await?;
    let page = read(&answer)?;
    Ok((answer, page))
}

fn row(line: &AuditLineJson) -> Vec<String> {
    let AuditLineJson { number, at, who, from, verb, target, count, note } = line;
    let texts = [at, who, from, verb, target].into_iter().cloned();
    let number = std::iter::once(number.to_string());
    number.chain(texts).chain([count.to_string(), note.clone()]).collect()
}

async fn list(client: &DeskClient, out: &Output, asked: Ls) -> Result<ExitCode> {
    let (answer, page) = page(client, &asked.which, asked.before, asked.limit.into()).await?;
    out.answer(&answer, |_| {
        let rows: Vec<Vec<String>> = page.lines.iter().map(row).collect();
        if rows.is_empty() {
            say("the audit log is empty");
            return String::new();
        }
        table(&["NUMBER", "AT", "WHO", "FROM", "VERB", "TARGET", "COUNT", "NOTE"], &rows)
    })?;
    if let Some(next) = page.next {
        say(format_args!("more lines: --before {next}"));
    }
    Ok(ExitCode::SUCCESS)
}

async fn verify(client: &DeskClient, asked: Verify) -> Result<ExitCode> {
    let key = |path: &PathBuf| Ok(MasterKey::read(path)?.chain_key().clone());
    let keys: Vec<ChainKey> = asked.key_file.iter().map(key).collect::<Result<_>>()?;
    let (mut lines, mut before) = (Vec::new(), None);
    loop {
        let (_, page) = page(client, &LineFilter::default(), before, PAGE).await?;
        lines.extend(page.lines);
        before = page.next;
        if before.is_none() {
            break;
        }
    }
    lines.reverse();
    let verified = chain::verify(&lines, &keys);
    let mut broken = verified.broken.clone();
    let gone = asked.head.iter().filter(|head| !verified.has(head));
    broken.extend(
        gone.map(|head| format!("the head {head} is missing: the log was truncated, or it is another log")),
    );
    for (node, head) in &verified.heads {
        put(&format!("{node} {head}\n"))?;
    }
    broken.iter().for_each(say);
    say(format_args!("{} read, {} not sealed yet", several(lines.len() as u64, "line"), verified.unsealed));
    Ok(if broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn export(client: &DeskClient) -> Result<ExitCode> {
    let (mut before, mut written) = (None, 0);
    loop {
        let (answer, page) = page(client, &LineFilter::default(), before, PAGE).await?;
        let lines = answer["lines"].as_array().cloned().unwrap_or_default();
        written += lines.len() as u64;
        put(&lines.iter().map(|line| format!("{line}\n")).collect::<String>())?;
        before = page.next;
        if before.is_none() {
            break;
        }
    }
    say(format_args!("{} exported", several(written, "line")));
    Ok(ExitCode::SUCCESS)
}
