//! `redrive gateway`.

use std::process::ExitCode;

use anyhow::{Context, Result};
use tokio::signal::unix::{SignalKind, signal};

use super::ConfigLocation;
use super::output::say;
use super::serve::Signals;
use crate::config::{
    Config, CredentialsSettings, CredentialsWord, EffectsWord, GatewaySettings, KeyWord, Layer,
    RouteSettings, TenantSettings,
};
use crate::gateway::Gateway;
use crate::observe;

/// Run a reverse proxy that makes the requests of an HTTP API safe to retry.
///
/// A repeated request with the same `Idempotency-Key` gets the first response. Requests without a key, and
/// requests to other routes, are forwarded unchanged. Without configured routes, every POST and PATCH is enrolled.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  redrive gateway --upstream http://127.0.0.1:8080
  redrive gateway --upstream http://127.0.0.1:8080 --listen 127.0.0.1:8081 --admin 127.0.0.1:8082
  redrive gateway --config shop.toml --store sqlite:shop.db
  curl -H 'Idempotency-Key: order-17' -d '{\"cabins\": 2}' --retry 5 --retry-all-errors 127.0.0.1:8081/orders

Routes, effects and times are in [gateway] of the configuration: `redrive config --default`.")]
pub(super) struct Args {
    #[command(flatten)]
    config: ConfigLocation,
    /// The URL of the API: http://HOST:PORT or https://HOST
    #[arg(long, value_name = "URL")]
    upstream: Option<String>,
    /// The address to listen on [default: 127.0.0.1:8081]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// The address for /healthz, /readyz, /metrics and /keys, the lookup of a key [default: none]
    #[arg(long, value_name = "ADDRESS")]
    admin: Option<String>,
    /// The store of the ledger, instead of the configured one: sqlite:FILE or postgres://…
    #[arg(long, env = "REDRIVE_STORE", hide_env_values = true, value_name = "ADDRESS")]
    store: Option<String>,
}

/// Runs a gateway until Ctrl-C or SIGTERM. A second signal stops it at once.
pub(super) async fn run(args: Args) -> Result<ExitCode> {
    let mut signals = Signals::new().context("cannot wait for signals")?;
    let mut hangup = signal(SignalKind::hangup()).context("cannot wait for signals")?;
    let flags = [
        args.upstream.map(|value| Layer::flag("--upstream", ["gateway", "upstream"], value)),
        args.listen.map(|value| Layer::flag("--listen", ["gateway", "listen"], value)),
        args.admin.map(|value| Layer::flag("--admin", ["gateway", "admin"], value)),
        args.store.map(|value| Layer::flag("--store", ["store", "address"], value)),
    ];
    let config = args.config.source(flags.into_iter().flatten()).load()?;
    let observing = observe::log::start(&config.observe)?;
    let grace = config.server.grace;
    let told = config.clone();
    let gateway = Gateway::start(config).await?;
    for line in beginning(&gateway, &told) {
        if observing.is_text() {
            say(line);
        } else {
            tracing::info!("{line}");
        }
    }
    loop {
        tokio::select! {
            () = signals.next() => break,
            _ = hangup.recv() => tracing::warn!("a gateway does not reload its configuration; restart it"),
        }
    }
    tracing::info!("stopping; requests in progress get {}", humantime::format_duration(grace));
    let stopped = tokio::select! {
        stopped = gateway.stop(grace) => stopped?,
        () = signals.next() => {
            tracing::warn!("stopped at once; the next request with the same key finds out what happened");
            return Ok(ExitCode::from(130));
        }
    };
    if stopped.aborted > 0 {
        tracing::warn!(aborted = stopped.aborted, "some requests did not finish in time");
    }
    observing.end().await;
    Ok(ExitCode::SUCCESS)
}

/// The start-up messages: addresses, upstream and enrolled routes.
fn beginning(gateway: &Gateway, config: &Config) -> Vec<String> {
    let upstream = config.gateway.upstream.as_deref().unwrap_or_default();
    let store = config.store.place();
    let mut lines =
        vec![format!("listening on http://{}, upstream {upstream}, ledger in {store}", gateway.address())];
    lines.extend(gateway.admin().map(|admin| format!("health, metrics and keys on http://{admin}")));
    lines.extend(config.gateway.enrolled().iter().map(enrolled));
    lines.extend(callers(&config.gateway));
    lines.push(format!("to look at a request by its key: redrive ledger show KEY --store {store}"));
    lines.push("all other requests are forwarded unchanged".to_owned());
    lines
}

/// How the gateway distinguishes callers by credentials.
fn callers(gateway: &GatewaySettings) -> Option<String> {
    gateway.uses_credentials().then(|| match &gateway.credentials {
        None | Some(CredentialsSettings::Word(CredentialsWord::Guess)) => {
            "callers are distinguished by every header that is not known to be neutral; list those that identify a caller in gateway.credentials"
                .to_owned()
        }
        Some(CredentialsSettings::Headers(names)) => format!(
            "callers are distinguished by {}; requests without these count as one caller",
            names.join(", ")
        ),
    })
}

fn enrolled(route: &RouteSettings) -> String {
    let key = match route.key {
        KeyWord::Optional => "with an Idempotency-Key",
        KeyWord::Required => "Idempotency-Key required",
    };
    let effects = match (route.effects, route.on_unknown.unwrap_or_default()) {
        (EffectsWord::Opaque, unknown) => format!("opaque, {unknown:?} if unknown").to_lowercase(),
        (effects, _) => format!("{effects:?}").to_lowercase(),
    };
    let tenant = match &route.tenant {
        TenantSettings::Fixed(name) => name.clone(),
        TenantSettings::Header(header) => format!("as {} says", header.header),
    };
    let kept = humantime::format_duration(route.retention);
    format!("enrolled: {}, {key}; effects {effects}; tenant {tenant}; replies kept for {kept}", route.on)
}
