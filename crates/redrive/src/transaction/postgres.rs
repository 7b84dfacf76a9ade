//! Over a PostgreSQL pool of the caller's own.
//!
//! ```no_run
//! use redrive::postgres::sqlx::{self, PgPool};
//! use redrive::transaction::postgres::{Isolation, transact_once};
//! use redrive::transaction::TransactionSettings;
//! use redrive::{Event, Redrive};
//!
//! # async fn run(redrive: Redrive, pool: PgPool) -> Result<(), Box<dyn std::error::Error>> {
//! redrive::cas::postgres::create(&pool).await?; // the table of numbers, once
//! let settings = TransactionSettings::default();
//! transact_once(&pool, "booking-7", Isolation::Serializable, &settings, |tx| {
//!     let redrive = redrive.clone();
//!     Box::pin(async move {
//!         sqlx::query("UPDATE cabin SET guest = 'Ada' WHERE number = 7").execute(&mut **tx).await?;
//!         // The outbox: the email exists if this commits.
//!         redrive.publish_in(tx, Event::new("emails", "booking-7")).await?;
//!         Ok(())
//!     })
//! })
//! .await?;
//! # Ok(())
//! # }
//! ```

use futures_util::future::BoxFuture;
use redrive_core::Fault;
use redrive_core::ladder::transaction::{TransactionRun, TransactionSettings};
use redrive_retry::{classify, effects};
use redrive_store::postgres::sqlx;
use sqlx::{PgPool, PgTransaction};

use super::{BodyCommitted, BoxError, CommittedOnce, Ran, TransactionError, after, find};

/// The isolation level of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Isolation {
    /// What the database has as its default.
    #[default]
    Default,
    /// `REPEATABLE READ`.
    RepeatableRead,
    /// `SERIALIZABLE`.
    Serializable,
}

impl Isolation {
    const fn begin(self) -> &'static str {
        match self {
            Self::Default => "BEGIN",
            Self::RepeatableRead => "BEGIN ISOLATION LEVEL REPEATABLE READ",
            Self::Serializable => "BEGIN ISOLATION LEVEL SERIALIZABLE",
        }
    }
}

/// Runs the body in a transaction, and again as a whole after a serialisation failure, a deadlock or a cut connection
/// before COMMIT.
///
/// # Errors
/// See [`TransactionError`]: only [`TransactionError::Unknown`] leaves open whether it is committed.
pub async fn transact<T>(
    pool: &PgPool,
    isolation: Isolation,
    settings: &TransactionSettings,
    mut body: impl for<'t> FnMut(&'t mut PgTransaction<'static>) -> BoxFuture<'t, Result<T, BoxError>>,
) -> Result<BodyCommitted<T>, TransactionError> {
    match looped(pool, None, isolation, settings, &mut body).await? {
        CommittedOnce::Now(committed) => Ok(committed),
        // Without a number there is nothing that could have been committed before.
        CommittedOnce::Before => Err(TransactionError::Body("the transaction has no number".into())),
    }
}

/// Runs the body in a transaction that begins by writing `number`, so that it commits once however often it is called,
/// and a lost answer to COMMIT is found out about. Needs the table of
/// [`cas::postgres::create`](crate::cas::postgres::create).
///
/// # Errors
/// As [`transact`].
pub async fn transact_once<T>(
    pool: &PgPool,
    number: &str,
    isolation: Isolation,
    settings: &TransactionSettings,
    mut body: impl for<'t> FnMut(&'t mut PgTransaction<'static>) -> BoxFuture<'t, Result<T, BoxError>>,
) -> Result<CommittedOnce<T>, TransactionError> {
    looped(pool, Some(number), isolation, settings, &mut body).await
}

async fn looped<T, B>(
    pool: &PgPool,
    number: Option<&str>,
    isolation: Isolation,
    settings: &TransactionSettings,
    body: &mut B,
) -> Result<CommittedOnce<T>, TransactionError>
where
    B: for<'t> FnMut(&'t mut PgTransaction<'static>) -> BoxFuture<'t, Result<T, BoxError>>,
{
    let mut run = TransactionRun::new(settings, number.is_some());
    loop {
        let ran = once(pool, number, isolation, body).await.unwrap_or_else(Ran::Failed);
        let fault =
            |error: &(dyn std::error::Error + 'static)| find::<sqlx::Error>(error).and_then(classify::sqlx);
        match after(&mut run, ran, fault)? {
            Ok(committed) => return Ok(committed),
            Err(wait) => tokio::time::sleep(wait).await,
        }
    }
}

async fn once<T, B>(
    pool: &PgPool,
    number: Option<&str>,
    isolation: Isolation,
    body: &mut B,
) -> Result<Ran<T>, BoxError>
where
    B: for<'t> FnMut(&'t mut PgTransaction<'static>) -> BoxFuture<'t, Result<T, BoxError>>,
{
    let mut tx = pool.begin_with(isolation.begin()).await?;
    if let Some(number) = number {
        let remember =
            "INSERT INTO redrive_operation (target, id) VALUES ('transaction', $1) ON CONFLICT DO NOTHING";
        // It waits for a commit of the same number whose answer was lost, and then knows how it ended.
        if sqlx::query(remember).bind(number).execute(&mut *tx).await?.rows_affected() == 0 {
            return Ok(Ran::Before);
        }
    }
    let value = effects::refused_during(body(&mut tx)).await?;
    Ok(match tx.commit().await {
        Ok(()) => Ran::Committed(value),
        Err(error) => {
            let fault = classify::sqlx(&error).unwrap_or(Fault::permanent());
            Ran::CommitFailed(error.into(), fault)
        }
    })
}
