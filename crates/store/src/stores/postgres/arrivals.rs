//! What others wrote, found by their stamps.
//!
//! Whoever writes an event and does not own it stamps it with the number of its transaction. Since a snapshot there
//! arrived what has a stamp that was in progress in it, or began after it: that is exact, however long a transaction
//! was open, where a cursor over seqs would have passed it by. What this process wrote itself was told when it was
//! committed.
//!
//! A notice of the database (`NOTIFY`) is a hint that something may be there, sent after the commit and not in it, at
//! most once in [`HINT_EVERY`] a process; what matters is the look, and it is made every [`LOOK_EVERY`] anyhow.

use std::sync::Arc;
use std::time::Duration;

use redrive_core::entry::StreamId;
use sqlx::Row;
use sqlx::postgres::PgListener;

use super::desk::{Desk, one, rows};
use super::faults::Step;
use super::nodes::NODES;
use super::office::{Doing, Office};
use crate::store::Arrivals;

/// How often somebody looks, whatever was noticed.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How often others are told that there may be something.
const HINT_EVERY: Duration = Duration::from_millis(5);
/// How long to wait before a listener is connected again.
const LISTEN_AGAIN: Duration = Duration::from_secs(1);

/// Looks for what others wrote, for as long as the store is open.
pub(super) async fn look_around(office: Arc<Office>) {
    let mut since: Option<Since> = None;
    let mut listener = None;
    let mut listen_after = tokio::time::Instant::now();
    loop {
        if listener.is_none() && tokio::time::Instant::now() >= listen_after {
            listener = listen(&office).await;
            // What was said meanwhile is not known.
            office.tenure.stir();
            listen_after = tokio::time::Instant::now() + LISTEN_AGAIN;
        }
        match &mut listener {
            Some(listening) => match tokio::time::timeout(LOOK_EVERY, listening.try_recv()).await {
                Ok(Ok(Some(notice))) if notice.payload() == NODES => office.tenure.stir(),
                Ok(Err(_)) => listener = None,
                _ => {}
            },
            None => tokio::time::sleep(LOOK_EVERY).await,
        }
        if office.check().is_err() {
            return;
        }
        let is_watched = office.watcher.lock().unwrap_or_else(std::sync::PoisonError::into_inner).is_some();
        if !is_watched {
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
        let notify = sqlx::query("SELECT pg_notify($1, $2)");
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
async fn look(office: &Arc<Office>, since: Option<Since>) -> Result<Since, crate::error::StoreError> {
    let open = office.tellings.begin();
    let before = Arc::new(since);
    let looked = office
        .look(|desk| -> Doing<'_, (Since, Arrivals)> {
            let before = Arc::clone(&before);
            Box::pin(async move { desk.arrivals(before.as_ref().as_ref()).await })
        })
        .await;
    let (now, arrivals) = looked?;
    if arrivals.missed || arrivals.recall {
        let watcher = office.watcher.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        if let Some(watcher) = watcher {
            open.tell(arrivals, &watcher);
        }
    }
    Ok(now)
}

impl Desk {
    /// The streams in which others wrote something since, and whether somebody gave orders.
    pub(super) async fn arrivals(&mut self, since: Option<&Since>) -> Step<(Since, Arrivals)> {
        let snapshot: String = one!(self, "SELECT pg_current_snapshot()::text")?;
        let orders: i64 = one!(self, "SELECT orders FROM redrive.meta")?;
        let now = Since { snapshot, orders };
        let mut arrivals = Arrivals::default();
        let Some(since) = since else {
            // Who begins to watch has not heard of anything.
            let all = self.streams(None, None).await?;
            arrivals.streams = all.iter().map(|stream| stream.named()).collect();
            arrivals.missed = true;
            return Ok((now, arrivals));
        };
        let own = self.office.own.since(&now.snapshot);
        let found = rows!(
            self,
            "SELECT DISTINCT stream FROM (SELECT stream, stamp FROM redrive.live \
             WHERE stamp >= pg_snapshot_xmin($1::pg_snapshot) UNION ALL SELECT stream, stamp FROM redrive.held \
             WHERE stamp >= pg_snapshot_xmin($1::pg_snapshot)) event \
             WHERE NOT pg_visible_in_snapshot(stamp, $1::pg_snapshot) AND stamp::text <> ALL($2)",
            &since.snapshot,
            own
        )?;
        for row in found {
            let id = StreamId(u32::try_from(row.try_get::<i64, _>(0)?).unwrap_or_default());
            arrivals.streams.extend(self.stream(id).await?.map(|stream| stream.named()));
        }
        arrivals.missed = !arrivals.streams.is_empty();
        arrivals.recall = since.orders != now.orders;
        Ok((now, arrivals))
    }
}
