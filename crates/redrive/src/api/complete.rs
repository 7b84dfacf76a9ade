//! The end of a request in the user's own PostgreSQL transaction.

use std::sync::Arc;

use redrive_core::ledger::{Reply, Scope};
use redrive_http::idempotent;
use redrive_store::postgres::sqlx::PgTransaction;
use redrive_store::{CompleteError, postgres};

use super::commit::{CommitError, Committed};
use super::operation::Operation;
use super::requests::Requests;
use crate::Redrive;

impl Operation {
    /// Completes the request in the caller's own transaction, with this answer: the caller's own tables, events, markers
    /// and the answer are there together or not at all. Ends with [`Completing::commit`].
    ///
    /// It is the last thing to do before the commit: until then nobody else gets at the request, and the database ends a
    /// session that does nothing for a third of the store's lease.
    ///
    /// ```no_run
    /// # use redrive::{Committed, Operation, api::{CommitError, Reply}, postgres::sqlx::{self, PgPool}};
    /// async fn book(op: Operation, pool: PgPool) -> Result<Committed, CommitError> {
    ///     let mut tx = pool.begin().await.map_err(CommitError::work)?;
    ///     let insert = sqlx::query("INSERT INTO booking (guest) VALUES ('Ada')");
    ///     insert.execute(&mut *tx).await.map_err(CommitError::work)?;
    ///     let answer = op.complete_in(&mut tx, Reply::new(201).body("booked")).await?;
    ///     answer.commit(tx).await
    /// }
    /// ```
    ///
    /// # Errors
    /// [`CommitError::Fenced`] where another run has the request; or where the store could not. After any error the
    /// transaction cannot commit, whatever the caller does with it: its COMMIT is a ROLLBACK, which the driver does not
    /// tell. Only going back to a savepoint from before this call undoes that, with the call.
    pub async fn complete_in(
        &self,
        tx: &mut PgTransaction<'_>,
        reply: Reply,
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
        let operation = idempotent::Operation::clone(self);
        Ok(Completing { operation, reply: Arc::new(reply) })
    }
}

impl Requests {
    /// Completes a request in the caller's own transaction, under the fence of the run with this epoch. The last thing
    /// to do before the commit, as [`Operation::complete_in`] says.
    ///
    /// # Errors
    /// [`CompleteError::Fenced`] where another run has it; or where the store could not. After any error the transaction
    /// cannot commit.
    pub async fn complete_in(
        &self,
        tx: &mut PgTransaction<'_>,
        scope: &Scope,
        epoch: u64,
        reply: Reply,
        resource: Option<String>,
    ) -> Result<(), CompleteError> {
        complete(&self.redrive, tx, scope, epoch, (reply, resource)).await
    }
}

async fn complete(
    redrive: &Redrive,
    tx: &mut PgTransaction<'_>,
    scope: &Scope,
    epoch: u64,
    answer: (Reply, Option<String>),
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
    operation: idempotent::Operation,
    reply: Arc<Reply>,
}

impl Completing {
    /// Commits the transaction that the request was completed in. From then on that answer is what is sent, whatever the
    /// handler does next.
    ///
    /// Who commits in another way answers what they like: the layer finds the answer that was kept, and sends it.
    ///
    /// # Errors
    /// Where it was rolled back, or nobody knows: then the layer says that asking again finds out.
    pub async fn commit(self, tx: PgTransaction<'_>) -> Result<Committed, CommitError> {
        let Self { operation, reply } = self;
        match postgres::commit(tx).await {
            Ok(()) => {
                operation.committed(Arc::clone(&reply));
                Ok(Committed(reply))
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
