//! What an operation declares of itself.
//!
//! Two things have no default, because a wrong one is found out by a customer: whose a request is, and what may follow
//! when nobody knows how it ended. Without them there is no layer to be made.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use http::{HeaderName, Method, Response};
use redrive_core::ledger::{Effects, Retention};

use super::body::Body;
use super::bounds::{DAY, HOUR, MIB, MINUTE, SECOND};
use super::keep::Keep;
use super::observe::Observer;
use super::probe::{Probe, Probed, Probing};
use super::problem::PAGE;
use super::render::{Pointer, Render};
use crate::fingerprint;

/// Something that an endpoint has not been told yet.
#[derive(Debug, Clone, Copy)]
pub struct Missing;

/// Reads something off a request.
pub(super) type Reader = Arc<dyn Fn(&Parts) -> Option<String> + Send + Sync>;

/// Whose requests they are.
#[derive(Clone)]
pub struct Tenant(pub(super) Whose);

#[derive(Clone)]
pub(super) enum Whose {
    Fixed(String),
    Read(Reader),
}

impl Tenant {
    /// Always the same one's.
    pub fn fixed(name: impl Into<String>) -> Self {
        Self(Whose::Fixed(name.into()))
    }

    /// As the request says, which other layers have authenticated by now. `None` is refused.
    pub fn from(read: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static) -> Self {
        Self(Whose::Read(Arc::new(read)))
    }
}

impl fmt::Debug for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Whose::Fixed(name) => f.debug_tuple("Tenant").field(name).finish(),
            Whose::Read(_) => f.write_str("Tenant(..)"),
        }
    }
}

/// An operation whose requests may be repeated.
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
/// One that begins with a method is for requests of that method, and the others pass; any other is for all methods that
/// are not safe, each of them an operation of its own.
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
/// Without a tenant there is none:
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
pub struct Endpoint<T = Missing, E = Missing> {
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

/// What is set.
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
    pub(super) wait_max: Duration,
    pub(super) body_max: usize,
    pub(super) reply_max: usize,
    pub(super) skew: Duration,
    pub(super) concurrency: usize,
    pub(super) patience: Duration,
    pub(super) backoff_max: Duration,
    pub(super) stay_open: bool,
    pub(super) uuid_time: bool,
    pub(super) parts: fingerprint::Parts,
    pub(super) headers: Vec<HeaderName>,
    pub(super) identity: Vec<String>,
    pub(super) principal: Option<Reader>,
    pub(super) keep: Keep,
    pub(super) observer: Option<Arc<dyn Observer>>,
    pub(super) probe: Option<Probe>,
    pub(super) render: Option<Render>,
    pub(super) page: Cow<'static, str>,
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
            wait_max: 30 * SECOND,
            body_max: MIB,
            reply_max: MIB,
            skew: 5 * MINUTE,
            concurrency: 1024,
            patience: SECOND,
            backoff_max: HOUR,
            stay_open: false,
            uuid_time: false,
            parts: fingerprint::Parts::default(),
            headers: Vec::new(),
            identity: Vec::new(),
            principal: None,
            keep: Keep::new(),
            observer: None,
            probe: None,
            render: None,
            page: Cow::Borrowed(PAGE),
        };
        Self { settings, tenant: Missing, effects: Missing }
    }
}

impl<E> Endpoint<Missing, E> {
    /// Whose requests they are: the same key of two tenants is two keys.
    pub fn tenant(self, tenant: Tenant) -> Endpoint<Tenant, E> {
        Endpoint { settings: self.settings, tenant, effects: self.effects }
    }
}

impl<T> Endpoint<T, Missing> {
    /// What its effects are, and so what may follow when nobody knows how a run ended.
    pub fn effects(self, effects: Effects) -> Endpoint<T, Effects> {
        Endpoint { settings: self.settings, tenant: self.tenant, effects }
    }
}

impl<T, E> Endpoint<T, E> {
    /// Who asks, as a stable subject: never a token or a session, which are others the next time. One who acts for
    /// another names that other. The same key with another principal is refused.
    #[must_use]
    pub fn principal(mut self, read: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static) -> Self {
        self.settings.principal = Some(Arc::new(read));
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

    /// For how long clients may still repeat a request. A retention that is shorter is refused.
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

    /// How many bytes of an answer are kept, its headers counted. A larger one is passed on, and is not replayed: repetitions are told that
    /// it happened.
    #[must_use]
    pub fn reply_max(mut self, bytes: usize) -> Self {
        self.settings.reply_max = bytes;
        self
    }

    /// Which parts of a JSON body count.
    #[must_use]
    pub fn fingerprint(mut self, parts: fingerprint::Parts) -> Self {
        self.settings.parts = parts;
        self
    }

    /// Which headers count, beside path, query and body.
    #[must_use]
    pub fn headers(mut self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.settings.headers = names.into_iter().collect();
        self
    }

    /// Where the identity of a request stands in its JSON body, for those that bring no key.
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

    /// Keys are UUIDs of version 7 whose time is when the request was first sent. Only where clients are known to mint
    /// them then.
    #[must_use]
    pub fn uuid_time(mut self) -> Self {
        self.settings.uuid_time = true;
        self
    }

    /// How many requests run at once.
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

    /// Runs requests also while the ledger does not answer, and says so. They may then happen twice.
    #[must_use]
    pub fn stay_open(mut self) -> Self {
        self.settings.stay_open = true;
        self
    }

    /// What is kept of answers, and in which form: parts can be left out, and the rest sealed.
    #[must_use]
    pub fn keep(mut self, keep: Keep) -> Self {
        self.settings.keep = keep;
        self
    }

    /// Who is told what becomes of requests, instead of whom the ledger names.
    #[must_use]
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.settings.observer = Some(observer);
        self
    }

    /// Looks whether a run that never ended had its effect, where effects are
    /// [`OnUnknown::Probe`](redrive_core::ledger::OnUnknown::Probe). It has as long as a lease, and one that panics or
    /// takes longer knows nothing.
    #[must_use]
    pub fn probe<F, P>(mut self, probe: F) -> Self
    where
        F: Fn(Probing) -> P + Send + Sync + 'static,
        P: Future<Output = Probed> + Send + 'static,
    {
        self.settings.probe = Some(Probe::new(probe));
        self
    }

    /// Makes answers anew for repetitions instead of keeping them: of the first one, its status and its headers are
    /// kept, and nothing of its body. `None`, and panics, are told as an answer that is gone.
    #[must_use]
    pub fn render<F, P>(mut self, render: F) -> Self
    where
        F: Fn(Pointer) -> P + Send + Sync + 'static,
        P: Future<Output = Option<Response<Body>>> + Send + 'static,
    {
        self.settings.render = Some(Render::new(render));
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
