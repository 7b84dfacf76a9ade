//! `redrive token`: who may call.

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use clap::Subcommand;
use sha2::{Digest, Sha256};

/// What can be done with tokens.
#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Make a token: prints it, for the only time, and the lines for the configuration.
    New(New),
}

#[derive(Debug, clap::Args)]
pub(super) struct New {
    /// What it is called in the configuration and in the audit.
    #[arg(long)]
    name: String,
    /// What it may do: publish, consume, read, operate.
    #[arg(long, value_delimiter = ',', required = true)]
    rights: Vec<String>,
    /// Whose events alone it may touch.
    #[arg(long)]
    tenant: Option<String>,
}

pub(super) fn run(verb: Verb) -> Result<ExitCode> {
    let Verb::New(new) = verb;
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).ok().context("the system gave no random bytes")?;
    let token = format!("rdt_{}", URL_SAFE_NO_PAD.encode(bytes));
    let lines = lines(&new, &token)?;
    println!("{token}\n\n{lines}");
    eprintln!("redrive: the token is not kept anywhere; the lines are for the configuration, then reload it");
    Ok(ExitCode::SUCCESS)
}

/// The lines for the configuration. They have been read back, so they are right.
fn lines(new: &New, token: &str) -> Result<String> {
    let New { name, rights, tenant } = new;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    if name.is_empty() || !name.bytes().all(plain) {
        bail!("a token's name is of letters, digits, `_` and `-`, and not `{}`", name.escape_debug());
    }
    if let Some(wrong) = rights.iter().find(|right| !RIGHTS.contains(&right.as_str())) {
        bail!("there is no right `{}`; there are {}", wrong.escape_debug(), RIGHTS.join(", "));
    }
    let hash: String = Sha256::digest(token.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
    let rights: Vec<toml::Value> = rights.iter().map(|right| right.as_str().into()).collect();
    let mut lines =
        format!("[tokens.{name}]\nhash = \"sha256:{hash}\"\nrights = {}\n", toml::Value::Array(rights));
    if let Some(tenant) = tenant {
        lines += &format!("tenant = {}\n", toml::Value::String(tenant.clone()));
    }
    let config: crate::config::Config = toml::from_str(&lines).context("the lines for the configuration")?;
    config.check().context("the lines for the configuration")?;
    Ok(lines)
}

const RIGHTS: [&str; 4] = ["publish", "consume", "read", "operate"];

#[cfg(test)]
mod tests {
    use super::*;

    fn new(name: &str, rights: &[&str], tenant: Option<&str>) -> New {
        let rights = rights.iter().map(|right| (*right).to_owned()).collect();
        New { name: name.to_owned(), rights, tenant: tenant.map(str::to_owned) }
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
    fn what_would_be_no_settings_is_refused() {
        for (name, rights) in [("", "read"), ("a.b", "read"), ("a]", "read"), ("a", "reed"), ("a", "")] {
            assert!(lines(&new(name, &[rights], None), "rdt_x").is_err(), "{name} {rights}");
        }
    }
}
