//! Over a SQLite file of the caller's own, with `BEGIN IMMEDIATE`: a transaction that reads first and writes later
//! would otherwise meet `SQLITE_BUSY_SNAPSHOT` in the middle.
//!
//! ```
//! use redrive::rusqlite::Connection;
//! use redrive::transaction::TransactionSettings;
//! use redrive::transaction::sqlite::transact;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut file = Connection::open_in_memory()?;
//! file.execute_batch("CREATE TABLE counter (n INTEGER); INSERT INTO counter VALUES (41)")?;
//! let committed = transact(&mut file, &TransactionSettings::default(), |tx| {
//!     let n: i64 = tx.query_row("SELECT n FROM counter", [], |row| row.get(0))?;
//!     tx.execute("UPDATE counter SET n = ?1", [n + 1])?;
//!     Ok(n + 1)
//! })?;
//! assert_eq!((committed.value, committed.runs), (42, 1));
//! # Ok(())
//! # }
//! ```

use redrive_core::Fault;
use redrive_core::ladder::transaction::{TransactionRun, TransactionSettings};
use redrive_retry::{classify, effects};
use rusqlite::{Connection, Transaction, TransactionBehavior};

use super::{BodyCommitted, BoxError, CommittedOnce, Ran, TransactionError, after, find};

/// Runs the body in a transaction, and again as a whole while the file is busy. Blocks.
///
/// # Errors
/// See [`TransactionError`]: only [`TransactionError::Unknown`] leaves open whether it is committed.
pub fn transact<T>(
    file: &mut Connection,
    settings: &TransactionSettings,
    mut body: impl FnMut(&Transaction<'_>) -> Result<T, BoxError>,
) -> Result<BodyCommitted<T>, TransactionError> {
    match looped(file, None, settings, &mut body)? {
        CommittedOnce::Now(committed) => Ok(committed),
        // Without a number there is nothing that could have been committed before.
        CommittedOnce::Before => Err(TransactionError::Body("the transaction has no number".into())),
    }
}

/// Runs the body in a transaction that begins by writing `number`, so that it commits once however often it is called.
/// Needs the table of [`cas::sqlite::create`](crate::cas::sqlite::create). After an I/O error at COMMIT, reopen the
/// file before you ask again: the same connection may not show what the disk holds.
///
/// # Errors
/// As [`transact`].
pub fn transact_once<T>(
    file: &mut Connection,
    number: &str,
    settings: &TransactionSettings,
    mut body: impl FnMut(&Transaction<'_>) -> Result<T, BoxError>,
) -> Result<CommittedOnce<T>, TransactionError> {
    looped(file, Some(number), settings, &mut body)
}

fn looped<T>(
    file: &mut Connection,
    number: Option<&str>,
    settings: &TransactionSettings,
    body: &mut impl FnMut(&Transaction<'_>) -> Result<T, BoxError>,
) -> Result<CommittedOnce<T>, TransactionError> {
    // An I/O error at COMMIT is unknown even with a number: this connection cannot find out.
    let mut run = TransactionRun::new(settings, false);
    loop {
        let ran = once(file, number, body).unwrap_or_else(Ran::Failed);
        let fault = |error: &(dyn std::error::Error + 'static)| {
            find::<rusqlite::Error>(error).and_then(classify::sqlite)
        };
        match after(&mut run, ran, fault)? {
            Ok(committed) => return Ok(committed),
            Err(wait) => std::thread::sleep(wait),
        }
    }
}

fn once<T>(
    file: &mut Connection,
    number: Option<&str>,
    body: &mut impl FnMut(&Transaction<'_>) -> Result<T, BoxError>,
) -> Result<Ran<T>, BoxError> {
    let tx = file.transaction_with_behavior(TransactionBehavior::Immediate)?;
    if let Some(number) = number {
        let remember =
            "INSERT INTO redrive_operation (target, id) VALUES ('transaction', ?1) ON CONFLICT DO NOTHING";
        if tx.execute(remember, [number])? == 0 {
            return Ok(Ran::Before);
        }
    }
    let value = effects::refused_in(|| body(&tx))?;
    Ok(match tx.commit() {
        Ok(()) => Ran::Committed(value),
        Err(error) => {
            let fault = classify::sqlite(&error).unwrap_or(Fault::permanent());
            Ran::CommitFailed(error.into(), fault)
        }
    })
}
