//! The lease of a run: renewed by its own task, so that a handler that blocks its thread does not lose it.
//!
//! With `OnUnknown::Probe`, a run ends with the last lease that the ledger confirmed: a probe's "did not happen" is
//! trusted `settling` after that, and a later effect would collide with the next run. Other runs continue until
//! `max_run`: their fence or their keys make them harmless, and a held record waits for their late end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use redrive_core::ledger::{Effects, LedgerRecord, OnUnknown, RecordPhase, RenewResult, RequestScope};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::idempotent::layer::Shared;

/// Renewals per lease period: two may be lost.
const RENEWALS: u32 = 3;

/// A record that a run has.
#[derive(Debug, Clone)]
pub(in crate::idempotent) struct ClaimedRecord {
    pub(in crate::idempotent) record: LedgerRecord,
    /// When it was claimed: before the ledger was asked, so that no lease seems longer than it is.
    pub(in crate::idempotent) began: Instant,
    /// When its lease was asked for.
    pub(in crate::idempotent) asked: Instant,
}

/// A lease that is renewed until dropped.
pub(in crate::idempotent) struct Lease {
    shared: Arc<Shared>,
    renewing: tokio::task::JoinHandle<()>,
    /// Until when the ledger said that it is had, by the ledger's clock, in nanoseconds.
    until: Arc<AtomicU64>,
}

impl Lease {
    /// Starts renewing. The receiver fires when the run has reached its time limit.
    pub(in crate::idempotent) fn renewed(
        shared: &Arc<Shared>,
        scope: &RequestScope,
        held: &ClaimedRecord,
    ) -> (Self, oneshot::Receiver<()>) {
        let (too_long, told) = oneshot::channel();
        let until = Arc::new(AtomicU64::new(end_of(&held.record)));
        let (shared, scope) = (Arc::clone(shared), scope.clone());
        let (ledger, confirmed) = (Arc::clone(&shared), Arc::clone(&until));
        let (epoch, began, mut asked) = (held.record.epoch, held.began, held.asked);
        let renewing = async move {
            let (lease, max_run) = (ledger.settings.lease, ledger.settings.max_run);
            // By the time of this process, for a ledger that does not answer.
            let end = began + max_run;
            let mut next = asked;
            loop {
                let last = if ends_with_its_lease(&ledger) { (asked + lease).min(end) } else { end };
                next += lease / RENEWALS;
                sleep_until(next.min(last)).await;
                if next >= last {
                    break;
                }
                let now = Instant::now();
                let renewal = ledger.ledger.renew(scope.clone(), epoch, lease, max_run);
                match timeout_at(last, renewal).await {
                    Ok(Ok(Ok(RenewResult::On(record)))) => {
                        asked = now;
                        confirmed.store(end_of(&record), Ordering::Relaxed);
                    }
                    Err(_) | Ok(Ok(Ok(RenewResult::TooLong))) => break,
                    // Taken over, or ended by its own commit. The handler continues and learns it at its end.
                    Ok(Ok(Err(_))) => {
                        sleep_until(end).await;
                        break;
                    }
                    Ok(Err(_)) => {}
                }
            }
            let _ = too_long.send(());
        };
        (Self { shared, renewing: tokio::spawn(renewing), until }, told)
    }

    /// Whether it is over in a way that ends the run: looked at before each step of it, because a machine that slept
    /// wakes its handlers and its timers in any order.
    pub(in crate::idempotent) fn is_lapsed(&self) -> bool {
        ends_with_its_lease(&self.shared)
            && self.shared.ledger.now().as_nanos() >= self.until.load(Ordering::Relaxed)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.renewing.abort();
    }
}

/// Whether a run may not outlive its lease.
fn ends_with_its_lease(shared: &Shared) -> bool {
    matches!(shared.effects, Effects::Opaque(OnUnknown::Probe { .. }))
}

fn end_of(record: &LedgerRecord) -> u64 {
    match record.phase {
        RecordPhase::InFlight { until, .. } => until.as_nanos(),
        _ => 0,
    }
}
