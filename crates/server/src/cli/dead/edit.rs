//! `redrive dead edit`: a dead letter continues with another payload, as a new event.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::super::client::DeskClient;
use super::super::output::{Output, plain, say, text};
use super::super::selector::EventLocation;

/// The dead letter to edit, and its new contents.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The event id
    #[arg(value_name = "ID")]
    id: String,
    #[command(flatten)]
    place: EventLocation,
    /// A file with the new payload; - for stdin
    #[arg(long, value_name = "FILE")]
    payload: Option<PathBuf>,
    /// The new content type
    #[arg(long, value_name = "TYPE")]
    content_type: Option<String>,
    /// Headers as NAME=VALUE, replacing all headers
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = header)]
    headers: Vec<(String, String)>,
    /// The new id [default: ID.editREV]
    #[arg(long, value_name = "ID")]
    new_id: Option<String>,
    /// Act only if the event still has this `rev`
    #[arg(long, value_name = "REV")]
    rev: Option<u32>,
    /// Put back even if later events of the same key may have run
    #[arg(long)]
    out_of_order: bool,
}

pub(super) async fn run(client: &DeskClient, out: &Output, args: Args) -> Result<ExitCode> {
    let is_changed = args.payload.is_some() || args.content_type.is_some() || !args.headers.is_empty();
    ensure!(is_changed, "nothing to change; give --payload, --content-type or --header");
    let mut body = args.place.find(client, &args.id).await?;
    if let Some(path) = &args.payload {
        body["payload_base64"] = STANDARD.encode(read(path)?).into();
    }
    if !args.headers.is_empty() {
        let headers: BTreeMap<String, String> = args.headers.into_iter().collect();
        body["headers"] = serde_json::to_value(headers)?;
    }
    body["content_type"] = args.content_type.into();
    body["new_id"] = args.new_id.into();
    body["rev"] = args.rev.into();
    body["out_of_order"] = args.out_of_order.into();
    let answer = client.post("/v1/events/edit", &body).await?;
    out.answer(&answer, told)?;
    if answer["unsure"] == true {
        say(
            "an earlier attempt may have taken effect; the receiver cannot recognise the new id as a duplicate",
        );
    }
    Ok(ExitCode::SUCCESS)
}

fn told(answer: &Value) -> String {
    plain(&format!("1 event edited: {} continues as {}", text(answer, "original"), text(answer, "id"))) + "\n"
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let mut payload = Vec::new();
    if path == Path::new("-") {
        std::io::stdin().read_to_end(&mut payload).context("cannot read the payload from stdin")?;
    } else {
        payload = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    }
    Ok(payload)
}

fn header(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').filter(|(name, _)| !name.is_empty());
    pair.map(|(name, value)| (name.to_owned(), value.to_owned()))
        .ok_or_else(|| "a header is NAME=VALUE".to_owned())
}
