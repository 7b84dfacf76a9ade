//! Connections on which a statement is its own transaction.
//!
//! A few connections are kept at hand between two statements. A pool pings a connection each time it comes back, which
//! is a round trip; and it hands connections out in turn, so that each server process starts with cold caches. After a
//! while they do go back, and the pool replaces them by its own rules.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sqlx::pool::PoolConnection;
use sqlx::{PgConnection, PgPool, Postgres};

use crate::stores::postgres::faults::{Kind, kind};
use crate::stores::postgres::writer::GROUPS_AT_ONCE;

/// How many are kept at most: one for each group that is written at once.
const KEPT_MAX: usize = 2 * GROUPS_AT_ONCE;
/// How long one is kept.
const KEPT_FOR: Duration = Duration::from_secs(30);

/// The connections at hand.
#[derive(Debug)]
pub(in crate::stores::postgres) struct AutocommitPool {
    kept: Mutex<Vec<Kept>>,
    most: usize,
}

#[derive(Debug)]
struct Kept {
    conn: PoolConnection<Postgres>,
    since: Instant,
}

impl AutocommitPool {
    /// For a pool of `connections`: at least half of them stay in it.
    pub(in crate::stores::postgres) fn of(connections: u32) -> Self {
        Self { kept: Mutex::default(), most: KEPT_MAX.min(connections as usize / 2) }
    }

    /// A connection for exclusive use.
    pub(in crate::stores::postgres) async fn take(
        self: &Arc<Self>,
        pool: &PgPool,
    ) -> sqlx::Result<AutocommitConn> {
        let kept = self.list().pop();
        let kept = match kept {
            Some(kept) => kept,
            None => Kept { conn: pool.acquire().await?, since: Instant::now() },
        };
        Ok(AutocommitConn { autocommit: Arc::clone(self), kept: Some(kept), is_busy: false })
    }

    /// Returns all of them to the pool.
    pub(in crate::stores::postgres) fn clear(&self) {
        self.list().clear();
    }

    fn list(&self) -> std::sync::MutexGuard<'_, Vec<Kept>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection on which a statement is its own transaction.
pub(in crate::stores::postgres) struct AutocommitConn {
    autocommit: Arc<AutocommitPool>,
    /// `None` once it was returned.
    kept: Option<Kept>,
    is_busy: bool,
}

impl AutocommitConn {
    /// Runs a statement. If the caller is dropped before the answer, the connection is closed.
    pub(in crate::stores::postgres) async fn say<T>(
        &mut self,
        what: impl AsyncFnOnce(&mut PgConnection) -> sqlx::Result<T>,
    ) -> sqlx::Result<T> {
        let Some(kept) = &mut self.kept else { return Err(sqlx::Error::PoolClosed) };
        self.is_busy = true;
        let said = what(&mut kept.conn).await;
        self.is_busy = matches!(&said, Err(error) if kind(error) == Kind::Cut);
        said
    }
}

impl Drop for AutocommitConn {
    fn drop(&mut self) {
        let Some(mut kept) = self.kept.take() else { return };
        if self.is_busy {
            kept.conn.close_on_drop();
            return;
        }
        if kept.since.elapsed() > KEPT_FOR {
            return;
        }
        let mut list = self.autocommit.list();
        if list.len() < self.autocommit.most {
            list.push(kept);
        }
    }
}
