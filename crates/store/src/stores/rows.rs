//! The row engine: operators' commands, written once for every store that keeps rows.
//!
//! | file | contents |
//! |---|---|
//! | [`contract`] | what a store implements: reads and writes of single rows, and the order of keys |
//! | [`operate`] | one command, in one commit with its line in the audit |
//! | [`act`] | redrive, discard, restore, kill, retry now: a command on one event |
//! | [`edit`] | a dead letter with another payload, and imported dead letters |
//! | [`rules`] | pause, quarantine, park, reroute |
//! | [`jobs`], [`advance`] | redriving or discarding many dead letters in the background |
//! | [`retry`] | retrying many events at once |
//! | [`retention`] | rules that expire, and dead letters beyond what their queue keeps |
//!
//! The functions are async, because PostgreSQL waits for its server. SQLite's side never waits: its writer thread polls
//! each function once ([`now`]). The alternatives were a state machine for each function, which hides the sequence that
//! the function is, or a macro that strips `.await`, which formatters and editors do not read.
//!
//! Not here: publish, settle, leases, ledger records and the tallies themselves. They are hot, and differ: PostgreSQL
//! sends batches where SQLite keeps caches. The `memory` store shares none of this: it is what the others are compared
//! with.

#[cfg(feature = "sqlite")]
use std::pin::pin;
#[cfg(feature = "sqlite")]
use std::task::{Context, Poll, Waker};

use crate::error::StoreError;

pub(in crate::stores) mod contract;

pub(in crate::stores) mod operate;

pub(in crate::stores) mod act;

pub(in crate::stores) mod edit;

pub(in crate::stores) mod rules;

pub(in crate::stores) mod jobs;

pub(in crate::stores) mod advance;

mod retry;

pub(in crate::stores) mod retention;

/// Why a step of a transaction failed.
#[derive(Debug)]
pub(in crate::stores) enum Fault<E> {
    /// The database returned an error, or did not answer.
    Sql(E),
    /// This call alone is refused; it wrote nothing.
    Refused(StoreError),
    /// Nothing in this transaction may be committed. In SQLite, a caller's work ended the transaction that all calls of
    /// the group share; in PostgreSQL, another process owns one of the shards now.
    Void,
}

impl<E> From<StoreError> for Fault<E> {
    fn from(error: StoreError) -> Self {
        Self::Refused(error)
    }
}

/// The result of a step over the rows `R`.
pub(in crate::stores) type Step<T, R> = Result<T, Fault<<R as contract::EventRows>::Error>>;

/// Runs a step of rows that never wait. A step that waits nevertheless is a defect: the call fails and is rolled back,
/// and the thread goes on.
#[cfg(feature = "sqlite")]
pub(in crate::stores) fn now<T, E>(step: impl Future<Output = Result<T, Fault<E>>>) -> Result<T, Fault<E>> {
    match pin!(step).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => {
            let what = "a step of a SQLite transaction waited for something".to_owned();
            Err(Fault::Refused(StoreError::Broken { what, source: None }))
        }
    }
}
