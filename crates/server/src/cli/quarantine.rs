//! `redrive quarantine`: tenants and keys of which nothing starts.

use std::process::ExitCode;

use anyhow::{Result, bail};
use serde_json::{Value, json};

use super::client::DeskClient;
use super::connect::ConnectArgs;
use super::output::{Output, plain, say};
use super::queue::{RuleTerms, rules, until};
use super::selector::whole;

/// Manage quarantines of tenants and ordering keys
#[derive(Debug, clap::Args)]
pub(in super::super) struct Args {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    connect: ConnectArgs,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Quarantine a tenant or a key: start none of its events
    Add(Add),
    /// List quarantines and parked keys
    Ls,
    /// Lift a quarantine
    Rm(Subject),
}

#[derive(Debug, clap::Args)]
struct Subject {
    /// tenant=NAME, or key=KEY with --queue
    #[arg(value_name = "tenant=…|key=…")]
    subject: String,
    /// Only in this queue; required for a key
    #[arg(long, value_name = "QUEUE")]
    queue: Option<String>,
    /// The tenant of the key
    #[arg(long, value_name = "TENANT")]
    tenant: Option<String>,
}

#[derive(Debug, clap::Args)]
struct Add {
    #[command(flatten)]
    subject: Subject,
    #[command(flatten)]
    terms: RuleTerms,
}

pub(in super::super) async fn run(Args { command, connect }: Args) -> Result<ExitCode> {
    connect
        .run(async |client, out| match command {
            Command::Add(Add { subject, terms }) => {
                let mut rule = rule(&subject)?;
                (rule["for"], rule["why"]) = (terms.time.into(), terms.why.into());
                change(client, out, "/v1/rules", &rule, &subject.subject, "in quarantine").await
            }
            Command::Ls => list(client, out).await,
            Command::Rm(subject) => {
                change(client, out, "/v1/rules/lift", &rule(&subject)?, &subject.subject, "goes on").await
            }
        })
        .await
}

fn rule(Subject { subject, queue, tenant }: &Subject) -> Result<Value> {
    match subject.split_once('=') {
        Some(("tenant", name)) => {
            if tenant.is_some() {
                bail!("the tenant is given by tenant={}; --tenant applies to keys only", plain(name));
            }
            Ok(json!({ "rule": "quarantine-tenant", "queue": queue, "tenant": name }))
        }
        Some(("key", key)) => match queue {
            Some(queue) => {
                Ok(json!({ "rule": "quarantine-key", "queue": queue, "tenant": tenant, "key": key }))
            }
            None => bail!("a key needs its queue; add --queue"),
        },
        _ => bail!("`{}` is neither tenant=NAME nor key=KEY", plain(subject)),
    }
}

async fn change(
    client: &DeskClient,
    out: &Output,
    path: &str,
    rule: &Value,
    name: &str,
    what: &str,
) -> Result<ExitCode> {
    let answer = client.post(path, rule).await?;
    out.answer(&answer, |answer| plain(&format!("1 rule changed: {name}: {what}{}", until(answer))) + "\n")?;
    Ok(ExitCode::SUCCESS)
}

async fn list(client: &DeskClient, out: &Output) -> Result<ExitCode> {
    let mut answer = whole(client, "/v1/rules", "rules").await?;
    if let Some(list) = answer["rules"].as_array_mut() {
        let words = ["quarantine-tenant", "quarantine-key", "park-key"];
        list.retain(|rule| words.iter().any(|word| rule["rule"] == *word));
    }
    out.answer(&answer, |answer| {
        let told = rules(&answer["rules"]);
        if told.is_empty() {
            say("no quarantines");
        }
        told
    })?;
    Ok(ExitCode::SUCCESS)
}
