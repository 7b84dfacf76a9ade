//! The ledger's records.

use std::collections::BTreeMap;
use std::time::Duration;

use redrive_core::Moment;
use redrive_core::ledger::{
    self, ClaimRequest, FencedRun, LedgerClaim, LedgerRecord, RecordPhase, RenewResult, RequestScope,
    Resolution, age,
};

use super::Memory;
use super::state::State;
use crate::ledger::{
    LedgerPage, LedgerQuery, LedgerStore, RunEnding, UnknownCount, ended, kept, listed, resolved,
};
use crate::operate::Refusal;
use crate::store::StoreFuture;

impl LedgerStore for Memory {
    fn claim(&self, scope: RequestScope, ask: ClaimRequest, at: Moment) -> StoreFuture<LedgerClaim> {
        self.commit(|state| {
            let claim = ledger::claim(state.records.get(&scope), &ask, at);
            if let Some(record) = kept(&claim) {
                state.records.put(scope, record.clone());
            }
            Ok(claim)
        })
    }

    fn renew(
        &self,
        scope: RequestScope,
        epoch: u64,
        lease: Duration,
        run_max: Duration,
        at: Moment,
    ) -> StoreFuture<Result<RenewResult, Option<FencedRun>>> {
        self.commit(|state| {
            let Some(record) = state.records.get(&scope).cloned() else { return Ok(Err(None)) };
            let renewed = ledger::renew(record, epoch, lease, run_max, at);
            if let Ok(RenewResult::On(record)) = &renewed {
                state.records.put(scope, record.clone());
            }
            Ok(renewed.map_err(Some))
        })
    }

    fn end(
        &self,
        scope: RequestScope,
        epoch: u64,
        end: RunEnding,
        at: Moment,
    ) -> StoreFuture<Result<(), Option<FencedRun>>> {
        self.commit(|state| Ok(state.end_request(&scope, epoch, end, at)))
    }

    fn record(&self, scope: RequestScope, at: Moment) -> StoreFuture<Option<LedgerRecord>> {
        self.look(|world| Ok(world.state.records.get(&scope).cloned().and_then(|record| age(record, at))))
    }

    fn records(&self, records: LedgerQuery, at: Moment) -> StoreFuture<LedgerPage> {
        self.look(|world| {
            let all = world.state.records.iter();
            let aged = all.filter_map(|(scope, record)| Some((scope.clone(), age(listed(record), at)?)));
            let mut wanted = aged.filter(|(scope, record)| records.means(scope, record));
            let page: Vec<_> = wanted.by_ref().take(records.limit()).collect();
            let next = wanted.next().and(page.last()).map(|(scope, _)| scope.clone());
            Ok(LedgerPage { records: page, next })
        })
    }

    fn unknown(&self) -> StoreFuture<Vec<UnknownCount>> {
        self.look(|world| {
            let mut counts = BTreeMap::new();
            for (scope, record) in world.state.records.iter() {
                if matches!(record.phase, RecordPhase::Unknown { .. }) {
                    *counts.entry((scope.tenant.clone(), scope.operation.clone())).or_default() += 1;
                }
            }
            let counts = counts.into_iter();
            Ok(counts.map(|((tenant, operation), count)| UnknownCount { tenant, operation, count }).collect())
        })
    }
}

impl State {
    /// Carries out an operator's resolution of an unknown outcome.
    pub(super) fn resolve(
        &mut self,
        scope: &RequestScope,
        resolution: &Resolution,
        at: Moment,
    ) -> Result<(), Refusal> {
        let record = resolved(self.records.get(scope).cloned(), resolution.clone(), at)?;
        self.records.put(scope.clone(), record);
        Ok(())
    }

    /// Ends a run, under its fence.
    pub(super) fn end_request(
        &mut self,
        scope: &RequestScope,
        epoch: u64,
        end: RunEnding,
        at: Moment,
    ) -> Result<(), Option<FencedRun>> {
        let record = self.records.get(scope).cloned().ok_or(None)?;
        match ended(record, epoch, end, at).map_err(Some)? {
            Some(record) => self.records.put(scope.clone(), record),
            None => self.records.remove(scope),
        }
        Ok(())
    }

    /// Applies the passage of time to the records.
    pub(super) fn forget_records(&mut self, now: Moment) -> usize {
        let aged = self.records.iter().filter_map(|(scope, record)| {
            let record = listed(record);
            let aged = age(record.clone(), now);
            (aged.as_ref() != Some(&record)).then(|| (scope.clone(), aged))
        });
        let aged: Vec<_> = aged.collect();
        let count = aged.len();
        for (scope, record) in aged {
            match record {
                Some(record) => self.records.put(scope, record),
                None => self.records.remove(&scope),
            }
        }
        count
    }
}
