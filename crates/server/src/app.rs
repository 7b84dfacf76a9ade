//! The state shared by all requests, and the part that a reload replaces.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use arc_swap::{ArcSwap, Guard};
use redrive::{Moment, Redrive};
use tokio::sync::{Semaphore, watch};

use crate::api::long_poll::LongPolls;
use crate::api::quotas::Quotas;
use crate::api::streams::TokenStreams;
use crate::audit::FailedSignIns;
use crate::auth::Callers;
use crate::config::Config;
use crate::config::store_id;
use crate::observe::Samples;
use crate::observe::attempt_feed::AttemptFeed;
use crate::push::Push;
use crate::reload::Reloading;
use crate::secrets::Secrets;

/// One token's bodies use at most a quarter of the memory for all bodies, or one full body if that is more: a token
/// that fills its share blocks no other.
const SHARE: usize = 4;

/// The state shared by all requests.
#[derive(Debug)]
pub struct App {
    /// The engine.
    pub redrive: Redrive,
    live: ArcSwap<LiveConfig>,
    /// Bytes of bodies that may be in memory.
    pub(crate) bodies: Arc<Semaphore>,
    rates: Mutex<Quotas>,
    /// The streams that each token publishes to.
    pub(crate) streams: Mutex<TokenStreams>,
    /// Failed sign-ins that are not in the audit yet.
    pub(crate) failed_sign_ins: FailedSignIns,
    /// What sends.
    pub(crate) push: Arc<Push>,
    /// What signs.
    pub(crate) secrets: Arc<Secrets>,
    /// Where its configuration is read again.
    pub(crate) reloading: Reloading,
    /// Whether the server is stopping: waiting requests must respond now.
    pub stopping: watch::Sender<bool>,
    /// The last count of events.
    pub(crate) samples: Samples,
    /// One copy of the store at a time.
    pub(crate) backups: Arc<Semaphore>,
    /// Workers that wait for events.
    pub(crate) lines: LongPolls,
    /// Attempts as they happen.
    pub(crate) feed: Arc<AttemptFeed>,
    /// Which store it serves; see [`store_id`].
    pub(crate) store: String,
    /// In the demo: the switch that repairs its failing service.
    pub(crate) demo: OnceLock<Arc<AtomicBool>>,
}

/// The part that a reload replaces as a whole.
#[derive(Debug)]
pub struct LiveConfig {
    /// The settings.
    pub config: Config,
    /// The access tokens.
    pub callers: Callers,
    /// How many bytes of bodies each token may have in memory, by its name.
    pub(crate) shares: HashMap<String, Arc<Semaphore>>,
}

/// The services around the engine.
#[derive(Debug)]
pub struct AppServices {
    /// What sends.
    pub push: Arc<Push>,
    /// What signs.
    pub secrets: Arc<Secrets>,
    /// Where its configuration is read again.
    pub reloading: Reloading,
    /// Attempts as they happen.
    pub(crate) feed: Arc<AttemptFeed>,
}

impl AppServices {
    /// The services for a configuration; secrets are loaded later.
    ///
    /// # Errors
    /// With the invalid setting.
    pub fn new(config: &Config, reloading: Reloading) -> Result<Self, String> {
        let secrets = Arc::<Secrets>::default();
        let push = Push::new(config, secrets.clone())?;
        Ok(Self { push, secrets, reloading, feed: Arc::default() })
    }
}

impl LiveConfig {
    fn new(config: Config) -> Self {
        let callers = Callers::new(&config.tokens);
        let share = (config.server.bodies_max / SHARE).max(config.server.body_max);
        let share = || Arc::new(Semaphore::new(share.min(Semaphore::MAX_PERMITS)));
        let shares = config.tokens.keys().map(|name| (name.clone(), share())).collect();
        Self { config, callers, shares }
    }
}

impl App {
    /// An app over an engine with its queues set up.
    #[must_use]
    pub fn new(redrive: Redrive, config: Config, outside: AppServices) -> Arc<Self> {
        let AppServices { push, secrets, reloading, feed } = outside;
        let bodies = Arc::new(Semaphore::new(config.server.bodies_max.min(Semaphore::MAX_PERMITS)));
        let store = store_id(&config.store);
        let live = ArcSwap::from_pointee(LiveConfig::new(config));
        Arc::new(Self {
            redrive,
            live,
            bodies,
            rates: Mutex::default(),
            streams: Mutex::default(),
            failed_sign_ins: FailedSignIns::default(),
            stopping: watch::Sender::new(false),
            samples: Samples::default(),
            backups: Arc::new(Semaphore::new(1)),
            push,
            lines: LongPolls::default(),
            secrets,
            reloading,
            feed,
            store,
            demo: OnceLock::new(),
        })
    }

    /// What holds just now. Keep it no longer than a request.
    pub fn live(&self) -> Guard<Arc<LiveConfig>> {
        self.live.load()
    }

    /// How many workers wait for events of a queue.
    #[must_use]
    pub fn waiting(&self, queue: &str) -> usize {
        self.lines.waiting(queue)
    }

    /// The free memory for bodies, in bytes.
    #[must_use]
    pub fn room(&self) -> usize {
        self.bodies.available_permits()
    }

    /// Swaps the settings. Rates begin anew.
    pub fn swap(&self, config: Config) {
        self.live.store(Arc::new(LiveConfig::new(config)));
        self.rates.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Takes the quota for these tenants' events, or nothing.
    ///
    /// # Errors
    /// With the tenant over its quota, and the moment at which it may publish again.
    pub fn take_quotas<'a>(&self, tenants: &[(&'a str, u32)], now: Moment) -> Result<(), (&'a str, Moment)> {
        let live = self.live();
        let limit = |tenant: &str| live.config.tenants.get(tenant).unwrap_or(&live.config.quota).rate.clone();
        self.rates.lock().unwrap_or_else(PoisonError::into_inner).take(tenants, limit, now)
    }
}
