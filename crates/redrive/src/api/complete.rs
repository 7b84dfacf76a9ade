//! Completing a request in the user's own PostgreSQL transaction.

use std::sync::Arc;

use redrive_core::ledger::{RequestScope, StoredReply};
use redrive_http::idempotent;
use redrive_store::postgres::sqlx::PgTransaction;
use redrive_store::{CompleteError, postgres};

use super::commit_reply::{CommitError, CommittedReply};
use super::operation::Operation;
use super::requests::EngineLedger;
use crate::Redrive;

impl Operation {
    /// Completes the request in the caller's own transaction, with this answer: the caller's own tables, events,
    /// markers and the answer commit together or not at all. Finish with [`Completing::commit`].
    ///
    /// Call it last before the commit: until the commit the request is locked, and the database ends a session that is
    /// idle for a third of the store's lease.
    ///
    /// ```no_run
    /// # use redrive::{CommittedReply, Operation, api::{CommitError, StoredReply}, postgres::sqlx::{self, PgPool}};
    /// async fn book(op: Operation, pool: PgPool) -> Result<CommittedReply, CommitError> {
    ///     let mut tx = pool.begin().await.map_err(CommitError::work)?;
    ///     let insert = sqlx::query("INSERT INTO booking (guest) VALUES ('Ada')");
    ///     insert.execute(&mut *tx).await.map_err(CommitError::work)?;
    ///     let answer = op.complete_in(&mut tx, StoredReply::new(201).body("booked")).await?;
    ///     answer.commit(tx).await
    /// }
    /// ```
    ///
    /// # Errors
    /// [`CommitError::Fenced`] if another run owns the request; or if the store operation fails. After any error the
    /// transaction cannot commit: its COMMIT acts as a ROLLBACK, which the driver does not report. Only a rollback to
    /// a savepoint from before this call undoes that, together with the call.
    pub async fn complete_in(
        &self,
        tx: &mut PgTransaction<'_>,
        reply: StoredReply,
    ) -> Result<Completing, CommitError> {
        if self.is_committed() {
            postgres::spoil(tx).await;
            return Err(CommitError::Twice);
        }
        if let Some(epoch) = self.epoch() {
            let (kept, resource) = (self.kept(&reply), self.named_resource());
            let completed = complete(self.redrive(), tx, self.scope(), epoch, (kept, resource)).await;
            completed.map_err(|error| match error {
                CompleteError::Store(error) => CommitError::Store(error),
                _ => CommitError::Fenced,
            })?;
        }
        let operation = idempotent::KeyedOperation::clone(self);
        Ok(Completing { operation, reply: Arc::new(reply) })
    }
}

impl EngineLedger {
    /// Completes a request in the caller's own transaction, fenced by the epoch of the run. Call it last before the
    /// commit; see [`Operation::complete_in`].
    ///
    /// # Errors
    /// [`CompleteError::Fenced`] if another run owns the request; or if the store operation fails. After any error the
    /// transaction cannot commit.
    pub async fn complete_in(
        &self,
        tx: &mut PgTransaction<'_>,
        scope: &RequestScope,
        epoch: u64,
        reply: StoredReply,
        resource: Option<String>,
    ) -> Result<(), CompleteError> {
        complete(&self.redrive, tx, scope, epoch, (reply, resource)).await
    }
}

async fn complete(
    redrive: &Redrive,
    tx: &mut PgTransaction<'_>,
    scope: &RequestScope,
    epoch: u64,
    answer: (StoredReply, Option<String>),
) -> Result<(), CompleteError> {
    match redrive.database() {
        Ok(database) => database.complete_in(tx, scope, epoch, answer, redrive.now()).await,
        Err(error) => {
            postgres::spoil(tx).await;
            Err(error.into())
        }
    }
}

/// A request whose answer commits with a transaction.
#[derive(Debug)]
#[must_use = "the answer is kept when its transaction commits"]
pub struct Completing {
    operation: idempotent::KeyedOperation,
    reply: Arc<StoredReply>,
}

impl Completing {
    /// Commits the transaction that completed the request. From then on the client gets this answer, whatever the
    /// handler returns.
    ///
    /// A handler that commits in another way may return any answer: the layer finds the stored one and sends it.
    ///
    /// # Errors
    /// If the transaction was rolled back, or its outcome is unknown: the layer then answers that repeating the
    /// request finds out.
    pub async fn commit(self, tx: PgTransaction<'_>) -> Result<CommittedReply, CommitError> {
        let Self { operation, reply } = self;
        match postgres::commit(tx).await {
            Ok(()) => {
                operation.committed(Arc::clone(&reply));
                Ok(CommittedReply(reply))
            }
            Err(error) => {
                if !error.is_definite() {
                    operation.in_doubt();
                }
                Err(CommitError::Store(error))
            }
        }
    }
}
