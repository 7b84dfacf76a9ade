//! The running attempts, noted beside the database.
//!
//! After an unclean stop the owner uses the crash guard: before each dispatch, it writes the list of all running
//! attempts to a side file. That is one write to the page cache, without a sync, because it has to survive the death
//! of the process and not that of the machine: a handler that kills the machine kills its notes, too.
//!
//! There are two slots, written in turn. A write that the death of the process cuts in half leaves the previous slot
//! intact, which still lists every dispatched attempt. A list names its owner: notes of another epoch are ignored.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use redrive_core::queue_entry::{FencingToken, Seq};

use crate::error::StoreError;
use crate::stores::sqlite::faults::broken;
use crate::stores::sqlite::open::lock::beside;
use crate::stores::sqlite::writer::crash;

const MAGIC: &[u8; 8] = b"redrivN1";
/// Bytes of a slot. The file is sparse, so a large slot costs nothing.
const SLOT_BYTES: u64 = 1 << 20;
/// Magic, turn, epoch, incarnation, count.
const HEAD_BYTES: usize = 8 * 5;
/// How many seqs fit: far more than one process runs at a time.
const NOTED_MAX: usize = (1 << 20) / 8 - 8;

/// The side file.
#[derive(Debug)]
pub(in crate::stores::sqlite) struct InFlightNotes {
    path: PathBuf,
    pen: Mutex<Option<NoteFile>>,
}

#[derive(Debug)]
struct NoteFile {
    /// `None` if it could not be opened: the next note tries again.
    file: Option<File>,
    token: FencingToken,
    turn: u64,
}

impl InFlightNotes {
    pub(in crate::stores::sqlite) fn of(database: &Path) -> Self {
        Self { path: beside(database, "-notes"), pen: Mutex::new(None) }
    }

    /// Starts an empty list for this fencing token.
    pub(in crate::stores::sqlite) fn begin(&self, token: FencingToken) {
        *self.pen() = Some(NoteFile { file: self.open().ok(), token, turn: 0 });
    }

    fn open(&self) -> io::Result<File> {
        OpenOptions::new().write(true).create(true).truncate(true).open(&self.path)
    }

    /// Writes all running attempts.
    pub(in crate::stores::sqlite) fn write(
        &self,
        token: FencingToken,
        under_way: &[Seq],
        database: &Path,
    ) -> Result<(), StoreError> {
        let mut pen = self.pen();
        let Some(pen) = pen.as_mut().filter(|pen| pen.token == token) else {
            return Err(StoreError::NotOwner { path: database.to_owned(), pid: None });
        };
        if under_way.len() > NOTED_MAX {
            return Err(broken(format!("more than {NOTED_MAX} events are running, too many to note")));
        }
        let cannot = |error: io::Error| StoreError::Passing {
            what: format!("cannot note running events in {}: {error}", self.path.display()),
            source: Some(std::sync::Arc::new(error)),
        };
        let file = match &pen.file {
            Some(file) => file,
            None => pen.file.insert(self.open().map_err(cannot)?),
        };
        pen.turn += 1;
        crash::point("note-before");
        let text = encode(pen.turn, token, under_way);
        let written = file.write_all_at(&text, (pen.turn % 2) * SLOT_BYTES);
        crash::point("note-after");
        written.map_err(cannot)
    }

    /// The last note of the owner with this epoch.
    pub(in crate::stores::sqlite) fn read(&self, epoch: u64, incarnation: u64) -> Vec<Seq> {
        let Ok(bytes) = std::fs::read(&self.path) else { return Vec::new() };
        let slots = [bytes.as_slice(), bytes.get(1 << 20..).unwrap_or_default()];
        let lists = slots.into_iter().filter_map(decode);
        let mine = lists.filter(|list| list.epoch == epoch && list.incarnation == incarnation);
        mine.max_by_key(|list| list.turn).map(|list| list.seqs).unwrap_or_default()
    }

    /// Ends the list of this fencing token.
    pub(in crate::stores::sqlite) fn end(&self, token: FencingToken) {
        let mut pen = self.pen();
        if pen.as_ref().is_some_and(|pen| pen.token == token) {
            *pen = None;
            let _ = std::fs::remove_file(&self.path);
        }
    }

    fn pen(&self) -> std::sync::MutexGuard<'_, Option<NoteFile>> {
        self.pen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct List {
    turn: u64,
    epoch: u64,
    incarnation: u64,
    seqs: Vec<Seq>,
}

fn encode(turn: u64, token: FencingToken, seqs: &[Seq]) -> Vec<u8> {
    let mut text = Vec::with_capacity(HEAD_BYTES + seqs.len() * 8 + 4);
    text.extend_from_slice(MAGIC);
    for word in [turn, token.epoch, token.incarnation, seqs.len() as u64] {
        text.extend_from_slice(&word.to_le_bytes());
    }
    for seq in seqs {
        text.extend_from_slice(&seq.0.to_le_bytes());
    }
    text.extend_from_slice(&crc32fast::hash(&text).to_le_bytes());
    text
}

fn decode(bytes: &[u8]) -> Option<List> {
    let word = |at: usize| Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
    if bytes.get(..8)? != MAGIC {
        return None;
    }
    let count = usize::try_from(word(32)?).ok().filter(|count| *count <= NOTED_MAX)?;
    let end = HEAD_BYTES + count * 8;
    let crc = u32::from_le_bytes(*bytes.get(end..)?.first_chunk()?);
    if crc32fast::hash(&bytes[..end]) != crc {
        return None;
    }
    let seqs = (0..count).filter_map(|n| word(HEAD_BYTES + n * 8)).map(Seq).collect();
    Some(List { turn: word(8)?, epoch: word(16)?, incarnation: word(24)?, seqs })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_note_leaves_the_one_before_and_another_epochs_note_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let notes = InFlightNotes::of(&folder.path().join("db"));
        let token = FencingToken { shard: 0, epoch: 7, incarnation: 9 };
        notes.begin(token);
        notes.write(token, &[Seq(1), Seq(2)], folder.path()).unwrap();
        notes.write(token, &[Seq(2), Seq(3)], folder.path()).unwrap();
        assert_eq!(notes.read(7, 9), [Seq(2), Seq(3)]);
        assert_eq!(notes.read(8, 9), []);

        // The second note went to slot 0; a byte of it is lost.
        let file = OpenOptions::new().write(true).open(folder.path().join("db-notes")).unwrap();
        file.write_all_at(b"x", 41).unwrap();
        assert_eq!(notes.read(7, 9), [Seq(1), Seq(2)]);

        notes.end(token);
        assert_eq!(notes.read(7, 9), []);
    }
}
