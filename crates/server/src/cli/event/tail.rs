//! `redrive tail`: the attempts of a queue as they happen.

use std::process::ExitCode;

use anyhow::{Result, bail};
use serde_json::Value;

use crate::cli::client::{DeskClient, QueryParams, encoded};
use crate::cli::connect::ConnectArgs;
use crate::cli::output::{Output, plain, put, say, text};

/// How long a request waits for the next attempt.
const WAIT: &str = "30s";

/// Print the attempts of a queue as they happen, until Ctrl-C
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// The queue
    #[arg(value_name = "QUEUE")]
    queue: String,
    /// Only attempts of this tenant's events
    #[arg(long, value_name = "TENANT")]
    tenant: Option<String>,
    /// Stop after this many attempts
    #[arg(long, short = 'n', value_name = "N")]
    count: Option<usize>,
    #[command(flatten)]
    connect: ConnectArgs,
}

pub(in crate::cli) async fn run(Args { queue, tenant, count, connect }: Args) -> Result<ExitCode> {
    connect
        .run(async |client, out| {
            if client.is_file() {
                bail!("`redrive tail` needs a server, and none was found; name one with --url");
            }
            tokio::select! {
                followed = follow(client, out, &queue, tenant.as_deref(), count) => followed,
                _ = tokio::signal::ctrl_c() => Ok(ExitCode::SUCCESS),
            }
        })
        .await
}

async fn follow(
    client: &DeskClient,
    out: &Output,
    queue: &str,
    tenant: Option<&str>,
    count: Option<usize>,
) -> Result<ExitCode> {
    let path = format!("/v1/queues/{}/attempts", encoded(queue));
    let (mut from, mut seen) = (None, 0);
    loop {
        let mut query: QueryParams = vec![("wait", WAIT.to_owned())];
        query.extend(from.map(|from: u64| ("from", from.to_string())));
        query.extend(tenant.map(|tenant| ("tenant", tenant.to_owned())));
        let answer = client.get(&path, &query).await?;
        if from.is_none() {
            // Attempts are kept from here on.
            say(format!("waiting for attempts of {}", plain(queue)));
        }
        from = answer["next"].as_u64();
        for attempt in answer["attempts"].as_array().into_iter().flatten() {
            put(&if out.json { format!("{attempt}\n") } else { line(attempt) })?;
            seen += 1;
            if count.is_some_and(|count| seen >= count) {
                return Ok(ExitCode::SUCCESS);
            }
        }
    }
}

/// An attempt on one line.
fn line(attempt: &Value) -> String {
    let word = |name: &str| text(attempt, name);
    let took = attempt["took_ms"].as_u64().map(|took| format!("{took} ms"));
    let tenant = Some(word("tenant")).filter(|tenant| !tenant.is_empty());
    let id = tenant.map_or_else(|| word("id"), |tenant| format!("{tenant}/{}", word("id")));
    let error = [text(&attempt["error"], "kind"), text(&attempt["error"], "code")];
    let words = [word("at"), id, format!("attempt {}", word("attempt")), word("disposition")];
    let words = words.into_iter().chain(took).chain(error).filter(|word| !word.is_empty());
    format!("{}\n", plain(&words.collect::<Vec<_>>().join("  ")))
}
