//! Commits of unknown outcome: every try has a number of its own, which is written with its COMMIT.
//!
//! A connection that was cut at a COMMIT may still be committing, so a query that finds nothing proves nothing. The
//! transaction is repeated instead, and first inserts the numbers of the earlier tries. The unique index waits for the
//! outcome of each: if a number is there, that try was committed, and its answer stands; if the insert succeeds, no
//! other transaction can insert that number any more, so that try never commits, however late its COMMIT arrives.
//!
//! A number travels in the same message as COMMIT, and is written only if the transaction has written something. It is
//! obsolete once the COMMIT was answered, and a later commit of the same process deletes it.
//!
//! Publishing and settling recognise their own rows ([`crate::stores::postgres::publish::slow`],
//! [`crate::stores::postgres::settle::slow`]) and need no numbers.

use std::fmt::{self, Write};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use sqlx::AssertSqlSafe;

use crate::stores::postgres::faults::Step;
use crate::stores::postgres::tx::{OwnTx, run};

/// How many obsolete numbers a COMMIT deletes; the next one deletes the rest.
const TAKEN_AWAY_MAX: usize = 64;
/// How often numbers of dead processes are looked for: there is no index to find them by.
const SWEEP_EVERY: Duration = Duration::from_secs(600);
/// How many obsolete numbers are remembered for deletion: a few per connection are usual.
const ANSWERED_MAX: usize = 4096;

/// The number of a try: a random part for the opened store, and a count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::stores::postgres) struct CommitId {
    life: u64,
    count: u64,
}

impl fmt::Display for CommitId {
    /// As PostgreSQL reads a `uuid`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}{:016x}", self.life, self.count)
    }
}

/// The numbers of an opened store.
#[derive(Debug)]
pub(in crate::stores::postgres) struct CommitIds {
    /// Random, so that no two openings have the same numbers, not even after a restore.
    life: u64,
    next: AtomicU64,
    answered: Mutex<Vec<CommitId>>,
    /// When the numbers of dead processes were deleted last.
    swept: Mutex<Option<Instant>>,
}

impl Default for CommitIds {
    fn default() -> Self {
        let life = RandomState::new().hash_one(std::process::id());
        Self { life, next: AtomicU64::new(0), answered: Mutex::default(), swept: Mutex::default() }
    }
}

impl CommitIds {
    /// A new one.
    pub(in crate::stores::postgres) fn next(&self) -> CommitId {
        CommitId { life: self.life, count: self.next.fetch_add(1, Relaxed) }
    }

    /// These numbers are obsolete.
    pub(in crate::stores::postgres) fn answered(&self, numbers: impl IntoIterator<Item = CommitId>) {
        let mut answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        let room = ANSWERED_MAX.saturating_sub(answered.len());
        answered.extend(numbers.into_iter().take(room));
    }

    /// Whether it is time to delete the numbers of dead processes.
    pub(in crate::stores::postgres) fn are_to_be_swept(&self) -> bool {
        let mut swept = self.swept.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = swept.is_none_or(|last| last.elapsed() > SWEEP_EVERY);
        if is_due {
            *swept = Some(Instant::now());
        }
        is_due
    }

    fn to_take_away(&self) -> Vec<CommitId> {
        let mut answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        let from = answered.len().saturating_sub(TAKEN_AWAY_MAX);
        answered.split_off(from)
    }
}

/// A try whose COMMIT was not answered, and the answer it would have given.
#[derive(Debug)]
pub(in crate::stores::postgres) struct Earlier<T> {
    pub(in crate::stores::postgres) number: CommitId,
    pub(in crate::stores::postgres) did: T,
}

/// Their numbers.
pub(in crate::stores::postgres) fn numbers<T>(earlier: &[Earlier<T>]) -> Vec<CommitId> {
    earlier.iter().map(|one| one.number).collect()
}

impl OwnTx {
    /// Commits under a number. If this fails, [`crate::stores::postgres::faults::kind`] tells whether it may have
    /// happened.
    pub(in crate::stores::postgres) async fn commit_as(&mut self, number: CommitId) -> sqlx::Result<()> {
        let gone = self.db.commit_ids.to_take_away();
        let schema = self.db.schema.name();
        let mut say = format!(
            "INSERT INTO {schema}.commit_id (number) SELECT '{number}'::uuid WHERE pg_current_xact_id_if_assigned() IS NOT NULL; "
        );
        if !gone.is_empty() {
            let _ = write!(say, "DELETE FROM {schema}.commit_id WHERE number IN (");
            for (at, number) in gone.iter().enumerate() {
                let _ = write!(say, "{}'{number}'", if at == 0 { "" } else { ", " });
            }
            say.push_str("); ");
        }
        say.push_str("COMMIT");
        say.push_str(self.reset_sql);
        let committed = sqlx::raw_sql(AssertSqlSafe(say)).execute(&mut *self.conn).await.map(drop);
        self.is_open = committed.is_err();
        let numbers = &self.db.commit_ids;
        match &committed {
            Ok(()) => numbers.answered([number]),
            // They may be deleted twice: it is unknown whether they are gone.
            Err(_) => numbers.answered(gone),
        }
        committed
    }

    /// Which of these tries was committed, waiting until that is certain. If none was, none ever will be, if this
    /// transaction commits.
    pub(in crate::stores::postgres) async fn recognise(
        &mut self,
        earlier: &[CommitId],
    ) -> Step<Option<usize>> {
        // The last first: it has written the numbers of the earlier ones.
        for (at, number) in earlier.iter().enumerate().rev() {
            let insert = "INSERT INTO redrive.commit_id (number) VALUES ($1::uuid) ON CONFLICT DO NOTHING";
            if run!(self, insert, number.to_string())? == 0 {
                // The caller gets its answer, and never asks about these numbers again.
                self.db.commit_ids.answered(earlier.iter().copied());
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    /// Deletes the numbers of processes that died between a COMMIT and the next.
    pub(in crate::stores::postgres) async fn forget_numbers(&mut self) -> Step<usize> {
        let forget = "DELETE FROM redrive.commit_id WHERE number IN (SELECT number FROM redrive.commit_id \
                      WHERE at < clock_timestamp() - interval '1 h' LIMIT 1000)";
        Ok(usize::try_from(run!(self, forget)?).unwrap_or(usize::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_uuids_and_differ_between_openings() {
        let (one, two) = (CommitIds::default(), CommitIds::default());
        let number = one.next();
        assert_eq!(number.to_string().len(), 32);
        assert_ne!(number, one.next());
        assert_ne!(number, two.next());
    }

    #[test]
    fn what_was_answered_is_taken_away_a_slice_at_a_time() {
        let numbers = CommitIds::default();
        numbers.answered((0..ANSWERED_MAX * 2).map(|_| numbers.next()));
        let slices = std::iter::from_fn(|| Some(numbers.to_take_away()).filter(|slice| !slice.is_empty()));
        let sizes: Vec<usize> = slices.map(|slice| slice.len()).collect();
        assert_eq!(sizes, [TAKEN_AWAY_MAX; ANSWERED_MAX / TAKEN_AWAY_MAX]);
    }
}
