//! Readers: threads with a connection each, so that a read waits for no commit.
//!
//! A read is one transaction: it sees everything as of one commit.

use std::sync::Arc;
use std::thread::JoinHandle;

use rusqlite::Connection;

use super::events::stream_names::StreamNames;
use super::faults::Step;
use super::writer::queue::Queue;

/// How many reads run concurrently. Loads are short, and the processor is needed elsewhere.
pub(super) const READERS: usize = 2;
/// How many reads may wait.
pub(super) const LOOKS_MAX: u32 = 1024;

/// The state of a reader.
pub(super) struct Reader {
    pub(super) conn: Connection,
    pub(super) names: StreamNames,
}

/// A read, which also answers its caller.
pub(super) type Look = Box<dyn FnOnce(&mut Reader) + Send>;

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
            let mut reader = Reader { conn, names: StreamNames::default() };
            let read = move || {
                while let Some(look) = looks.take_one() {
                    (look.call)(&mut reader);
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

    /// Answers the waiting reads, and closes the connections.
    pub(super) fn end(self) {
        self.looks.close();
        for thread in self.threads {
            let _ = thread.join();
        }
    }
}

/// Reads in a transaction that sees one commit.
pub(super) fn see<T>(reader: &mut Reader, look: impl FnOnce(&mut Reader) -> Step<T>) -> Step<T> {
    reader.conn.execute_batch("BEGIN")?;
    let seen = look(reader);
    reader.conn.execute_batch("ROLLBACK")?;
    seen
}
