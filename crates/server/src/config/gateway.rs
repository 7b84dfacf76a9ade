//! The gateway's settings, and its enrolled routes.

use std::net::SocketAddr;
use std::time::Duration;

use http::Method;
use serde::Deserialize;

use crate::push::network::Network;

mod check;

/// The gateway.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GatewaySettings {
    /// Where the API is.
    pub upstream: Option<String>,
    /// The address to listen on.
    pub listen: SocketAddr,
    /// The address for health, metrics and key lookup; none by default.
    pub admin: Option<SocketAddr>,
    /// The `Host` sent to the upstream.
    pub host: HostWord,
    /// Trusted proxies, whose headers for clients, tenants and principals are accepted.
    pub trusted: Vec<String>,
    /// Headers that distinguish callers if no proxy names them. Without a word they are guessed, on loopback only.
    pub credentials: Option<CredentialsSettings>,
    /// Protocols that a connection may change to; never a version of HTTP.
    pub upgrades: Vec<String>,
    /// Whether requests are refused that are on no route, or on another, and that the API may take for one of a route.
    pub refuse_lookalikes: bool,
    /// How long it may take to connect.
    #[serde(with = "redrive::config::duration")]
    pub connect_time: Duration,
    /// How long the upstream may take until it answers.
    #[serde(with = "redrive::config::duration")]
    pub answer_time: Duration,
    /// How long a client may take to send a body that is held.
    #[serde(with = "redrive::config::duration")]
    pub held_time: Duration,
    /// How many bytes of held bodies one client address may have in memory.
    pub client_bodies_max: usize,
    /// How many bytes of replies may be in memory, over all clients.
    pub replies_max: usize,
    /// Time limit of a request that is not enrolled, with its response; none by default.
    #[serde(with = "redrive::config::optional")]
    pub whole_time: Option<Duration>,
    /// How many outcomes of a tenant may be unknown; requests that may add to them are refused beyond it.
    pub unknown_max: u64,
    /// The same for a client address, within an hour.
    pub client_unknown_max: u64,
    /// Names by which the admin address may be called, beside its number.
    pub admin_hosts: Vec<String>,
    /// How long a tunnel may be silent in both directions.
    #[serde(with = "redrive::config::duration")]
    pub tunnel_idle: Duration,
    /// How long an idle connection is kept.
    #[serde(with = "redrive::config::duration")]
    pub idle_time: Duration,
    /// Idle connections kept.
    pub idle_max: usize,
    /// The enrolled routes. If empty, see [`RouteSettings::usual`].
    pub routes: Vec<RouteSettings>,
}

impl Default for GatewaySettings {
    fn default() -> Self {
        Self {
            upstream: None,
            listen: SocketAddr::from(([127, 0, 0, 1], 8081)),
            admin: None,
            host: HostWord::Client,
            trusted: Vec::new(),
            credentials: None,
            upgrades: vec!["websocket".to_owned()],
            refuse_lookalikes: true,
            connect_time: Duration::from_secs(5),
            answer_time: Duration::from_secs(60),
            held_time: Duration::from_secs(60),
            client_bodies_max: 32 << 20,
            replies_max: 256 << 20,
            whole_time: None,
            unknown_max: 10_000,
            client_unknown_max: 1_000,
            admin_hosts: Vec::new(),
            tunnel_idle: Duration::from_secs(600),
            idle_time: Duration::from_secs(30),
            idle_max: 64,
            routes: Vec::new(),
        }
    }
}

/// Which headers distinguish callers.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged, expecting = "credentials are a list of headers, or \"guess\"")]
pub enum CredentialsSettings {
    /// A rule.
    Word(CredentialsWord),
    /// Exactly these: requests without them count as one caller.
    Headers(Vec<String>),
}

/// A rule for the headers that distinguish callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CredentialsWord {
    /// Every header that is not known to be neutral.
    Guess,
}

/// The `Host` sent to the upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HostWord {
    /// The client's.
    Client,
    /// That of the upstream URL.
    Upstream,
}

/// Requests that the ledger answers for.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteSettings {
    /// A method and a path: `POST /orders/{id}/payments`.
    #[serde(rename = "match")]
    pub on: String,
    /// The tenant of keys.
    pub tenant: TenantSettings,
    /// The kind of effects.
    pub effects: EffectsWord,
    /// What follows an unknown outcome, if the effects are opaque.
    #[serde(default)]
    pub on_unknown: Option<UnknownWord>,
    /// Whether there has to be a key.
    #[serde(default)]
    pub key: KeyWord,
    /// The principal.
    #[serde(default)]
    pub principal: PrincipalSettings,
    /// How the upstream gets the key, if the effects are keyed.
    #[serde(default)]
    pub upstream_key: UpstreamKeyWord,
    /// How long an answer is kept.
    #[serde(default = "day", with = "redrive::config::duration")]
    pub retention: Duration,
    /// For how long clients repeat a request: answers have to be kept for that long.
    #[serde(default, with = "redrive::config::duration")]
    pub horizon: Duration,
    /// How far clients' clocks may be off, where they say when they first sent a request.
    #[serde(default = "five_minutes", with = "redrive::config::duration")]
    pub skew: Duration,
    /// Whether keys are version 7 UUIDs whose time is when the request was first sent.
    #[serde(default)]
    pub uuid_time: bool,
    /// JSON pointers that identify a request without a key.
    #[serde(default)]
    pub identity: Vec<String>,
    /// For how long a run has the record before it renews.
    #[serde(default = "half_minute", with = "redrive::config::duration")]
    pub lease: Duration,
    /// How long a request may take.
    #[serde(default = "five_minutes", with = "redrive::config::duration")]
    pub max_run: Duration,
    /// How long a repetition waits for a request that runs, without `Prefer: wait`; not at all by default.
    #[serde(default, with = "redrive::config::duration")]
    pub wait: Duration,
    /// How long `Prefer: wait` may wait.
    #[serde(default = "half_minute", with = "redrive::config::duration")]
    pub wait_max: Duration,
    /// How many bytes a request's body may have.
    #[serde(default = "mebibyte")]
    pub body_max: usize,
    /// How many bytes of an answer are kept.
    #[serde(default = "mebibyte")]
    pub reply_max: usize,
    /// Maximum number of concurrent requests.
    #[serde(default = "thousand")]
    pub concurrency: usize,
    /// Statuses with which the upstream says that it did nothing.
    #[serde(default)]
    pub not_executed: Vec<u16>,
    /// Whether the upstream's own `Idempotency-Outcome` is believed.
    #[serde(default)]
    pub upstream_outcome: bool,
    /// Whether a 401 with `WWW-Authenticate` releases the key: the upstream did nothing.
    #[serde(default = "yes")]
    pub release_on_401: bool,
    /// A path of the upstream that is asked, with the caller's headers, before each replay.
    #[serde(default)]
    pub authorise: Option<String>,
    /// The parts of a request that its fingerprint covers.
    #[serde(default)]
    pub fingerprint: FingerprintSettings,
    /// The parts of a reply that are never stored.
    #[serde(default)]
    pub redact: RedactSettings,
    /// Whether requests are passed on without the ledger while it cannot be reached.
    #[serde(default)]
    pub stay_open: bool,
}

const fn day() -> Duration {
    Duration::from_secs(86_400)
}

const fn half_minute() -> Duration {
    Duration::from_secs(30)
}

const fn five_minutes() -> Duration {
    Duration::from_secs(300)
}

const fn thousand() -> usize {
    1024
}

const fn yes() -> bool {
    true
}

const fn mebibyte() -> usize {
    1 << 20
}

/// The tenant of keys.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged, expecting = "a tenant is a name, or { header = \"x-tenant\" }")]
pub enum TenantSettings {
    /// One tenant's.
    Fixed(String),
    /// That of the tenant which a proxy in front names.
    Header(HeaderSettings),
}

/// A header that a proxy in front sets.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeaderSettings {
    /// Its name.
    pub header: String,
}

/// The principal.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged, expecting = "a principal is \"credentials\", \"none\", or { header = \"x-user\" }")]
pub enum PrincipalSettings {
    /// A fixed rule.
    Word(PrincipalWord),
    /// A header set by a trusted proxy.
    Header(HeaderSettings),
}

impl Default for PrincipalSettings {
    fn default() -> Self {
        Self::Word(PrincipalWord::Credentials)
    }
}

/// A fixed rule for the principal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PrincipalWord {
    /// Callers with the same credentials.
    Credentials,
    /// All callers are the same.
    None,
}

/// The kind of a route's effects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EffectsWord {
    /// The upstream knows keys itself: running again is safe.
    Keyed,
    /// Nothing is.
    Opaque,
    /// They commit with the record, which no gateway can have them do.
    Transactional,
}

/// What follows an unknown outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UnknownWord {
    /// A person says how it was.
    #[default]
    Hold,
    /// It runs again, and its effect may happen twice.
    Rerun,
}

/// Whether there has to be a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyWord {
    /// Without one a request is passed on as if it were not enrolled.
    #[default]
    Optional,
    /// Without one it is refused.
    Required,
}

/// How the upstream gets the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UpstreamKeyWord {
    /// The client's own, unchanged.
    #[default]
    Plain,
    /// The client's own, as a structured-field string.
    Quoted,
    /// A key derived from tenant, route and key, so that tenants that share an upstream account do not collide.
    Derived,
}

/// The parts of a request that its fingerprint covers, beside path, query, body and principal.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FingerprintSettings {
    /// Only what these JSON pointers point to.
    pub only: Vec<String>,
    /// All but these.
    pub without: Vec<String>,
    /// These headers too.
    pub headers: Vec<String>,
}

/// The parts of a reply that are never stored.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RedactSettings {
    /// These headers.
    pub headers: Vec<String>,
    /// What these JSON pointers point to.
    pub body: Vec<String>,
}

impl RouteSettings {
    /// The default routes: every `POST` and `PATCH` with a key, one tenant, opaque effects, and unknown outcomes are
    /// held.
    #[must_use]
    pub fn usual() -> Vec<Self> {
        [Method::POST, Method::PATCH].map(|method| Self::new(format!("{method} /{{*path}}"))).into()
    }

    fn new(on: String) -> Self {
        Self {
            on,
            tenant: TenantSettings::Fixed("default".to_owned()),
            effects: EffectsWord::Opaque,
            on_unknown: None,
            key: KeyWord::default(),
            principal: PrincipalSettings::default(),
            upstream_key: UpstreamKeyWord::default(),
            retention: day(),
            horizon: Duration::ZERO,
            skew: five_minutes(),
            uuid_time: false,
            identity: Vec::new(),
            lease: half_minute(),
            max_run: five_minutes(),
            wait: Duration::ZERO,
            wait_max: half_minute(),
            body_max: mebibyte(),
            reply_max: mebibyte(),
            concurrency: thousand(),
            not_executed: Vec::new(),
            upstream_outcome: false,
            release_on_401: true,
            authorise: None,
            fingerprint: FingerprintSettings::default(),
            redact: RedactSettings::default(),
            stay_open: false,
        }
    }

    /// Method and path.
    ///
    /// # Errors
    /// With the error.
    pub fn method_and_path(&self) -> Result<(Method, &str), String> {
        let wrong = || "must be a method and a path, such as `POST /orders/{id}`".to_owned();
        let (method, path) = self.on.split_once(' ').ok_or_else(wrong)?;
        if method.is_empty()
            || !method.bytes().all(|byte| byte.is_ascii_uppercase())
            || !path.starts_with('/')
        {
            return Err(wrong());
        }
        let method = Method::from_bytes(method.as_bytes()).map_err(|_| wrong())?;
        if method.is_safe() || method == Method::CONNECT {
            return Err(format!("{method} is a safe method and is never enrolled; remove the route"));
        }
        Ok((method, path))
    }
}

impl GatewaySettings {
    /// The routes that count.
    #[must_use]
    pub fn enrolled(&self) -> Vec<RouteSettings> {
        if self.routes.is_empty() { RouteSettings::usual() } else { self.routes.clone() }
    }

    /// Whether a route distinguishes callers by their credentials.
    #[must_use]
    pub fn uses_credentials(&self) -> bool {
        let by_credentials = PrincipalSettings::Word(PrincipalWord::Credentials);
        self.enrolled().iter().any(|route| route.principal == by_credentials)
    }

    /// The networks of trusted proxies.
    ///
    /// # Errors
    /// If one is invalid.
    pub fn networks(&self) -> Result<Vec<Network>, String> {
        self.trusted
            .iter()
            .map(|text| text.parse().map_err(|error| format!("gateway.trusted: {error}")))
            .collect()
    }
}
