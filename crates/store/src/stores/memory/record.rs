//! The ledger's records.

use std::collections::BTreeMap;
use std::time::Duration;

use redrive_core::Moment;
use redrive_core::ledger::{self, Ask, Claim, Fenced, Phase, Record, Renewed, Resolution, Scope, age};

use super::Memory;
use super::state::State;
use crate::ledger::{End, Ledger, Recorded, Records, ended, kept, listed, resolved};
use crate::operate::Refusal;
use crate::store::Answer;

impl Ledger for Memory {
    fn claim(&self, scope: Scope, ask: Ask, at: Moment) -> Answer<Claim> {
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
        scope: Scope,
        epoch: u64,
        lease: Duration,
        run_max: Duration,
        at: Moment,
    ) -> Answer<Result<Renewed, Option<Fenced>>> {
        self.commit(|state| {
            let Some(record) = state.records.get(&scope).cloned() else { return Ok(Err(None)) };
            let renewed = ledger::renew(record, epoch, lease, run_max, at);
            if let Ok(Renewed::On(record)) = &renewed {
                state.records.put(scope, record.clone());
            }
            Ok(renewed.map_err(Some))
        })
    }

    fn end(&self, scope: Scope, epoch: u64, end: End, at: Moment) -> Answer<Result<(), Option<Fenced>>> {
        self.commit(|state| Ok(state.end_request(&scope, epoch, end, at)))
    }

    fn record(&self, scope: Scope, at: Moment) -> Answer<Option<Record>> {
        self.look(|world| Ok(world.state.records.get(&scope).cloned().and_then(|record| age(record, at))))
    }

    fn records(&self, records: Records, at: Moment) -> Answer<Recorded> {
        self.look(|world| {
            let all = world.state.records.iter();
            let aged = all.filter_map(|(scope, record)| Some((scope.clone(), age(listed(record), at)?)));
            let mut wanted = aged.filter(|(scope, record)| records.means(scope, record));
            let page: Vec<_> = wanted.by_ref().take(records.limit()).collect();
            let next = wanted.next().and(page.last()).map(|(scope, _)| scope.clone());
            Ok(Recorded { records: page, next })
        })
    }

    fn unknown(&self) -> Answer<Vec<(String, u64)>> {
        self.look(|world| {
            let mut counts = BTreeMap::new();
            for (scope, record) in world.state.records.iter() {
                if matches!(record.phase, Phase::Unknown { .. }) {
                    *counts.entry(scope.operation.clone()).or_default() += 1;
                }
            }
            Ok(counts.into_iter().collect())
        })
    }
}

impl State {
    /// Does what a person says of an unknown outcome.
    pub(super) fn resolve(
        &mut self,
        scope: &Scope,
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
        scope: &Scope,
        epoch: u64,
        end: End,
        at: Moment,
    ) -> Result<(), Option<Fenced>> {
        let record = self.records.get(scope).cloned().ok_or(None)?;
        match ended(record, epoch, end, at).map_err(Some)? {
            Some(record) => self.records.put(scope.clone(), record),
            None => self.records.remove(scope),
        }
        Ok(())
    }

    /// Has time do its work on the records.
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
