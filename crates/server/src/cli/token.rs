//! `redrive token`: access tokens.

use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use clap::Subcommand;
use sha2::{Digest, Sha256};

use super::output::say;
use crate::config::Right;

/// The subcommands of `redrive token`.
#[derive(Debug, Subcommand)]
pub(super) enum TokenCommand {
    /// Create a token: print it once, and the lines for the configuration.
    New(NewToken),
}

#[derive(Debug, clap::Args)]
pub(super) struct NewToken {
    /// The token's name in the configuration and the audit log.
    #[arg(long)]
    name: String,
    /// The rights: publish, consume, read, operate, metrics.
    #[arg(long, value_delimiter = ',', required = true)]
    rights: Vec<String>,
    /// The only tenant the token may access.
    #[arg(long)]
    tenant: Option<String>,
    /// The only queues the token may access, separated by commas.
    #[arg(long, value_delimiter = ',')]
    queues: Option<Vec<String>>,
    /// When the token ends, e.g. 90days.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    expires_in: Option<Duration>,
}

pub(super) fn run(verb: TokenCommand) -> Result<ExitCode> {
    let TokenCommand::New(new) = verb;
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).ok().context("the system gave no random bytes")?;
    let token = format!("rdt_{}", URL_SAFE_NO_PAD.encode(bytes));
    let lines = lines(&new, &token)?;
    println!("{token}\n\n{lines}");
    say("the token is not stored; add these lines to the configuration, then reload it");
    Ok(ExitCode::SUCCESS)
}

/// The lines for the configuration, checked by parsing them.
fn lines(new: &NewToken, token: &str) -> Result<String> {
    let NewToken { name, rights, tenant, queues, expires_in } = new;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    if name.is_empty() || !name.bytes().all(plain) {
        bail!("a token name consists of letters, digits, `_` and `-`, unlike `{}`", name.escape_debug());
    }
    let all = Right::ALL.map(Right::as_str);
    if let Some(wrong) = rights.iter().find(|right| !all.contains(&right.as_str())) {
        bail!("there is no right `{}`; use some of {}", wrong.escape_debug(), all.join(", "));
    }
    let hash: String = Sha256::digest(token.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
    let list = |words: &[String]| toml::Value::Array(words.iter().map(|word| word.as_str().into()).collect());
    let mut lines = format!("[tokens.{name}]\nhash = \"sha256:{hash}\"\nrights = {}\n", list(rights));
    if let Some(tenant) = tenant {
        lines += &format!("tenant = {}\n", toml::Value::String(tenant.clone()));
    }
    if let Some(queues) = queues {
        lines += &format!("queues = {}\n", list(queues));
    }
    if let Some(time) = expires_in {
        let end = SystemTime::now().checked_add(*time).context("the time is too long")?;
        lines += &format!("expires = \"{}\"\n", humantime::format_rfc3339_seconds(end));
    }
    let config: crate::config::Config = toml::from_str(&lines).context("the lines for the configuration")?;
    config.check().context("the lines for the configuration")?;
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new(name: &str, rights: &[&str], tenant: Option<&str>) -> NewToken {
        let rights = rights.iter().map(|right| (*right).to_owned()).collect();
        let tenant = tenant.map(str::to_owned);
        NewToken { name: name.to_owned(), rights, tenant, queues: None, expires_in: None }
    }

    #[test]
    fn the_lines_are_settings_and_do_not_hold_the_token() {
        let lines = lines(&new("shop", &["publish", "read"], Some("ac\"me")), "rdt_x").expect("lines");
        let config: crate::config::Config = toml::from_str(&lines).expect("settings");
        assert_eq!(config.tokens["shop"].tenant.as_deref(), Some("ac\"me"));
        assert_eq!(config.tokens["shop"].rights.len(), 2);
        assert!(!lines.contains("rdt_x"));
    }

    #[test]
    fn queues_and_an_end_are_in_the_lines() {
        let limited = NewToken {
            queues: Some(vec!["orders".to_owned()]),
            expires_in: Some(Duration::from_secs(86_400)),
            ..new("shop", &["publish"], None)
        };
        let lines = lines(&limited, "rdt_x").expect("lines");
        let config: crate::config::Config = toml::from_str(&lines).expect("settings");
        assert_eq!(config.tokens["shop"].queues.as_deref(), Some(&["orders".to_owned()][..]));
        assert!(config.tokens["shop"].expires.is_some_and(|end| end > SystemTime::now()), "{lines}");
    }

    #[test]
    fn what_would_be_no_settings_is_refused() {
        for (name, rights) in [("", "read"), ("a.b", "read"), ("a]", "read"), ("a", "reed"), ("a", "")] {
            assert!(lines(&new(name, &[rights], None), "rdt_x").is_err(), "{name} {rights}");
        }
    }
}
