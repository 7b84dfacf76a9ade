//! Queues with a destination: every attempt is an HTTP request.
//!
//! Policy, order, concurrency, rate, budget and breaker belong to the queue and the engine. This module turns an
//! attempt into a request, and a response into a disposition:
//!
//! - [`destination`]: where to, made ready from the settings;
//! - [`ssrf_guard`], [`network`]: which addresses may be called at all;
//! - [`header_names`]: which headers events and destinations may set;
//! - [`target`]: which queues share a budget and a breaker.

use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwap;
use http::Method;
use redrive::event::Cause;
use redrive::{Delivery, Failure, Fault, Reply};
use tracing::Instrument as _;

use crate::config::{Config, PushSettings};
use crate::observe::trace::http_spans;
use crate::secrets::{Secrets, SigningGap};

pub mod destination;
pub mod header_names;
pub mod network;
mod request;
mod response;
mod sign;
pub mod ssrf_guard;
pub mod target;

use destination::Destination;
use network::Network;
use response::BodyLimits;
use ssrf_guard::BlockedAddress;
pub(crate) use ssrf_guard::SsrfGuard;

/// The user agent of every attempt.
const AGENT: &str = concat!("redrive/", env!("CARGO_PKG_VERSION"));

/// What attempts of queues with a destination share.
#[derive(Debug)]
pub struct Push {
    routes: ArcSwap<Routes>,
    secrets: Arc<Secrets>,
}

/// The destinations and the client; replaced by a reload.
#[derive(Debug)]
pub struct Routes {
    settings: PushSettings,
    /// Connections are kept in it, so a guard that lets less pass needs another one.
    client: reqwest::Client,
    guard: SsrfGuard,
    destinations: HashMap<String, Arc<Destination>>,
}

impl Push {
    /// Builds the sender for a configuration.
    ///
    /// # Errors
    /// With the invalid setting.
    pub fn new(config: &Config, secrets: Arc<Secrets>) -> Result<Arc<Self>, String> {
        let (client, guard) = guarded(&config.push)?;
        let destinations = destinations(config)?;
        let routes = Routes { settings: config.push.clone(), client, guard, destinations };
        Ok(Arc::new(Self { routes: ArcSwap::from_pointee(routes), secrets }))
    }

    /// Builds the routes of another configuration, for [`swap`](Self::swap).
    ///
    /// # Errors
    /// With the invalid setting.
    pub fn prepare(&self, config: &Config) -> Result<Routes, String> {
        let destinations = destinations(config)?;
        let old = self.routes.load();
        let (client, guard) = if old.settings == config.push {
            (old.client.clone(), old.guard.clone())
        } else {
            guarded(&config.push)?
        };
        Ok(Routes { settings: config.push.clone(), client, guard, destinations })
    }

    /// Uses these routes from now on. Attempts in progress keep theirs.
    pub fn swap(&self, routes: Routes) {
        self.routes.store(Arc::new(routes));
    }

    /// Queues whose signing secret is missing or locked, with the message.
    #[must_use]
    pub fn unsigned(&self) -> Vec<(String, String)> {
        let routes = self.routes.load();
        let missing = |(queue, destination): (&String, &Arc<Destination>)| {
            let secret = destination.secret.as_deref()?;
            let gap = self.secrets.signing(secret, SystemTime::now()).err()?;
            Some((queue.clone(), gap.told(secret)))
        };
        let mut missing: Vec<_> = routes.destinations.iter().filter_map(missing).collect();
        missing.sort();
        missing
    }

    /// Makes an attempt: sends the event to the destination of this queue.
    ///
    /// # Errors
    /// With the failure of the attempt.
    pub async fn attempt(&self, queue: &str, delivery: Delivery) -> Result<Reply, Failure> {
        let routes = self.routes.load_full();
        let Some(destination) = routes.destinations.get(queue) else {
            return Err(later("no-destination", format!("the queue `{queue}` has no destination")));
        };
        // Never sent unsigned: the receiver could not verify it.
        let secrets = match &destination.secret {
            None => Vec::new(),
            Some(name) => match self.secrets.signing(name, SystemTime::now()) {
                Ok(secrets) => secrets,
                // Not the event's fault, nor its destination's: it waits until the store answers.
                Err(SigningGap::Stale) => return Ok(Reply::put_off()),
                Err(gap @ SigningGap::Locked) => return Err(later("secret-locked", gap.told(name))),
                Err(gap @ SigningGap::Unknown) => return Err(later("no-secret", gap.told(name))),
            },
        };
        routes.guard.check_host(&destination.url).map_err(|error| refused(&error))?;
        let secrets: Vec<&[u8]> = secrets.iter().map(|secret| secret.bytes()).collect();
        let body = request::body(&delivery, destination);
        let mut headers = request::headers(&delivery, destination, &secrets, &body, SystemTime::now());
        let url = &destination.url;
        let server = (url.host_str().unwrap_or_default(), url.port_or_known_default());
        let span = http_spans::client(&Method::POST, server, url.path(), delivery.attempt());
        http_spans::inject(&span, &mut headers);
        let request = routes.client.post(url.clone()).headers(headers).body(body);
        let response = request.send().instrument(span.clone()).await.map_err(|error| {
            let failure = failed(error);
            http_spans::failed(&span, &failure.cause().kind);
            failure
        })?;
        http_spans::sent(&span, response.status());
        let PushSettings { answer_max, answer_kept, .. } = routes.settings;
        let bounds = BodyLimits { read: answer_max, kept: answer_kept };
        response::judge(response, &destination.statuses, bounds, delivery.time_left()).await
    }
}

/// The guard of these settings.
///
/// # Errors
/// With the network that is invalid.
pub fn guard(settings: &PushSettings) -> Result<SsrfGuard, String> {
    let networks = |name: &str, list: &[String]| -> Result<Vec<Network>, String> {
        let network = |text: &String| text.parse().map_err(|error| format!("push.{name}: {error}"));
        list.iter().map(network).collect()
    };
    let guard = SsrfGuard::new(networks("allow", &settings.allow)?);
    Ok(guard.deny(networks("deny", &settings.deny)?))
}

fn destinations(config: &Config) -> Result<HashMap<String, Arc<Destination>>, String> {
    let pushed = config.queues.iter().filter_map(|(name, queue)| Some((name, queue.push.as_ref()?)));
    let ready = |(name, settings): (&String, _)| {
        let destination =
            Destination::new(settings).map_err(|error| format!("queues.{name}.push: {error}"))?;
        Ok((name.clone(), Arc::new(destination)))
    };
    pushed.map(ready).collect()
}

/// A client that reaches no private address that is not allowed, and the guard for hosts that are addresses.
pub(crate) fn guarded(settings: &PushSettings) -> Result<(reqwest::Client, SsrfGuard), String> {
    let guard = guard(settings)?;
    Ok((client(settings, guard.clone())?, guard))
}

/// A client behind the guard, without redirects and proxies.
///
/// # Errors
/// Where the system has no certificates to trust, say.
pub fn client(settings: &PushSettings, guard: SsrfGuard) -> Result<reqwest::Client, String> {
    reqwest::Client::builder()
        .user_agent(AGENT)
        .dns_resolver(guard)
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .connect_timeout(settings.connect_time)
        .pool_idle_timeout(settings.idle_time)
        .pool_max_idle_per_host(settings.idle_max)
        .build()
        .map_err(|error| format!("cannot create the HTTP client: {error}"))
}

/// A mistake of the configuration or of a name server, not of the event: nothing was sent, and it may be fixed while
/// the event waits.
fn later(kind: &str, told: String) -> Failure {
    Failure::new(Fault::transient().not_executed(), Cause::new(kind, told))
}

fn refused(error: &BlockedAddress) -> Failure {
    later("destination-refused", error.to_string())
}

/// Why there was no answer. The address is not in it: it may hold credentials.
fn failed(error: reqwest::Error) -> Failure {
    let mut source = error.source();
    while let Some(inner) = source {
        if let Some(error) = inner.downcast_ref::<BlockedAddress>() {
            return refused(error);
        }
        source = inner.source();
    }
    let fault = redrive::http::classify::reqwest(&error).unwrap_or(Fault::transient());
    let kind = if error.is_connect() { "connect" } else { "send" };
    let cause = Cause::of(&error.without_url());
    Failure::new(fault, Cause { kind: kind.to_owned(), ..cause })
}
