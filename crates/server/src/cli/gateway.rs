//! `redrive gateway`.

use std::process::ExitCode;

use anyhow::{Context, Result};
use tokio::signal::unix::{SignalKind, signal};

use super::Configured;
use super::serve::Signals;
use crate::config::{
    Config, EffectsWord, GatewaySettings, KeyWord, Layer, PrincipalSettings, PrincipalWord, RouteSettings,
    TenantSettings,
};
use crate::gateway::Gateway;
use crate::observe;

/// Stand in front of an HTTP API, and make its requests safe to send again.
///
/// A request with an `Idempotency-Key` that comes a second time is given the first answer; what has none, and what is
/// not enrolled, passes through as it is. Without routes in the configuration every POST and PATCH is enrolled.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  redrive gateway --upstream http://127.0.0.1:8080
  redrive gateway --upstream http://127.0.0.1:8080 --listen 0.0.0.0:8081 --admin 127.0.0.1:8082
  redrive gateway --config shop.toml --store sqlite:shop.db
  curl -H 'Idempotency-Key: order-17' -d '{\"cabins\": 2}' --retry 5 --retry-all-errors 127.0.0.1:8081/orders

Routes, effects and times are in [gateway] of the configuration: `redrive config --default`.")]
pub(super) struct Args {
    #[command(flatten)]
    config: Configured,
    /// Where the API is: http://HOST:PORT or https://HOST
    #[arg(long, value_name = "URL")]
    upstream: Option<String>,
    /// Where to listen [default: 127.0.0.1:8081]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Where to show /healthz, /readyz, /metrics and, at /keys, what is remembered under a key [default: nowhere]
    #[arg(long, value_name = "ADDRESS")]
    admin: Option<String>,
    /// Where requests are remembered, instead of what the configuration says: sqlite:FILE or postgres://…
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
            eprintln!("redrive: {line}");
        } else {
            tracing::info!("{line}");
        }
    }
    loop {
        tokio::select! {
            () = signals.next() => break,
            _ = hangup.recv() => tracing::warn!("a gateway reads its configuration when it starts, and not again"),
        }
    }
    tracing::info!("stopping; requests under way get {}", humantime::format_duration(grace));
    let stopped = tokio::select! {
        stopped = gateway.stop(grace) => stopped?,
        () = signals.next() => {
            tracing::warn!("stopped at once; of what was under way the next request of its key finds out");
            return Ok(ExitCode::from(130));
        }
    };
    if stopped.aborted > 0 {
        tracing::warn!(aborted = stopped.aborted, "some requests did not end in time");
    }
    observing.end().await;
    Ok(ExitCode::SUCCESS)
}

/// What is said at the start: where it stands, and what it answers for.
fn beginning(gateway: &Gateway, config: &Config) -> Vec<String> {
    let upstream = config.gateway.upstream.as_deref().unwrap_or_default();
    let store = config.store.place();
    let mut lines = vec![format!(
        "listening on http://{}, in front of {upstream}, requests remembered in {store}",
        gateway.address()
    )];
    lines.extend(gateway.admin().map(|admin| format!("health, metrics and keys on http://{admin}")));
    lines.extend(config.gateway.enrolled().iter().map(enrolled));
    lines.extend(callers(&config.gateway));
    lines.push("everything else passes through as it is".to_owned());
    lines
}

/// How callers are told apart, where some are by what they send.
fn callers(gateway: &GatewaySettings) -> Option<String> {
    let none = PrincipalSettings::Word(PrincipalWord::None);
    gateway.enrolled().iter().any(|route| route.principal != none).then(|| match &*gateway.credentials {
        [] => "callers are told apart by headers that look like credentials, or else by all that might be; name \
               those that are in gateway.credentials"
            .to_owned(),
        names => format!("callers are told apart by {}; without these they are one", names.join(", ")),
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
    format!("enrolled: {}, {key}; effects {effects}; tenant {tenant}; answers kept for {kept}", route.on)
}
