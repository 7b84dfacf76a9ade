//! `redrive secret`: what signs events on their way to destinations.

use std::io::{IsTerminal as _, Read as _};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Subcommand;
use reqwest::Method;
use serde_json::{Value, json};

use super::reach;
use crate::secrets;

/// What can be done with secrets.
#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Make the key that locks secrets at rest.
    Key {
        /// Where to; one that is there is left alone.
        file: PathBuf,
    },
    /// List them, without what they are.
    Ls(At),
    /// Set one, in place of what it was.
    Set {
        name: String,
        #[command(flatten)]
        value: Given,
        #[command(flatten)]
        at: At,
    },
    /// Set a newer one, beside which the old one signs for a while.
    Rotate {
        name: String,
        #[command(flatten)]
        value: Given,
        /// How long the old one goes on signing.
        #[arg(long, value_name = "DURATION", default_value = "1day")]
        keep_old: String,
        #[command(flatten)]
        at: At,
    },
    /// Have the newest alone sign.
    DropOld {
        name: String,
        #[command(flatten)]
        at: At,
    },
    /// Remove one.
    Rm {
        name: String,
        #[command(flatten)]
        at: At,
    },
}

/// Which server.
#[derive(clap::Args)]
pub(super) struct At {
    /// Where the server is.
    #[arg(long, env = "REDRIVE_URL", default_value = "http://127.0.0.1:7070")]
    url: String,
    /// A file with a token that may operate [variable: REDRIVE_TOKEN, with the token itself]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl std::fmt::Debug for At {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("At").field("url", &self.url).finish_non_exhaustive()
    }
}

/// Where a secret comes from. Not from the command line, which others can see.
#[derive(Debug, clap::Args)]
pub(super) struct Given {
    /// Read it from standard input: whsec_…; otherwise a new one is made, and printed this once.
    #[arg(long)]
    stdin: bool,
}

impl Given {
    fn read(&self) -> Result<Value> {
        if !self.stdin {
            return Ok(json!({}));
        }
        if std::io::stdin().is_terminal() {
            eprintln!("redrive: type the secret, then Ctrl-D");
        }
        let mut text = String::new();
        // Longer than any secret is none.
        std::io::stdin().take(1024).read_to_string(&mut text).context("cannot read standard input")?;
        Ok(json!({ "value": text.trim() }))
    }
}

pub(super) fn run(verb: Verb) -> Result<ExitCode> {
    match verb {
        Verb::Key { file } => {
            secrets::make_key(&file)?;
            eprintln!(
                "redrive: keep {} apart from backups of the store, and set secrets.key_file",
                file.display()
            );
            Ok(ExitCode::SUCCESS)
        }
        verb => super::runtime()?.block_on(order(verb)),
    }
}

async fn order(verb: Verb) -> Result<ExitCode> {
    let of = |name: &str, rest: &str| format!("/v1/secrets/{}{rest}", escaped(name));
    match verb {
        Verb::Key { .. } => {}
        Verb::Ls(at) => list(&at).await?,
        Verb::Set { name, value, at } => {
            at.tell(at.call(Method::PUT, &of(&name, ""), Some(value.read()?)).await?);
        }
        Verb::Rotate { name, value, keep_old, at } => {
            let mut body = value.read()?;
            body["keep_old"] = keep_old.into();
            at.tell(at.call(Method::POST, &of(&name, "/rotate"), Some(body)).await?);
        }
        Verb::DropOld { name, at } => at.tell(at.call(Method::POST, &of(&name, "/drop-old"), None).await?),
        Verb::Rm { name, at } => at.tell(at.call(Method::DELETE, &of(&name, ""), None).await?),
    }
    Ok(ExitCode::SUCCESS)
}

/// Page by page.
async fn list(at: &At) -> Result<()> {
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

impl At {
    /// The answer's JSON; a problem is an error.
    async fn call(&self, method: Method, path: &str, body: Option<Value>) -> Result<Value> {
        let client = reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none());
        let client = client.build().context("cannot make a client")?;
        let url = format!("{}{path}", self.url.trim_end_matches('/'));
        let mut request = client.request(method, url);
        if let Some(token) = reach::token(self.token_file.as_deref())? {
            request = request.bearer_auth(token);
        }
        if let Some(body) = body {
            request = request.json(&body);
        }
        let answer = request.send().await.with_context(|| format!("cannot reach {}", self.url))?;
        let status = answer.status();
        let answer: Value =
            answer.json().await.with_context(|| format!("{} is no redrive server", self.url))?;
        if !status.is_success() {
            bail!("{}", answer["detail"].as_str().unwrap_or("the server refused, and did not say why"));
        }
        Ok(answer)
    }

    /// What was done: data to standard output, talk to standard error.
    fn tell(&self, answer: Value) {
        if self.json {
            println!("{answer}");
            return;
        }
        let name = answer["name"].as_str().unwrap_or_default();
        match answer["version"].as_u64() {
            Some(version) => eprintln!("redrive: `{name}` is at version {version}"),
            None => eprintln!("redrive: `{name}`: done"),
        }
        if let Some(value) = answer["value"].as_str() {
            println!("{value}");
            eprintln!("redrive: tell it to the receiver; it is not shown again");
        }
    }
}

/// A name as part of an address.
fn escaped(text: &str) -> String {
    url::form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>().replace('+', "%20")
}
