//! `redrive publish`: one event from the shell.

use std::io::Read as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Method;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::cli::client::{DeskClient, encoded};
use crate::cli::connect::ConnectArgs;
use crate::cli::dead::duration;
use crate::cli::output::{Output, plain, text};

/// Publish an event; publishing the same id again has no further effect
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  redrive publish orders order-17 --payload '{\"cabins\": 2}'
  redrive publish orders order-18 --file order.json --key cabin-4
  cat order.json | redrive publish orders order-19 -")]
pub(in crate::cli) struct Args {
    /// The queue
    #[arg(value_name = "QUEUE")]
    queue: String,
    /// The event id: the identity of the intent; a random one if omitted
    #[arg(value_name = "ID")]
    id: Option<String>,
    /// `-` to read the payload from stdin
    #[arg(value_name = "-", value_parser = ["-"], conflicts_with_all = ["payload", "file"])]
    stdin: Option<String>,
    /// The payload: JSON, or any text
    #[arg(long, value_name = "TEXT", conflicts_with = "file")]
    payload: Option<String>,
    /// A file with the payload
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// The tenant
    #[arg(long, value_name = "TENANT")]
    tenant: Option<String>,
    /// The ordering key
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// The content type [default: application/json for JSON, text/plain for other text]
    #[arg(long, value_name = "TYPE")]
    content_type: Option<String>,
    /// How long to wait before the first attempt
    #[arg(long, value_name = "TIME", value_parser = duration)]
    delay: Option<String>,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// An event as the API takes it.
#[derive(Serialize)]
struct Draft {
    id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delay: Option<String>,
}

pub(in crate::cli) async fn run(args: Args) -> Result<ExitCode> {
    let Args { queue, id, stdin, payload, file, tenant, key, content_type, delay, connect } = args;
    // `redrive publish orders -`: the payload is meant, and not an id.
    let (id, from_stdin) = match id.as_deref() {
        Some("-") if stdin.is_none() => (None, true),
        _ => (id, stdin.is_some()),
    };
    let bytes = match (payload, file) {
        _ if from_stdin => {
            let mut bytes = Vec::new();
            std::io::stdin().read_to_end(&mut bytes).context("cannot read stdin")?;
            Some(bytes)
        }
        (Some(text), _) => Some(text.into_bytes()),
        (None, Some(file)) => {
            Some(std::fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?)
        }
        (None, None) => None,
    };
    let id = id.map_or_else(random_id, Ok)?;
    let mut draft = Draft { id, tenant, key, payload: None, payload_base64: None, content_type, delay };
    if let Some(bytes) = bytes {
        draft.fill(bytes);
    }
    connect.run(async |client, out| send(client, out, &queue, &draft).await).await
}

impl Draft {
    /// Takes a payload as JSON if it is JSON, so that its digits and its order stay as written; otherwise as bytes.
    fn fill(&mut self, bytes: Vec<u8>) {
        let is_json = self.content_type.as_deref().is_none_or(|kind| kind == "application/json");
        let text = std::str::from_utf8(&bytes);
        if let Some(json) =
            text.ok().filter(|_| is_json).and_then(|text| serde_json::from_str(text.trim()).ok())
        {
            self.payload = Some(json);
            return;
        }
        let kind = if text.is_ok() { "text/plain; charset=utf-8" } else { "application/octet-stream" };
        self.content_type.get_or_insert_with(|| kind.to_owned());
        self.payload_base64 = Some(STANDARD.encode(&bytes));
    }
}

async fn send(client: &DeskClient, out: &Output, queue: &str, draft: &Draft) -> Result<ExitCode> {
    let path = format!("/v1/queues/{}/events", encoded(queue));
    let body = ("application/json", serde_json::to_vec(draft)?);
    let answer = client.send(Method::POST, &path, Some(body)).await?.json()?;
    out.answer(&answer, |answer| {
        let id = plain(&draft.id);
        match text(answer, "result").as_str() {
            "duplicate" => format!("{id}: duplicate; the first one is {}\n", text(&answer["first"], "state")),
            result => format!("{id}: {result}\n"),
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

/// An id that no other event has.
fn random_id() -> Result<String> {
    let mut bytes = [0; 16];
    if let Err(error) = getrandom::fill(&mut bytes) {
        bail!("cannot make a random id: {error}; give an id");
    }
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draft(bytes: &[u8]) -> Draft {
        let (tenant, key, payload, payload_base64, content_type, delay) =
            (None, None, None, None, None, None);
        let mut draft =
            Draft { id: "1".to_owned(), tenant, key, payload, payload_base64, content_type, delay };
        draft.fill(bytes.to_vec());
        draft
    }

    #[test]
    fn json_stays_as_written_and_other_text_is_text() {
        let json = draft(b"{\"b\": 1.10, \"a\": 12345678901234567890123}\n");
        assert_eq!(json.payload.expect("JSON").get(), "{\"b\": 1.10, \"a\": 12345678901234567890123}");
        let text = draft("hallo ö".as_bytes());
        assert_eq!(text.content_type.as_deref(), Some("text/plain; charset=utf-8"));
        assert!(text.payload.is_none() && text.payload_base64.is_some());
        assert_eq!(draft(&[0xff]).content_type.as_deref(), Some("application/octet-stream"));
    }
}
