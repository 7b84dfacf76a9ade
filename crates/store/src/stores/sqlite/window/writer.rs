//! The writer of a window: one thread, one commit for all pending ids.
//!
//! Every commit belongs to a claim, so no more can wait here than there are claims, and the channel needs no bound of
//! its own. A claim is held until its commit is on the disk; only then its id is visible, and its holder answered.

use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redrive_core::Moment;
use redrive_core::window::PendingCommit;
use rusqlite::wal::CheckpointMode;
use tokio::sync::{oneshot, watch};

use super::file::{Failed, File};
use crate::error::StoreError;
use crate::stores::sqlite::faults::{Health, Kind, kind, rolled_back, told};
use crate::stores::sqlite::writer::crash;
use crate::window::State;

/// How many ids share one commit at most: a row of 64 KiB.
const GROUP_MAX: usize = 4096;
/// How many pages the log may have before it is written back: 16 MiB, which an opening reads quickly.
const LOG_PAGES_MAX: i32 = 4000;
/// How long all claims are refused after a failed commit: an effect that cannot be marked had better not begin.
const STALL: Duration = Duration::from_secs(1);

/// A request to the writer.
pub(super) enum Call {
    /// Write a commit, which began at this moment.
    Commit(PendingCommit, Moment, oneshot::Sender<Result<(), StoreError>>),
    /// Stop.
    Close,
    /// Give a test access to the connection.
    #[cfg(feature = "planted")]
    Meddle(Box<dyn FnOnce(&mut rusqlite::Connection) + Send>, oneshot::Sender<()>),
}

pub(super) struct Writer {
    pub(super) file: File,
    pub(super) calls: Receiver<Call>,
    pub(super) state: Arc<Mutex<State>>,
    pub(super) health: Arc<Health>,
    pub(super) syncs: Arc<std::sync::atomic::AtomicU64>,
    pub(super) log_pages: Arc<AtomicI32>,
    pub(super) ended: watch::Sender<bool>,
}

type Group = Vec<(PendingCommit, oneshot::Sender<Result<(), StoreError>>)>;

impl Writer {
    /// Writes until it is stopped, or all callers are gone.
    pub(super) fn run(mut self) {
        let mut group = Group::new();
        let mut marks = Vec::new();
        let mut is_open = true;
        while is_open {
            let Ok(first) = self.calls.recv() else { break };
            let mut now = Moment::default();
            let mut next = Some(first);
            while let Some(call) = next {
                match call {
                    Call::Commit(pending, at, tell) => {
                        now = now.max(at);
                        marks.extend_from_slice(&pending.mark().0);
                        group.push((pending, tell));
                    }
                    Call::Close => is_open = false,
                    #[cfg(feature = "planted")]
                    Call::Meddle(meddle, tell) => {
                        meddle(&mut self.file.conn);
                        let _ = tell.send(());
                    }
                }
                next = if group.len() < GROUP_MAX { self.calls.try_recv().ok() } else { None };
            }
            if !group.is_empty() {
                self.commit(&mut group, &marks, now);
            }
            group.clear();
            marks.clear();
        }
        self.end();
    }

    fn commit(&mut self, group: &mut Group, marks: &[u8], now: Moment) {
        let written = self.health.check().and_then(|()| self.append(marks, now));
        if written.is_ok() {
            self.syncs.fetch_add(1, Relaxed);
            crash::point("window-before-answer");
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        for (pending, _) in group.iter() {
            match &written {
                Ok(at) => state.window.confirm(*pending, *at),
                Err(_) => state.window.give_up(*pending),
            }
        }
        state.stalled = written.as_ref().err().map(|error| (now + STALL, error.clone()));
        drop(state);
        for (_, tell) in group.drain(..) {
            let _ = tell.send(written.as_ref().map(|_| ()).map_err(Clone::clone));
        }
        if written.is_ok() {
            self.write_log_back();
        }
    }

    fn append(&mut self, marks: &[u8], now: Moment) -> Result<Moment, StoreError> {
        let failed = match self.file.append(marks, now) {
            Ok(at) => return Ok(at),
            Err(failed) => failed,
        };
        let error = match failed {
            Failed::Before(error) if kind(&error) == Kind::Disk => self.poison(&error),
            Failed::Before(error) => rolled_back(error),
            Failed::Commit(error) if kind(&error) == Kind::Passing => rolled_back(error),
            Failed::Commit(error) => {
                self.poison(&error);
                StoreError::Unknown { what: error.to_string() }
            }
        };
        if !self.health.is_poisoned()
            && let Err(error) = self.file.roll_back()
        {
            self.poison(&error);
        }
        Err(error)
    }

    /// From now on everything fails.
    fn poison(&self, error: &rusqlite::Error) -> StoreError {
        let what = told(error);
        self.health.poison(&what);
        StoreError::Poisoned { what }
    }

    /// Writes the log back when it has grown. SQLite would do that by itself, but not report a failed sync.
    fn write_log_back(&self) {
        if self.log_pages.load(Relaxed) < LOG_PAGES_MAX {
            return;
        }
        if let Err(error) = self.file.conn.wal_checkpoint_v2(None::<&str>, CheckpointMode::PASSIVE)
            && kind(&error) == Kind::Disk
        {
            self.poison(&error);
        }
    }

    /// Closes the file.
    fn end(self) {
        let Self { file, health, ended, calls, .. } = self;
        // Waiting calls learn that the window is closed.
        drop(calls);
        let File { conn, mut ownership, .. } = file;
        if !health.is_poisoned() {
            // The next opening writes back what cannot be written back now.
            let _ = conn.wal_checkpoint_v2(None::<&str>, CheckpointMode::TRUNCATE);
        }
        drop(conn);
        ownership.let_go();
        let _ = ended.send(true);
    }
}
