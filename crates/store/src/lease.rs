//! Leases: attempts that are made by somebody outside the engine.
//!
//! A lease is durable, one commit for a call. It is judged by its attempt, not by time, epoch or process:
//!
//! | the attempt of the lease | a settle says |
//! |---|---|
//! | is the last one that was handed out, also when it is late or the process was started again | applied |
//! | is the last one, and its end made a dead letter of the event that nobody has touched since | applied |
//! | is the one that did it, with its token | already |
//! | is not the last one, or somebody else has settled it | conflict, with what is so now; final |
//! | is of an event that nobody knows | unknown |
//!
//! A lease that was not settled in time is an attempt of unknown outcome. From when that is written, it cannot be made
//! good for longer: that would take an attempt back which was counted. Whoever asks for it is told "lapsed", and that is
//! not final: a settle of that attempt counts as above.

use redrive_core::Moment;
use redrive_core::entry::{Change, Entry, Park};
use redrive_core::event::DeadReason;

use crate::found::Found;

/// What becomes of a leased event: a function of how it was when it was handed out, and of what the end of its lease
/// made of it, if it is a dead letter since. It may be called more than once, and must not block.
pub type Decide = Box<dyn FnMut(&Entry, Option<Lapsed>) -> Change + Send>;

/// What becomes of an event whose lease was over before it was settled: a function of how it was when it was handed
/// out, and of that lease. It may be called more than once, and must not block.
pub type Lapse = Box<dyn FnMut(&Entry, Term) -> Change + Send>;

/// From when until when a lease was good: what was noticed later did not happen later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Term {
    /// When it was handed out.
    pub from: Moment,
    /// When it was over.
    pub until: Moment,
}

/// A dead letter that died because its last lease was over, and that nobody has touched since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lapsed {
    /// What it died of.
    pub reason: DeadReason,
    /// How it holds up those of its key that follow.
    pub park: Park,
    /// Whether later ones of its key may have run before it.
    pub passed: bool,
}

impl Lapsed {
    /// What becomes of an event of which its attempt said this, where it may be such a letter. Its end is an end like
    /// any other. Where it stays dead, it holds up as many as before: those that went on cannot be called back. For
    /// the same reason it is not tried again by itself where its key went on, but stays dead of what is known now.
    #[must_use]
    pub fn bounded(letter: Option<Self>, change: Change) -> Change {
        let Some(Self { reason: before, park, passed }) = letter else { return change };
        match change {
            Change::Again(progress) if passed => Change::Dead { reason: before, progress, park },
            Change::Dead { reason, progress, .. } => Change::Dead { reason, progress, park },
            change => change,
        }
    }
}

/// The hash of what only the holder of a lease knows.
pub type TokenHash = [u8; 16];

/// A call for events.
pub struct Lease {
    /// Of which queue. It must be one that is pulled from.
    pub queue: String,
    /// Of this tenant alone; of all, in turn, where it is none.
    pub tenant: Option<String>,
    /// When.
    pub at: Moment,
    /// Until when the lease is good.
    pub until: Moment,
    /// The hashes of the tokens, one for each event that is wanted at most.
    pub tokens: Vec<TokenHash>,
    /// How many bytes of payload in all, roughly: the one that goes over it is the last.
    pub bytes_max: usize,
    /// What becomes of those whose lease was over before they were settled.
    pub lapsed: Lapse,
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lease")
            .field("queue", &self.queue)
            .field("wanted", &self.tokens.len())
            .finish_non_exhaustive()
    }
}

/// What a call for events gives.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Leased {
    /// The events, the first with the first token. Each is at its attempt `progress.attempts + 1`.
    pub entries: Vec<Entry>,
    /// How many leases were over before they were settled.
    pub lapsed: usize,
    /// When there may be something next, if that is known.
    pub next_due: Option<Moment>,
}

/// A lease that somebody holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// Of which tenant.
    pub tenant: String,
    /// Of which queue.
    pub queue: String,
    /// Of which event.
    pub id: String,
    /// Which attempt.
    pub attempt: u32,
    /// The hash of its token.
    pub token: TokenHash,
}

/// What is to become of a leased event.
pub struct LeaseSettle {
    /// Which lease.
    pub lease: Held,
    /// When.
    pub at: Moment,
    /// What becomes of it.
    pub decide: Decide,
}

impl std::fmt::Debug for LeaseSettle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LeaseSettle").field("lease", &self.lease).finish_non_exhaustive()
    }
}

/// What a store says of a lease.
#[derive(Debug, Clone, PartialEq)]
pub enum LeaseSettled {
    /// It is written: settled, or good for longer.
    Applied,
    /// The same attempt, with the same token, has done it before.
    Already,
    /// Another attempt has it, it was settled otherwise, or the token is not the one: this is so now, and final.
    Conflict(Box<Found>),
    /// Only of one that was to be good for longer: it is over, and an attempt was counted for it. Nobody was given the
    /// event since, and a settle of this attempt still counts; this is so now.
    Lapsed(Box<Found>),
    /// There is no such event.
    Unknown,
}
