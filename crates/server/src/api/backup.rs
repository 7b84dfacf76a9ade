//! A copy of the store, as the body of an answer.
//!
//! No path comes from the caller. The copy is made beside the store, as of one moment and while everything goes on, and
//! has no name any more when the first byte of it is sent: whatever becomes of the answer, nothing is left behind.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use bytes::Bytes;
use futures_util::stream::try_unfold;
use http::StatusCode;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use redrive::StoreError;
use redrive::store::Room;
use tokio::fs::File;
use tokio::io::AsyncReadExt as _;
use tokio::sync::OwnedSemaphorePermit;

use super::Problem;
use super::metrics::everybodys;
use super::operate::Seat;
use crate::app::App;
use crate::audit::noted;
use crate::config::Right;

/// Bytes that are read at once.
const CHUNK: usize = 128 << 10;

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new().route("/v1/backup", post(backup))
}

async fn backup(Seat { app, caller, desk }: Seat) -> Result<Response, Problem> {
    caller.may(Right::Operate)?;
    everybodys(&caller, "backups")?;
    let turn = app
        .backups
        .clone()
        .try_acquire_owned()
        .map_err(|_| Problem::busy("a backup is being made; one at a time", Duration::from_secs(10)))?;
    let store = file_of(&app)?;
    check_room(&app, &store)?;
    tracing::info!(who = &*caller.name, "a backup is made");
    // In a task of its own: a caller that goes away must not leave half a copy to the next one.
    let making = tokio::spawn(async move { noted(&desk, "backup", "store", make(&app, &store, turn)).await });
    making.await.map_err(|_| Problem::from(StoreError::Closed))?
}

/// The file of the store.
fn file_of(app: &App) -> Result<PathBuf, Problem> {
    let live = app.live();
    let address = live.config.store.address.as_str();
    address
        .strip_prefix("sqlite:")
        .map(PathBuf::from)
        .ok_or_else(|| Problem::new(StatusCode::CONFLICT, "no-file", live.config.store.no_file()))
}

/// Refuses where the copy would take the room that the store needs.
fn check_room(app: &App, store: &Path) -> Result<(), Problem> {
    let size = std::fs::metadata(store).map_or(0, |file| file.len());
    match app.redrive.figures().disk {
        Some(Room { free, least }) if free.saturating_sub(size) < least => {
            let detail = format!(
                "a copy of {size} bytes is made beside the store first, where {free} are free and {least} are to \
                 stay so; copy the file with `redrive backup --store` to another disk"
            );
            Err(Problem::new(StatusCode::INSUFFICIENT_STORAGE, "disk-low", detail))
        }
        _ => Ok(()),
    }
}

async fn make(app: &App, store: &Path, turn: OwnedSemaphorePermit) -> Result<Response, Problem> {
    let mut copy = store.as_os_str().to_owned();
    copy.push(".backup");
    let copy = PathBuf::from(copy);
    // What a process left that died over it.
    let _ = tokio::fs::remove_file(&copy).await;
    app.redrive.backup(&copy).await?;
    let opened = File::open(&copy).await;
    let removed = tokio::fs::remove_file(&copy).await;
    let wrong = |error: std::io::Error| {
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "store", format!("the copy cannot be read: {error}"))
    };
    let file = opened.map_err(wrong)?;
    removed.map_err(wrong)?;
    let length = file.metadata().await.map_err(wrong)?.len();
    let read = try_unfold((file, turn), |(mut file, turn)| async move {
        let mut chunk = vec![0; CHUNK];
        let read = file.read(&mut chunk).await?;
        chunk.truncate(read);
        Ok::<_, std::io::Error>((read > 0).then(|| (Bytes::from(chunk), (file, turn))))
    });
    let headers =
        [(CONTENT_TYPE, "application/vnd.sqlite3".to_owned()), (CONTENT_LENGTH, length.to_string())];
    Ok((headers, Body::from_stream(read)).into_response())
}
