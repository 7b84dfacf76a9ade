//! `redrive audit`: who did what.

use std::process::ExitCode;

use anyhow::Result;
use serde_json::Value;

use super::line::{Line, Pairs};
use super::out::{Out, put, say, several, table, text};
use super::reach::Reach;

/// How many lines are asked for at once.
const PAGE: u64 = 500;

/// The audit: who did what, when, to how many
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    reach: Reach,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List it, the latest first
    Ls(Ls),
    /// Write all of it to stdout as JSON lines, the latest first
    Export,
}

#[derive(Debug, clap::Args)]
struct Ls {
    /// Before the line with this number
    #[arg(long, value_name = "NUMBER")]
    before: Option<u64>,
    /// How many at most
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
}

pub(super) async fn run(Args { command, reach }: Args) -> Result<ExitCode> {
    reach
        .run(async |line, out| match command {
            Command::Ls(Ls { before, limit }) => list(line, out, before, limit.into()).await,
            Command::Export => export(line).await,
        })
        .await
}

async fn page(line: &Line, before: Option<u64>, limit: u64) -> Result<Value> {
    let mut query: Pairs = vec![("limit", limit.to_string())];
    query.extend(before.map(|before| ("before", before.to_string())));
    line.get("/v1/audit", &query).await
}

async fn list(line: &Line, out: &Out, before: Option<u64>, limit: u64) -> Result<ExitCode> {
    let answer = page(line, before, limit).await?;
    out.answer(&answer, |answer| {
        let row = |line: &Value| {
            let names = ["number", "at", "who", "from", "verb", "target", "count", "note"];
            names.map(|name| text(line, name)).to_vec()
        };
        let rows: Vec<Vec<String>> = answer["lines"].as_array().into_iter().flatten().map(row).collect();
        if rows.is_empty() {
            say("nobody did anything");
            return String::new();
        }
        table(&["NUMBER", "AT", "WHO", "FROM", "VERB", "TARGET", "COUNT", "NOTE"], &rows)
    })?;
    if let Some(next) = answer["next"].as_u64() {
        say(format_args!("there is more: --before {next}"));
    }
    Ok(ExitCode::SUCCESS)
}

async fn export(line: &Line) -> Result<ExitCode> {
    let (mut before, mut written) = (None, 0);
    loop {
        let answer = page(line, before, PAGE).await?;
        let lines = answer["lines"].as_array().cloned().unwrap_or_default();
        written += lines.len() as u64;
        put(&lines.iter().map(|line| format!("{line}\n")).collect::<String>())?;
        before = answer["next"].as_u64();
        if before.is_none() {
            break;
        }
    }
    say(format_args!("{} exported", several(written, "line")));
    Ok(ExitCode::SUCCESS)
}
