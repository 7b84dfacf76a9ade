//! The gateway: where it stands, and which requests the ledger answers for.

use std::net::SocketAddr;
use std::time::Duration;

use http::Method;
use serde::Deserialize;

use crate::push::address::Network;

mod check;

/// The gateway.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GatewaySettings {
    /// Where the API is.
    pub upstream: Option<String>,
    /// The address to listen on.
    pub listen: SocketAddr,
    /// Where to show health, metrics and what is known of a key; nowhere if it is none.
    pub admin: Option<SocketAddr>,
    /// Which `Host` the upstream is told.
    pub host: HostWord,
    /// Proxies in front whose word on clients, tenants and principals is taken.
    pub trusted: Vec<String>,
    /// Headers that callers are told apart by where nobody in front names them; guessed where there are none.
    pub credentials: Vec<String>,
    /// How long it may take to connect.
    #[serde(with = "redrive::config::duration")]
    pub connect_time: Duration,
    /// How long the upstream may take until it answers.
    #[serde(with = "redrive::config::duration")]
    pub answer_time: Duration,
    /// How long a request that is not enrolled may take with its answer; no bound where it is none.
    #[serde(with = "redrive::config::optional")]
    pub whole_time: Option<Duration>,
    /// How long a connection that nobody uses is kept.
    #[serde(with = "redrive::config::duration")]
    pub idle_time: Duration,
    /// Idle connections kept.
    pub idle_max: usize,
    /// What is enrolled. The usual where there are none: see [`RouteSettings::usual`].
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
            credentials: Vec::new(),
            connect_time: Duration::from_secs(5),
            answer_time: Duration::from_secs(60),
            whole_time: None,
            idle_time: Duration::from_secs(30),
            idle_max: 64,
            routes: Vec::new(),
        }
    }
}

/// Which `Host` the upstream is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HostWord {
    /// The client's.
    Client,
    /// That of its own address.
    Upstream,
}

/// Requests that the ledger answers for.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteSettings {
    /// A method and a path: `POST /orders/{id}/payments`.
    #[serde(rename = "match")]
    pub on: String,
    /// Whose keys they are.
    pub tenant: TenantSettings,
    /// What is known of the effects.
    pub effects: EffectsWord,
    /// What follows where nobody knows how a request ended, if its effects are opaque.
    #[serde(default)]
    pub on_unknown: Option<UnknownWord>,
    /// Whether there has to be a key.
    #[serde(default)]
    pub key: KeyWord,
    /// Who asks.
    #[serde(default)]
    pub principal: PrincipalSettings,
    /// How the upstream is told the key, if its effects are keyed.
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
    /// Whether keys are UUIDs of version 7 whose time is when the request was first sent.
    #[serde(default)]
    pub uuid_time: bool,
    /// JSON pointers to what a request without a key is known by.
    #[serde(default)]
    pub identity: Vec<String>,
    /// For how long a run has the record before it renews.
    #[serde(default = "half_minute", with = "redrive::config::duration")]
    pub lease: Duration,
    /// How long a request may take.
    #[serde(default = "five_minutes", with = "redrive::config::duration")]
    pub max_run: Duration,
    /// How long `Prefer: wait` may wait.
    #[serde(default = "half_minute", with = "redrive::config::duration")]
    pub wait_max: Duration,
    /// How many bytes a request's body may have.
    #[serde(default = "mebibyte")]
    pub body_max: usize,
    /// How many bytes of an answer are kept.
    #[serde(default = "mebibyte")]
    pub reply_max: usize,
    /// Requests under way at once.
    #[serde(default = "thousand")]
    pub concurrency: usize,
    /// Statuses with which the upstream says that it did nothing.
    #[serde(default)]
    pub not_executed: Vec<u16>,
    /// Whether the upstream's own `Idempotency-Outcome` is believed.
    #[serde(default)]
    pub upstream_outcome: bool,
    /// What counts for whether two requests are the same.
    #[serde(default)]
    pub fingerprint: FingerprintSettings,
    /// What is never stored of an answer.
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

const fn mebibyte() -> usize {
    1 << 20
}

/// Whose keys they are.
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

/// Who asks.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged, expecting = "a principal is \"credentials\", \"none\", or { header = \"x-user\" }")]
pub enum PrincipalSettings {
    /// Whom a word says.
    Word(PrincipalWord),
    /// Whom a proxy in front names.
    Header(HeaderSettings),
}

impl Default for PrincipalSettings {
    fn default() -> Self {
        Self::Word(PrincipalWord::Credentials)
    }
}

/// Who asks, in a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PrincipalWord {
    /// Whoever has the same credentials.
    Credentials,
    /// Everybody is the same.
    None,
}

/// What is known of a route's effects.
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

/// How the upstream is told the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UpstreamKeyWord {
    /// The client's own, as it is.
    #[default]
    Plain,
    /// The client's own, as a structured-field string.
    Quoted,
    /// One that is made of tenant, route and key: tenants that share an account upstream do not meet.
    Derived,
}

/// What counts for whether two requests are the same, beside path, query, body and principal.
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

/// What is never stored of an answer.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RedactSettings {
    /// These headers.
    pub headers: Vec<String>,
    /// What these JSON pointers point to.
    pub body: Vec<String>,
}

impl RouteSettings {
    /// What is enrolled where nothing is said: every `POST` and `PATCH` that has a key, of one tenant, with opaque
    /// effects that are held where nobody knows of them.
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
            wait_max: half_minute(),
            body_max: mebibyte(),
            reply_max: mebibyte(),
            concurrency: thousand(),
            not_executed: Vec::new(),
            upstream_outcome: false,
            fingerprint: FingerprintSettings::default(),
            redact: RedactSettings::default(),
            stay_open: false,
        }
    }

    /// Method and path.
    ///
    /// # Errors
    /// With what is wrong.
    pub fn method_and_path(&self) -> Result<(Method, &str), String> {
        let wrong = || "it is a method and a path, such as `POST /orders/{id}`".to_owned();
        let (method, path) = self.on.split_once(' ').ok_or_else(wrong)?;
        if method.is_empty()
            || !method.bytes().all(|byte| byte.is_ascii_uppercase())
            || !path.starts_with('/')
        {
            return Err(wrong());
        }
        let method = Method::from_bytes(method.as_bytes()).map_err(|_| wrong())?;
        if method.is_safe() || method == Method::CONNECT {
            return Err(format!(
                "{method} changes nothing that could happen twice, and is passed on as it is"
            ));
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

    /// The networks whose word is taken.
    ///
    /// # Errors
    /// Where one is none.
    pub fn networks(&self) -> Result<Vec<Network>, String> {
        self.trusted
            .iter()
            .map(|text| text.parse().map_err(|error| format!("gateway.trusted: {error}")))
            .collect()
    }
}
