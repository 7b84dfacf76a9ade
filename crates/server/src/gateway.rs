//! `redrive gateway`: makes an HTTP API safe to retry without touching it.
//!
//! It is the idempotency layer over a service that calls the upstream, so its contract is the layer's. Requests that
//! are not enrolled are forwarded unchanged, streamed both ways:
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
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use crate::config::{Config, GatewaySettings, RouteSettings};
use crate::{listen, observe, reply_sealing, serve};

mod dispatch;

mod vet;

mod authorise;

mod route_table;

mod route;

mod unknown_budget;

mod credentials;

mod proxy;

mod hop_headers;

mod trailers;

mod forwarded;

mod body;

mod room;

mod tunnel;

mod upstream;

mod upstream_error;

mod admin;

mod key_lookup;

mod ledger_health;
mod lookalike;

pub use hop_headers::check_upgrades;
pub use route::endpoint;
pub use route_table::check_routes;
pub use upstream::UpstreamAddress;

use credentials::Credentials;
use dispatch::Dispatch;
use forwarded::ForwardedHeaders;
use hop_headers::Upgrades;
use ledger_health::{LedgerHealth, WatchedLedger};
use proxy::{Proxy, Shared, Timeouts};
use room::Room;
use route::Route;
use route_table::RouteTable;
use tunnel::Tunnels;
use unknown_budget::UnknownBudget;
use upstream::Upstream;

/// How often expired records are removed and metrics are compacted.
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

/// The result of a stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GatewayStopReport {
    /// Enrolled requests that were ended before their end: recorded as ones that may run again, or as unknown.
    pub aborted: usize,
}

impl Gateway {
    /// Opens the ledger and listens.
    ///
    /// # Errors
    /// With the reason.
    pub async fn start(config: Config) -> Result<Self> {
        observe::metrics::install();
        // First, so that a taken address is reported before anything is touched.
        let listener = bind(config.gateway.listen).await?;
        let admin = match config.gateway.admin {
            Some(address) => Some(bind(address).await?),
            None => None,
        };
        let tls = listen::Tls::load(&config.tls)?;
        let shared = Arc::new(shared(&config)?);
        let tunnels = shared.tunnels.clone();
        let proxy = Proxy::new(shared);
        let redrive = serve::open(&config).await?;
        let budget = UnknownBudget::new(config.gateway.unknown_max, config.gateway.client_unknown_max);
        budget.counted(redrive.unknown_outcomes_by_tenant().await.context("cannot read the ledger")?);
        let health = LedgerHealth::default();
        let ledger = Arc::new(WatchedLedger { inner: redrive.ledger(), health: health.clone() });
        let (table, routes) = routes(&config, &ledger, &proxy, &budget)?;
        let stop = watch::Sender::new(false);
        let mut listening = JoinSet::new();
        let mut listen_on = |listener: TcpListener, router: Router| -> Result<SocketAddr> {
            let address = listener.local_addr().context("the listening address")?;
            let (settings, tls, stop) = (config.server.clone(), tls.clone(), stop.subscribe());
            listening.spawn(async move { listen::serve(listener, router, &settings, tls, stop).await });
            Ok(address)
        };
        let asked = admin::AdminState {
            redrive: redrive.clone(),
            samples: Arc::default(),
            stopping: stop.subscribe(),
            health,
            hosts: config.gateway.admin_hosts.iter().map(|host| host.to_ascii_lowercase()).collect(),
            is_loopback: admin.as_ref().is_some_and(is_loopback),
        };
        let admin = admin.map(|admin| listen_on(admin, admin::router(asked))).transpose()?;
        let gate = Dispatch::new(table, proxy, &config);
        let address = listen_on(listener, Router::new().fallback_service(gate))?;
        let mut chores = JoinSet::new();
        chores.spawn(upkeep(redrive.clone(), budget));
        Ok(Self { address, admin, redrive, routes, tunnels, stop, listening, chores })
    }

    /// The listening address.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where health, metrics and keys are shown.
    #[must_use]
    pub const fn admin(&self) -> Option<SocketAddr> {
        self.admin
    }

    /// The engine that stores the ledger.
    #[must_use]
    pub const fn redrive(&self) -> &Redrive {
        &self.redrive
    }

    /// Stops: no new connections; requests and tunnels in progress get `grace`. Unfinished enrolled requests are
    /// aborted and recorded.
    ///
    /// # Errors
    /// Where the ledger could not be closed cleanly. Nothing is lost then either.
    pub async fn stop(mut self, grace: Duration) -> Result<GatewayStopReport> {
        let end = Instant::now() + grace;
        self.stop.send_replace(true);
        self.chores.abort_all();
        let open = async {
            while self.listening.join_next().await.is_some() {}
            self.tunnels.ended().await;
        };
        let _ = timeout_at(end, open).await;
        self.tunnels.cut();
        // Requests of disconnected clients are on no connection.
        let left = end.saturating_duration_since(Instant::now());
        let drained = join_all(self.routes.iter().map(|route| route.layer().drain(left))).await;
        let answered = async { while self.listening.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(LAST_WORDS, answered).await;
        self.redrive.shutdown(Duration::ZERO).await?;
        Ok(GatewayStopReport { aborted: drained.iter().map(|drained| drained.aborted).sum() })
    }
}

/// The routes, by method and path.
fn routes(
    config: &Config,
    ledger: &Arc<WatchedLedger>,
    proxy: &Proxy,
    budget: &UnknownBudget,
) -> Result<(RouteTable<Route>, Vec<Route>)> {
    let settings = &config.gateway;
    let trusted: Arc<[_]> = settings.networks().map_err(anyhow::Error::msg)?.into();
    let credentials = Credentials::of(settings.credentials.as_ref()).map_err(anyhow::Error::msg)?;
    let keep = reply_sealing::reply_protection(&config.ledger)?;
    let mut all = Vec::new();
    let table = RouteTable::of(&settings.enrolled(), |settings| {
        let endpoint = route::trusting(settings, trusted.clone(), credentials.clone(), keep.clone())?;
        let route = Route::new(settings, endpoint, ledger.clone(), proxy.clone(), budget)?;
        all.push(route.clone());
        Ok(route)
    });
    Ok((table.map_err(anyhow::Error::msg)?, all))
}

/// The upkeep of an engine; none runs here, so that a server can use the same store.
async fn upkeep(redrive: Redrive, budget: UnknownBudget) {
    let ledger = redrive.ledger();
    let mut tick = tokio::time::interval(UPKEEP);
    loop {
        tick.tick().await;
        observe::metrics::keep_small();
        // If the store does not answer, the last count goes on.
        if let Ok(tenants) = redrive.unknown_outcomes_by_tenant().await {
            budget.counted(tenants);
        }
        // In slices until none is left. Failures are retried the next time.
        while ledger.sweep().await.is_ok_and(|forgotten| forgotten > 0) {}
    }
}

/// Whether only this machine reaches it.
fn is_loopback(listener: &TcpListener) -> bool {
    listener.local_addr().is_ok_and(|address| address.ip().is_loopback())
}

async fn bind(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))
}

fn shared(config: &Config) -> Result<Shared> {
    let GatewaySettings { host, answer_time, whole_time, replies_max, .. } = config.gateway;
    let upstream = config
        .gateway
        .upstream
        .as_deref()
        .context("the gateway has no upstream; name the API: --upstream http://127.0.0.1:8080")?;
    let address: UpstreamAddress = upstream.parse().map_err(|error| anyhow!("gateway.upstream: {error}"))?;
    let trusted = config.gateway.networks().map_err(anyhow::Error::msg)?;
    let teller = ForwardedHeaders::new(trusted, host, address.host(), name()?);
    let teller = teller.naming(config.gateway.routes.iter().flat_map(RouteSettings::named_by));
    let upstream =
        Upstream::new(address, &config.gateway).context("cannot load the system's root certificates")?;
    let client = config.server.body_time;
    let times = Timeouts { answer: answer_time, whole: whole_time, client };
    let upgrades = Upgrades::of(&config.gateway.upgrades).map_err(anyhow::Error::msg)?;
    let replies = Room::new(replies_max, replies_max);
    Ok(Shared {
        upstream,
        teller,
        upgrades,
        tunnels: Tunnels::new(config.gateway.tunnel_idle),
        times,
        replies,
    })
}

/// A name of this gateway's own.
fn name() -> Result<String> {
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(|error| anyhow!("the system gave no random bytes: {error}"))?;
    Ok(format!("redrive-{:016x}", u64::from_be_bytes(random)))
}
