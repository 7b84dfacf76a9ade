//! `redrive secret`: what signs events on their way to destinations.

use std::io::{IsTerminal as _, Read as _};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Subcommand;
use reqwest::Method;
use serde_json::{Value, json};

use super::connect;
use super::output::say;
use crate::secrets;

/// The subcommands of `redrive secret`.
#[derive(Debug, Subcommand)]
pub(super) enum SecretCommand {
    /// Create the key that encrypts secrets at rest.
    Key {
        /// The key file to create; an existing file is left alone.
        file: PathBuf,
    },
    /// List secrets, without their values.
    Ls(ServerArgs),
    /// Set a secret, replacing all versions.
    Set {
        name: String,
        #[command(flatten)]
        value: SecretSource,
        #[command(flatten)]
        at: ServerArgs,
    },
    /// Rotate a secret; the old version keeps signing for a while.
    Rotate {
        name: String,
        #[command(flatten)]
        value: SecretSource,
        /// How long the old version keeps signing.
        #[arg(long, value_name = "DURATION", default_value = "1day")]
        keep_old: String,
        #[command(flatten)]
        at: ServerArgs,
    },
    /// Drop old versions, so that only the newest signs.
    DropOld {
        name: String,
        #[command(flatten)]
        at: ServerArgs,
    },
    /// Remove a secret.
    Rm {
        name: String,
        #[command(flatten)]
        at: ServerArgs,
    },
}

/// The server to use.
#[derive(clap::Args)]
pub(super) struct ServerArgs {
    /// The server URL; by default the server of the configuration, on this machine.
    #[arg(long, env = "REDRIVE_URL")]
    url: Option<String>,
    /// The configuration file [default: redrive.toml, if it exists] [variable: REDRIVE_CONFIG]
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A file with a token that has the right `operate` [variable: REDRIVE_TOKEN, with the token itself]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl std::fmt::Debug for ServerArgs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerArgs").field("url", &self.url).finish_non_exhaustive()
    }
}

/// The source of a secret; never the command line, which other users can see.
#[derive(Debug, clap::Args)]
pub(super) struct SecretSource {
    /// Read the secret from standard input (whsec_…); otherwise a new one is generated and printed once.
    #[arg(long)]
    stdin: bool,
}

impl SecretSource {
    fn read(&self) -> Result<Value> {
        if !self.stdin {
            return Ok(json!({}));
        }
        if std::io::stdin().is_terminal() {
            say("type the secret, then Ctrl-D");
        }
        let mut text = String::new();
        // Longer than any secret.
        std::io::stdin().take(1024).read_to_string(&mut text).context("cannot read standard input")?;
        Ok(json!({ "value": text.trim() }))
    }
}

pub(super) fn run(verb: SecretCommand) -> Result<ExitCode> {
    match verb {
        SecretCommand::Key { file } => {
            secrets::make_key(&file)?;
            say(format!(
                "store {} separately from backups of the store, and set secrets.key_file",
                file.display()
            ));
            Ok(ExitCode::SUCCESS)
        }
        verb => super::runtime()?.block_on(order(verb)),
    }
}

async fn order(verb: SecretCommand) -> Result<ExitCode> {
    let of = |name: &str, rest: &str| format!("/v1/secrets/{}{rest}", escaped(name));
    match verb {
        SecretCommand::Key { .. } => {}
        SecretCommand::Ls(at) => list(&at).await?,
        SecretCommand::Set { name, value, at } => {
            at.tell(at.call(Method::PUT, &of(&name, ""), Some(value.read()?)).await?);
        }
        SecretCommand::Rotate { name, value, keep_old, at } => {
            let mut body = value.read()?;
            body["keep_old"] = keep_old.into();
            at.tell(at.call(Method::POST, &of(&name, "/rotate"), Some(body)).await?);
        }
        SecretCommand::DropOld { name, at } => {
            at.tell(at.call(Method::POST, &of(&name, "/drop-old"), None).await?);
        }
        SecretCommand::Rm { name, at } => at.tell(at.call(Method::DELETE, &of(&name, ""), None).await?),
    }
    Ok(ExitCode::SUCCESS)
}

/// Lists secrets page by page.
async fn list(at: &ServerArgs) -> Result<()> {
    let mut after = String::new();
    loop {
        let page = at.call(Method::GET, &format!("/v1/secrets?after={}", escaped(&after)), None).await?;
        for secret in page["secrets"].as_array().into_iter().flatten() {
            if at.json {
                println!("{secret}");
                continue;
            }
            for version in secret["versions"].as_array().into_iter().flatten() {
                let text = |name: &str| version[name].as_str().unwrap_or("-").to_owned();
                let open = if version["open"] == json!(true) { "" } else { "  no key opens it" };
                let name = secret["name"].as_str().unwrap_or_default();
                let (created, until) = (text("created"), text("signs_until"));
                println!("{name}  {}  set {created}  signs until {until}{open}", version["version"]);
            }
        }
        match page["next"].as_str() {
            Some(next) => next.clone_into(&mut after),
            None => return Ok(()),
        }
    }
}

impl ServerArgs {
    /// Sends a request and returns its JSON; a problem document is an error.
    async fn call(&self, method: Method, path: &str, body: Option<Value>) -> Result<Value> {
        let client = reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none());
        let client = client.build().context("cannot create the HTTP client")?;
        let server = match &self.url {
            Some(url) => url.trim_end_matches('/').to_owned(),
            None => connect::configured_server(self.config.clone()).await?,
        };
        let mut request = client.request(method, format!("{server}{path}"));
        if let Some(token) = connect::token(self.token_file.as_deref())? {
            request = request.bearer_auth(token);
        }
        if let Some(body) = body {
            request = request.json(&body);
        }
        let answer = request.send().await.with_context(|| format!("cannot reach {server}"))?;
        let status = answer.status();
        let answer: Value =
            answer.json().await.with_context(|| format!("{server} is not a redrive server"))?;
        if !status.is_success() {
            bail!("{}", answer["detail"].as_str().unwrap_or("the server refused without giving a reason"));
        }
        Ok(answer)
    }

    /// Prints the result: data to stdout, messages to stderr.
    fn tell(&self, answer: Value) {
        if self.json {
            println!("{answer}");
            return;
        }
        let name = answer["name"].as_str().unwrap_or_default();
        match answer["version"].as_u64() {
            Some(version) => say(format!("`{name}` is at version {version}")),
            None => say(format!("`{name}`: done")),
        }
        if let Some(value) = answer["value"].as_str() {
            println!("{value}");
            say("configure it at the receiver now; it is not shown again");
        }
    }
}

/// Percent-encodes a name.
fn escaped(text: &str) -> String {
    url::form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>().replace('+', "%20")
}
