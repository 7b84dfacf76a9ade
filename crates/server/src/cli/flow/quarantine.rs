//! `redrive quarantine`: tenants and keys of which nothing starts.

use std::process::ExitCode;

use anyhow::{Result, bail};
use serde_json::{Value, json};

use super::super::line::Line;
use super::super::out::{Out, plain, say};
use super::super::reach::Reach;
use super::super::which::whole;
use super::{Terms, rules, until};

/// Quarantine: start nothing of a tenant or a key
#[derive(Debug, clap::Args)]
pub(in super::super) struct Args {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    reach: Reach,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Put a tenant or a key in quarantine
    Add(Add),
    /// List quarantines, and keys that are parked by a rule
    Ls,
    /// Let it go on
    Rm(Subject),
}

#[derive(Debug, clap::Args)]
struct Subject {
    /// tenant=NAME, or key=KEY with --queue
    #[arg(value_name = "tenant=…|key=…")]
    subject: String,
    /// Of this queue alone; a key needs it
    #[arg(long, value_name = "QUEUE")]
    queue: Option<String>,
    /// The tenant whose key it is
    #[arg(long, value_name = "TENANT")]
    tenant: Option<String>,
}

#[derive(Debug, clap::Args)]
struct Add {
    #[command(flatten)]
    subject: Subject,
    #[command(flatten)]
    terms: Terms,
}

pub(in super::super) async fn run(Args { command, reach }: Args) -> Result<ExitCode> {
    reach
        .run(async |line, out| match command {
            Command::Add(Add { subject, terms }) => {
                let mut rule = rule(&subject)?;
                (rule["for"], rule["why"]) = (terms.time.into(), terms.why.into());
                change(line, out, "/v1/rules", &rule, &subject.subject, "in quarantine").await
            }
            Command::Ls => list(line, out).await,
            Command::Rm(subject) => {
                change(line, out, "/v1/rules/lift", &rule(&subject)?, &subject.subject, "goes on").await
            }
        })
        .await
}

fn rule(Subject { subject, queue, tenant }: &Subject) -> Result<Value> {
    match subject.split_once('=') {
        Some(("tenant", name)) => {
            if tenant.is_some() {
                bail!("the tenant is in tenant={}; --tenant is for keys", plain(name));
            }
            Ok(json!({ "rule": "quarantine-tenant", "queue": queue, "tenant": name }))
        }
        Some(("key", key)) => match queue {
            Some(queue) => {
                Ok(json!({ "rule": "quarantine-key", "queue": queue, "tenant": tenant, "key": key }))
            }
            None => bail!("a key is of a queue; say which with --queue"),
        },
        _ => bail!("`{}` is neither tenant=NAME nor key=KEY", plain(subject)),
    }
}

async fn change(
    line: &Line,
    out: &Out,
    path: &str,
    rule: &Value,
    name: &str,
    what: &str,
) -> Result<ExitCode> {
    let answer = line.post(path, rule).await?;
    out.answer(&answer, |answer| plain(&format!("1 rule changed: {name}: {what}{}", until(answer))) + "\n")?;
    Ok(ExitCode::SUCCESS)
}

async fn list(line: &Line, out: &Out) -> Result<ExitCode> {
    let mut answer = whole(line, "/v1/rules", "rules").await?;
    if let Some(list) = answer["rules"].as_array_mut() {
        let words = ["quarantine-tenant", "quarantine-key", "park-key"];
        list.retain(|rule| words.iter().any(|word| rule["rule"] == *word));
    }
    out.answer(&answer, |answer| {
        let told = rules(&answer["rules"]);
        if told.is_empty() {
            say("nothing is in quarantine");
        }
        told
    })?;
    Ok(ExitCode::SUCCESS)
}
