//! The user's own transaction: a publish, a marker and the end of a request that commit with the user's writes.
//!
//! The connection is the user's, and so is the commit. The code is that of the store's own transactions, so identities,
//! fences and answers are the same. The differences:
//!
//! - It has to be the same database, in the same incarnation: an event in another one would never run. One statement
//!   checks each time, because nothing distinguishes one connection from another.
//! - The store does not learn of the commit. A publisher gets a [`Wakeup`] to use after it; without it, the next look
//!   finds the event. No `NOTIFY` is sent inside, because it would serialize all commits that have one.
//! - Nothing is locked that an owner needs: expired rows that are in the way are deleted in a transaction of the
//!   store's own.
//! - A run that was taken over must not commit anything. The call fails, and the transaction is also spoilt in the
//!   database: its COMMIT is a ROLLBACK, whatever the caller does with the error.
//!
//! `READ COMMITTED` waits for a transaction that is about to commit the same identity, marker or request, and then
//! sees its writes. Under `REPEATABLE READ` and `SERIALIZABLE` the same is the error `40001`, and the user repeats the
//! transaction.

use std::fmt;
use std::sync::Arc;

use redrive_core::Moment;
use redrive_core::ledger::{RequestScope, StoredReply};
use redrive_core::queue_entry::StreamId;
use sqlx::{PgConnection, PgTransaction, Row};

use crate::error::{PublishError, StoreError};
use crate::ledger::RunEnding;
use crate::store::{Arrivals, NewEvent, Published};
use crate::stores::postgres::Postgres;
use crate::stores::postgres::database::{Database, TxFuture, autocommit};
use crate::stores::postgres::events::dedupe::DedupeRecord;
use crate::stores::postgres::faults::{Fault, Kind, Step, broken, kind, not_done, rolled_back, unknown};
use crate::stores::postgres::open::schema::Schema;
use crate::stores::postgres::publish::slow::Given;
use crate::stores::postgres::tx::{PgTx, maybe};
use crate::transaction::CompleteError;

/// How often an expired identity is published again.
const FORGOTTEN_MAX: u32 = 5;

/// The identity of a database: its number within the server, and its incarnation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::stores::postgres) struct DatabaseIdentity {
    database: i64,
    incarnation: i64,
}

/// The statement that reads it.
const HOME: &str = "SELECT database.oid::bigint, shard.incarnation FROM pg_catalog.pg_database database, \
                    redrive.shard WHERE database.datname = current_database() AND shard.id = 0";

impl DatabaseIdentity {
    /// The identity behind this connection. `keeps`: whether the statement stays prepared.
    pub(in crate::stores::postgres) async fn of(
        conn: &mut PgConnection,
        schema: &Schema,
        keeps: bool,
    ) -> sqlx::Result<Self> {
        let row = sqlx::query(schema.sql(HOME)).persistent(keeps).fetch_one(conn).await?;
        Ok(Self { database: row.try_get(0)?, incarnation: row.try_get(1)? })
    }
}

/// Notifies this process and others of events published in a caller's transaction.
///
/// Use it after the commit. Dropping it, or using it after a rollback, costs nothing but time: without it, the next
/// look finds the events within a fifth of a second.
pub struct Wakeup {
    db: Arc<Database>,
    streams: Vec<(StreamId, String, String)>,
}

impl Wakeup {
    /// Wakes the owner of the event.
    pub fn wake(self) {
        let Self { db, streams } = self;
        let arrivals = Arrivals { missed: !streams.is_empty(), streams, ..Arrivals::default() };
        db.tell(db.notifier.pending.begin(), arrivals);
    }
}

impl fmt::Debug for Wakeup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wakeup").field("streams", &self.streams).finish_non_exhaustive()
    }
}

impl Postgres {
    /// Publishes in a caller's transaction: the event exists if it commits, and never existed if it does not.
    ///
    /// # Errors
    /// As [`EventStore::publish`](crate::EventStore::publish), and [`StoreError::Elsewhere`]. Roll the transaction
    /// back after an error of the store.
    pub async fn publish_in(
        &self,
        tx: &mut PgTransaction<'_>,
        new: NewEvent,
    ) -> Result<(Published, Wakeup), PublishError> {
        self.db.check()?;
        let stream = (new.event.queue.clone(), new.event.tenant.clone());
        for _ in 0..FORGOTTEN_MAX {
            let mut tx = PgTx::caller_tx(tx, &self.db);
            let published = match tx.check_identity().await {
                Ok(()) => self.publish_at(&mut tx, &new, &stream).await,
                Err(fault) => Err(fault),
            };
            if let Some(over) = tx.over.take() {
                self.forget_over(over).await?;
                continue;
            }
            let streams = tx.woken().await.map_err(not_done)?;
            let published = published.map_err(not_done)??;
            return Ok((published, Wakeup { db: Arc::clone(&self.db), streams }));
        }
        Err(broken("an expired event with this id was not deleted").into())
    }

    async fn publish_at(
        &self,
        tx: &mut PgTx<'_>,
        new: &NewEvent,
        (queue, tenant): &(String, String),
    ) -> Step<Result<Published, PublishError>> {
        if new.event.check().is_ok() && tx.spec(queue).await?.is_some() {
            self.make_known(tx, queue, tenant).await?;
        }
        let mut answers = tx.publish_all(&[new], &mut Given::new()).await?;
        Ok(answers.pop().unwrap_or_else(|| Err(broken("an event was not answered").into())))
    }

    /// Creates a stream in a commit of its own, on the store's own threads: its connections are driven there. Not if
    /// this very transaction has created it: no other could, before it ends.
    async fn make_known(&self, tx: &mut PgTx<'_>, queue: &str, tenant: &str) -> Step<()> {
        if self.db.cache.names.named(queue, tenant).is_some() {
            return Ok(());
        }
        let names = (Arc::clone(&self.db), queue.to_owned(), tenant.to_owned());
        let (db, of, by) = names.clone();
        let looking = self.call(async move { db.look_for_stream(&of, &by).await.map_err(autocommit) });
        if looking.await? || tx.find_stream(queue, tenant).await?.is_some() {
            return Ok(());
        }
        let (db, of, by) = names;
        let making = self.call(async move { db.open_stream(&of, &by).await.map(drop).map_err(autocommit) });
        Ok(making.await?)
    }

    /// Deletes an expired identity, in a commit of its own.
    async fn forget_over(&self, over: DedupeRecord) -> Result<(), StoreError> {
        let over = Arc::new(over);
        let forgetting = self.write(move |tx| -> TxFuture<'_, ()> {
            let over = Arc::clone(&over);
            Box::pin(async move {
                tx.lock_shards().await?;
                if tx.is_over(&over).await? {
                    tx.delete_dedupe_at(over.stream, &over.id, over.seq).await?;
                }
                Ok(())
            })
        });
        forgetting.await
    }

    /// Marks in a caller's transaction that `handler` has processed `id`; `false` if it had.
    ///
    /// # Errors
    /// If the store operation fails; then roll the transaction back.
    pub async fn mark_in(
        &self,
        tx: &mut PgTransaction<'_>,
        handler: &str,
        id: &str,
        until: Moment,
    ) -> Result<bool, StoreError> {
        self.db.check()?;
        let mut tx = PgTx::caller_tx(tx, &self.db);
        tx.check_identity().await.map_err(not_done)?;
        tx.mark(handler, id, until).await.map_err(not_done)
    }

    /// Completes a request in a caller's transaction, under its fence. Call it last: from here to the commit the
    /// request is locked, and the database ends a session that is idle for a third of the lease.
    ///
    /// # Errors
    /// [`CompleteError::Fenced`] if the run was taken over, or if the store operation fails. After any of them the
    /// transaction cannot commit.
    pub async fn complete_in(
        &self,
        tx: &mut PgTransaction<'_>,
        scope: &RequestScope,
        epoch: u64,
        (reply, resource): (StoredReply, Option<String>),
        at: Moment,
    ) -> Result<(), CompleteError> {
        let end = RunEnding::Completed { reply, resource };
        let completed = PgTx::caller_tx(tx, &self.db).complete(scope, epoch, end, at).await;
        if completed.is_err() {
            spoil(tx).await;
        }
        completed
    }
}

impl PgTx<'_> {
    /// Refuses a connection to another database.
    async fn check_identity(&mut self) -> Step<()> {
        let elsewhere = |why: String| Fault::Refused(StoreError::Elsewhere { why });
        let keeps = self.keeps();
        let home = match DatabaseIdentity::of(&mut self.conn, &self.db.schema, keeps).await {
            Ok(home) => home,
            Err(sqlx::Error::RowNotFound) => {
                return Err(elsewhere("its tables are there, and empty".to_owned()));
            }
            Err(error) => {
                let code = error.as_database_error().and_then(|said| said.code()).unwrap_or_default();
                let schema = self.db.schema.name();
                return Err(match &*code {
                    "42P01" | "3F000" => elsewhere(format!(
                        "there is no schema `{schema}` of Redrive in it; begin the transaction in {}",
                        self.db.place
                    )),
                    "42501" => elsewhere(format!(
                        "its user may not use the schema `{schema}`; grant it the rights of the store's own user"
                    )),
                    _ => error.into(),
                });
            }
        };
        if home == self.db.home {
            return Ok(());
        }
        Err(elsewhere(format!(
            "it is another database with a schema of that name, or it was restored since; begin the transaction in {}",
            self.db.place
        )))
    }

    /// The streams with published events.
    async fn woken(&mut self) -> Step<Vec<(StreamId, String, String)>> {
        let mut woken = std::mem::take(&mut self.missed);
        for entry in std::mem::take(&mut self.arrived) {
            if let Some(stream) = self.stream(entry.stream).await? {
                woken.insert(stream.id, stream);
            }
        }
        Ok(woken.into_values().map(|stream| stream.named()).collect())
    }

    async fn complete(
        &mut self,
        scope: &RequestScope,
        epoch: u64,
        end: RunEnding,
        at: Moment,
    ) -> Result<(), CompleteError> {
        self.db.check()?;
        self.check_identity().await.map_err(not_done)?;
        self.bound_idleness().await.map_err(not_done)?;
        let ended = self.end_request(scope, epoch, end, at).await;
        ended.map_err(not_done)?.map_err(CompleteError::Fenced)
    }

    /// A suspended process must not block a takeover for longer than this.
    async fn bound_idleness(&mut self) -> Step<()> {
        let millis = i64::try_from((self.db.lease / 3).as_millis()).unwrap_or(i64::MAX);
        maybe!(
            self,
            "SELECT set_config(name, $1::text, true) FROM pg_catalog.pg_settings \
             WHERE name = 'idle_in_transaction_session_timeout' AND (setting = '0' OR setting::bigint > $1)",
            millis
        )?;
        Ok(())
    }
}

/// Commits a transaction, and makes sure that it was committed: after a failed statement its COMMIT is a ROLLBACK,
/// which the driver does not report.
///
/// # Errors
/// [`StoreError::Unknown`] if the COMMIT was not answered; after any other error everything is rolled back.
pub async fn commit(mut tx: PgTransaction<'_>) -> Result<(), StoreError> {
    sqlx::raw_sql("SELECT").execute(&mut *tx).await.map_err(rolled_back)?;
    tx.commit().await.map_err(|error| match kind(&error) {
        Kind::Cut => unknown(&error),
        _ => rolled_back(error),
    })
}

/// Makes sure that a transaction does not commit, whatever its user does: from now on its COMMIT is a ROLLBACK.
pub async fn spoil(tx: &mut PgTransaction<'_>) {
    let spoil =
        "DO $$ BEGIN RAISE EXCEPTION 'the request was not completed; nothing of its run may be kept'; END $$";
    // It fails, as it should; if it does not even get there, the connection is gone, and its transaction with it.
    let _ = sqlx::raw_sql(spoil).execute(&mut **tx).await;
}
