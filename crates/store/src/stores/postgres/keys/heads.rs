//! The next event of a key, looked up after a commit.
//!
//! A publisher and a settle of one key may run concurrently, and neither sees the other's uncommitted writes. The
//! settle looks for the next event, finds none, and waits for its commit; the publisher commits meanwhile, looks, and
//! finds the event that is being settled still at the head. If that were all, the new event would never be announced.
//! So both look after their own commit: the later commit sees the other.
//!
//! | transaction | looks |
//! |---|---|
//! | a publisher of a key | after its commit: its event is announced if it is the head |
//! | a transaction that frees a key, and saw no next event | after its commit: the present head is announced |
//!
//! Owners in other processes find written events by their stamps, and load; that is after the commit, too.

use std::collections::BTreeMap;
use std::sync::Arc;

use redrive_core::queue_entry::{QueueEntry, Seq, StreamId};
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};

use crate::stores::postgres::database::{CommitNews, Database};
use crate::stores::postgres::events::fresh::{Stream, read_fresh};

/// Keys, with their streams.
pub(in crate::stores::postgres) type Keys = BTreeMap<(StreamId, String), Arc<Stream>>;

/// The head of a key.
#[derive(Debug)]
pub(in crate::stores::postgres) enum Next {
    NoEvent,
    /// An event that never ran.
    Entry(Box<QueueEntry>),
    /// An event that has to be read: it waits for its time, is dead or leased; or a rule may withhold the key.
    Special,
}

/// How many columns an event that never ran has.
const FRESH_COLUMNS: usize = 10;

impl Next {
    /// Reads a row: an event that never ran, if there is one, and whether the head needs a closer look.
    pub(in crate::stores::postgres) fn read(row: &PgRow, stream: &Stream) -> sqlx::Result<Self> {
        if row.try_get::<bool, _>(FRESH_COLUMNS)? {
            return Ok(Self::Special);
        }
        if row.try_get::<Option<i64>, _>(0)?.is_none() {
            return Ok(Self::NoEvent);
        }
        // A load reports an unreadable event.
        Ok(read_fresh(row, stream).map_or(Self::Special, |row| Self::Entry(Box::new(row.entry(stream.id)))))
    }
}

impl Database {
    /// Whether this process has a watcher.
    pub(in crate::stores::postgres) fn is_watched(&self) -> bool {
        self.notifier.watcher.lock().unwrap_or_else(std::sync::PoisonError::into_inner).is_some()
    }

    /// Looks up the heads of these keys after a commit, and announces those that `are_ours`. If the lookup fails, a
    /// load will find them.
    pub(in crate::stores::postgres) async fn tell_heads(
        &self,
        conn: &mut PgConnection,
        keys: Keys,
        news: &mut CommitNews,
        are_ours: impl Fn(Seq) -> bool,
    ) -> sqlx::Result<()> {
        if keys.is_empty() || !self.is_watched() {
            return Ok(());
        }
        let heads = self.heads(conn, &keys).await;
        let streams: Vec<&Arc<Stream>> = keys.values().collect();
        let miss = |news: &mut CommitNews, stream: &Arc<Stream>| {
            news.missed.entry(stream.id).or_insert_with(|| Arc::clone(stream));
        };
        let heads = match heads {
            Ok(heads) => heads,
            Err(error) => {
                streams.into_iter().for_each(|stream| miss(news, stream));
                return Err(error);
            }
        };
        for (stream, next) in streams.into_iter().zip(heads) {
            match next {
                Next::NoEvent => {}
                Next::Entry(entry) if are_ours(entry.seq) => news.arrived.push(*entry),
                Next::Entry(_) => {}
                Next::Special => miss(news, stream),
            }
        }
        Ok(())
    }

    /// The head of each key, in order.
    async fn heads(&self, conn: &mut PgConnection, keys: &Keys) -> sqlx::Result<Vec<Next>> {
        let streams: Vec<i64> = keys.keys().map(|(stream, _)| i64::from(stream.0)).collect();
        let names: Vec<String> = keys.keys().map(|(_, key)| key.clone()).collect();
        let heads = self.schema.sql("SELECT * FROM redrive.heads($1, $2)");
        let found = self.alone_on(conn, sqlx::query(heads).bind(streams).bind(names)).await?;
        if found.len() != keys.len() {
            return Err(sqlx::Error::RowNotFound);
        }
        found.iter().zip(keys.values()).map(|(row, stream)| Next::read(row, stream)).collect()
    }
}
