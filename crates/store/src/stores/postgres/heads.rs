//! Who follows in a key, looked for after a commit.
//!
//! A publisher and a settle of one key may be under way at once, and neither sees what the other has not committed. The
//! settle looks for who follows, finds nobody, and waits for its commit; the publisher commits meanwhile, looks, and finds
//! the one that is being settled still at the head. If that were all, nobody would ever tell of the new one. So both look
//! after their own commit: whoever of the two commits last sees the other.
//!
//! | who | looks |
//! |---|---|
//! | a publisher of a key | after its commit: what it published is told if it is the head |
//! | whoever frees a key, and saw nobody who follows | after its commit: whoever is there by now is told |
//!
//! Owners in other processes find what was written by its stamp, and load; that is after the commit, too.

use std::collections::BTreeMap;
use std::sync::Arc;

use redrive_core::entry::{Entry, Seq, StreamId};
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};

use super::office::{News, Office};
use super::rows::{Stream, read_live};

/// Keys, with their streams.
pub(super) type Keys = BTreeMap<(StreamId, String), Arc<Stream>>;

/// Who is at the head of a key.
#[derive(Debug)]
pub(super) enum Next {
    Nobody,
    /// One that never ran.
    Entry(Box<Entry>),
    /// Somebody who is to be looked at: it waits for its time, is dead or leased; or a rule may withhold the key.
    Special,
}

/// How many columns an event that never ran has.
const LIVE_COLUMNS: usize = 10;

impl Next {
    /// Reads a row: an event that never ran, if there is one, and whether it is not as simple as that.
    pub(super) fn read(row: &PgRow, stream: &Stream) -> sqlx::Result<Self> {
        if row.try_get::<bool, _>(LIVE_COLUMNS)? {
            return Ok(Self::Special);
        }
        if row.try_get::<Option<i64>, _>(0)?.is_none() {
            return Ok(Self::Nobody);
        }
        // What nobody can read is named by a load.
        Ok(read_live(row, stream).map_or(Self::Special, |row| Self::Entry(Box::new(row.entry(stream.id)))))
    }
}

impl Office {
    /// Whether somebody is told of arrivals here.
    pub(super) fn is_watched(&self) -> bool {
        self.watcher.lock().unwrap_or_else(std::sync::PoisonError::into_inner).is_some()
    }

    /// Looks who is at the head of these keys now, after a commit, and adds those that `are_ours` to what is told. Where
    /// it cannot be looked, a load will tell.
    pub(super) async fn tell_heads(
        &self,
        conn: &mut PgConnection,
        keys: Keys,
        news: &mut News,
        are_ours: impl Fn(Seq) -> bool,
    ) -> sqlx::Result<()> {
        if keys.is_empty() || !self.is_watched() {
            return Ok(());
        }
        let heads = self.heads(conn, &keys).await;
        let streams: Vec<&Arc<Stream>> = keys.values().collect();
        let miss = |news: &mut News, stream: &Arc<Stream>| {
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
                Next::Nobody => {}
                Next::Entry(entry) if are_ours(entry.seq) => news.arrived.push(*entry),
                Next::Entry(_) => {}
                Next::Special => miss(news, stream),
            }
        }
        Ok(())
    }

    /// Who is at the head of each, in their order.
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
