//! Commits of unknown fate: every try has a number of its own, which is written with its COMMIT.
//!
//! A connection that was cut at a COMMIT may still be committing, so to look and to find nothing proves nothing. The
//! same is done again instead, and begins by writing the numbers of the tries before it. The unique index waits for the
//! fate of each: a number that is there was committed, and its answer is the one that was worked out then; a number that
//! is now ours can be written by no other any more, so that try never happens, however late its COMMIT arrives.
//!
//! A number travels in the same message as COMMIT, and is written only where the transaction has written something. It
//! is of no use once the COMMIT was answered, and is taken away by a later one of the same process.
//!
//! Publishing and settling know their own rows again ([`super::publish`], [`super::settle`]) and have no numbers.

use std::fmt::{self, Write};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use sqlx::AssertSqlSafe;

use super::desk::{Desk, run};
use super::faults::Step;

/// How many numbers that were answered a COMMIT takes away; the rest is for the next one.
const TAKEN_AWAY_MAX: usize = 64;
/// How often what others left behind is looked for: there is no index to find it by.
const SWEEP_EVERY: Duration = Duration::from_secs(600);
/// How many are remembered, to be taken away: a few for each connection are usual.
const ANSWERED_MAX: usize = 4096;

/// The number of a try: that of an opened store, and a count within it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Number {
    life: u64,
    count: u64,
}

impl fmt::Display for Number {
    /// As PostgreSQL reads a `uuid`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}{:016x}", self.life, self.count)
    }
}

/// The numbers of an opened store.
#[derive(Debug)]
pub(super) struct Numbers {
    /// By chance, so that no two of them have the same numbers, not even after a restore.
    life: u64,
    next: AtomicU64,
    answered: Mutex<Vec<Number>>,
    /// When what others left behind was taken away last.
    swept: Mutex<Option<Instant>>,
}

impl Default for Numbers {
    fn default() -> Self {
        let life = RandomState::new().hash_one(std::process::id());
        Self { life, next: AtomicU64::new(0), answered: Mutex::default(), swept: Mutex::default() }
    }
}

impl Numbers {
    /// A new one.
    pub(super) fn next(&self) -> Number {
        Number { life: self.life, count: self.next.fetch_add(1, Relaxed) }
    }

    /// These are needed no longer.
    pub(super) fn answered(&self, numbers: impl IntoIterator<Item = Number>) {
        let mut answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        let room = ANSWERED_MAX.saturating_sub(answered.len());
        answered.extend(numbers.into_iter().take(room));
    }

    /// Whether it is time to take away what others left behind.
    pub(super) fn are_to_be_swept(&self) -> bool {
        let mut swept = self.swept.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = swept.is_none_or(|last| last.elapsed() > SWEEP_EVERY);
        if is_due {
            *swept = Some(Instant::now());
        }
        is_due
    }

    fn to_take_away(&self) -> Vec<Number> {
        let mut answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        let from = answered.len().saturating_sub(TAKEN_AWAY_MAX);
        answered.split_off(from)
    }
}

/// A try whose COMMIT was not answered, and what it would have said.
#[derive(Debug)]
pub(super) struct Earlier<T> {
    pub(super) number: Number,
    pub(super) did: T,
}

/// Their numbers.
pub(super) fn numbers<T>(earlier: &[Earlier<T>]) -> Vec<Number> {
    earlier.iter().map(|one| one.number).collect()
}

impl Desk {
    /// Commits under a number. Where this fails, [`super::faults::kind`] tells whether it may have happened.
    pub(super) async fn commit_as(&mut self, number: Number) -> sqlx::Result<()> {
        let gone = self.office.numbers.to_take_away();
        let schema = self.office.schema.name();
        let mut say = format!(
            "INSERT INTO {schema}.once (number) SELECT '{number}'::uuid WHERE pg_current_xact_id_if_assigned() IS NOT NULL; "
        );
        if !gone.is_empty() {
            let _ = write!(say, "DELETE FROM {schema}.once WHERE number IN (");
            for (at, number) in gone.iter().enumerate() {
                let _ = write!(say, "{}'{number}'", if at == 0 { "" } else { ", " });
            }
            say.push_str("); ");
        }
        say.push_str("COMMIT");
        say.push_str(self.tidies);
        let committed = sqlx::raw_sql(AssertSqlSafe(say)).execute(&mut *self.conn).await.map(drop);
        self.is_open = committed.is_err();
        let numbers = &self.office.numbers;
        match &committed {
            Ok(()) => numbers.answered([number]),
            // Whether these are gone or not: they may be taken away twice.
            Err(_) => numbers.answered(gone),
        }
        committed
    }

    /// Which of these tries was committed, waiting until that is certain. Where none was, none ever will be, if this
    /// transaction commits.
    pub(super) async fn recognise(&mut self, earlier: &[Number]) -> Step<Option<usize>> {
        // The last first: it has written the numbers of those before it.
        for (at, number) in earlier.iter().enumerate().rev() {
            let insert = "INSERT INTO redrive.once (number) VALUES ($1::uuid) ON CONFLICT DO NOTHING";
            if run!(self, insert, number.to_string())? == 0 {
                // Whoever hears of it asks for none of them any more.
                self.office.numbers.answered(earlier.iter().copied());
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    /// Takes away what processes left behind that died between a COMMIT and the next.
    pub(super) async fn forget_numbers(&mut self) -> Step<usize> {
        let forget = "DELETE FROM redrive.once WHERE number IN (SELECT number FROM redrive.once \
                      WHERE at < clock_timestamp() - interval '1 h' LIMIT 1000)";
        Ok(usize::try_from(run!(self, forget)?).unwrap_or(usize::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_uuids_and_differ_between_openings() {
        let (one, two) = (Numbers::default(), Numbers::default());
        let number = one.next();
        assert_eq!(number.to_string().len(), 32);
        assert_ne!(number, one.next());
        assert_ne!(number, two.next());
    }

    #[test]
    fn what_was_answered_is_taken_away_a_slice_at_a_time() {
        let numbers = Numbers::default();
        numbers.answered((0..ANSWERED_MAX * 2).map(|_| numbers.next()));
        let slices = std::iter::from_fn(|| Some(numbers.to_take_away()).filter(|slice| !slice.is_empty()));
        let sizes: Vec<usize> = slices.map(|slice| slice.len()).collect();
        assert_eq!(sizes, [TAKEN_AWAY_MAX; ANSWERED_MAX / TAKEN_AWAY_MAX]);
    }
}
