//! Which desk a command is for: a server, or a store file.
//!
//! Explicit settings win, flags before variables. Without any, the configured server is tried on this machine, then
//! its store. A server that serves another store than the configuration names is never used: its data would be taken
//! for that of the named store.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::ConfigLocation;
use super::client::{DeskClient, client};
use super::output::{Output, say};
use crate::config::store_id;
use crate::config::{Config, Layer, Source, StoreSettings};

pub(super) mod doctor;

/// The configuration of the current folder.
const FILE: &str = "redrive.toml";

/// Time limits for connecting to the local server, and for it to say which store it serves.
const KNOCK_TIME: Duration = Duration::from_millis(500);
const GREETING_TIME: Duration = Duration::from_secs(5);

/// The desk to use, and the output format.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Where and how")]
pub(super) struct ConnectArgs {
    /// The server to use, e.g. http://127.0.0.1:7070 [variable: REDRIVE_URL]
    #[arg(long, global = true, value_name = "URL", conflicts_with = "store")]
    url: Option<String>,
    /// A file with the access token [variable: REDRIVE_TOKEN, with the token itself]
    #[arg(long, global = true, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// The store to open instead of using a server, e.g. sqlite:redrive.db or postgres://… [variable: REDRIVE_STORE]
    #[arg(long, global = true, value_name = "ADDRESS")]
    store: Option<String>,
    /// The configuration file [default: redrive.toml, if it exists] [variable: REDRIVE_CONFIG]
    #[arg(long, short, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
    /// Say which server is used
    #[arg(long, short, global = true)]
    verbose: bool,
}

impl ConnectArgs {
    /// Connects, runs a command, and closes the client.
    pub(super) async fn run(
        self,
        command: impl AsyncFnOnce(&DeskClient, &Output) -> Result<ExitCode>,
    ) -> Result<ExitCode> {
        let out = Output { json: self.json };
        let client = self.line().await?;
        let done = command(&client, &out).await;
        let closed = client.close().await;
        let code = done?;
        closed?;
        Ok(code)
    }

    async fn line(&self) -> Result<DeskClient> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        match (&self.url, &self.store) {
            (Some(url), _) => return DeskClient::to_server(url, self.token()?),
            (None, Some(store)) => return self.file(store).await,
            (None, None) => {}
        }
        if let Some(url) = variable("REDRIVE_URL") {
            return DeskClient::to_server(&url, self.token()?);
        }
        if let Some(store) = variable("REDRIVE_STORE") {
            return self.file(&store).await;
        }
        let source = self.source([]);
        let config = source.load()?;
        let server = on_this_machine(config.server.listen);
        let greeting = knock(server).await;
        if let Greeting::Store(_) | Greeting::Other = greeting {
            let token = self.token()?;
            if token.is_some() && self.is_chosen_by_the_folder(config.server.listen) {
                bail!(
                    "{FILE} in this folder names the server {server}; a token is sent only to a server that you name, with --url or --config {FILE}"
                );
            }
            if config.tls.cert_file.is_some() {
                bail!(
                    "the server at {server} speaks TLS; name it as its certificate does, with --url https://…"
                );
            }
            let is_named = source.names_store()?;
            check_greeting(server, &greeting, is_named.then_some(&config))?;
            if self.verbose {
                say(format!("using the server at http://{server}"));
            }
            return DeskClient::to_server(&format!("http://{server}"), token);
        }
        let (store, address) = (config.store.place(), config.store.address.clone());
        if is_database(&address) || file_of(&address).is_some_and(Path::exists) {
            say(format!("no server at http://{server}; opening {store} directly"));
            return DeskClient::to_file(config, &user()).await;
        }
        bail!(
            "there is no server at http://{server}, and no store at {store}; name one with --url or --store, or run \
             `redrive serve`"
        );
    }

    /// A client of an existing store. Inspecting a store never creates one.
    async fn file(&self, store: &str) -> Result<DeskClient> {
        match file_of(store) {
            None if store.starts_with("memory:") => {
                bail!("{store} is the memory of another process; use its server with --url")
            }
            Some(path) if !path.exists() => bail!("there is no file {}", path.display()),
            _ => {}
        }
        let config = self.source([Layer::flag("--store", ["store", "address"], store)]).load()?;
        say(format!("opening {} directly", redrive::engine::shown(store)));
        DeskClient::to_file(config, &user()).await
    }

    fn source(&self, flags: impl IntoIterator<Item = Layer>) -> Source {
        let named = self.config.clone().or_else(|| std::env::var_os("REDRIVE_CONFIG").map(PathBuf::from));
        ConfigLocation { config: named }.source(flags)
    }

    /// Whether this address is neither the default nor named by the user, but comes from a file that happens to be in
    /// the current folder.
    fn is_chosen_by_the_folder(&self, listen: SocketAddr) -> bool {
        let is_set = |name: &str| std::env::var_os(name).is_some();
        let is_named = self.config.is_some() || is_set("REDRIVE_CONFIG") || is_set("REDRIVE_SERVER_LISTEN");
        !is_named && listen != Config::default().server.listen
    }

    fn token(&self) -> Result<Option<String>> {
        token(self.token_file.as_deref())
    }
}

/// The URL of the configured server on this machine. A server of another store than the configuration names is refused.
pub(super) async fn configured_server(config: Option<PathBuf>) -> Result<String> {
    let named = config.or_else(|| std::env::var_os("REDRIVE_CONFIG").map(PathBuf::from));
    let source = ConfigLocation { config: named }.source([]);
    let config = source.load()?;
    let server = on_this_machine(config.server.listen);
    let greeting = knock(server).await;
    if let Greeting::Silence = greeting {
        bail!("there is no server at http://{server}; run `redrive serve`, or name one with --url");
    }
    let is_named = source.names_store()?;
    check_greeting(server, &greeting, is_named.then_some(&config))?;
    Ok(format!("http://{server}"))
}

/// The token from a file or the environment; never from the command line, which other users can see.
pub(super) fn token(file: Option<&Path>) -> Result<Option<String>> {
    let text = match file {
        Some(path) => std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the token from {}", path.display()))?,
        None => std::env::var("REDRIVE_TOKEN").unwrap_or_default(),
    };
    let token = text.trim();
    if token.chars().any(|c| c.is_control() || c.is_whitespace()) {
        bail!("the token must not contain whitespace");
    }
    Ok(Some(token.to_owned()).filter(|token| !token.is_empty()))
}

/// The file of a store address.
fn file_of(address: &str) -> Option<&Path> {
    address.strip_prefix("sqlite:").map(|path| Path::new(path.trim_start_matches("//")))
}

/// Whether a store address names a database.
fn is_database(address: &str) -> bool {
    address.starts_with("postgres")
}

/// The user name for the audit log.
fn user() -> String {
    let name = ["USER", "LOGNAME"].into_iter().find_map(|name| std::env::var(name).ok());
    name.filter(|name| !name.is_empty()).unwrap_or_else(|| "unknown".to_owned())
}

/// The local address of a server that listens on `listen`.
fn on_this_machine(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}

/// What listens on an address.
enum Greeting {
    /// Nothing.
    Silence,
    /// A redrive server, with the [id](store_id) of its store.
    Store(String),
    /// Another program, or a server that does not say which store it serves.
    Other,
}

/// Asks a server on this machine which store it serves.
async fn knock(server: SocketAddr) -> Greeting {
    let knocking = tokio::net::TcpStream::connect(server);
    if !matches!(tokio::time::timeout(KNOCK_TIME, knocking).await, Ok(Ok(_))) {
        return Greeting::Silence;
    }
    let url = format!("http://{server}");
    let asked = async {
        let client = client(&url).ok()?.timeout(GREETING_TIME).build().ok()?;
        let response = client.get(format!("{url}/healthz")).send().await.ok()?;
        response.json::<serde_json::Value>().await.ok()
    };
    let store = asked.await.and_then(|told| Some(told["store"].as_str()?.to_owned()));
    store.map_or(Greeting::Other, Greeting::Store)
}

/// Refuses a server of another store than a configuration names.
fn check_greeting(server: SocketAddr, greeting: &Greeting, named: Option<&Config>) -> Result<()> {
    let Some(config) = named else { return Ok(()) };
    let place = config.store.place();
    match greeting {
        Greeting::Store(id) if *id != store_id(&config.store) => bail!(
            "the server at http://{server} serves another store than the configured one, {place}; use that server \
             with --url http://{server}, or the store itself with --store"
        ),
        Greeting::Other => bail!(
            "the program on http://{server} does not say which store it serves, but the configuration names {place}; \
             use it with --url http://{server} if it is a redrive server, or the store itself with --store"
        ),
        Greeting::Silence | Greeting::Store(_) => Ok(()),
    }
}

/// What listens on the address of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Neighbour {
    /// Nothing.
    Silent,
    /// A server of this store.
    Same,
    /// A server of another store.
    OtherStore,
    /// Something else.
    OtherProgram,
}

/// Asks what listens on an address.
pub(super) async fn neighbour(listen: SocketAddr, store: &StoreSettings) -> Neighbour {
    match knock(on_this_machine(listen)).await {
        Greeting::Silence => Neighbour::Silent,
        Greeting::Store(id) if id == store_id(store) => Neighbour::Same,
        Greeting::Store(_) => Neighbour::OtherStore,
        Greeting::Other => Neighbour::OtherProgram,
    }
}

/// Who listens on an address that another server wants, and what to do.
pub(super) async fn in_use(listen: SocketAddr, store: &StoreSettings) -> String {
    let who = match neighbour(listen, store).await {
        Neighbour::Same => "a redrive server of the same store runs there already",
        Neighbour::OtherStore => "a redrive server of another store runs there already",
        Neighbour::OtherProgram => "another program listens there",
        Neighbour::Silent => "another program has the address",
    };
    format!("{who}; stop it, or choose another address with --listen or `listen` of [server]")
}
