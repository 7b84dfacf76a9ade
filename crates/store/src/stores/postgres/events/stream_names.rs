//! The names of streams. They never change and are never deleted, so each process caches them.
//!
//! A new stream is created in a commit of its own, beside the one that needs it: otherwise the first publisher of a
//! tenant would block all others until its own transaction ends.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use redrive_core::queue_entry::StreamId;
use sqlx::postgres::PgRow;
use sqlx::{Connection, PgPool, Row};

use super::fresh::Stream;
use crate::store::NewEvent;
use crate::stores::postgres::database::Database;
use crate::stores::postgres::faults::{Kind, kind};
use crate::stores::postgres::publish::fast::says;
use crate::stores::postgres::tx::{PgTx, maybe, rows};
use crate::stores::postgres::writer::LOCKED;

/// How many names are remembered; with more, all are read again.
const NAMES_MAX: usize = 100_000;

/// The stream with these names.
const SELECT: &str = "SELECT id, queue, tenant FROM redrive.stream WHERE queue = $1 AND tenant = $2";

/// The names of streams.
#[derive(Debug, Default)]
pub(in crate::stores::postgres) struct StreamNames {
    known: Mutex<Known>,
    /// Held by the one caller that waits for a stream that another transaction is creating.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Known {
    by_id: HashMap<StreamId, Arc<Stream>>,
    by_name: HashMap<(String, String), Arc<Stream>>,
}

impl StreamNames {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(in crate::stores::postgres) fn of(&self, id: StreamId) -> Option<Arc<Stream>> {
        self.known().by_id.get(&id).cloned()
    }

    pub(in crate::stores::postgres) fn named(&self, queue: &str, tenant: &str) -> Option<Arc<Stream>> {
        self.known().by_name.get(&(queue.to_owned(), tenant.to_owned())).cloned()
    }

    fn remember(&self, stream: Stream) -> Arc<Stream> {
        let mut known = self.known();
        if known.by_id.len() >= NAMES_MAX {
            *known = Known::default();
        }
        let stream = Arc::new(stream);
        known.by_id.insert(stream.id, Arc::clone(&stream));
        known.by_name.insert((stream.queue.clone(), stream.tenant.clone()), Arc::clone(&stream));
        stream
    }

    /// Remembers a row: id, queue, tenant.
    fn read(&self, row: &PgRow) -> sqlx::Result<Arc<Stream>> {
        Ok(self.remember(stream(row)?))
    }
}

/// A row: id, queue, tenant.
fn stream(row: &PgRow) -> sqlx::Result<Stream> {
    let id = u32::try_from(row.try_get::<i64, _>(0)?).unwrap_or(u32::MAX);
    Ok(Stream { id: StreamId(id), queue: row.try_get(1)?, tenant: row.try_get(2)? })
}

impl Database {
    /// The stream of a queue and a tenant, created if there is none. Waits briefly for a transaction that is creating
    /// it.
    pub(in crate::stores::postgres) async fn open_stream(
        &self,
        queue: &str,
        tenant: &str,
    ) -> sqlx::Result<Arc<Stream>> {
        if let Some(known) = self.cache.names.named(queue, tenant) {
            return Ok(known);
        }
        let wait = self.lock_wait(true);
        match self.make_stream(&self.side, queue, tenant, wait).await {
            Err(error) if says(&error, LOCKED) => Err(error),
            // All side connections are in use: one of the pool will do.
            Err(error) if matches!(kind(&error), Kind::Busy | Kind::Passing) => {
                self.make_stream(&self.pool, queue, tenant, wait).await
            }
            made => made,
        }
    }

    /// Waits for the streams of some events that other transactions are creating. One waiting caller at a time uses a
    /// connection for it. A caller without one learns of it when it opens the stream.
    pub(in crate::stores::postgres) async fn wait_for_streams(&self, events: &[NewEvent]) {
        let is_kept =
            |queue: &str| self.cache.specs.lock().unwrap_or_else(PoisonError::into_inner).contains_key(queue);
        let names: BTreeSet<(&str, &str)> = events
            .iter()
            .filter(|new| new.event.check().is_ok() && is_kept(&new.event.queue))
            .map(|new| (new.event.queue.as_str(), new.event.tenant.as_str()))
            .collect();
        let until = Instant::now() + self.lock_wait;
        for (queue, tenant) in names {
            if self.cache.names.named(queue, tenant).is_some() {
                continue;
            }
            let Ok(_turn) = tokio::time::timeout_at(until.into(), self.cache.names.turn.lock()).await else {
                return;
            };
            if self.cache.names.named(queue, tenant).is_none() {
                let left = until.saturating_duration_since(Instant::now()).as_millis().max(1);
                let wait = i64::try_from(left).unwrap_or(i64::MAX);
                let _ = self.make_stream(&self.pool, queue, tenant, wait).await;
            }
        }
    }

    /// Caches a stream, if it was committed.
    pub(in crate::stores::postgres) async fn look_for_stream(
        &self,
        queue: &str,
        tenant: &str,
    ) -> sqlx::Result<bool> {
        if self.cache.names.named(queue, tenant).is_some() {
            return Ok(true);
        }
        let found = sqlx::query(self.schema.sql(SELECT)).bind(queue.to_owned()).bind(tenant.to_owned());
        let found = self.alone(&self.side, found).await?;
        found.first().map(|row| self.cache.names.read(row)).transpose().map(|known| known.is_some())
    }

    /// The stream with this number.
    pub(in crate::stores::postgres) async fn stream_of(
        &self,
        id: StreamId,
    ) -> sqlx::Result<Option<Arc<Stream>>> {
        if let Some(known) = self.cache.names.of(id) {
            return Ok(Some(known));
        }
        let select = "SELECT id, queue, tenant FROM redrive.stream WHERE id = $1";
        let found = sqlx::query(self.schema.sql(select)).bind(i64::from(id.0));
        self.alone(&self.pool, found).await?.first().map(|row| self.cache.names.read(row)).transpose()
    }

    async fn make_stream(
        &self,
        pool: &PgPool,
        queue: &str,
        tenant: &str,
        wait: i64,
    ) -> sqlx::Result<Arc<Stream>> {
        let insert = "INSERT INTO redrive.stream (queue, tenant) VALUES ($1, $2) ON CONFLICT DO NOTHING";
        // One connection for all three: if there are few, the next one may take long.
        let mut conn = pool.acquire().await?;
        let mut tx = conn.begin().await?;
        let query = |sql| {
            sqlx::query(self.schema.sql(sql))
                .persistent(!self.pooled)
                .bind(queue.to_owned())
                .bind(tenant.to_owned())
        };
        let found = query(SELECT).fetch_optional(&mut *tx).await?;
        if found.is_none() {
            let patience = "SELECT set_config('lock_timeout', $1::text, true)";
            sqlx::query(patience).persistent(!self.pooled).bind(wait).execute(&mut *tx).await?;
            query(insert).execute(&mut *tx).await?;
        }
        let row = match found {
            Some(row) => row,
            None => query(SELECT).fetch_one(&mut *tx).await?,
        };
        tx.commit().await?;
        self.cache.names.read(&row)
    }
}

impl PgTx<'_> {
    /// A row. In a transaction that is shared with a caller's work it may be rolled back, so it is not cached.
    fn read_stream(&self, row: &PgRow) -> sqlx::Result<Arc<Stream>> {
        if self.is_shared() { stream(row).map(Arc::new) } else { self.db.cache.names.read(row) }
    }

    /// The stream of a queue and a tenant, created if there is none, in a commit of its own. If the transaction is
    /// shared with a caller's work, that work may have created it: then no other transaction can.
    pub(in crate::stores::postgres) async fn open_stream(
        &mut self,
        queue: &str,
        tenant: &str,
    ) -> sqlx::Result<Arc<Stream>> {
        if self.is_shared() {
            if !self.is_callers() {
                // A caller with its own transaction has looked already, on the store's own threads.
                let _ = self.db.look_for_stream(queue, tenant).await;
            }
            if let Some(made) = self.find_stream(queue, tenant).await? {
                return Ok(made);
            }
        }
        self.db.open_stream(queue, tenant).await
    }

    /// The stream with this number.
    pub(in crate::stores::postgres) async fn stream(
        &mut self,
        id: StreamId,
    ) -> sqlx::Result<Option<Arc<Stream>>> {
        if let Some(known) = self.db.cache.names.of(id) {
            return Ok(Some(known));
        }
        let select = "SELECT id, queue, tenant FROM redrive.stream WHERE id = $1";
        let found = maybe!(self, select, i64::from(id.0))?;
        found.map(|row| self.read_stream(&row)).transpose()
    }

    /// The stream with these names, if there is one.
    pub(in crate::stores::postgres) async fn find_stream(
        &mut self,
        queue: &str,
        tenant: &str,
    ) -> sqlx::Result<Option<Arc<Stream>>> {
        if let Some(known) = self.db.cache.names.named(queue, tenant) {
            return Ok(Some(known));
        }
        let found = maybe!(self, SELECT, queue, tenant)?;
        found.map(|row| self.read_stream(&row)).transpose()
    }

    /// The streams of a queue, or of a tenant, or of both, in their order.
    pub(in crate::stores::postgres) async fn streams(
        &mut self,
        queue: Option<&str>,
        tenant: Option<&str>,
    ) -> sqlx::Result<Vec<Arc<Stream>>> {
        let found = rows!(
            self,
            "SELECT id, queue, tenant FROM redrive.stream WHERE ($1::text IS NULL OR queue = $1) \
             AND ($2::text IS NULL OR tenant = $2) ORDER BY id",
            queue,
            tenant
        )?;
        found.iter().map(|row| self.read_stream(row)).collect()
    }
}
