//! The declaration of an operation.
//!
//! Two properties have no default, because customers would find out that it is wrong: the tenant, and what may follow
//! an unknown outcome. Without them no layer can be built.

pub(super) mod bounds;
pub(super) mod probe;
pub(super) mod rendered_reply;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use http::{HeaderName, Method, Response};
use redrive_core::ledger::{Effects, Retention};

use super::body::Body;
use super::observe::LedgerObserver;
use super::problem::PAGE;
use crate::fingerprint;
use crate::idempotent::endpoint::bounds::{DAY, HOUR, MIB, MINUTE, SECOND};
use crate::idempotent::endpoint::probe::{Probe, ProbeOutcome, ProbeRequest};
use crate::idempotent::endpoint::rendered_reply::{Render, RenderRequest};
use crate::idempotent::protection::ReplyProtection;

/// A property that an endpoint still needs.
#[derive(Debug, Clone, Copy)]
pub struct Unset;

/// Reads something off a request.
pub(super) type PrincipalReader = Arc<dyn Fn(&Parts) -> Option<String> + Send + Sync>;

/// The tenant of requests.
#[derive(Clone)]
pub struct Tenant(pub(super) TenantSource);

#[derive(Clone)]
pub(super) enum TenantSource {
    Fixed(String),
    Read(PrincipalReader),
}

impl Tenant {
    /// A fixed tenant.
    pub fn fixed(name: impl Into<String>) -> Self {
        Self(TenantSource::Fixed(name.into()))
    }

    /// As the request says, which other layers have authenticated by now. `None` is refused.
    pub fn from(read: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static) -> Self {
        Self(TenantSource::Read(Arc::new(read)))
    }
}

impl fmt::Debug for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            TenantSource::Fixed(name) => f.debug_tuple("Tenant").field(name).finish(),
            TenantSource::Read(_) => f.write_str("Tenant(..)"),
        }
    }
}

/// An operation whose requests clients may repeat.
///
/// ```
/// use redrive_http::idempotent::{Effects, Endpoint, Tenant};
/// use std::time::Duration;
///
/// let endpoint = Endpoint::new("POST /bookings")
///     .tenant(Tenant::from(|parts| Some(parts.headers.get("x-tenant")?.to_str().ok()?.to_owned())))
///     .effects(Effects::Keyed)
///     .required()
///     .retention(Duration::from_secs(3 * 86_400));
/// ```
///
/// A name that begins with a method is for requests of that method; others pass through. Any other name covers all
/// unsafe methods, each as its own operation.
///
/// With a tenant and effects it makes a layer:
///
/// ```
/// use redrive_http::idempotent::{Effects, Endpoint, Idempotent, Ledger, Tenant};
/// use std::sync::Arc;
///
/// fn layer(ledger: Arc<dyn Ledger>) {
///     let endpoint = Endpoint::new("POST /bookings").tenant(Tenant::fixed("acme"));
///     let _ = Idempotent::new(ledger, endpoint.effects(Effects::Keyed));
/// }
/// ```
///
/// Without a tenant it does not compile:
///
/// ```compile_fail,E0308
/// use redrive_http::idempotent::{Effects, Endpoint, Idempotent, Ledger};
/// use std::sync::Arc;
///
/// fn layer(ledger: Arc<dyn Ledger>) {
///     let _ = Idempotent::new(ledger, Endpoint::new("POST /bookings").effects(Effects::Keyed));
/// }
/// ```
///
/// And none without effects:
///
/// ```compile_fail,E0308
/// use redrive_http::idempotent::{Endpoint, Idempotent, Ledger, Tenant};
/// use std::sync::Arc;
///
/// fn layer(ledger: Arc<dyn Ledger>) {
///     let _ = Idempotent::new(ledger, Endpoint::new("POST /bookings").tenant(Tenant::fixed("acme")));
/// }
/// ```
///
/// | number | default | bounds |
/// |---|---|---|
/// | [`retention`](Self::retention) | 24 h | 1 min to 366 d, and not below [`horizon`](Self::horizon) |
/// | [`lease`](Self::lease) | 30 s | 1 s to 1 h |
/// | [`max_run`](Self::max_run) | 5 min | the lease to 24 h |
/// | [`wait_max`](Self::wait_max) | 30 s | 0 to 5 min |
/// | [`body_max`](Self::body_max) | 1 MiB | up to 64 MiB |
/// | [`reply_max`](Self::reply_max) | 1 MiB | up to 16 MiB |
/// | [`skew`](Self::skew) | 5 min | up to 24 h |
/// | [`concurrency`](Self::concurrency) | 1024 | 1 to 1 000 000 |
/// | [`patience`](Self::patience) | 1 s | up to 1 min |
/// | [`backoff_max`](Self::backoff_max) | 1 h | up to the retention |
#[derive(Clone)]
pub struct Endpoint<T = Unset, E = Unset> {
    pub(super) settings: Settings,
    pub(super) tenant: T,
    pub(super) effects: E,
}

impl<T: fmt::Debug, E: fmt::Debug> fmt::Debug for Endpoint<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { settings, tenant, effects } = self;
        let mut it = f.debug_struct("Endpoint");
        it.field("operation", &settings.operation).field("tenant", tenant).field("effects", effects);
        it.finish_non_exhaustive()
    }
}

/// The settings of an endpoint.
#[derive(Clone)]
pub(super) struct Settings {
    pub(super) operation: String,
    /// The one method that it is for.
    pub(super) method: Option<Method>,
    pub(super) required: bool,
    pub(super) retention: Duration,
    pub(super) horizon: Duration,
    pub(super) lease: Duration,
    pub(super) max_run: Duration,
    pub(super) wait: Duration,
    pub(super) wait_max: Duration,
    pub(super) body_max: usize,
    pub(super) reply_max: usize,
    pub(super) skew: Duration,
    pub(super) concurrency: usize,
    pub(super) patience: Duration,
    pub(super) backoff_max: Duration,
    pub(super) stay_open: bool,
    pub(super) uuid_time: bool,
    pub(super) parts: fingerprint::FingerprintParts,
    pub(super) headers: Vec<HeaderName>,
    pub(super) identity: Vec<String>,
    pub(super) principal: Option<PrincipalReader>,
    /// Whether a keyed request without a principal is refused.
    pub(super) principal_required: bool,
    /// What distinguishes callers without a stable name: part of the fingerprint, never of the scope.
    pub(super) credentials: Option<PrincipalReader>,
    pub(super) protection: ReplyProtection,
    pub(super) observer: Option<Arc<dyn LedgerObserver>>,
    pub(super) probe: Option<Probe>,
    pub(super) render: Option<Render>,
    pub(super) page: Cow<'static, str>,
    /// Appended to the detail of `outcome-unknown`.
    pub(super) unknown_hint: Option<Cow<'static, str>>,
}

impl Endpoint {
    /// An operation: a method and a route, usually, `POST /bookings`.
    pub fn new(operation: impl Into<String>) -> Self {
        let operation = operation.into();
        let method = operation.split_once(' ').and_then(|(word, _)| {
            let upper = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_uppercase());
            upper.then(|| Method::from_bytes(word.as_bytes()).ok()).flatten()
        });
        let settings = Settings {
            operation,
            method,
            required: false,
            retention: DAY,
            horizon: Duration::ZERO,
            lease: 30 * SECOND,
            max_run: 5 * MINUTE,
            wait: Duration::ZERO,
            wait_max: 30 * SECOND,
            body_max: MIB,
            reply_max: MIB,
            skew: 5 * MINUTE,
            concurrency: 1024,
            patience: SECOND,
            backoff_max: HOUR,
            stay_open: false,
            uuid_time: false,
            parts: fingerprint::FingerprintParts::default(),
            headers: Vec::new(),
            identity: Vec::new(),
            principal: None,
            principal_required: false,
            credentials: None,
            protection: ReplyProtection::new(),
            observer: None,
            probe: None,
            render: None,
            page: Cow::Borrowed(PAGE),
            unknown_hint: None,
        };
        Self { settings, tenant: Unset, effects: Unset }
    }
}

impl<E> Endpoint<Unset, E> {
    /// Sets the tenant: the same key of two tenants is two keys.
    pub fn tenant(self, tenant: Tenant) -> Endpoint<Tenant, E> {
        Endpoint { settings: self.settings, tenant, effects: self.effects }
    }
}

impl<T> Endpoint<T, Unset> {
    /// Sets the kind of effects, which decides what may follow an unknown outcome.
    pub fn effects(self, effects: Effects) -> Endpoint<T, Effects> {
        Endpoint { settings: self.settings, tenant: self.tenant, effects }
    }
}

impl<T, E> Endpoint<T, E> {
    /// Sets the principal, a stable subject: never a token or a session, which change between attempts. A caller that
    /// acts for another names that other. Each principal has its own keys: the same key of two principals is two
    /// keys, so that no caller can use up another's.
    ///
    /// A retry must have the principal of its first request; a caller whose name comes and goes runs twice. See
    /// [`principal_required`](Self::principal_required), and [`credentials`](Self::credentials) for callers without a
    /// stable name.
    #[must_use]
    pub fn principal(mut self, read: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static) -> Self {
        self.settings.principal = Some(Arc::new(read));
        self
    }

    /// A request with a key and without a principal is refused with 403.
    #[must_use]
    pub fn principal_required(mut self) -> Self {
        self.settings.principal_required = true;
        self
    }

    /// Sets what distinguishes callers that have no stable name: tokens, sessions, account headers. The same key with
    /// other credentials is refused and never run: a refreshed token must meet its own key, so credentials are in the
    /// fingerprint and not in the identity of a request.
    #[must_use]
    pub fn credentials(mut self, read: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static) -> Self {
        self.settings.credentials = Some(Arc::new(read));
        self
    }

    /// A request without a key is refused.
    #[must_use]
    pub fn required(mut self) -> Self {
        self.settings.required = true;
        self
    }

    /// A request without a key passes, and may happen twice. The default.
    #[must_use]
    pub fn optional(mut self) -> Self {
        self.settings.required = false;
        self
    }

    /// How long an answer is replayed. That there was one is remembered four times as long.
    #[must_use]
    pub fn retention(mut self, time: Duration) -> Self {
        self.settings.retention = time;
        self
    }

    /// How long clients may repeat a request. A shorter retention is refused.
    #[must_use]
    pub fn horizon(mut self, time: Duration) -> Self {
        self.settings.horizon = time;
        self
    }

    /// How long after the death of a process its request can be taken over. It is renewed while the handler runs.
    #[must_use]
    pub fn lease(mut self, time: Duration) -> Self {
        self.settings.lease = time;
        self
    }

    /// How long a handler may run before it is ended.
    #[must_use]
    pub fn max_run(mut self, time: Duration) -> Self {
        self.settings.max_run = time;
        self
    }

    /// How long a repetition waits for a request that still runs if its client does not say so with `Prefer: wait`. Most
    /// clients take a 409 for final, so without a wait the second of two concurrent callers sees an error. Zero by
    /// default; at most [`wait_max`](Self::wait_max).
    #[must_use]
    pub fn wait(mut self, time: Duration) -> Self {
        self.settings.wait = time;
        self
    }

    /// How long `Prefer: wait` waits at most.
    #[must_use]
    pub fn wait_max(mut self, time: Duration) -> Self {
        self.settings.wait_max = time;
        self
    }

    /// How many bytes a request's body has at most. All of them are held in memory.
    #[must_use]
    pub fn body_max(mut self, bytes: usize) -> Self {
        self.settings.body_max = bytes;
        self
    }

    /// Maximum bytes of a stored reply, headers included. A larger reply is sent but not stored; repeated requests
    /// get 410.
    #[must_use]
    pub fn reply_max(mut self, bytes: usize) -> Self {
        self.settings.reply_max = bytes;
        self
    }

    /// Which parts of a JSON body count.
    #[must_use]
    pub fn fingerprint(mut self, parts: fingerprint::FingerprintParts) -> Self {
        self.settings.parts = parts;
        self
    }

    /// Which headers count, beside path, query and body.
    #[must_use]
    pub fn headers(mut self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.settings.headers = names.into_iter().collect();
        self
    }

    /// JSON pointers that identify a request without a key.
    #[must_use]
    pub fn identity<P: Into<String>>(mut self, pointers: impl IntoIterator<Item = P>) -> Self {
        self.settings.identity = pointers.into_iter().map(Into::into).collect();
        self
    }

    /// How far clients' clocks may be off.
    #[must_use]
    pub fn skew(mut self, time: Duration) -> Self {
        self.settings.skew = time;
        self
    }

    /// Keys are version 7 UUIDs whose time is when the request was first sent. Use it only if clients create their
    /// keys at that moment.
    #[must_use]
    pub fn uuid_time(mut self) -> Self {
        self.settings.uuid_time = true;
        self
    }

    /// Maximum number of concurrent runs.
    #[must_use]
    pub fn concurrency(mut self, most: usize) -> Self {
        self.settings.concurrency = most;
        self
    }

    /// How long a request waits for its turn where as many run as may.
    #[must_use]
    pub fn patience(mut self, time: Duration) -> Self {
        self.settings.patience = time;
        self
    }

    /// How long a handler's own `Retry-After` is honoured at most.
    #[must_use]
    pub fn backoff_max(mut self, time: Duration) -> Self {
        self.settings.backoff_max = time;
        self
    }

    /// Runs requests also while the ledger is down, and marks their responses. They may then take effect twice.
    #[must_use]
    pub fn stay_open(mut self) -> Self {
        self.settings.stay_open = true;
        self
    }

    /// Redacts or encrypts stored replies.
    #[must_use]
    pub fn protect(mut self, protection: ReplyProtection) -> Self {
        self.settings.protection = protection;
        self
    }

    /// Sets the observer, instead of the ledger's.
    #[must_use]
    pub fn observer(mut self, observer: Arc<dyn LedgerObserver>) -> Self {
        self.settings.observer = Some(observer);
        self
    }

    /// Sets the probe that checks whether an unfinished run took effect, for
    /// [`OnUnknown::Probe`](redrive_core::ledger::OnUnknown::Probe). Its time limit is the lease; a probe that panics
    /// or takes longer counts as still unknown.
    #[must_use]
    pub fn probe<F, P>(mut self, probe: F) -> Self
    where
        F: Fn(ProbeRequest) -> P + Send + Sync + 'static,
        P: Future<Output = ProbeOutcome> + Send + 'static,
    {
        self.settings.probe = Some(Probe::new(probe));
        self
    }

    /// Renders replies for repeated requests instead of storing bodies: only status and headers of the first reply
    /// are stored. If rendering returns `None` or panics, the response is 410.
    #[must_use]
    pub fn render<F, P>(mut self, render: F) -> Self
    where
        F: Fn(RenderRequest) -> P + Send + Sync + 'static,
        P: Future<Output = Option<Response<Body>>> + Send + 'static,
    {
        self.settings.render = Some(Render::new(render));
        self
    }

    /// A sentence for clients that meet `outcome-unknown`: what would have made the outcome known.
    #[must_use]
    pub fn unknown_hint(mut self, hint: impl Into<Cow<'static, str>>) -> Self {
        self.settings.unknown_hint = Some(hint.into());
        self
    }

    /// Where problems are explained, instead of the page of this crate: each has a heading there, by its code.
    #[must_use]
    pub fn page(mut self, address: impl Into<String>) -> Self {
        self.settings.page = Cow::Owned(address.into());
        self
    }
}

impl Settings {
    pub(super) fn kept(&self) -> Retention {
        Retention { answer: self.retention }
    }
}
