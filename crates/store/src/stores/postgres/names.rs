//! The names of streams. They never change and never go, so each process remembers them.
//!
//! A new one is made in a commit of its own, beside the one that needs it: otherwise whoever publishes first for a
//! tenant would hold up all others until its own transaction ends.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redrive_core::entry::StreamId;
use sqlx::postgres::PgRow;
use sqlx::{Connection, PgPool, Row};

use super::desk::{DeskAt, maybe, rows};
use super::faults::{Kind, kind};
use super::office::Office;
use super::rows::Stream;

/// How many names are remembered; with more, all are read again.
const NAMES_MAX: usize = 100_000;

/// The names of streams.
#[derive(Debug, Default)]
pub(super) struct Names(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    by_id: HashMap<StreamId, Arc<Stream>>,
    by_name: HashMap<(String, String), Arc<Stream>>,
}

impl Names {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn of(&self, id: StreamId) -> Option<Arc<Stream>> {
        self.known().by_id.get(&id).cloned()
    }

    pub(super) fn named(&self, queue: &str, tenant: &str) -> Option<Arc<Stream>> {
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
        let id = u32::try_from(row.try_get::<i64, _>(0)?).unwrap_or(u32::MAX);
        let stream = Stream { id: StreamId(id), queue: row.try_get(1)?, tenant: row.try_get(2)? };
        Ok(self.remember(stream))
    }
}

impl Office {
    /// The stream with these names, made where there is none.
    pub(super) async fn open_stream(&self, queue: &str, tenant: &str) -> sqlx::Result<Arc<Stream>> {
        if let Some(known) = self.names.named(queue, tenant) {
            return Ok(known);
        }
        match self.make_stream(&self.side, queue, tenant).await {
            // All connections that there may be are at desks: one of those will do.
            Err(error) if matches!(kind(&error), Kind::Busy | Kind::Passing) => {
                self.make_stream(&self.pool, queue, tenant).await
            }
            made => made,
        }
    }

    /// The stream with this number.
    pub(super) async fn stream_of(&self, id: StreamId) -> sqlx::Result<Option<Arc<Stream>>> {
        if let Some(known) = self.names.of(id) {
            return Ok(Some(known));
        }
        let select = "SELECT id, queue, tenant FROM redrive.stream WHERE id = $1";
        let found = sqlx::query(self.schema.sql(select)).bind(i64::from(id.0));
        self.alone(&self.pool, found).await?.first().map(|row| self.names.read(row)).transpose()
    }

    async fn make_stream(&self, pool: &PgPool, queue: &str, tenant: &str) -> sqlx::Result<Arc<Stream>> {
        let insert = "INSERT INTO redrive.stream (queue, tenant) VALUES ($1, $2) ON CONFLICT DO NOTHING";
        let select = "SELECT id, queue, tenant FROM redrive.stream WHERE queue = $1 AND tenant = $2";
        // One connection for all three: with few of them, the next one may be long in coming.
        let mut conn = pool.acquire().await?;
        let mut tx = conn.begin().await?;
        let query = |sql| {
            sqlx::query(self.schema.sql(sql))
                .persistent(!self.pooled)
                .bind(queue.to_owned())
                .bind(tenant.to_owned())
        };
        let found = query(select).fetch_optional(&mut *tx).await?;
        if found.is_none() {
            query(insert).execute(&mut *tx).await?;
        }
        let row = match found {
            Some(row) => row,
            None => query(select).fetch_one(&mut *tx).await?,
        };
        tx.commit().await?;
        self.names.read(&row)
    }
}

impl DeskAt<'_> {
    /// The stream with this number.
    pub(super) async fn stream(&mut self, id: StreamId) -> sqlx::Result<Option<Arc<Stream>>> {
        if let Some(known) = self.office.names.of(id) {
            return Ok(Some(known));
        }
        let select = "SELECT id, queue, tenant FROM redrive.stream WHERE id = $1";
        let found = maybe!(self, select, i64::from(id.0))?;
        found.map(|row| self.office.names.read(&row)).transpose()
    }

    /// The stream with these names, if there is one.
    pub(super) async fn find_stream(
        &mut self,
        queue: &str,
        tenant: &str,
    ) -> sqlx::Result<Option<Arc<Stream>>> {
        if let Some(known) = self.office.names.named(queue, tenant) {
            return Ok(Some(known));
        }
        let select = "SELECT id, queue, tenant FROM redrive.stream WHERE queue = $1 AND tenant = $2";
        let found = maybe!(self, select, queue, tenant)?;
        found.map(|row| self.office.names.read(&row)).transpose()
    }

    /// The streams of a queue, or of a tenant, or of both, in their order.
    pub(super) async fn streams(
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
        found.iter().map(|row| self.office.names.read(row)).collect()
    }
}
