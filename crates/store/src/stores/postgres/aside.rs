//! Connections on which a statement is its own transaction.
//!
//! A few are kept at hand between two statements. A pool asks a connection whether it is well each time it comes back, a
//! round trip of its own; and it hands them out in turn, so that each server process finds nothing where the one before
//! it has left it. After a while they do go back, and the pool replaces them as its rules say.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sqlx::pool::PoolConnection;
use sqlx::{PgConnection, PgPool, Postgres};

use super::faults::{Kind, kind};
use super::writer::GROUPS_AT_ONCE;

/// How many are kept at most: one for each group that is written at once.
const KEPT_MAX: usize = 2 * GROUPS_AT_ONCE;
/// How long one is kept.
const KEPT_FOR: Duration = Duration::from_secs(30);

/// The connections at hand.
#[derive(Debug)]
pub(super) struct AtHand {
    kept: Mutex<Vec<Kept>>,
    most: usize,
}

#[derive(Debug)]
struct Kept {
    conn: PoolConnection<Postgres>,
    since: Instant,
}

impl AtHand {
    /// Of a pool with so many connections: others find at least a half of them there.
    pub(super) fn of(connections: u32) -> Self {
        Self { kept: Mutex::default(), most: KEPT_MAX.min(connections as usize / 2) }
    }

    /// A connection. Nobody else has it, also not one that keeps it at hand.
    pub(super) async fn take(self: &Arc<Self>, pool: &PgPool) -> sqlx::Result<Aside> {
        let kept = self.list().pop();
        let kept = match kept {
            Some(kept) => kept,
            None => Kept { conn: pool.acquire().await?, since: Instant::now() },
        };
        Ok(Aside { at_hand: Arc::clone(self), kept: Some(kept), is_busy: false })
    }

    /// Gives all of them back to the pool.
    pub(super) fn clear(&self) {
        self.list().clear();
    }

    fn list(&self) -> std::sync::MutexGuard<'_, Vec<Kept>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection on which a statement is its own transaction.
pub(super) struct Aside {
    at_hand: Arc<AtHand>,
    /// Until it is given back.
    kept: Option<Kept>,
    is_busy: bool,
}

impl Aside {
    /// Says something, and hears the answer. Who goes away in between leaves the connection to nobody.
    pub(super) async fn say<T>(
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

impl Drop for Aside {
    fn drop(&mut self) {
        let Some(mut kept) = self.kept.take() else { return };
        if self.is_busy {
            kept.conn.close_on_drop();
            return;
        }
        if kept.since.elapsed() > KEPT_FOR {
            return;
        }
        let mut list = self.at_hand.list();
        if list.len() < self.at_hand.most {
            list.push(kept);
        }
    }
}
