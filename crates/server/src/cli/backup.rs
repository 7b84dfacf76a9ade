//! `redrive backup` and `redrive restore`.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use redrive::store::sqlite;

use super::{ConfigLocation, client, connect};
use crate::config::Layer;

/// The backup's source and target.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The file to create. It must not exist yet.
    #[arg(value_name = "TO")]
    to: PathBuf,
    #[command(flatten)]
    config: ConfigLocation,
    /// The store to back up, instead of the configured one: sqlite:FILE. A server may be running on it.
    #[arg(long, env = "REDRIVE_STORE", hide_env_values = true, value_name = "ADDRESS")]
    store: Option<String>,
    /// Download the backup from this server, instead of copying the file.
    #[arg(long, env = "REDRIVE_URL", value_name = "URL", conflicts_with = "store")]
    url: Option<String>,
    /// A file with the access token [variable: REDRIVE_TOKEN, with the token itself]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

/// The restore's source and target.
#[derive(Debug, clap::Args)]
pub(super) struct RestoreArgs {
    /// The backup file.
    #[arg(value_name = "FROM")]
    from: PathBuf,
    /// The store to create: a file that must not exist yet.
    #[arg(value_name = "TO")]
    to: PathBuf,
    /// Restore even if rows are damaged. Damaged events are not run; the server reports them.
    #[arg(long)]
    even_damaged: bool,
}

/// Makes a backup.
pub(super) async fn run(args: Args) -> Result<ExitCode> {
    match &args.url {
        Some(url) => fetch(url, connect::token(args.token_file.as_deref())?, &args.to).await?,
        None => {
            let store = args.store.map(|value| Layer::flag("--store", ["store", "address"], value));
            let store = args.config.source(store).load()?.store;
            let Some(from) = store.address.strip_prefix("sqlite:") else { bail!(store.no_file()) };
            let (from, to) = (PathBuf::from(from), args.to.clone());
            tokio::task::spawn_blocking(move || sqlite::copy(&from, &to)).await??;
        }
    }
    println!("{}: backup of the store; restore it with `redrive restore`", args.to.display());
    Ok(ExitCode::SUCCESS)
}

/// Downloads a server's backup. A partial download never gets the final name.
async fn fetch(url: &str, token: Option<String>, to: &Path) -> Result<()> {
    ensure!(to.symlink_metadata().is_err(), "{} exists already; choose another path", to.display());
    // However long the copy takes.
    let client = client::client(url)?.build().context("cannot create the HTTP client")?;
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
        while let Some(chunk) = answer.chunk().await.context("the backup was cut off")? {
            file.write_all(&chunk)?;
            written += chunk.len() as u64;
        }
        ensure!(length.is_none_or(|length| length == written), "the backup was cut off");
        file.sync_all()?;
        std::fs::hard_link(&part, to)?;
        Ok(())
    };
    let written: Result<()> = written.await;
    let _ = std::fs::remove_file(&part);
    written.with_context(|| part.display().to_string())
}

/// Restores a store from a backup.
pub(super) fn restore(args: &RestoreArgs) -> Result<ExitCode> {
    let restored = sqlite::restore(&args.from, &args.to, args.even_damaged)?;
    let sqlite::Restored { events, identities, damaged } = &restored;
    println!("{}: {events} events, {identities} identities", args.to.display());
    for row in &damaged.0 {
        println!("damaged: {row}");
    }
    println!(
        "The store is as of its backup: events done since then run again, events published since then are lost."
    );
    Ok(ExitCode::SUCCESS)
}
