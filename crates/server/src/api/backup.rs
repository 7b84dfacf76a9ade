//! A copy of the store, as the body of an answer.
//!
//! The caller supplies no path. The backup is made beside the store, as of one moment and without stopping anything,
//! and its file is already unlinked when the first byte is sent: whatever happens to the response, nothing is left
//! behind.

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
use redrive::store::DiskSpace;
use tokio::fs::File;
use tokio::io::AsyncReadExt as _;
use tokio::sync::OwnedSemaphorePermit;

use super::ApiProblem;
use super::operate::OperatorContext;
use crate::app::App;
use crate::audit::noted;
use crate::config::Right;

/// Bytes read at once.
const CHUNK: usize = 128 << 10;

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new().route("/v1/backup", post(backup))
}

async fn backup(OperatorContext { app, caller, desk }: OperatorContext) -> Result<Response, ApiProblem> {
    caller.may(Right::Operate)?;
    caller.for_everything("a backup")?;
    let turn = app.backups.clone().try_acquire_owned().map_err(|_| {
        ApiProblem::busy("another backup is running; only one at a time", Duration::from_secs(10))
    })?;
    let store = file_of(&app)?;
    check_room(&app, &store)?;
    tracing::info!(who = &*caller.name, "a backup is made");
    // In its own task: a caller that disconnects must not leave half a backup to the next one.
    let making = tokio::spawn(async move { noted(&desk, "backup", "store", make(&app, &store, turn)).await });
    making.await.map_err(|_| ApiProblem::from(StoreError::Closed))?
}

/// The file of the store.
fn file_of(app: &App) -> Result<PathBuf, ApiProblem> {
    let live = app.live();
    let address = live.config.store.address.as_str();
    address
        .strip_prefix("sqlite:")
        .map(PathBuf::from)
        .ok_or_else(|| ApiProblem::new(StatusCode::CONFLICT, "no-file", live.config.store.no_file()))
}

/// Refuses a backup that would use up the disk space the store needs.
fn check_room(app: &App, store: &Path) -> Result<(), ApiProblem> {
    let size = std::fs::metadata(store).map_or(0, |file| file.len());
    match app.redrive.figures().disk {
        Some(DiskSpace { free, least }) if free.saturating_sub(size) < least => {
            let detail = format!(
                "a backup needs {size} bytes beside the store, but only {free} are free and {least} must stay free; back up to another disk with `redrive backup --store`"
            );
            Err(ApiProblem::new(StatusCode::INSUFFICIENT_STORAGE, "disk-low", detail))
        }
        _ => Ok(()),
    }
}

async fn make(app: &App, store: &Path, turn: OwnedSemaphorePermit) -> Result<Response, ApiProblem> {
    let mut copy = store.as_os_str().to_owned();
    copy.push(".backup");
    let copy = PathBuf::from(copy);
    // Left by a process that died during a backup.
    let _ = tokio::fs::remove_file(&copy).await;
    app.redrive.backup(&copy).await?;
    let opened = File::open(&copy).await;
    let removed = tokio::fs::remove_file(&copy).await;
    let wrong = |error: std::io::Error| {
        ApiProblem::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "store",
            format!("the copy cannot be read: {error}"),
        )
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
