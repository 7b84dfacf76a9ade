//! Every setting, with its default. `default.toml` describes them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use redrive::policy::PolicySettings;
use redrive::rate::RateSettings;
use serde::Deserialize;

use super::{GatewaySettings, HeaderSource, TokenSettings};

/// The whole configuration.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Where events are kept.
    pub store: StoreSettings,
    /// The listener and its bounds.
    pub server: ServerSettings,
    /// TLS on every listener.
    pub tls: TlsSettings,
    /// Settings shared by all queues with a destination.
    pub push: PushSettings,
    /// Where the key to the secrets at rest is.
    pub secrets: SecretSettings,
    /// Requests under idempotency keys.
    pub ledger: LedgerSettings,
    /// Logs, metrics, traces.
    pub observe: ObserveSettings,
    /// Notification of new failure groups.
    pub notify: NotifySettings,
    /// The publish quota of each tenant without its own.
    pub quota: Quota,
    /// Quotas of tenants by name.
    pub tenants: BTreeMap<String, Quota>,
    /// Access tokens, by name.
    pub tokens: BTreeMap<String, TokenSettings>,
    /// The queues, by name.
    pub queues: BTreeMap<String, QueueSettings>,
    /// The gateway.
    pub gateway: GatewaySettings,
}

/// Where events are kept.
#[derive(Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StoreSettings {
    /// `sqlite:FILE`, `postgres://…` or `memory:`.
    pub address: String,
    /// Below how many free bytes on the disk publishing is refused.
    pub disk_least: u64,
    /// In a database: the schema that everything is in.
    pub schema: String,
    /// How many shards a new store in a database has.
    pub shards: u32,
    /// Maximum number of database connections.
    pub connections: u32,
    /// How long this server owns its shards after its last heartbeat.
    #[serde(with = "redrive::config::duration")]
    pub lease: Duration,
    /// The name of this server among the nodes of a database.
    pub node: Option<String>,
}

impl StoreSettings {
    /// How a database is opened.
    #[must_use]
    pub fn database(&self) -> redrive::store::postgres::PostgresSettings {
        let mut settings = redrive::store::postgres::PostgresSettings::default();
        settings.schema.clone_from(&self.schema);
        (settings.shards, settings.connections, settings.lease) = (self.shards, self.connections, self.lease);
        if let Some(name) = &self.node {
            settings.name.clone_from(name);
        }
        settings
    }

    /// The store address without secrets.
    #[must_use]
    pub fn place(&self) -> String {
        redrive::engine::shown(&self.address)
    }

    /// The name of this server among those that use the store.
    #[must_use]
    pub fn node_name(&self) -> String {
        match &self.node {
            Some(name) => name.clone(),
            None if self.is_shared() => format!("process {}", std::process::id()),
            None => "server".to_owned(),
        }
    }

    /// Whether other nodes may use the store at the same time.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.address.starts_with("postgres")
    }

    /// The error for a store without a file to back up.
    pub(crate) fn no_file(&self) -> String {
        format!(
            "the store {} has no file to copy; back up a database with its own tools, such as pg_dump; after a restore, run `SELECT redrive.begin_new_life()` before any node starts",
            self.place()
        )
    }
}

/// The address may have a password in it.
impl std::fmt::Debug for StoreSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { address: _, disk_least, schema, shards, connections, lease, node } = self;
        f.debug_struct("StoreSettings")
            .field("address", &self.place())
            .field("disk_least", disk_least)
            .field("schema", schema)
            .field("shards", shards)
            .field("connections", connections)
            .field("lease", lease)
            .field("node", node)
            .finish()
    }
}

impl Default for StoreSettings {
    fn default() -> Self {
        let database = redrive::store::postgres::PostgresSettings::default();
        Self {
            address: "sqlite:redrive.db".to_owned(),
            disk_least: 64 << 20,
            schema: database.schema,
            shards: database.shards,
            connections: database.connections,
            lease: database.lease,
            node: None,
        }
    }
}

/// The listener and its bounds.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServerSettings {
    /// The address to listen on, as `127.0.0.1:7070` or `localhost:7070`. Another than loopback needs tokens.
    #[serde(deserialize_with = "super::address::listen")]
    pub listen: SocketAddr,
    /// Maximum number of open connections; further ones wait to be accepted.
    pub connections_max: usize,
    /// How many bytes a request's body may have.
    pub body_max: usize,
    /// Maximum bytes of bodies in memory, over all requests.
    pub bodies_max: usize,
    /// How many events a request may publish.
    pub batch_max: usize,
    /// How many pairs of queue and tenant one token may begin to publish to, between two starts.
    pub streams_max: usize,
    /// How long a client may take over its request's head.
    #[serde(with = "redrive::config::duration")]
    pub head_time: Duration,
    /// How long a client may take over its request's body.
    #[serde(with = "redrive::config::duration")]
    pub body_time: Duration,
    /// How long a lease call may wait for events.
    #[serde(with = "redrive::config::duration")]
    pub wait_max: Duration,
    /// How long attempts in progress get when the server stops.
    #[serde(with = "redrive::config::duration")]
    pub grace: Duration,
    /// Whether operators may edit dead letters.
    pub edit: bool,
}

impl Default for ServerSettings {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 7070)),
            connections_max: 1024,
            body_max: 8 << 20,
            bodies_max: 256 << 20,
            batch_max: 10_000,
            streams_max: 100_000,
            head_time: Duration::from_secs(10),
            body_time: Duration::from_secs(30),
            wait_max: Duration::from_secs(60),
            grace: Duration::from_secs(25),
            edit: false,
        }
    }
}

/// TLS on every listener: of the server, of the gateway, and of the gateway's admin address.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TlsSettings {
    /// The certificate with its chain, in PEM form.
    pub cert_file: Option<PathBuf>,
    /// Its private key, in PEM form.
    pub key_file: Option<PathBuf>,
    /// Certificates of the authorities, one of which has to have signed a client's certificate. Without it, clients
    /// need none.
    pub client_ca_file: Option<PathBuf>,
}

/// Settings shared by all queues with a destination.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PushSettings {
    /// Private networks and addresses that may be called: `127.0.0.0/8`, `10.1.2.3`.
    pub allow: Vec<String>,
    /// Networks and addresses that are never called, public ones too, whatever `allow` says.
    pub deny: Vec<String>,
    /// How many bytes of an answer are read.
    pub answer_max: usize,
    /// How many bytes of an answer are kept: with a failure as its message, with a success as its result.
    pub answer_kept: usize,
    /// How long it may take to connect.
    #[serde(with = "redrive::config::duration")]
    pub connect_time: Duration,
    /// How long an idle connection is kept.
    #[serde(with = "redrive::config::duration")]
    pub idle_time: Duration,
    /// Idle connections kept for one destination.
    pub idle_max: usize,
}

impl Default for PushSettings {
    fn default() -> Self {
        Self {
            allow: Vec::new(),
            deny: Vec::new(),
            answer_max: 64 << 10,
            answer_kept: 512,
            connect_time: Duration::from_secs(5),
            idle_time: Duration::from_secs(30),
            idle_max: 64,
        }
    }
}

/// Where the key to the secrets at rest is.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SecretSettings {
    /// A file with 32 bytes in base64. Made by `redrive secret key`.
    pub key_file: Option<PathBuf>,
    /// The one before, while secrets that it locked are still about.
    pub old_key_file: Option<PathBuf>,
}

/// Requests under idempotency keys.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LedgerSettings {
    /// Files with keys that seal stored answers, 32 bytes in base64 each: the first one seals, all open.
    pub key_files: Vec<PathBuf>,
}

/// Logs, metrics, traces.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ObserveSettings {
    /// The log filter: `info`, `redrive=debug,warn`.
    pub log: String,
    /// How logs are written.
    pub log_form: LogForm,
    /// Where traces go, by OTLP over HTTP.
    pub otlp: Option<String>,
    /// Whether metrics may be read without a token.
    pub open_metrics: bool,
}

impl Default for ObserveSettings {
    fn default() -> Self {
        Self { log: "info".to_owned(), log_form: LogForm::Auto, otlp: None, open_metrics: false }
    }
}

/// How logs are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogForm {
    /// Text on a terminal, JSON otherwise.
    Auto,
    /// For people.
    Text,
    /// A JSON object a line.
    Json,
}

/// Notification of new failure groups, and of events that keep failing.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NotifySettings {
    /// Where to post it.
    pub url: Option<String>,
    /// How often to look for new groups.
    #[serde(with = "redrive::config::duration")]
    pub every: Duration,
    /// After how long events that fail and are retried are reported.
    #[serde(with = "redrive::config::duration")]
    pub failing_after: Duration,
}

impl Default for NotifySettings {
    fn default() -> Self {
        Self { url: None, every: Duration::from_secs(10), failing_after: Duration::from_secs(15 * 60) }
    }
}

/// A publish quota.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Quota {
    /// Events per second; no limit by default.
    pub rate: Option<RateSettings>,
}

/// A queue.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct QueueSettings {
    /// Whether events of one key keep their order.
    pub order: Order,
    /// What happens to the events behind a dead letter of their key.
    pub after_dead: AfterDeadSettings,
    /// Maximum number of concurrent attempts.
    pub concurrency: u32,
    /// Attempts per second; no limit by default.
    pub rate: Option<RateSettings>,
    /// The share of the concurrency that retries may claim.
    pub retry_share: f64,
    /// How long an identity is remembered after its event ended.
    #[serde(with = "redrive::config::duration")]
    pub window: Duration,
    /// How long, and how many, dead letters are kept.
    pub keep_dead: KeepSettings,
    /// How often, how soon, how long. Omitted parts are those of [`patient`](super::policy::patient).
    #[serde(with = "super::policy::PatientPolicy")]
    pub policy: PolicySettings,
    /// Where its events are sent.
    pub push: Option<PushTo>,
    /// Workers fetch its events.
    pub pull: Option<PullSettings>,
}

impl Default for QueueSettings {
    fn default() -> Self {
        Self {
            order: Order::None,
            after_dead: AfterDeadSettings::default(),
            concurrency: 16,
            rate: None,
            retry_share: 0.25,
            window: super::policy::WINDOW,
            keep_dead: KeepSettings::default(),
            policy: super::policy::patient(),
            push: None,
            pull: None,
        }
    }
}

/// Whether events of one key keep their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// They do not.
    None,
    /// They do.
    Key,
}

/// What happens to the events behind a dead letter of their key.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AfterDeadSettings {
    /// They proceed.
    #[default]
    GoOn,
    /// They wait until an operator has dealt with it.
    Park,
    /// They wait up to a time, or a number of waiting events.
    ParkUpTo(KeepSettings),
}

/// Limits of time and number; none by default.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KeepSettings {
    /// How long.
    #[serde(with = "redrive::config::optional")]
    pub time: Option<Duration>,
    /// How many.
    pub count: Option<u64>,
}

/// The destination of a queue.
#[derive(Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PushTo {
    /// `http://` or `https://`.
    pub url: String,
    /// The name of the signing secret; see `redrive secret set`. Unsigned by default.
    #[serde(default)]
    pub secret: Option<String>,
    /// Headers of every attempt, such as `authorization`: values, or the files and variables that have them.
    #[serde(default)]
    pub headers: BTreeMap<String, HeaderSource>,
    /// Overrides of the meaning of statuses: `"404" = "drop"`, `"5xx" = "permanent"`.
    #[serde(default)]
    pub statuses: BTreeMap<String, StatusWord>,
    /// How an event is written.
    #[serde(default)]
    pub format: PushFormat,
}

/// How a push writes an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PushFormat {
    /// The payload is the body; attributes of a CloudEvent are headers.
    #[default]
    Binary,
    /// A CloudEvent as a JSON document.
    Structured,
}

/// Credentials may be in the address and in the headers, so neither is shown.
impl std::fmt::Debug for PushTo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { url: _, secret, headers, statuses, format } = self;
        let headers: Vec<&String> = headers.keys().collect();
        let mut shown = f.debug_struct("PushTo");
        shown
            .field("secret", secret)
            .field("headers", &headers)
            .field("statuses", statuses)
            .field("format", format);
        shown.finish_non_exhaustive()
    }
}

/// The meaning of a status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StatusWord {
    /// It worked.
    Ok,
    /// Try again.
    Retry,
    /// Trying again will not help.
    Permanent,
    /// It is not needed any more.
    Drop,
}

/// How workers fetch a queue's events.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PullSettings {
    /// The default lease.
    #[serde(with = "redrive::config::duration")]
    pub lease: Duration,
    /// For how long at most.
    #[serde(with = "redrive::config::duration")]
    pub lease_max: Duration,
}

impl Default for PullSettings {
    fn default() -> Self {
        Self { lease: Duration::from_secs(30), lease_max: Duration::from_secs(3600) }
    }
}
