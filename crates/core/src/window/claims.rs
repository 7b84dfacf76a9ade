//! Who is at work on which id.
//!
//! All claims last equally long, so they run out in the order in which they were made, and a line in that order is
//! enough to find those that did. A claim that was settled stays in the line until it is passed or the line has
//! grown to twice the claims; so the line is bounded by the claims, and a claim costs no more than two entries.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use super::mark::Mark;
use crate::moment::Moment;

/// How long the line may be before it is looked through.
const LINE_LEAST: usize = 64;

/// Claims that were made and not settled.
#[derive(Debug, Default)]
pub(super) struct Claims {
    held: HashMap<Mark, Held, BuildHasherDefault<Part>>,
    /// In the order in which they run out.
    line: VecDeque<(Mark, u64)>,
}

/// A claim.
#[derive(Debug, Clone, Copy)]
pub(super) struct Held {
    /// Which of the claims of this id it is.
    pub(super) token: u64,
    /// When it runs out.
    pub(super) until: Moment,
    /// How many commits of it are under way; while there is one, it does not run out.
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

    pub(super) fn get(&self, mark: Mark) -> Option<&Held> {
        self.held.get(&mark)
    }

    pub(super) fn get_mut(&mut self, mark: Mark) -> Option<&mut Held> {
        self.held.get_mut(&mark)
    }

    /// Puts a claim in, in the place of one that ran out.
    pub(super) fn put(&mut self, mark: Mark, held: Held) {
        self.held.insert(mark, held);
        self.line.push_back((mark, held.token));
        if self.line.len() > LINE_LEAST.max(self.held.len() * 2) {
            let Self { held, line } = self;
            line.retain(|(mark, token)| held.get(mark).is_some_and(|held| held.token == *token));
        }
    }

    /// Takes the claim away, if it is still that one.
    pub(super) fn take(&mut self, mark: Mark, token: u64) -> bool {
        match self.held.entry(mark) {
            Entry::Occupied(held) if held.get().token == token => {
                held.remove();
                true
            }
            _ => false,
        }
    }

    /// Ends a commit that was under way and failed. A claim that ran out meanwhile is gone.
    pub(super) fn give_up(&mut self, mark: Mark, token: u64, now: Moment) {
        if let Some(held) = self.held.get_mut(&mark).filter(|held| held.token == token) {
            held.settling = held.settling.saturating_sub(1);
            if !held.is_live(now) {
                self.held.remove(&mark);
            }
        }
    }

    /// Forgets all that ran out; says how many.
    pub(super) fn sweep(&mut self, now: Moment) -> usize {
        let Self { held, line } = self;
        let before = held.len();
        let mut settling = Vec::new();
        while let Some((mark, token)) = line.front().copied() {
            match held.get(&mark).filter(|held| held.token == token) {
                // Its time is over or not: it stays, and those behind it are looked at.
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

/// A part of a mark: it is a hash already, and what would be gained by hashing it again?
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Part(u64);

impl Hasher for Part {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        // The last eight: the table of ids is in the order of the first.
        for byte in bytes.iter().rev().take(8) {
            self.0 = self.0 << 8 | u64::from(*byte);
        }
    }

    /// The length of the array, which all of them have.
    fn write_usize(&mut self, _: usize) {}
}
