//! `redrive backup` and `redrive restore`.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use redrive::store::sqlite;

use super::{Configured, line, reach};
use crate::config::Layer;

/// What is copied, and where to.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The file to make. It must not be there yet.
    #[arg(value_name = "TO")]
    to: PathBuf,
    #[command(flatten)]
    config: Configured,
    /// The store to copy, instead of the configuration's: sqlite:FILE. A server may run on it.
    #[arg(long, env = "REDRIVE_STORE", hide_env_values = true, value_name = "ADDRESS")]
    store: Option<String>,
    /// Have a server send it, instead of copying the file.
    #[arg(long, env = "REDRIVE_URL", value_name = "URL", conflicts_with = "store")]
    url: Option<String>,
    /// A file with the token for that server [variable: REDRIVE_TOKEN, with the token itself]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

/// What is restored, and where to.
#[derive(Debug, clap::Args)]
pub(super) struct RestoreArgs {
    /// The copy.
    #[arg(value_name = "FROM")]
    from: PathBuf,
    /// The store to make: a file that must not be there yet.
    #[arg(value_name = "TO")]
    to: PathBuf,
    /// Also where rows are damaged. They are not run, and are told of by the server.
    #[arg(long)]
    even_damaged: bool,
}

/// Makes a copy.
pub(super) async fn run(args: Args) -> Result<ExitCode> {
    match &args.url {
        Some(url) => fetch(url, reach::token(args.token_file.as_deref())?, &args.to).await?,
        None => {
            let store = args.store.map(|value| Layer::flag("--store", ["store", "address"], value));
            let store = args.config.source(store).load()?.store;
            let Some(from) = store.address.strip_prefix("sqlite:") else { bail!(store.no_file()) };
            let (from, to) = (PathBuf::from(from), args.to.clone());
            tokio::task::spawn_blocking(move || sqlite::copy(&from, &to)).await??;
        }
    }
    println!("{}: a copy of the store; `redrive restore` makes a store of it", args.to.display());
    Ok(ExitCode::SUCCESS)
}

/// Has a server send its copy. Half of one never has the name of a whole one.
async fn fetch(url: &str, token: Option<String>, to: &Path) -> Result<()> {
    ensure!(to.symlink_metadata().is_err(), "{} is there already, and nothing is written over", to.display());
    // However long the copy takes.
    let client = line::client(url)?.build().context("cannot make a client")?;
    let mut request = client.post(format!("{}/v1/backup", url.trim_end_matches('/')));
    if let Some(token) = token {
        request = request.bearer_auth(token);
    }
    let mut answer = request.send().await.context("the server")?;
    if !answer.status().is_success() {
        let (status, text) = (answer.status(), answer.text().await.unwrap_or_default());
        bail!("the server answered with {status}: {text}");
    }
    let length = answer.content_length();
    let mut part = to.as_os_str().to_owned();
    part.push(".part");
    let part = PathBuf::from(part);
    let written = async {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&part)?;
        let mut written = 0;
        while let Some(chunk) = answer.chunk().await.context("the copy was cut off")? {
            file.write_all(&chunk)?;
            written += chunk.len() as u64;
        }
        ensure!(length.is_none_or(|length| length == written), "the copy was cut off");
        file.sync_all()?;
        std::fs::hard_link(&part, to)?;
        Ok(())
    };
    let written: Result<()> = written.await;
    let _ = std::fs::remove_file(&part);
    written.with_context(|| part.display().to_string())
}

/// Makes a store of a copy.
pub(super) fn restore(args: &RestoreArgs) -> Result<ExitCode> {
    let restored = sqlite::restore(&args.from, &args.to, args.even_damaged)?;
    let sqlite::Restored { events, receipts, damaged } = &restored;
    println!("{}: {events} events, {receipts} identities", args.to.display());
    for row in &damaged.0 {
        println!("damaged: {row}");
    }
    println!(
        "It is as of its backup: what was done since is done again, what was published since is not known."
    );
    Ok(ExitCode::SUCCESS)
}
