//! `redrive gateway`: makes an HTTP API safe to retry without touching it.
//!
//! It is the idempotency layer over a service that asks somebody else, so its contract is the layer's. What is not
//! enrolled passes through as it is, streamed both ways:
//!
//! ```text
//! client ─▶ listener ─▶ table ─┬─ enrolled ─▶ layer (ledger) ─▶ proxy ─▶ upstream
//!                              └─ not ──────────────────────▶ proxy ─▶ upstream
//! ```

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use axum::Router;
use futures_util::future::join_all;
use redrive::Redrive;
use redrive::api::Requests;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use crate::config::{Config, GatewaySettings, RouteSettings};
use crate::{ledger, listen, observe, serve};

mod gate;

mod table;

mod route;

mod caller;

mod proxy;

mod hops;

mod trailers;

mod forwarded;

mod flow;

mod tunnel;

mod upstream;

mod failure;

mod admin;

mod keys;

pub use route::endpoint;
pub use table::check_routes;
pub use upstream::Address;

use caller::Credentials;
use forwarded::Teller;
use gate::Gate;
use proxy::{Proxy, Shared, Times};
use route::Route;
use table::Table;
use tunnel::Tunnels;
use upstream::Upstream;

/// How often what is over is forgotten, and what was measured is put in order.
const UPKEEP: Duration = Duration::from_secs(5);

/// How long answers may take to be written that were given at the very end of a stop.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// A gateway that runs.
#[derive(Debug)]
pub struct Gateway {
    address: SocketAddr,
    admin: Option<SocketAddr>,
    redrive: Redrive,
    routes: Vec<Route>,
    tunnels: Tunnels,
    stop: watch::Sender<bool>,
    listening: JoinSet<()>,
    chores: JoinSet<()>,
}

/// What became of what was under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stopped {
    /// Enrolled requests that were ended before their end: recorded as ones that may run again, or as unknown.
    pub aborted: usize,
}

impl Gateway {
    /// Opens the ledger and listens.
    ///
    /// # Errors
    /// With what is in the way.
    pub async fn start(config: Config) -> Result<Self> {
        observe::metrics::install();
        // First, so that an address that is taken is told before anything is touched.
        let listener = bind(config.gateway.listen).await?;
        let admin = match config.gateway.admin {
            Some(address) => Some(bind(address).await?),
            None => None,
        };
        let shared = Arc::new(shared(&config)?);
        let tunnels = shared.tunnels.clone();
        let proxy = Proxy::new(shared);
        let redrive = serve::open(&config).await?;
        let (table, routes) = routes(&config, &redrive, &proxy)?;
        let stop = watch::Sender::new(false);
        let mut listening = JoinSet::new();
        let mut listen_on = |listener: TcpListener, router: Router| -> Result<SocketAddr> {
            let address = listener.local_addr().context("the address that is listened on")?;
            let (settings, stop) = (config.server.clone(), stop.subscribe());
            listening.spawn(async move { listen::serve(listener, router, &settings, stop).await });
            Ok(address)
        };
        let asked =
            admin::Asked { redrive: redrive.clone(), samples: Arc::default(), stopping: stop.subscribe() };
        let admin = admin.map(|admin| listen_on(admin, admin::router(asked))).transpose()?;
        let gate = Gate::new(table, proxy, &config.server);
        let address = listen_on(listener, Router::new().fallback_service(gate))?;
        let mut chores = JoinSet::new();
        chores.spawn(upkeep(redrive.ledger()));
        Ok(Self { address, admin, redrive, routes, tunnels, stop, listening, chores })
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where health, metrics and keys are shown.
    #[must_use]
    pub const fn admin(&self) -> Option<SocketAddr> {
        self.admin
    }

    /// What the ledger is kept in.
    #[must_use]
    pub const fn redrive(&self) -> &Redrive {
        &self.redrive
    }

    /// Stops: no new connections; requests and tunnels under way get `grace`. Enrolled ones that are not done by then
    /// are ended, and recorded as what they are.
    ///
    /// # Errors
    /// Where the ledger could not be closed cleanly. Nothing is lost then either.
    pub async fn stop(mut self, grace: Duration) -> Result<Stopped> {
        let end = Instant::now() + grace;
        self.stop.send_replace(true);
        self.chores.abort_all();
        let open = async {
            while self.listening.join_next().await.is_some() {}
            self.tunnels.ended().await;
        };
        let _ = timeout_at(end, open).await;
        self.tunnels.cut();
        // Those whose clients hung up are on no connection.
        let left = end.saturating_duration_since(Instant::now());
        let drained = join_all(self.routes.iter().map(|route| route.layer().drain(left))).await;
        let answered = async { while self.listening.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(LAST_WORDS, answered).await;
        self.redrive.shutdown(Duration::ZERO).await?;
        Ok(Stopped { aborted: drained.iter().map(|drained| drained.aborted).sum() })
    }
}

/// Every route, by what it matches.
fn routes(config: &Config, redrive: &Redrive, proxy: &Proxy) -> Result<(Table<Route>, Vec<Route>)> {
    let settings = &config.gateway;
    let trusted: Arc<[_]> = settings.networks().map_err(anyhow::Error::msg)?.into();
    let credentials = Credentials::of(&settings.credentials).map_err(anyhow::Error::msg)?;
    let keep = ledger::keep(&config.ledger)?;
    let mut all = Vec::new();
    let table = Table::of(&settings.enrolled(), |settings| {
        let endpoint = route::trusting(settings, trusted.clone(), credentials.clone(), keep.clone())?;
        let route = Route::new(settings, endpoint, Arc::new(redrive.ledger()), proxy.clone())?;
        all.push(route.clone());
        Ok(route)
    });
    Ok((table.map_err(anyhow::Error::msg)?, all))
}

/// What an engine would do, if one ran here: none does, so that a server can have the same store.
async fn upkeep(ledger: Requests) {
    let mut tick = tokio::time::interval(UPKEEP);
    loop {
        tick.tick().await;
        observe::metrics::keep_small();
        // In slices, until there is none left. What could not be done now is done the next time.
        while ledger.sweep().await.is_ok_and(|forgotten| forgotten > 0) {}
    }
}

async fn bind(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))
}

fn shared(config: &Config) -> Result<Shared> {
    let GatewaySettings { host, connect_time, answer_time, whole_time, .. } = config.gateway;
    let upstream = config.gateway.upstream.as_deref().context(
        "the gateway stands in front of nothing; say where the API is: --upstream http://127.0.0.1:8080",
    )?;
    let address: Address = upstream.parse().map_err(|error| anyhow!("gateway.upstream: {error}"))?;
    let trusted = config.gateway.networks().map_err(anyhow::Error::msg)?;
    let teller = Teller::new(trusted, host, address.host(), name()?);
    let teller = teller.naming(config.gateway.routes.iter().flat_map(RouteSettings::named_by));
    let upstream = Upstream::new(address, &config.gateway).context("cannot trust anybody's certificate")?;
    let client = config.server.body_time;
    let times = Times { connect: connect_time, answer: answer_time, whole: whole_time, client };
    Ok(Shared { upstream, teller, tunnels: Tunnels::new(), times })
}

/// A name of this gateway's own.
fn name() -> Result<String> {
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(|error| anyhow!("no random numbers: {error}"))?;
    Ok(format!("redrive-{:016x}", u64::from_be_bytes(random)))
}
