//! Settling: the outcomes of attempts, in the engine, in a transaction, and under a lease.

use redrive_core::Moment;
use redrive_core::queue_entry::{FencingToken, Seq, SettleRequest, SettleResult};

use super::StoreFuture;
use crate::lease::{LeaseRef, LeaseRequest, LeaseSettle, LeaseSettleResult, LeasedEvents};
use crate::transaction::{TxJob, TxOutcome};

/// The part of a [`Store`](super::Store) that commits the outcomes of attempts.
pub trait SettleStore {
    /// Commits the outcomes of attempts, each under the fence. Answers are in the order of the settles.
    fn settle(&self, settles: Vec<SettleRequest>) -> StoreFuture<Vec<SettleResult>>;

    /// Notes which attempts are running in a shard, so that the next owner knows if this one dies. The note survives
    /// the death of the process, not that of the machine, and costs no sync.
    fn note(&self, token: FencingToken, under_way: Vec<Seq>) -> StoreFuture<()>;

    /// Runs the caller's work in a transaction of the store, and settles its event in the same commit.
    fn transact(&self, job: TxJob) -> StoreFuture<TxOutcome>;

    /// Leases events to a worker outside the engine, and lets leases lapse that were not settled in time. Without
    /// tokens it only does the latter, also for a queue that is no longer pulled from, and need not say when more is due.
    fn lease(&self, lease: LeaseRequest) -> StoreFuture<LeasedEvents>;

    /// Extends leases to `until`.
    fn extend(&self, leases: Vec<LeaseRef>, at: Moment, until: Moment)
    -> StoreFuture<Vec<LeaseSettleResult>>;

    /// Commits the outcomes of leased attempts.
    fn settle_leased(&self, settles: Vec<LeaseSettle>) -> StoreFuture<Vec<LeaseSettleResult>>;
}
