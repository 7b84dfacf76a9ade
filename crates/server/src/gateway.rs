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
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::config::{Config, GatewaySettings};
use crate::listen;

mod upstream;

mod proxy;

mod hops;

mod forwarded;

mod flow;

mod tunnel;

mod failure;

mod table;

pub use table::check_routes;
pub use upstream::Address;

use forwarded::Teller;
use proxy::{Proxy, Shared, Times};
use tunnel::Tunnels;
use upstream::Upstream;

/// A gateway that runs.
#[derive(Debug)]
pub struct Gateway {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    listening: JoinHandle<()>,
    tunnels: Tunnels,
}

impl Gateway {
    /// Opens the ledger and listens.
    ///
    /// # Errors
    /// With what is in the way.
    pub async fn start(config: Config) -> Result<Self> {
        let listener = bind(config.gateway.listen).await?;
        let address = listener.local_addr().context("the address that is listened on")?;
        let shared = Arc::new(shared(&config)?);
        let tunnels = shared.tunnels.clone();
        let router = Router::new().fallback_service(Proxy::new(shared));
        let (stop, stopped) = watch::channel(false);
        let settings = config.server;
        let listening =
            tokio::spawn(async move { listen::serve(listener, router, &settings, stopped).await });
        Ok(Self { address, stop, listening, tunnels })
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops: no new connections; requests and tunnels under way get `grace`.
    pub async fn stop(self, grace: Duration) {
        self.stop.send_replace(true);
        let ended = async {
            let _ = self.listening.await;
            self.tunnels.ended().await;
        };
        let _ = tokio::time::timeout(grace, ended).await;
        self.tunnels.cut();
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
