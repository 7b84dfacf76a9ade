//! Settling and extending leases, by the attempt and the token of the worker.

use std::collections::BTreeSet;
use std::sync::Arc;

use redrive_core::Moment;
use redrive_core::queue_entry::EventChange;

use crate::lease::{self, DeadByExpiry, LeaseSettle, LeaseSettleResult};
use crate::stores::postgres::events::fresh::Stream;
use crate::stores::postgres::events::tracked::{LastLease, RowState, TrackedEvent};
use crate::stores::postgres::faults::{Fault, Step};
use crate::stores::postgres::tx::OwnTx;
use crate::stores::shared::acts::disagreement;

impl OwnTx {
    /// Extends leases to `until`.
    pub(in crate::stores::postgres) async fn extend(
        &mut self,
        leases: &[lease::LeaseRef],
        at: Moment,
        until: Moment,
    ) -> Step<Vec<LeaseSettleResult>> {
        self.lock_shards().await?;
        self.advance_clock(at);
        let mut said = Vec::with_capacity(leases.len());
        for lease in leases {
            let tracked = match self.leased(lease).await? {
                Some((tracked, _)) if tracked.state == RowState::Leased => tracked,
                there => {
                    said.push(match (self.disagree(lease).await?, there) {
                        (LeaseSettleResult::Conflict(found), Some(_)) => LeaseSettleResult::Lapsed(found),
                        (other, _) => other,
                    });
                    continue;
                }
            };
            let mark = tracked.lease.map(|mark| LastLease { until, ..mark });
            self.update_tracked(&TrackedEvent { lease: mark, ..tracked }).await?;
            said.push(LeaseSettleResult::Applied);
        }
        Ok(said)
    }

    /// Settles leased events.
    pub(in crate::stores::postgres) async fn settle_leased(
        &mut self,
        settles: &mut [LeaseSettle],
    ) -> Step<Vec<LeaseSettleResult>> {
        self.lock_shards().await?;
        let mut said = Vec::with_capacity(settles.len());
        let queues: BTreeSet<String> = settles.iter().map(|settle| settle.lease.queue.clone()).collect();
        for settle in settles {
            said.push(self.settle_lease(settle).await?);
        }
        for queue in queues {
            self.tell_owners(&queue).await?;
        }
        Ok(said)
    }

    /// If a queue is no longer pulled from, the owner of the next event of the key must be notified: the event was not
    /// written, so no stamp shows it.
    pub(super) async fn tell_owners(&mut self, queue: &str) -> Step<()> {
        if self.spec(queue).await?.is_some_and(|queue| !queue.pull) {
            self.recall = true;
            self.raise_version().await?;
        }
        Ok(())
    }

    async fn settle_lease(&mut self, settle: &mut LeaseSettle) -> Step<LeaseSettleResult> {
        let LeaseSettle { lease, at, decide } = settle;
        self.advance_clock(*at);
        let Some((mut tracked, stream)) = self.leased(lease).await? else {
            return self.disagree(lease).await;
        };
        // If the lease had run out, that was written as an attempt; now its real outcome replaces it.
        tracked.progress = tracked.progress.before(lease.attempt);
        let lapsed = tracked.lapsed();
        let entry = tracked.clone().entry();
        let change = decide(&entry, lapsed);
        let change = match DeadByExpiry::bounded(lapsed, change) {
            EventChange::Done => {
                let history = tracked.progress.history.clone();
                EventChange::DoneWith { result: None, attempts: lease.attempt, history }
            }
            change => change,
        };
        self.apply((tracked, false), &change, *at, &stream).await?;
        Ok(LeaseSettleResult::Applied)
    }

    /// The event of a lease, if it lives or died because that lease ran out, and no attempt was made since.
    async fn leased(&mut self, lease: &lease::LeaseRef) -> Step<Option<(TrackedEvent, Arc<Stream>)>> {
        let Some(stream) = self.find_stream(&lease.queue, &lease.tenant).await? else { return Ok(None) };
        let there = match self.dedupe(stream.id, &lease.id).await {
            Ok(Some(dedupe)) => self.event_of(&dedupe, &stream).await,
            Ok(None) => return Ok(None),
            Err(fault) => Err(fault),
        };
        let there = match there {
            Ok(there) => there,
            // A damaged row does not tell which worker holds it.
            Err(Fault::Refused(_)) => return Ok(None),
            Err(fault) => return Err(fault),
        };
        let tracked = there.map(|(tracked, _)| tracked).filter(|tracked| tracked.is_leased_last(lease));
        Ok(tracked.map(|tracked| (tracked, stream)))
    }

    /// The answer about a lease that is not the last one.
    async fn disagree(&mut self, lease: &lease::LeaseRef) -> Step<LeaseSettleResult> {
        let Some(stream) = self.find_stream(&lease.queue, &lease.tenant).await? else {
            return Ok(LeaseSettleResult::Unknown);
        };
        let view = self.view().await?;
        let known = match self.dedupe(stream.id, &lease.id).await {
            Ok(Some(dedupe)) => {
                let by = dedupe.end.as_ref().and_then(|end| end.token);
                self.found(dedupe, &view).await.map(|found| (found, by))
            }
            Ok(None) => return Ok(LeaseSettleResult::Unknown),
            Err(fault) => Err(fault),
        };
        match known {
            Ok((found, by)) => Ok(disagreement(found, by, lease)),
            Err(Fault::Refused(_)) => Ok(LeaseSettleResult::Unknown),
            Err(fault) => Err(fault),
        }
    }
}
