//! Queues with a destination: every attempt is an HTTP request.
//!
//! Policy, order, concurrency, rate, budget and breaker are the queue's, and the engine's affair. Here an attempt
//! is made into a request, and an answer into what the attempt says of itself:
//!
//! - [`destination`]: where to, made ready from the settings;
//! - [`guard`], [`address`]: which addresses may be called at all;
//! - [`names`]: whose header names are whose;
//! - [`target`]: which queues share a budget and a breaker.

use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwap;
use bytes::Bytes;
use redrive::event::Cause;
use redrive::{Delivery, Failure, Fault, Reply};

use crate::config::{Config, PushSettings};
use crate::secrets::{Lack, Secrets};

pub mod address;
mod answer;
pub mod destination;
pub mod guard;
pub mod names;
mod request;
mod sign;
pub mod target;

use address::Network;
use answer::Bounds;
use destination::Destination;
pub(crate) use guard::Guard;
use guard::Refused;

/// What every attempt says it is.
const AGENT: &str = concat!("redrive/", env!("CARGO_PKG_VERSION"));

/// What attempts of queues with a destination share.
#[derive(Debug)]
pub struct Push {
    routes: ArcSwap<Routes>,
    secrets: Arc<Secrets>,
}

/// Where to, and by what way; what a reload swaps.
#[derive(Debug)]
pub struct Routes {
    settings: PushSettings,
    /// Connections are kept in it, so a guard that lets less pass needs another one.
    client: reqwest::Client,
    guard: Guard,
    destinations: HashMap<String, Arc<Destination>>,
}

impl Push {
    /// What the queues of a configuration need to send.
    ///
    /// # Errors
    /// With the setting that is wrong.
    pub fn new(config: &Config, secrets: Arc<Secrets>) -> Result<Arc<Self>, String> {
        let (client, guard) = guarded(&config.push)?;
        let destinations = destinations(config)?;
        let routes = Routes { settings: config.push.clone(), client, guard, destinations };
        Ok(Arc::new(Self { routes: ArcSwap::from_pointee(routes), secrets }))
    }

    /// What another configuration needs to send, for [`swap`](Self::swap).
    ///
    /// # Errors
    /// With the setting that is wrong.
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

    /// Sends there from now on. Attempts under way end as they began.
    pub fn swap(&self, routes: Routes) {
        self.routes.store(Arc::new(routes));
    }

    /// Queues whose destination is signed with a secret that is not known, or locked; with what is to be said of it.
    #[must_use]
    pub fn unsigned(&self) -> Vec<(String, String)> {
        let routes = self.routes.load();
        let missing = |(queue, destination): (&String, &Arc<Destination>)| {
            let secret = destination.secret.as_deref()?;
            Some((queue.clone(), self.secrets.lacks(secret)?.told(secret)))
        };
        let mut missing: Vec<_> = routes.destinations.iter().filter_map(missing).collect();
        missing.sort();
        missing
    }

    /// Makes an attempt: sends the event to the destination of this queue, and says what came of it.
    ///
    /// # Errors
    /// With what the attempt failed of.
    pub async fn attempt(&self, queue: &str, delivery: Delivery) -> Result<Reply, Failure> {
        let routes = self.routes.load_full();
        let Some(destination) = routes.destinations.get(queue) else {
            return Err(later("no-destination", format!("the queue `{queue}` has no destination")));
        };
        // Never sent unsigned: the receiver could not tell it from anybody's.
        let secrets = match &destination.secret {
            None => Vec::new(),
            Some(name) => self.secrets.signing(name, SystemTime::now()).ok_or_else(|| {
                let lack = self.secrets.lacks(name).unwrap_or(Lack::Unknown);
                later(if lack == Lack::Locked { "secret-locked" } else { "no-secret" }, lack.told(name))
            })?,
        };
        routes.guard.check_host(&destination.url).map_err(|error| refused(&error))?;
        let secrets: Vec<&[u8]> = secrets.iter().map(|secret| secret.bytes()).collect();
        let headers = request::headers(&delivery, destination, &secrets, SystemTime::now());
        let request = routes.client.post(destination.url.clone()).headers(headers);
        let payload = Bytes::from_owner(Payload(delivery.clone()));
        let response = request.body(payload).send().await.map_err(failed)?;
        let PushSettings { answer_max, answer_kept, .. } = routes.settings;
        let bounds = Bounds { read: answer_max, kept: answer_kept };
        answer::judge(response, &destination.statuses, bounds, delivery.time_left()).await
    }
}

/// A delivery's payload, without a copy of it.
struct Payload(Delivery);

impl AsRef<[u8]> for Payload {
    fn as_ref(&self) -> &[u8] {
        self.0.payload()
    }
}

/// The networks that are allowed.
///
/// # Errors
/// With the one that is none.
pub fn networks(settings: &PushSettings) -> Result<Vec<Network>, String> {
    let network = |text: &String| text.parse().map_err(|error| format!("push.allow: {error}"));
    settings.allow.iter().map(network).collect()
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

/// A client that reaches nothing private but what is allowed, and the guard to ask about hosts that are addresses.
pub(crate) fn guarded(settings: &PushSettings) -> Result<(reqwest::Client, Guard), String> {
    let guard = Guard::new(networks(settings)?);
    Ok((client(settings, guard.clone())?, guard))
}

/// A client that goes through the guard, follows nobody, and asks no proxy.
///
/// # Errors
/// Where the system has no certificates to trust, say.
pub fn client(settings: &PushSettings, guard: Guard) -> Result<reqwest::Client, String> {
    reqwest::Client::builder()
        .user_agent(AGENT)
        .dns_resolver(guard)
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .connect_timeout(settings.connect_time)
        .pool_idle_timeout(settings.idle_time)
        .pool_max_idle_per_host(settings.idle_max)
        .build()
        .map_err(|error| format!("cannot make the client that sends events: {error}"))
}

/// What is a mistake of the configuration, or of a name server, and not the event's: nothing was sent, and it may be
/// mended while the event waits.
fn later(kind: &str, told: String) -> Failure {
    Failure::new(Fault::transient().not_executed(), Cause::new(kind, told))
}

fn refused(error: &Refused) -> Failure {
    later("destination-refused", error.to_string())
}

/// Why there was no answer. The address is not in it: it may hold credentials.
fn failed(error: reqwest::Error) -> Failure {
    let mut source = error.source();
    while let Some(inner) = source {
        if let Some(error) = inner.downcast_ref::<Refused>() {
            return refused(error);
        }
        source = inner.source();
    }
    let fault = redrive::http::classify::reqwest(&error).unwrap_or(Fault::transient());
    let kind = if error.is_connect() { "connect" } else { "send" };
    let cause = Cause::of(&error.without_url());
    Failure::new(fault, Cause { kind: kind.to_owned(), ..cause })
}
