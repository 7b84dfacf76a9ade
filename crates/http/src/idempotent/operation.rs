//! The request that a handler runs for.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redrive_core::ledger::{LedgerRecord, RequestScope, StoredReply};

use super::identify::NAME_MAX;
use super::layer::Shared;
use super::ledger::Ledger;
use super::run::outcome;

/// What keys are derived for.
const CONTEXT: &str = "redrive 2026 derived key v1";

/// Why a handler runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RunMode {
    /// The request came for the first time.
    First,
    /// It was begun before, and did not end or failed.
    Resumed,
    /// It has no key: nothing is remembered of it.
    Unkeyed,
    /// The ledger does not answer: nothing is remembered of it.
    Bypassed,
}

/// The request that a handler runs for, in the request's extensions. With the feature `axum` an extractor.
#[derive(Clone)]
pub struct KeyedOperation(Arc<Inner>);

struct Inner {
    shared: Arc<Shared>,
    scope: RequestScope,
    epoch: Option<u64>,
    attempt: u32,
    mode: RunMode,
    said: Mutex<HandlerState>,
}

/// The state that a handler has set so far.
#[derive(Debug, Default)]
struct HandlerState {
    resource: Option<String>,
    commit: Commit,
}

/// The state of a handler's own commit.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) enum Commit {
    /// There was none.
    #[default]
    None,
    /// This was committed.
    Done(Arc<StoredReply>),
    /// The outcome of the commit is unknown.
    InDoubt,
}

impl KeyedOperation {
    pub(super) fn claimed(shared: &Arc<Shared>, scope: &RequestScope, record: &LedgerRecord) -> Self {
        let mode = if record.attempt <= 1 { RunMode::First } else { RunMode::Resumed };
        Self::new(shared, scope.clone(), Some(record.epoch), record.attempt, mode)
    }

    pub(super) fn free(shared: &Arc<Shared>, scope: RequestScope, mode: RunMode) -> Self {
        Self::new(shared, scope, None, 1, mode)
    }

    fn new(
        shared: &Arc<Shared>,
        scope: RequestScope,
        epoch: Option<u64>,
        attempt: u32,
        mode: RunMode,
    ) -> Self {
        let shared = Arc::clone(shared);
        Self(Arc::new(Inner { shared, scope, epoch, attempt, mode, said: Mutex::default() }))
    }

    /// The key: the client's own, or one made up for a request that has none.
    #[must_use]
    pub fn key(&self) -> &str {
        self.0.scope.client_key()
    }

    /// The principal of the request, if the endpoint names one.
    #[must_use]
    pub fn principal(&self) -> Option<&str> {
        self.0.scope.principal()
    }

    /// The tenant of the request.
    #[must_use]
    pub fn tenant(&self) -> &str {
        &self.0.scope.tenant
    }

    /// How often it was begun, this time included.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.0.attempt
    }

    /// Why it runs.
    #[must_use]
    pub fn mode(&self) -> RunMode {
        self.0.mode
    }

    /// Derives a key for a downstream call, or an id for an event: the same for all attempts and processes, different
    /// for each name, key, principal, operation and tenant. It looks like a UUID, which every provider accepts.
    #[must_use]
    pub fn derive(&self, name: &str) -> String {
        let RequestScope { tenant, operation, key } = &self.0.scope;
        let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
        for part in [tenant.as_str(), operation, key, name] {
            hasher.update(&u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
            hasher.update(part.as_bytes());
        }
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        let mut builder = uuid::Builder::from_bytes(bytes);
        builder.set_version(uuid::Version::Custom).set_variant(uuid::Variant::RFC4122);
        builder.into_uuid().to_string()
    }

    /// Names the created resource, so that the request can be found by it. At most 255 bytes; a longer name is
    /// ignored.
    pub fn resource(&self, id: impl Into<String>) {
        self.said().resource = Some(id.into()).filter(|id| id.len() <= NAME_MAX);
    }

    /// Which request it is. For bridges to a ledger.
    #[must_use]
    pub fn scope(&self) -> &RequestScope {
        &self.0.scope
    }

    /// The fencing epoch of the run; `None` if there is no record. For ledger implementations.
    #[must_use]
    pub fn epoch(&self) -> Option<u64> {
        self.0.epoch
    }

    /// The ledger that it is remembered in. For bridges to it.
    #[must_use]
    pub fn ledger(&self) -> &Arc<dyn Ledger> {
        &self.0.shared.ledger
    }

    /// A reply as it is stored: without headers that are never replayed, without an oversized body, and protected by
    /// the endpoint's [`ReplyProtection`](super::ReplyProtection). For ledger implementations.
    #[must_use]
    pub fn kept(&self, reply: &StoredReply) -> StoredReply {
        outcome::kept(&self.0.shared, &self.0.scope, reply.clone())
    }

    /// The created resource, if the handler named it.
    #[must_use]
    pub fn named_resource(&self) -> Option<String> {
        self.said().resource.clone()
    }

    /// Marks this reply as committed in the ledger: it is sent whatever the handler does next. For ledger
    /// implementations.
    pub fn committed(&self, reply: Arc<StoredReply>) {
        self.said().commit = Commit::Done(reply);
    }

    /// Marks the outcome of the commit as unknown. For ledger implementations.
    pub fn in_doubt(&self) {
        self.said().commit = Commit::InDoubt;
    }

    /// Whether something was committed.
    #[must_use]
    pub fn is_committed(&self) -> bool {
        matches!(self.said().commit, Commit::Done(_))
    }

    pub(super) fn commit(&self) -> Commit {
        self.said().commit.clone()
    }

    fn said(&self) -> MutexGuard<'_, HandlerState> {
        self.0.said.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for KeyedOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { scope, epoch, attempt, mode, .. } = &*self.0;
        let mut it = f.debug_struct("Operation");
        it.field("scope", scope).field("epoch", epoch).field("attempt", attempt).field("mode", mode);
        it.finish_non_exhaustive()
    }
}
