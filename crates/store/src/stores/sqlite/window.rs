//! A window whose ids are in a SQLite file.
//!
//! The ids are in memory, as in any window, and checks are answered from there. The file is for the next process:
//! a commit is on the disk before it is answered. Claims are not written: whoever held one died with the process,
//! nobody knows whether the effect happened, and the id must be given to the next one who asks, at once. A claim on
//! the disk would only make that one wait.
//!
//! The domain is this file, and never the effect's: between the effect and its commit the process can die, and then
//! the effect happens again.

use std::path::Path;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use redrive_core::Moment;
use redrive_core::window::Pending;
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
    /// Opens a file, reads what it remembers into `state`, and starts the thread that writes to it. Gives the rows that could
    /// not be read as well.
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
            why: format!("no thread could be started: {error}"),
            source: Some(Arc::new(error)),
        })?;
        Ok((Self { calls, health, syncs, ended, thread: Mutex::new(Some(thread)) }, damaged))
    }

    /// Nothing, while the file may be trusted.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        self.health.check()
    }

    /// Has a commit written down.
    pub(crate) fn commit(&self, pending: Pending, now: Moment) -> oneshot::Receiver<Result<(), StoreError>> {
        let (tell, told) = oneshot::channel();
        // Where nobody is there to write, the answer's other end is dropped, which says so.
        let _ = self.calls.send(Call::Commit(pending, now, tell));
        told
    }

    /// How many commits were written.
    pub(crate) fn syncs(&self) -> u64 {
        self.syncs.load(Relaxed)
    }

    /// Has the file closed, and gives what tells when it is.
    pub(crate) fn close(&self) -> watch::Receiver<bool> {
        let _ = self.calls.send(Call::Close);
        self.ended.clone()
    }

    /// Has the file closed, and waits for it.
    pub(crate) fn close_blocking(&self) {
        let _ = self.calls.send(Call::Close);
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = thread.join();
        }
    }

    /// Lets a test at the connection.
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
    /// Writes what was handed in, and closes the file.
    fn drop(&mut self) {
        self.close_blocking();
    }
}
