//! `Prefer: wait`: waiting for a request that runs, here or in another process.

use std::ops::ControlFlow;
use std::time::Duration;

use redrive_core::ledger::{LedgerAnswer, LedgerClaim, claim};
use tokio::time::{Instant, sleep_until};

use crate::idempotent::identify::KeyedRequest;
use crate::idempotent::layer::Shared;

/// Polling interval of the ledger. Reads are cheap, and within this process a wakeup comes first.
const LOOK: Duration = Duration::from_millis(100);

/// A breath between two tries; it breaks off where the time is over.
pub(in crate::idempotent) async fn pause(until: Instant) -> ControlFlow<()> {
    sleep_until((Instant::now() + LOOK).min(until)).await;
    if Instant::now() >= until { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

/// Waits until the request is no longer in flight; `false` on timeout.
pub(in crate::idempotent) async fn is_over(shared: &Shared, known: &KeyedRequest, until: Instant) -> bool {
    loop {
        let bell = shared.hints.bell(&known.scope).notified();
        tokio::pin!(bell);
        // Enabled before the read, so that an end in between is not missed.
        bell.as_mut().enable();
        let record = shared.ledger.record(known.scope.clone()).await;
        // By the rule of the claim that follows: an effect that settles is waited for as well.
        match record.map(|record| claim(record.as_ref(), &known.ask, shared.ledger.now())) {
            Ok(LedgerClaim::Say(LedgerAnswer::InFlight { .. })) => {}
            // A ledger that does not answer may do so the next time.
            Err(_) => {}
            Ok(_) => return true,
        }
        if Instant::now() >= until {
            return false;
        }
        tokio::select! {
            () = bell => {}
            () = sleep_until((Instant::now() + LOOK).min(until)) => {}
        }
    }
}
