//! In the user's own transaction: a publish, a marker and the end of a request that commit with whatever else it does.
//!
//! The connection is the user's, and so is the commit. What is done is what a desk of the store does, at a desk whose
//! connection was lent; so identities, fences and answers are the same. The differences:
//!
//! - It has to be the same database, in the same life: an event that is kept elsewhere is never run. Asked each time,
//!   with one statement, for nothing tells one connection from another.
//! - Nobody here learns of the commit. Whoever publishes is given a [`Wakeup`] to use after it; without, the event is
//!   found by the next look. No `NOTIFY` is sent inside, because it would make all commits that have one wait for each
//!   other.
//! - Nothing is locked that an owner needs: what has to be forgotten first is forgotten in a transaction of the store's.
//! - A run that was taken over must not commit anything. That is an error of the call, and beyond that the transaction
//!   is spoilt in the database: its COMMIT is a ROLLBACK, whatever became of the error.
//!
//! `READ COMMITTED` waits for whoever is about to commit the same identity, marker or request, and then goes by what that
//! one did. Under `REPEATABLE READ` and `SERIALIZABLE` the same is the error `40001`, and the user does it all again.

use std::fmt;
use std::sync::Arc;

use redrive_core::Moment;
use redrive_core::entry::StreamId;
use redrive_core::ledger::{Reply, Scope};
use sqlx::{PgConnection, PgTransaction, Row};

use super::Postgres;
use super::desk::{DeskAt, maybe};
use super::faults::{Fault, Kind, Step, broken, kind, not_done, rolled_back, unknown};
use super::office::{Doing, Office, aside};
use super::publish::Given;
use super::receipt::Receipt;
use super::schema::Schema;
use crate::error::{PublishError, StoreError};
use crate::ledger::End;
use crate::store::{Arrivals, New, Published};
use crate::transaction::CompleteError;

/// How often an identity is published again whose time was over.
const FORGOTTEN_MAX: u32 = 5;

/// Which database it is: its number within the server, and the life of what is in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Home {
    database: i64,
    incarnation: i64,
}

/// The statement that tells it.
const HOME: &str = "SELECT database.oid::bigint, shard.incarnation FROM pg_catalog.pg_database database, \
                    redrive.shard WHERE database.datname = current_database() AND shard.id = 0";

impl Home {
    /// Where this connection is. `keeps`: whether the statement is prepared for later.
    pub(super) async fn of(conn: &mut PgConnection, schema: &Schema, keeps: bool) -> sqlx::Result<Self> {
        let row = sqlx::query(schema.sql(HOME)).persistent(keeps).fetch_one(conn).await?;
        Ok(Self { database: row.try_get(0)?, incarnation: row.try_get(1)? })
    }
}

/// Tells this process and others of what was published in somebody else's transaction.
///
/// To be used after the commit. Dropped, or used although it was rolled back, it costs nothing but time: without it, what
/// was published is found by the next look, within a fifth of a second.
pub struct Wakeup {
    office: Arc<Office>,
    streams: Vec<(StreamId, String, String)>,
}

impl Wakeup {
    /// Has whoever runs the event look for it now.
    pub fn wake(self) {
        let Self { office, streams } = self;
        let arrivals = Arrivals { missed: !streams.is_empty(), streams, ..Arrivals::default() };
        office.tell(office.tellings.begin(), arrivals);
    }
}

impl fmt::Debug for Wakeup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wakeup").field("streams", &self.streams).finish_non_exhaustive()
    }
}

impl Postgres {
    /// Publishes in somebody else's transaction: the event is there when it commits, and never was when it does not.
    ///
    /// # Errors
    /// As [`Store::publish`](crate::Store::publish), and [`StoreError::Elsewhere`]. After one of the store's the
    /// transaction is to be rolled back.
    pub async fn publish_in(
        &self,
        tx: &mut PgTransaction<'_>,
        new: New,
    ) -> Result<(Published, Wakeup), PublishError> {
        self.office.check()?;
        let stream = (new.event.queue.clone(), new.event.tenant.clone());
        for _ in 0..FORGOTTEN_MAX {
            let mut desk = DeskAt::lent(tx, &self.office);
            let published = match desk.check_home().await {
                Ok(()) => self.publish_at(&mut desk, &new, &stream).await,
                Err(fault) => Err(fault),
            };
            if let Some(over) = desk.over.take() {
                self.forget_over(over).await?;
                continue;
            }
            let streams = desk.woken().await.map_err(not_done)?;
            let published = published.map_err(not_done)??;
            return Ok((published, Wakeup { office: Arc::clone(&self.office), streams }));
        }
        Err(broken("what was published under this id before is not forgotten").into())
    }

    async fn publish_at(
        &self,
        desk: &mut DeskAt<'_>,
        new: &New,
        (queue, tenant): &(String, String),
    ) -> Step<Result<Published, PublishError>> {
        if new.event.check().is_ok() && desk.spec(queue).await?.is_some() {
            self.make_known(desk, queue, tenant).await?;
        }
        let mut answers = desk.publish_all(&[new], &mut Given::new()).await?;
        Ok(answers.pop().unwrap_or_else(|| Err(broken("an event was not answered").into())))
    }

    /// Makes a stream in a commit of its own, on the store's own threads: its connections are driven there. Not where
    /// this very transaction has made it: nobody else could, before it ends.
    async fn make_known(&self, desk: &mut DeskAt<'_>, queue: &str, tenant: &str) -> Step<()> {
        if self.office.names.named(queue, tenant).is_some() {
            return Ok(());
        }
        let names = (Arc::clone(&self.office), queue.to_owned(), tenant.to_owned());
        let (office, of, by) = names.clone();
        let looking = self.call(async move { office.look_for_stream(&of, &by).await.map_err(aside) });
        if looking.await? || desk.find_stream(queue, tenant).await?.is_some() {
            return Ok(());
        }
        let (office, of, by) = names;
        let making = self.call(async move { office.open_stream(&of, &by).await.map(drop).map_err(aside) });
        Ok(making.await?)
    }

    /// Forgets an identity whose time is over, in a commit of its own.
    async fn forget_over(&self, over: Receipt) -> Result<(), StoreError> {
        let over = Arc::new(over);
        let forgetting = self.write(move |desk| -> Doing<'_, ()> {
            let over = Arc::clone(&over);
            Box::pin(async move {
                desk.lock_shards().await?;
                if desk.is_over(&over).await? {
                    desk.delete_receipt_at(over.stream, &over.id, over.seq).await?;
                }
                Ok(())
            })
        });
        forgetting.await
    }

    /// Marks in somebody else's transaction that `handler` has processed `id`; `false` where it had.
    ///
    /// # Errors
    /// Where the store could not; the transaction is to be rolled back then.
    pub async fn mark_in(
        &self,
        tx: &mut PgTransaction<'_>,
        handler: &str,
        id: &str,
        until: Moment,
    ) -> Result<bool, StoreError> {
        self.office.check()?;
        let mut desk = DeskAt::lent(tx, &self.office);
        desk.check_home().await.map_err(not_done)?;
        desk.mark(handler, id, until).await.map_err(not_done)
    }

    /// Completes a request in somebody else's transaction, under its fence. To be called last: from here to the commit
    /// nobody else gets at the request, and the database ends a session that does nothing for a third of the lease.
    ///
    /// # Errors
    /// [`CompleteError::Fenced`] where the run was taken over, and where the store could not. After any of them the
    /// transaction cannot commit.
    pub async fn complete_in(
        &self,
        tx: &mut PgTransaction<'_>,
        scope: &Scope,
        epoch: u64,
        (reply, resource): (Reply, Option<String>),
        at: Moment,
    ) -> Result<(), CompleteError> {
        let end = End::Completed { reply, resource };
        let completed = DeskAt::lent(tx, &self.office).complete(scope, epoch, end, at).await;
        if completed.is_err() {
            spoil(tx).await;
        }
        completed
    }
}

impl DeskAt<'_> {
    /// Refuses a connection to another database.
    async fn check_home(&mut self) -> Step<()> {
        let elsewhere = |why: String| Fault::Refused(StoreError::Elsewhere { why });
        let keeps = self.keeps();
        let home = match Home::of(&mut self.conn, &self.office.schema, keeps).await {
            Ok(home) => home,
            Err(sqlx::Error::RowNotFound) => {
                return Err(elsewhere("its tables are there, and empty".to_owned()));
            }
            Err(error) => {
                let code = error.as_database_error().and_then(|said| said.code()).unwrap_or_default();
                let schema = self.office.schema.name();
                return Err(match &*code {
                    "42P01" | "3F000" => elsewhere(format!(
                        "there is no schema `{schema}` of Redrive in it; begin the transaction in {}",
                        self.office.place
                    )),
                    "42501" => elsewhere(format!(
                        "its user may not use the schema `{schema}`; grant it what the store's own user has"
                    )),
                    _ => error.into(),
                });
            }
        };
        if home == self.office.home {
            return Ok(());
        }
        Err(elsewhere(format!(
            "it is another one with a schema of that name, or was restored since; begin the transaction in {}",
            self.office.place
        )))
    }

    /// The streams in which something was published.
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
        scope: &Scope,
        epoch: u64,
        end: End,
        at: Moment,
    ) -> Result<(), CompleteError> {
        self.office.check()?;
        self.check_home().await.map_err(not_done)?;
        self.bound_idleness().await.map_err(not_done)?;
        let ended = self.end_request(scope, epoch, end, at).await;
        ended.map_err(not_done)?.map_err(CompleteError::Fenced)
    }

    /// A process that stands still must not hold up whoever takes over for longer than this.
    async fn bound_idleness(&mut self) -> Step<()> {
        let millis = i64::try_from((self.office.lease / 3).as_millis()).unwrap_or(i64::MAX);
        maybe!(
            self,
            "SELECT set_config(name, $1::text, true) FROM pg_catalog.pg_settings \
             WHERE name = 'idle_in_transaction_session_timeout' AND (setting = '0' OR setting::bigint > $1)",
            millis
        )?;
        Ok(())
    }
}

/// Commits a transaction, and makes sure that it was one: a statement that failed in it makes its COMMIT a ROLLBACK, which
/// the driver does not tell.
///
/// # Errors
/// [`StoreError::Unknown`] where the COMMIT was not answered; everything is rolled back after any other.
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
    // It fails, as it should; where it does not even get there, the connection is gone, and with it all that was done.
    let _ = sqlx::raw_sql(spoil).execute(&mut **tx).await;
}
