//! `Prefer: wait`: waiting for a request that runs, here or in another process.

use std::ops::ControlFlow;
use std::time::Duration;

use redrive_core::ledger::{Answer, Claim, claim};
use tokio::time::{Instant, sleep_until};

use super::identify::Known;
use super::layer::Shared;

/// How often the ledger is looked at: reading is cheap, and the hint comes first where it runs in this process.
const LOOK: Duration = Duration::from_millis(100);

/// A breath between two tries; it breaks off where the time is over.
pub(super) async fn pause(until: Instant) -> ControlFlow<()> {
    sleep_until((Instant::now() + LOOK).min(until)).await;
    if Instant::now() >= until { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

/// Waits until the request runs no more; `false` where that is not so in time.
pub(super) async fn is_over(shared: &Shared, known: &Known, until: Instant) -> bool {
    loop {
        let bell = shared.hints.bell(&known.scope).notified();
        tokio::pin!(bell);
        // Before looking, so that an end in between is heard.
        bell.as_mut().enable();
        let record = shared.ledger.record(known.scope.clone()).await;
        // By the rule of the claim that follows: an effect that settles is waited for as well.
        match record.map(|record| claim(record.as_ref(), &known.ask, shared.ledger.now())) {
            Ok(Claim::Say(Answer::InFlight { .. })) => {}
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
