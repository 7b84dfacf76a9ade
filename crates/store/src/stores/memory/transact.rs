//! Transactions: the user's table, markers, publishes and a settle in one commit.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use redrive_core::ledger::{RequestScope, StoredReply};
use redrive_core::planted::{PlantedBug, has};
use redrive_core::queue_entry::{EventChange, SettleResult};
use redrive_core::{Moment, QueueEntry};

use super::faults::{Fate, World, unknown};
use super::row::Row;
use super::settle::Refused;
use super::state::{CommitNotice, State, Table};
use crate::error::{PublishError, StoreError};
use crate::ledger::RunEnding;
use crate::store::{NewEvent, Published};
use crate::transaction::{CompleteError, Tx, TxJob, TxOutcome, TxSettle};

/// The user's own table, if this is a transaction of a store in memory. Its changes commit with the rest of the
/// transaction, or not at all.
///
/// ```
/// # use redrive_store::{Tx, memory};
/// fn charge(tx: &mut dyn Tx) -> Option<()> {
///     memory::table(tx)?.insert("order-17".to_owned(), b"17 euro".to_vec());
///     Some(())
/// }
/// ```
pub fn table(tx: &mut dyn Tx) -> Option<&mut std::collections::BTreeMap<String, Vec<u8>>> {
    tx.as_any().downcast_mut::<Table>()
}

struct Transaction<'a>(&'a mut State);

impl Tx for Transaction<'_> {
    fn mark(&mut self, handler: &str, id: &str, until: Moment) -> Result<bool, PublishError> {
        let marker = (handler.to_owned(), id.to_owned());
        let until_now = self.0.markers.get(&marker).copied();
        self.0.markers.put(marker, until_now.map_or(until, |before| before.max(until)));
        Ok(until_now.is_none())
    }

    fn publish(&mut self, new: NewEvent) -> Result<Published, PublishError> {
        self.0.publish(&new)
    }

    fn complete(
        &mut self,
        scope: &RequestScope,
        epoch: u64,
        reply: StoredReply,
        resource: Option<String>,
        at: Moment,
    ) -> Result<(), CompleteError> {
        let end = RunEnding::Completed { reply, resource };
        self.0.end_request(scope, epoch, end, at).map_err(CompleteError::Fenced)
    }

    fn keep(&mut self, name: &str, bytes: Option<&[u8]>) -> Result<(), StoreError> {
        match bytes {
            Some(bytes) => self.0.kept.put(name.to_owned(), bytes.to_vec()),
            None => self.0.kept.remove(&name.to_owned()),
        }
        Ok(())
    }

    fn kept(&mut self, beginning: &str) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        let found =
            self.0.kept.range(beginning.to_owned()..).take_while(|(name, _)| name.starts_with(beginning));
        Ok(found.map(|(name, bytes)| (name.clone(), bytes.clone())).collect())
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self.0.table_mut()
    }
}

impl World {
    /// Runs a job. There are no statements to interrupt here, so its time limit is ignored.
    pub(super) fn transact(&mut self, mut job: TxJob) -> (CommitNotice, Result<TxOutcome, StoreError>) {
        let claimed = match job.claim.take().map(|claim| self.claim(claim)).transpose() {
            Ok(claimed) => claimed,
            Err(refused) => return (CommitNotice::default(), Ok(refused)),
        };
        if has(PlantedBug::SettleBeforeEffect) {
            return self.settle_before_effect(job, claimed);
        }
        let result = match self.work(&mut job) {
            Ok(result) => result,
            Err(failed) => return (CommitNotice::default(), Ok(failed)),
        };
        if has(PlantedBug::MarkerInSecondCommit) {
            self.state.keep_table();
            if self.dies_between() {
                self.state.undo();
                return (CommitNotice::default(), Err(unknown()));
            }
        }
        let next = claimed.and_then(|claimed| self.done(claimed, result));
        committed(self.commit(), next)
    }

    fn settle_before_effect(
        &mut self,
        mut job: TxJob,
        claimed: Option<Claimed>,
    ) -> (CommitNotice, Result<TxOutcome, StoreError>) {
        let next = claimed.and_then(|claimed| self.done(claimed, None));
        let mut arrived = self.state.keep();
        if self.dies_between() {
            return (arrived, Err(unknown()));
        }
        if let Err(failed) = self.work(&mut job) {
            return (arrived, Ok(failed));
        }
        let (more, answer) = committed(self.commit(), next);
        arrived.add(more);
        (arrived, answer)
    }

    fn claim(&self, claim: TxSettle) -> Result<Claimed, TxOutcome> {
        match self.state.fenced(claim.token, claim.seq, claim.rev) {
            Ok(row) => Ok((row, claim)),
            Err(Refused::Fenced) => Err(TxOutcome::Fenced),
            Err(Refused::Stale) => Err(TxOutcome::Stale),
        }
    }

    /// Runs the work; if it fails, everything is rolled back.
    fn work(&mut self, job: &mut TxJob) -> Result<Option<Vec<u8>>, TxOutcome> {
        let mut tx = Transaction(&mut self.state);
        let failed = match catch_unwind(AssertUnwindSafe(|| (job.work)(&mut tx))) {
            Ok(Ok(result)) => return Ok(result),
            Ok(Err(error)) => TxOutcome::Aborted(error),
            Err(panic) => TxOutcome::Panicked(message(&*panic)),
        };
        self.state.undo();
        Err(failed)
    }

    fn done(&mut self, (row, claim): Claimed, result: Option<Vec<u8>>) -> Option<QueueEntry> {
        self.state.see(claim.at);
        let TxSettle { at, attempts, history, .. } = claim;
        let plain = result.is_none() && attempts <= 1 && history.is_none();
        let change =
            if plain { EventChange::Done } else { EventChange::DoneWith { result, attempts, history } };
        match self.state.change(row, at, change) {
            SettleResult::Applied { next, .. } => next,
            SettleResult::Stale | SettleResult::Fenced => None,
        }
    }
}

type Claimed = (Row, TxSettle);

fn committed(
    (arrived, told): Fate,
    next: Option<QueueEntry>,
) -> (CommitNotice, Result<TxOutcome, StoreError>) {
    (arrived, told.map(|()| TxOutcome::Committed { next }))
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".to_owned())
}
