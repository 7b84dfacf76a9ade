//! What is under way, noted beside the database.
//!
//! After an unclean stop the owner is careful: before it dispatches, it writes the list of all that is under
//! way to a side file. That is one write to the page cache, without a sync, because it has to survive the
//! death of the process and not that of the machine: a handler that kills the machine kills its notes, too.
//!
//! There are two slots, written in turn. A write that the death of the process cuts in half leaves the slot
//! before it whole; what that one names is still all that was dispatched. A list says whose it is: notes of
//! another epoch are none.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use redrive_core::entry::{Grant, Seq};

use super::crash;
use super::faults::broken;
use super::lock::beside;
use crate::error::StoreError;

const MAGIC: &[u8; 8] = b"redrivN1";
/// Bytes of a slot. The file is sparse, so a large slot costs nothing.
const SLOT_BYTES: u64 = 1 << 20;
/// Magic, turn, epoch, incarnation, count.
const HEAD_BYTES: usize = 8 * 5;
/// How many can be noted: far more than anybody runs at once.
const NOTED_MAX: usize = (1 << 20) / 8 - 8;

/// The side file.
#[derive(Debug)]
pub(super) struct Notes {
    path: PathBuf,
    pen: Mutex<Option<Pen>>,
}

#[derive(Debug)]
struct Pen {
    /// None where it could not be opened: the next note tries again.
    file: Option<File>,
    grant: Grant,
    turn: u64,
}

impl Notes {
    pub(super) fn of(database: &Path) -> Self {
        Self { path: beside(database, "-notes"), pen: Mutex::new(None) }
    }

    /// Starts an empty list for this grant.
    pub(super) fn begin(&self, grant: Grant) {
        *self.pen() = Some(Pen { file: self.open().ok(), grant, turn: 0 });
    }

    fn open(&self) -> io::Result<File> {
        OpenOptions::new().write(true).create(true).truncate(true).open(&self.path)
    }

    /// Writes all that is under way.
    pub(super) fn write(&self, grant: Grant, under_way: &[Seq], database: &Path) -> Result<(), StoreError> {
        let mut pen = self.pen();
        let Some(pen) = pen.as_mut().filter(|pen| pen.grant == grant) else {
            return Err(StoreError::NotOwner { path: database.to_owned(), pid: None });
        };
        if under_way.len() > NOTED_MAX {
            return Err(broken(format!("more than {NOTED_MAX} events are under way, too many to note")));
        }
        let cannot = |error: io::Error| StoreError::Passing {
            what: format!("cannot note what is under way in {}: {error}", self.path.display()),
            source: Some(std::sync::Arc::new(error)),
        };
        let file = match &pen.file {
            Some(file) => file,
            None => pen.file.insert(self.open().map_err(cannot)?),
        };
        pen.turn += 1;
        crash::point("note-before");
        let text = encode(pen.turn, grant, under_way);
        let written = file.write_all_at(&text, (pen.turn % 2) * SLOT_BYTES);
        crash::point("note-after");
        written.map_err(cannot)
    }

    /// What the owner with this grant noted last.
    pub(super) fn read(&self, epoch: u64, incarnation: u64) -> Vec<Seq> {
        let Ok(bytes) = std::fs::read(&self.path) else { return Vec::new() };
        let slots = [bytes.as_slice(), bytes.get(1 << 20..).unwrap_or_default()];
        let lists = slots.into_iter().filter_map(decode);
        let mine = lists.filter(|list| list.epoch == epoch && list.incarnation == incarnation);
        mine.max_by_key(|list| list.turn).map(|list| list.seqs).unwrap_or_default()
    }

    /// Ends the list of this grant.
    pub(super) fn end(&self, grant: Grant) {
        let mut pen = self.pen();
        if pen.as_ref().is_some_and(|pen| pen.grant == grant) {
            *pen = None;
            let _ = std::fs::remove_file(&self.path);
        }
    }

    fn pen(&self) -> std::sync::MutexGuard<'_, Option<Pen>> {
        self.pen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct List {
    turn: u64,
    epoch: u64,
    incarnation: u64,
    seqs: Vec<Seq>,
}

fn encode(turn: u64, grant: Grant, seqs: &[Seq]) -> Vec<u8> {
    let mut text = Vec::with_capacity(HEAD_BYTES + seqs.len() * 8 + 4);
    text.extend_from_slice(MAGIC);
    for word in [turn, grant.epoch, grant.incarnation, seqs.len() as u64] {
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
        let notes = Notes::of(&folder.path().join("db"));
        let grant = Grant { shard: 0, epoch: 7, incarnation: 9 };
        notes.begin(grant);
        notes.write(grant, &[Seq(1), Seq(2)], folder.path()).unwrap();
        notes.write(grant, &[Seq(2), Seq(3)], folder.path()).unwrap();
        assert_eq!(notes.read(7, 9), [Seq(2), Seq(3)]);
        assert_eq!(notes.read(8, 9), []);

        // The second note went to slot 0; a byte of it is lost.
        let file = OpenOptions::new().write(true).open(folder.path().join("db-notes")).unwrap();
        file.write_all_at(b"x", 41).unwrap();
        assert_eq!(notes.read(7, 9), [Seq(1), Seq(2)]);

        notes.end(grant);
        assert_eq!(notes.read(7, 9), []);
    }
}
