//! `Prefer: wait`: waiting for a request that runs, here or in another process.

use std::time::Duration;

use redrive_core::ledger::Phase;
use tokio::time::{Instant, sleep_until};

use super::identify::Known;
use super::layer::Shared;

/// How often the ledger is looked at: reading is cheap, and the hint comes first where it runs in this process.
const LOOK: Duration = Duration::from_millis(100);

/// Waits until the request runs no more; `false` where that is not so in time.
pub(super) async fn is_over(shared: &Shared, known: &Known, until: Instant) -> bool {
    loop {
        let bell = shared.hints.bell(&known.scope).notified();
        tokio::pin!(bell);
        // Before looking, so that an end in between is heard.
        bell.as_mut().enable();
        let record = shared.ledger.record(known.scope.clone()).await;
        match record.map(|record| record.map(|record| record.phase)) {
            Ok(Some(Phase::InFlight { until, .. })) if until > shared.ledger.now() => {}
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
