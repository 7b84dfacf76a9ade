//! Which desk a command is for: a server, or a store file.
//!
//! What is named is taken, flags before variables. Where nothing is named, the server of the configuration is tried on
//! this machine, then its store file; which of them it was is told on stderr.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::Configured;
use super::line::Line;
use super::out::Out;
use crate::config::{Config, Layer};

/// How long the server of this machine may take until it answers a connection.
const KNOCK_TIME: Duration = Duration::from_millis(500);

/// Which desk, and how to answer.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Where and how")]
pub(super) struct Reach {
    /// The server to ask, as http://127.0.0.1:7070 [variable: REDRIVE_URL]
    #[arg(long, global = true, value_name = "URL", conflicts_with = "store")]
    url: Option<String>,
    /// A file with the token for it [variable: REDRIVE_TOKEN, with the token itself]
    #[arg(long, global = true, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// The store to open where no server is asked, as sqlite:redrive.db or postgres://… [variable: REDRIVE_STORE]
    #[arg(long, global = true, value_name = "ADDRESS")]
    store: Option<String>,
    /// The configuration file [default: redrive.toml, if there is one] [variable: REDRIVE_CONFIG]
    #[arg(long, short, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Answer in JSON, for programs
    #[arg(long, global = true)]
    json: bool,
}

impl Reach {
    /// Runs a command over the line that is meant, and hangs up.
    pub(super) async fn run(
        self,
        command: impl AsyncFnOnce(&Line, &Out) -> Result<ExitCode>,
    ) -> Result<ExitCode> {
        let out = Out { json: self.json };
        let line = self.line().await?;
        let done = command(&line, &out).await;
        let closed = line.close().await;
        let code = done?;
        closed?;
        Ok(code)
    }

    async fn line(&self) -> Result<Line> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        match (&self.url, &self.store) {
            (Some(url), _) => return Line::to_server(url, self.token()?),
            (None, Some(store)) => return self.file(store).await,
            (None, None) => {}
        }
        if let Some(url) = variable("REDRIVE_URL") {
            return Line::to_server(&url, self.token()?);
        }
        if let Some(store) = variable("REDRIVE_STORE") {
            return self.file(&store).await;
        }
        let config = self.settings([])?;
        let server = on_this_machine(config.server.listen);
        if knock(server).await {
            eprintln!("redrive: asking the server at http://{server}");
            return Line::to_server(&format!("http://{server}"), self.token()?);
        }
        let (store, address) = (config.store.place(), config.store.address.clone());
        if is_database(&address) || file_of(&address).is_some_and(Path::exists) {
            eprintln!("redrive: no server at http://{server}, so straight to {store}");
            return Line::to_file(config, &user()).await;
        }
        bail!(
            "there is no server at http://{server}, and no store at {store}; name one with --url or --store, or run \
             `redrive serve`"
        );
    }

    /// A line to a file that is there. Looking at a store is no reason to make one.
    async fn file(&self, store: &str) -> Result<Line> {
        match file_of(store) {
            None if store.starts_with("memory:") => {
                bail!("{store} is in another process' memory; ask its server")
            }
            Some(path) if !path.exists() => bail!("there is no file {}", path.display()),
            _ => {}
        }
        let config = self.settings([Layer::flag("--store", ["store", "address"], store)])?;
        eprintln!("redrive: straight to {}", redrive::engine::shown(store));
        Line::to_file(config, &user()).await
    }

    fn settings(&self, flags: impl IntoIterator<Item = Layer>) -> Result<Config> {
        let named = self.config.clone().or_else(|| std::env::var_os("REDRIVE_CONFIG").map(PathBuf::from));
        Ok(Configured { config: named }.source(flags).load()?)
    }

    fn token(&self) -> Result<Option<String>> {
        token(self.token_file.as_deref())
    }
}

/// The token in a file, or that of the environment. Never one of the command line, which others see.
pub(super) fn token(file: Option<&Path>) -> Result<Option<String>> {
    let text = match file {
        Some(path) => std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the token from {}", path.display()))?,
        None => std::env::var("REDRIVE_TOKEN").unwrap_or_default(),
    };
    let token = text.trim();
    if token.chars().any(|c| c.is_control() || c.is_whitespace()) {
        bail!("what is to be the token is more than one word");
    }
    Ok(Some(token.to_owned()).filter(|token| !token.is_empty()))
}

/// The file of an address.
fn file_of(address: &str) -> Option<&Path> {
    address.strip_prefix("sqlite:").map(|path| Path::new(path.trim_start_matches("//")))
}

/// Whether an address is that of a database, which only asking can tell whether it is there.
fn is_database(address: &str) -> bool {
    address.starts_with("postgres")
}

/// Who does it, for the audit.
fn user() -> String {
    let name = ["USER", "LOGNAME"].into_iter().find_map(|name| std::env::var(name).ok());
    name.filter(|name| !name.is_empty()).unwrap_or_else(|| "somebody".to_owned())
}

/// Where a server that listens there is reached from here.
fn on_this_machine(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}

/// Whether somebody is at home.
async fn knock(server: SocketAddr) -> bool {
    let knocking = tokio::net::TcpStream::connect(server);
    matches!(tokio::time::timeout(KNOCK_TIME, knocking).await, Ok(Ok(_)))
}
