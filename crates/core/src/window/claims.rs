//! The claims on ids.
//!
//! All claims last equally long, so they expire in the order in which they were made, and a line in that
//! order is enough to find expired ones. A settled claim stays in the line until it is passed or the line has
//! grown to twice the number of claims. The line is therefore bounded by the claims, and a claim costs at
//! most two entries.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use super::mark::IdMark;
use crate::moment::Moment;

/// How long the line may be before it is compacted.
const LINE_LEAST: usize = 64;

/// Claims that are not settled.
#[derive(Debug, Default)]
pub(super) struct Claims {
    held: HashMap<IdMark, Held, BuildHasherDefault<Part>>,
    /// The claims in the order in which they expire.
    line: VecDeque<(IdMark, u64)>,
}

/// A claim.
#[derive(Debug, Clone, Copy)]
pub(super) struct Held {
    /// Its number among the claims of this id.
    pub(super) token: u64,
    /// When it expires.
    pub(super) until: Moment,
    /// How many commits of it are in progress; while there is one, it does not expire.
    pub(super) settling: u32,
}

impl Held {
    pub(super) fn is_live(&self, now: Moment) -> bool {
        self.settling > 0 || now < self.until
    }
}

impl Claims {
    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    pub(super) fn get(&self, mark: IdMark) -> Option<&Held> {
        self.held.get(&mark)
    }

    pub(super) fn get_mut(&mut self, mark: IdMark) -> Option<&mut Held> {
        self.held.get_mut(&mark)
    }

    /// Adds a claim, replacing one that expired.
    pub(super) fn put(&mut self, mark: IdMark, held: Held) {
        self.held.insert(mark, held);
        self.line.push_back((mark, held.token));
        if self.line.len() > LINE_LEAST.max(self.held.len() * 2) {
            let Self { held, line } = self;
            line.retain(|(mark, token)| held.get(mark).is_some_and(|held| held.token == *token));
        }
    }

    /// Removes the claim, if it still has this token.
    pub(super) fn take(&mut self, mark: IdMark, token: u64) -> bool {
        match self.held.entry(mark) {
            Entry::Occupied(held) if held.get().token == token => {
                held.remove();
                true
            }
            _ => false,
        }
    }

    /// Ends a commit in progress that failed. A claim that expired meanwhile is removed.
    pub(super) fn give_up(&mut self, mark: IdMark, token: u64, now: Moment) {
        if let Some(held) = self.held.get_mut(&mark).filter(|held| held.token == token) {
            held.settling = held.settling.saturating_sub(1);
            if !held.is_live(now) {
                self.held.remove(&mark);
            }
        }
    }

    /// Removes all expired claims; returns how many.
    pub(super) fn sweep(&mut self, now: Moment) -> usize {
        let Self { held, line } = self;
        let before = held.len();
        let mut settling = Vec::new();
        while let Some((mark, token)) = line.front().copied() {
            match held.get(&mark).filter(|held| held.token == token) {
                // Expired or not, it stays, and the ones behind it are looked at.
                Some(held) if held.settling > 0 => settling.push((mark, token)),
                Some(held) if held.is_live(now) => break,
                Some(_) => drop(held.remove(&mark)),
                None => {}
            }
            line.pop_front();
        }
        settling.into_iter().rev().for_each(|claim| line.push_front(claim));
        before - held.len()
    }
}

/// A hasher that uses a part of the mark as it is, because a mark is a hash already.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Part(u64);

impl Hasher for Part {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        // The last eight bytes: the table of ids is ordered by the first.
        for byte in bytes.iter().rev().take(8) {
            self.0 = self.0 << 8 | u64::from(*byte);
        }
    }

    /// The length of the array, which is the same for all marks.
    fn write_usize(&mut self, _: usize) {}
}
