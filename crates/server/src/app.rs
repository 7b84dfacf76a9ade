//! What all requests share, and what a reload swaps.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::{ArcSwap, Guard};
use redrive::{Moment, Redrive};
use tokio::sync::{Semaphore, watch};

use crate::auth::Callers;
use crate::config::Config;
use crate::observe::Samples;
use crate::push::Push;
use crate::rates::Rates;
use crate::reload::Reloading;
use crate::secrets::Secrets;
use crate::waiting::Lines;

/// One token's bodies take a quarter of the room for all of them at most, or what one body may take: whoever fills
/// that stops nobody else.
const SHARE: usize = 4;

/// What all requests share.
#[derive(Debug)]
pub struct App {
    /// The engine.
    pub redrive: Redrive,
    live: ArcSwap<Live>,
    /// Bytes of bodies that may be in memory.
    pub(crate) bodies: Arc<Semaphore>,
    rates: Mutex<Rates>,
    /// What sends.
    pub(crate) push: Arc<Push>,
    /// What signs.
    pub(crate) secrets: Arc<Secrets>,
    /// Where its configuration is read again.
    pub(crate) reloading: Reloading,
    /// Whether the server stops: what waits for something to happen is to answer now.
    pub stopping: watch::Sender<bool>,
    /// The last count of events.
    pub(crate) samples: Samples,
    /// One copy of the store at a time.
    pub(crate) backups: Arc<Semaphore>,
    /// Workers that wait for events.
    pub(crate) lines: Lines,
}

/// What a reload swaps, as a whole.
#[derive(Debug)]
pub struct Live {
    /// The settings.
    pub config: Config,
    /// Who may call.
    pub callers: Callers,
    /// How many bytes of bodies each token may have in memory, by its name.
    pub(crate) shares: HashMap<String, Arc<Semaphore>>,
}

/// What an app has to do with the outside of its engine.
#[derive(Debug)]
pub struct Outside {
    /// What sends.
    pub push: Arc<Push>,
    /// What signs.
    pub secrets: Arc<Secrets>,
    /// Where its configuration is read again.
    pub reloading: Reloading,
}

impl Outside {
    /// What a configuration needs; secrets are still to be loaded.
    ///
    /// # Errors
    /// With the setting that is wrong.
    pub fn new(config: &Config, reloading: Reloading) -> Result<Self, String> {
        let secrets = Arc::<Secrets>::default();
        let push = Push::new(config, secrets.clone())?;
        Ok(Self { push, secrets, reloading })
    }
}

impl Live {
    fn new(config: Config) -> Self {
        let callers = Callers::new(&config.tokens);
        let share = (config.server.bodies_max / SHARE).max(config.server.body_max);
        let share = || Arc::new(Semaphore::new(share.min(Semaphore::MAX_PERMITS)));
        let shares = config.tokens.keys().map(|name| (name.clone(), share())).collect();
        Self { config, callers, shares }
    }
}

impl App {
    /// An app over an engine whose queues are set up.
    #[must_use]
    pub fn new(redrive: Redrive, config: Config, outside: Outside) -> Arc<Self> {
        let Outside { push, secrets, reloading } = outside;
        let bodies = Arc::new(Semaphore::new(config.server.bodies_max.min(Semaphore::MAX_PERMITS)));
        let live = ArcSwap::from_pointee(Live::new(config));
        Arc::new(Self {
            redrive,
            live,
            bodies,
            rates: Mutex::default(),
            stopping: watch::Sender::new(false),
            samples: Samples::default(),
            backups: Arc::new(Semaphore::new(1)),
            push,
            lines: Lines::default(),
            secrets,
            reloading,
        })
    }

    /// What holds just now. Keep it no longer than a request.
    pub fn live(&self) -> Guard<Arc<Live>> {
        self.live.load()
    }

    /// How many workers wait for events of a queue.
    #[must_use]
    pub fn waiting(&self, queue: &str) -> usize {
        self.lines.waiting(queue)
    }

    /// For how many bytes of bodies there is room now.
    #[must_use]
    pub fn room(&self) -> usize {
        self.bodies.available_permits()
    }

    /// Swaps the settings. Rates begin anew.
    pub fn swap(&self, config: Config) {
        self.live.store(Arc::new(Live::new(config)));
        self.rates.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Takes the right to publish so many events as each of these tenants, or nothing of it.
    ///
    /// # Errors
    /// With the tenant that is over its quota, and the moment at which it has room again.
    pub fn take_quotas<'a>(&self, tenants: &[(&'a str, u32)], now: Moment) -> Result<(), (&'a str, Moment)> {
        let live = self.live();
        let limit = |tenant: &str| live.config.tenants.get(tenant).unwrap_or(&live.config.quota).rate.clone();
        self.rates.lock().unwrap_or_else(PoisonError::into_inner).take(tenants, limit, now)
    }
}
