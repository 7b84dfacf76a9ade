//! The engine's store, as the idempotent layer asks it.

use std::sync::Arc;
use std::time::Duration;

use redrive_core::Moment;
use redrive_core::ledger::{Ask, Claim, End, Fenced, Record, Renewed, Scope};
use redrive_http::idempotent::{Asked, Ledger, LedgerError, Observer};
use redrive_store::{Answer, StoreError};

use super::observe::Told;
use crate::Redrive;

/// The requests that a store remembers. Made by [`Redrive::ledger`].
#[derive(Debug, Clone)]
pub struct Requests(pub(super) Redrive);

impl Redrive {
    /// The store's ledger, for the layers of an API. Needs no start.
    #[must_use]
    pub fn ledger(&self) -> Requests {
        Requests(self.clone())
    }
}

impl Requests {
    /// Forgets requests whose time is over, a bounded slice of them; gives how much. To be called now and then by a
    /// program that does not [start](Redrive::start) the engine, which does it by itself.
    ///
    /// # Errors
    /// Where the store does not answer.
    pub async fn sweep(&self) -> Result<usize, StoreError> {
        self.0.store().forget(self.now()).await
    }
}

impl Ledger for Requests {
    fn now(&self) -> Moment {
        // Of several processes over one file, one that slept must not think that all leases still run; and one that only
        // answers requests has no loop that would look.
        self.0.follow();
        self.0.now()
    }

    fn claim(&self, scope: Scope, ask: Ask) -> Asked<Claim> {
        asked(self.0.store().claim(scope, ask, self.now()))
    }

    fn renew(
        &self,
        scope: Scope,
        epoch: u64,
        lease: Duration,
        run_max: Duration,
    ) -> Asked<Result<Renewed, Option<Fenced>>> {
        asked(self.0.store().renew(scope, epoch, lease, run_max, self.now()))
    }

    fn end(&self, scope: Scope, epoch: u64, end: End) -> Asked<Result<(), Option<Fenced>>> {
        asked(self.0.store().end(scope, epoch, end, self.now()))
    }

    fn record(&self, scope: Scope) -> Asked<Option<Record>> {
        asked(self.0.store().record(scope, self.now()))
    }

    fn observer(&self) -> Option<Arc<dyn Observer>> {
        Some(Arc::new(Told))
    }
}

fn asked<T: 'static>(answer: Answer<T>) -> Asked<T> {
    Box::pin(async move { answer.await.map_err(LedgerError::new) })
}
