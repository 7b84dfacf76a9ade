//! What others wrote, found by their stamps.
//!
//! Whoever writes an event and does not own it stamps it with the number of its transaction. Since a snapshot there
//! arrived what has a stamp that was in progress in it, or began after it: that is exact, however long a transaction
//! was open, where a cursor over seqs would have passed it by. What this process wrote itself was told when it was
//! committed.
//!
//! Who is alone sends no hints, and its own it does not hear.
//!
//! A notice of the database (`NOTIFY`) is a hint that something may be there, sent after the commit and not in it, at
//! most once in [`HINT_EVERY`] a process; what matters is the look, and it is made every [`LOOK_EVERY`] anyhow.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use redrive_core::entry::StreamId;
use sqlx::Row;
use sqlx::postgres::PgListener;
use tokio::time::Instant;

use super::desk::{Desk, one};
use super::faults::{Fault, Step, not_done};
use super::nodes::NODES;
use super::office::{Doing, Office};
use crate::error::StoreError;
use crate::store::Arrivals;

/// How often somebody looks, whatever was noticed.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How long to wait at least between two looks.
const LOOK_LEAST: Duration = Duration::from_millis(5);
/// How often others are told that there may be something.
const HINT_EVERY: Duration = Duration::from_millis(5);
/// How long to wait before a listener is connected again.
const LISTEN_AGAIN: Duration = Duration::from_secs(1);

/// Looks for what others wrote, for as long as the store is open.
pub(super) async fn look_around(office: Arc<Office>) {
    let mut since: Option<Since> = None;
    let mut listener = None;
    let mut listen_after = Instant::now();
    let own = office.node.to_string();
    let (mut looked_at, mut look_at) = (Instant::now(), Instant::now() + LOOK_EVERY);
    loop {
        if listener.is_none() && Instant::now() >= listen_after {
            listener = listen(&office).await;
            // What was said meanwhile is not known.
            office.tenure.stir();
            listen_after = Instant::now() + LISTEN_AGAIN;
        }
        match &mut listener {
            Some(listening) => match tokio::time::timeout_at(look_at, listening.try_recv()).await {
                Ok(Ok(Some(notice))) if notice.payload() == NODES => office.tenure.stir(),
                // What this process wrote itself was told.
                Ok(Ok(Some(notice))) if notice.payload() == own => continue,
                Ok(Err(_)) => listener = None,
                _ => {}
            },
            None => tokio::time::sleep_until(look_at).await,
        }
        // Many notices at once are one look.
        tokio::time::sleep_until(looked_at + LOOK_LEAST).await;
        (looked_at, look_at) = (Instant::now(), Instant::now() + LOOK_EVERY);
        if office.check().is_err() {
            return;
        }
        if !office.is_watched() {
            since = None;
            continue;
        }
        // Where it cannot be looked now, the next look is since the same moment.
        if let Ok(now) = look(&office, since.clone()).await {
            since = Some(now);
        }
    }
}

/// Tells the others that there may be something.
pub(super) async fn send_hints(office: Arc<Office>) {
    loop {
        office.hint.notified().await;
        if office.check().is_err() {
            return;
        }
        if !office.has_company.load(Relaxed) {
            continue;
        }
        // Nobody waits until it is on the disk.
        let notify = sqlx::query("SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, $2)");
        let notify = notify.bind(channel(&office)).bind(office.node.to_string());
        let sent = office.alone(&office.side, notify).await;
        // A hint that is lost is a look later.
        drop(sent);
        tokio::time::sleep(HINT_EVERY).await;
    }
}

async fn listen(office: &Office) -> Option<PgListener> {
    // Behind a pooler, whoever has the session next would hear it.
    if office.pooled {
        return None;
    }
    let mut listener = PgListener::connect_with(&office.side).await.ok()?;
    listener.listen(&channel(office)).await.ok()?;
    Some(listener)
}

pub(super) fn channel(office: &Office) -> String {
    format!("redrive_{}", office.schema.name())
}

/// As of when somebody looked last: a snapshot, and the orders that were given until then.
#[derive(Debug, Clone)]
pub(super) struct Since {
    snapshot: String,
    orders: i64,
}

/// What others wrote since, told to whoever watches.
async fn look(office: &Arc<Office>, since: Option<Since>) -> Result<Since, StoreError> {
    let open = office.tellings.begin();
    let (now, arrivals) = match since {
        Some(since) => office.arrivals(&since).await.map_err(not_done)?,
        None => office.look(|desk| -> Doing<'_, (Since, Arrivals)> { Box::pin(desk.all_streams()) }).await?,
    };
    if arrivals.missed || arrivals.recall {
        let watcher = office.watcher.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        if let Some(watcher) = watcher {
            open.tell(arrivals, &watcher);
        }
    }
    Ok(now)
}

impl Office {
    /// The streams in which others wrote something since, and whether somebody gave orders.
    ///
    /// What has a stamp that was in progress is asked for by those stamps, and not by the smallest of them: a
    /// transaction that is left open for hours would have every look go through all that was written since it began.
    async fn arrivals(&self, since: &Since) -> Result<(Since, Arrivals), Fault> {
        let own = self.own.since(&since.snapshot);
        let look = "SELECT snapshot, orders, company, streams FROM redrive.arrivals($1, $2, $3)";
        let look = sqlx::query(self.schema.sql(look)).bind(since.snapshot.clone()).bind(own).bind(self.node);
        let found = self.alone(&self.pool, look).await?;
        let row = found.first().ok_or(sqlx::Error::RowNotFound)?;
        let now = Since { snapshot: row.try_get(0)?, orders: row.try_get(1)? };
        self.has_company.store(row.try_get(2)?, Relaxed);
        let mut arrivals = Arrivals { recall: since.orders != now.orders, ..Arrivals::default() };
        for id in row.try_get::<Vec<i64>, _>(3)? {
            let id = StreamId(u32::try_from(id).unwrap_or_default());
            arrivals.streams.extend(self.stream_of(id).await?.map(|stream| stream.named()));
        }
        arrivals.missed = !arrivals.streams.is_empty();
        Ok((now, arrivals))
    }
}

impl Desk {
    /// Who begins to watch has not heard of anything.
    async fn all_streams(&mut self) -> Step<(Since, Arrivals)> {
        let snapshot: String = one!(self, "SELECT pg_current_snapshot()::text")?;
        let orders: i64 = one!(self, "SELECT orders FROM redrive.meta")?;
        let all = self.streams(None, None).await?;
        let streams = all.iter().map(|stream| stream.named()).collect();
        Ok((Since { snapshot, orders }, Arrivals { streams, missed: true, ..Arrivals::default() }))
    }
}
