//! A window whose ids are in a SQLite file.
//!
//! The ids are in memory, as in any window, and claims are answered from there. The file is for the next process: a
//! commit is on the disk before it is answered. Claims are not written: the holder of a claim died with the process,
//! it is unknown whether the effect happened, and the next caller must get the id at once. A claim on the disk would
//! only make that caller wait.
//!
//! The domain is this file, and never the effect's: between the effect and its commit the process can die, and then
//! the effect happens again.

use std::path::Path;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use redrive_core::Moment;
use redrive_core::window::PendingCommit;
use tokio::sync::{oneshot, watch};

use super::faults::{self, Health};
use crate::error::StoreError;
use crate::window::State;

mod file;

mod writer;

use file::File;
use writer::{Call, Writer};

/// The durable part of a window.
#[derive(Debug)]
pub(crate) struct Keeper {
    calls: Sender<Call>,
    health: Arc<Health>,
    syncs: Arc<AtomicU64>,
    ended: watch::Receiver<bool>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Keeper {
    /// Opens a file, reads its ids into `state`, and starts the thread that writes to it. Also returns the rows that
    /// could not be read.
    pub(crate) fn open(
        path: &Path,
        state: &Arc<Mutex<State>>,
        now: Moment,
    ) -> Result<(Self, Vec<String>), StoreError> {
        let window = &mut state.lock().unwrap_or_else(PoisonError::into_inner).window;
        let (mut file, damaged) = File::open(path, window, now)?;
        let log_pages = Arc::new(AtomicI32::new(0));
        let counted = Arc::clone(&log_pages);
        let count = move |_: &mut rusqlite::hooks::Wal, pages| {
            counted.store(pages, Relaxed);
            Ok(())
        };
        file.conn.wal_hook(Some(count)).map_err(faults::rolled_back)?;
        let (calls, called) = channel();
        let (told, ended) = watch::channel(false);
        let (health, syncs) = (Arc::<Health>::default(), Arc::<AtomicU64>::default());
        let writer = Writer {
            file,
            calls: called,
            state: Arc::clone(state),
            health: Arc::clone(&health),
            syncs: Arc::clone(&syncs),
            log_pages,
            ended: told,
        };
        let thread = std::thread::Builder::new().name("redrive-window".to_owned());
        let thread = thread.spawn(move || writer.run()).map_err(|error| StoreError::Open {
            path: path.to_owned(),
            why: format!("cannot start a thread: {error}"),
            source: Some(Arc::new(error)),
        })?;
        Ok((Self { calls, health, syncs, ended, thread: Mutex::new(Some(thread)) }, damaged))
    }

    /// Fails if the file can no longer be trusted.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        self.health.check()
    }

    /// Queues a commit for writing.
    pub(crate) fn commit(
        &self,
        pending: PendingCommit,
        now: Moment,
    ) -> oneshot::Receiver<Result<(), StoreError>> {
        let (tell, told) = oneshot::channel();
        // If the writer is gone, the answer's other end is dropped, which says so.
        let _ = self.calls.send(Call::Commit(pending, now, tell));
        told
    }

    /// How many commits were written.
    pub(crate) fn syncs(&self) -> u64 {
        self.syncs.load(Relaxed)
    }

    /// Closes the file, and returns a signal for its end.
    pub(crate) fn close(&self) -> watch::Receiver<bool> {
        let _ = self.calls.send(Call::Close);
        self.ended.clone()
    }

    /// Closes the file, and waits for it.
    pub(crate) fn close_blocking(&self) {
        let _ = self.calls.send(Call::Close);
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = thread.join();
        }
    }

    /// Gives a test access to the connection.
    #[cfg(feature = "planted")]
    pub(crate) fn meddle(
        &self,
        with: impl FnOnce(&mut rusqlite::Connection) + Send + 'static,
    ) -> oneshot::Receiver<()> {
        let (tell, told) = oneshot::channel();
        let _ = self.calls.send(Call::Meddle(Box::new(with), tell));
        told
    }
}

impl Drop for Keeper {
    /// Writes pending commits, and closes the file.
    fn drop(&mut self) {
        self.close_blocking();
    }
}
