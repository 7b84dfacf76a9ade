//! The permit to run, acquired before the claim, so that no request holds a lease while it waits.
//!
//! If no permit is free, or the server is stopping, the ledger is read first: replays, refusals and requests in
//! flight need no permit. That costs a read, only in this case.

use std::sync::Arc;

use http::StatusCode;
use redrive_core::ledger::{LedgerAnswer, LedgerClaim, claim};
use tokio::sync::OwnedSemaphorePermit;

use crate::idempotent::answer::SOON;
use crate::idempotent::drain::Running;
use crate::idempotent::identify::KeyedRequest;
use crate::idempotent::layer::Shared;
use crate::idempotent::problem::Problem;

/// The permit to run. A draining server waits for it.
#[derive(Debug)]
pub(in crate::idempotent) struct Permit {
    pub(in crate::idempotent) running: Running,
    _room: OwnedSemaphorePermit,
}

/// Why a request does not run.
pub(in crate::idempotent) enum Denied {
    /// It is answered without.
    Answered(LedgerAnswer),
    /// It cannot be run just now.
    Refused(Box<Problem>),
}

/// Acquires a permit, at once if one is free.
pub(in crate::idempotent) async fn permit(shared: &Shared, known: &KeyedRequest) -> Result<Permit, Denied> {
    let permits = &shared.permits;
    if let Some(running) = shared.drain.enter()
        && let Ok(room) = Arc::clone(permits).try_acquire_owned()
    {
        return Ok(Permit { running, _room: room });
    }
    if let Some(answer) = looked(shared, known).await {
        return Err(Denied::Answered(answer));
    }
    let permit = Arc::clone(permits).acquire_owned();
    let room = if shared.drain.is_closed() {
        None
    } else {
        tokio::time::timeout(shared.settings.patience, permit).await.ok().and_then(Result::ok)
    };
    let (code, detail) = match (shared.drain.enter(), room) {
        (Some(running), Some(room)) => return Ok(Permit { running, _room: room }),
        (Some(_), None) => ("too-busy", "the limit of concurrent requests is reached"),
        (None, _) => ("shutting-down", "the server stops"),
    };
    let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, code, detail);
    Err(Denied::Refused(Box::new(problem.after(SOON))))
}

/// The response to a request that needs no run.
async fn looked(shared: &Shared, known: &KeyedRequest) -> Option<LedgerAnswer> {
    let record = shared.ledger.record(known.scope.clone()).await.ok()?;
    match claim(record.as_ref(), &known.ask, shared.ledger.now()) {
        LedgerClaim::Say(answer) => Some(answer),
        // The next request with a permit records it.
        LedgerClaim::Hold(_) => Some(LedgerAnswer::Unknown { since: shared.ledger.now() }),
        LedgerClaim::Run(_) | LedgerClaim::Probe(_) => None,
    }
}
