//! Readers: threads with a connection each, so that looking waits for no commit.
//!
//! A look is one transaction: everything in it is seen as of one commit.

use std::sync::Arc;
use std::thread::JoinHandle;

use rusqlite::Connection;

use super::faults::Step;
use super::names::Names;
use super::queue::Queue;

/// How many looks run side by side. Loads are short, and the processor has other things to do.
pub(super) const READERS: usize = 2;
/// How many looks may wait.
pub(super) const LOOKS_MAX: u32 = 1024;

/// What a reader looks with.
pub(super) struct Eye {
    pub(super) conn: Connection,
    pub(super) names: Names,
}

/// A look, with its answer in it.
pub(super) type Look = Box<dyn FnOnce(&mut Eye) + Send>;

/// The readers' threads.
pub(super) struct Readers {
    looks: Arc<Queue<Look>>,
    threads: Vec<JoinHandle<()>>,
}

impl Readers {
    /// Starts a thread for each connection.
    pub(super) fn start(looks: Arc<Queue<Look>>, conns: Vec<Connection>) -> std::io::Result<Self> {
        let mut readers = Self { looks, threads: Vec::new() };
        for conn in conns {
            let looks = Arc::clone(&readers.looks);
            let mut eye = Eye { conn, names: Names::default() };
            let read = move || {
                while let Some(look) = looks.take_one() {
                    (look.call)(&mut eye);
                }
            };
            match std::thread::Builder::new().name("redrive-read".to_owned()).spawn(read) {
                Ok(thread) => readers.threads.push(thread),
                Err(error) => {
                    readers.end();
                    return Err(error);
                }
            }
        }
        Ok(readers)
    }

    /// Answers what waits, and closes the connections.
    pub(super) fn end(self) {
        self.looks.close();
        for thread in self.threads {
            let _ = thread.join();
        }
    }
}

/// Looks, in a transaction that sees one commit.
pub(super) fn see<T>(eye: &mut Eye, look: impl FnOnce(&mut Eye) -> Step<T>) -> Step<T> {
    eye.conn.execute_batch("BEGIN")?;
    let seen = look(eye);
    eye.conn.execute_batch("ROLLBACK")?;
    seen
}
