//! The engine's store, as the idempotent layer asks it.

use std::sync::Arc;
use std::time::Duration;

use redrive_core::Moment;
use redrive_core::ledger::{Ask, Claim, End, Fenced, Record, Renewed, Scope};
use redrive_http::idempotent::{Asked, Ledger, LedgerError, Observer, Remembered};
use redrive_store::{Answer, StoreError};

use super::memory::Answers;
use super::observe::Told;
use crate::Redrive;

/// The requests that a store remembers. Made by [`Redrive::ledger`].
#[derive(Debug, Clone)]
pub struct Requests {
    pub(super) redrive: Redrive,
    answers: Answers,
}

impl Redrive {
    /// The store's ledger, for the layers of an API. Needs no start.
    #[must_use]
    pub fn ledger(&self) -> Requests {
        Requests { redrive: self.clone(), answers: Answers::default() }
    }
}

impl Requests {
    /// Forgets requests whose time is over, a bounded slice of them; gives how much. To be called now and then by a
    /// program that does not [start](Redrive::start) the engine, which does it by itself.
    ///
    /// # Errors
    /// Where the store does not answer.
    pub async fn sweep(&self) -> Result<usize, StoreError> {
        self.redrive.store().forget(self.now()).await
    }
}

impl Ledger for Requests {
    fn now(&self) -> Moment {
        // Of several processes over one file, one that slept must not think that all leases still run; and one that only
        // answers requests has no loop that would look.
        self.redrive.follow();
        self.redrive.now()
    }

    fn claim(&self, scope: Scope, ask: Ask) -> Asked<Claim> {
        asked(self.redrive.store().claim(scope, ask, self.now()))
    }

    fn renew(
        &self,
        scope: Scope,
        epoch: u64,
        lease: Duration,
        run_max: Duration,
    ) -> Asked<Result<Renewed, Option<Fenced>>> {
        asked(self.redrive.store().renew(scope, epoch, lease, run_max, self.now()))
    }

    fn end(&self, scope: Scope, epoch: u64, end: End) -> Asked<Result<(), Option<Fenced>>> {
        asked(self.redrive.store().end(scope, epoch, end, self.now()))
    }

    fn record(&self, scope: Scope) -> Asked<Option<Record>> {
        asked(self.redrive.store().record(scope, self.now()))
    }

    fn recall(&self, scope: &Scope) -> Option<Arc<Remembered>> {
        self.answers.find(scope)
    }

    fn remember(&self, scope: &Scope, ended: Remembered) {
        self.answers.remember(scope, ended);
    }

    fn observer(&self) -> Option<Arc<dyn Observer>> {
        Some(Arc::new(Told))
    }
}

fn asked<T: 'static>(answer: Answer<T>) -> Asked<T> {
    Box::pin(async move { answer.await.map_err(told) })
}

/// What is not known to be a store that is down is not taken for one: an endpoint that stays open runs without it.
fn told(error: StoreError) -> LedgerError {
    match error {
        StoreError::Passing { .. }
        | StoreError::DiskLow { .. }
        | StoreError::Unknown { .. }
        | StoreError::Unanswered { .. }
        | StoreError::Poisoned { .. }
        | StoreError::Open { .. }
        | StoreError::Closed => LedgerError::new(error),
        error => LedgerError::unreadable(error),
    }
}
