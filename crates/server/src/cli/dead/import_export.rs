//! `redrive dead export` and `import`: dead letters as JSON lines, in chunks.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow};
use http::Method;
use indicatif::ProgressBar;
use serde_json::{Value, json};

use super::super::client::{DeskClient, DeskRefusal, address};
use super::super::event::refusals;
use super::super::output::{Output, put_bytes, say, several};
use super::super::selector::EventSelector;

/// Dead letters per request. Each may have a payload of a megabyte.
const AT_ONCE: usize = 50;
/// Bytes per request, except for a single longer line: half of a server's default limit.
const BYTES_AT_ONCE: usize = 4 << 20;
/// Lines per request.
const LINES_AT_ONCE: usize = 1000;

#[derive(Debug, clap::Args)]
pub(super) struct Export {
    /// Write a table for spreadsheets, without payloads; it cannot be imported
    #[arg(long)]
    csv: bool,
    #[command(flatten)]
    which: EventSelector,
}

pub(super) async fn export(client: &DeskClient, Export { csv, which }: Export) -> Result<ExitCode> {
    let mut query = which.pairs(client).await?;
    query.extend(csv.then(|| ("format", "csv".to_owned())));
    let bar = ProgressBar::new_spinner();
    let (mut after, mut letters, mut damaged) = (None::<String>, 0, 0);
    loop {
        let mut page = query.clone();
        page.push(("limit", AT_ONCE.to_string()));
        page.extend(after.take().map(|after| ("after", after)));
        let answer = client.send(Method::GET, &address("/v1/dead/export", &page), None).await?;
        put_bytes(&answer.bytes)?;
        letters += answer.bytes.iter().filter(|byte| **byte == b'\n').count() as u64;
        // The heads of a table come with its first page.
        letters -= u64::from(csv && letters > 0 && page.iter().all(|(name, _)| *name != "after"));
        bar.set_message(several(letters, "letter"));
        bar.tick();
        let header = |name: &str| answer.headers.get(name).and_then(|value| value.to_str().ok());
        damaged += header("redrive-damaged").and_then(|text| text.parse::<u64>().ok()).unwrap_or_default();
        after = header("redrive-next").map(str::to_owned);
        if after.is_none() {
            break;
        }
    }
    bar.finish_and_clear();
    // A text in a cell may have lines of its own.
    let told = if csv { several(letters, "line") } else { several(letters, "dead letter") };
    say(format_args!("{told} exported"));
    if damaged > 0 {
        say(format_args!("{} could not be read and were left out", several(damaged, "row")));
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

#[derive(Debug, clap::Args)]
pub(super) struct Import {
    /// The file; - for stdin
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

pub(super) async fn import(client: &DeskClient, out: &Output, Import { file }: Import) -> Result<ExitCode> {
    let mut from: Box<dyn BufRead> = if file == Path::new("-") {
        Box::new(BufReader::new(std::io::stdin()))
    } else {
        let opened = std::fs::File::open(&file);
        Box::new(BufReader::new(opened.with_context(|| format!("cannot read {}", file.display()))?))
    };
    let bar = ProgressBar::new_spinner();
    let (mut changed, mut refused, mut before) = (0, Vec::new(), 0);
    loop {
        let (bytes, lines) = some_lines(&mut from)?;
        if lines == 0 {
            break;
        }
        let sent = client.send(Method::POST, "/v1/dead/import", Some(("application/x-ndjson", bytes))).await;
        let mut answer = sent.map_err(|error| in_file(error, before))?.json()?;
        changed += answer["changed"].as_u64().unwrap_or_default();
        if let Value::Array(more) = answer["refused"].take() {
            refused.extend(more.into_iter().map(|mut one| {
                one["line"] = (one["line"].as_u64().unwrap_or_default() + before).into();
                one
            }));
        }
        before += lines;
        bar.set_message(several(before, "line"));
        bar.tick();
    }
    bar.finish_and_clear();
    let answer = json!({ "changed": changed, "refused": refused });
    out.answer(&answer, |_| format!("{} imported\n", several(changed, "dead letter")))?;
    Ok(refusals(&answer))
}

/// Reads the lines of the next request, and their number.
fn some_lines(from: &mut dyn BufRead) -> Result<(Vec<u8>, u64)> {
    let (mut bytes, mut lines) = (Vec::new(), 0);
    while bytes.len() < BYTES_AT_ONCE && lines < LINES_AT_ONCE as u64 {
        let read = from.read_until(b'\n', &mut bytes).context("cannot read the lines")?;
        if read == 0 {
            break;
        }
        lines += 1;
    }
    Ok((bytes, lines))
}

/// Corrects the line number of an import error to that of the file.
fn in_file(error: anyhow::Error, before: u64) -> anyhow::Error {
    let Some(refused) = error.downcast_ref::<DeskRefusal>().filter(|refused| refused.kind == "not-a-letter")
    else {
        return error;
    };
    let line = refused.document["line"].as_u64().unwrap_or_default() + before;
    let what = refused.document["what"].as_str().unwrap_or_default().to_owned();
    anyhow!("line {line} is not a dead letter: {what}; the lines before it were imported")
}
