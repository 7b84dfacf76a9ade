//! Room to run in, taken before the claim, so that nobody has a lease and waits.
//!
//! Where there is none, or the server stops, the ledger is looked at first: a replay, a refusal and one that runs
//! already need no room. That costs a look, and only there.

use std::sync::Arc;

use http::StatusCode;
use redrive_core::ledger::{Answer, Claim, claim};
use tokio::sync::OwnedSemaphorePermit;

use super::answer::SOON;
use super::drain::Running;
use super::identify::Known;
use super::layer::Shared;
use super::problem::Problem;

/// Where a request may run. A server that stops waits for it.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) running: Running,
    _room: OwnedSemaphorePermit,
}

/// Why a request does not run.
pub(super) enum Turned {
    /// It is answered without.
    Answered(Answer),
    /// It cannot be run just now.
    Away(Box<Problem>),
}

/// A place for a request, at once where there is one.
pub(super) async fn place(shared: &Shared, known: &Known) -> Result<Place, Turned> {
    let permits = &shared.permits;
    if let Some(running) = shared.drain.enter()
        && let Ok(room) = Arc::clone(permits).try_acquire_owned()
    {
        return Ok(Place { running, _room: room });
    }
    if let Some(answer) = looked(shared, known).await {
        return Err(Turned::Answered(answer));
    }
    let permit = Arc::clone(permits).acquire_owned();
    let room = if shared.drain.is_closed() {
        None
    } else {
        tokio::time::timeout(shared.settings.patience, permit).await.ok().and_then(Result::ok)
    };
    let (code, detail) = match (shared.drain.enter(), room) {
        (Some(running), Some(room)) => return Ok(Place { running, _room: room }),
        (Some(_), None) => ("too-busy", "as many requests run as may"),
        (None, _) => ("shutting-down", "the server stops"),
    };
    let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, code, detail);
    Err(Turned::Away(Box::new(problem.after(SOON))))
}

/// What a request is answered that needs no run.
async fn looked(shared: &Shared, known: &Known) -> Option<Answer> {
    let record = shared.ledger.record(known.scope.clone()).await.ok()?;
    match claim(record.as_ref(), &known.ask, shared.ledger.now()) {
        Claim::Say(answer) => Some(answer),
        // The next one with room writes it down.
        Claim::Hold(_) => Some(Answer::Unknown { since: shared.ledger.now() }),
        Claim::Run(_) | Claim::Probe(_) => None,
    }
}
