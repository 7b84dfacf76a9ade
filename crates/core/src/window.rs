//! A window of ids that were dealt with: bounded by time and by count, and asked before every effect.
//!
//! For pipelines that bring their own transport: something delivers messages more than once, and each is to take
//! effect once. The question "is this the first time?" cannot be answered in one step. If the answer marks the id,
//! a crash before the effect loses it; so the id is **claimed**, the effect happens, and then the claim is
//! **committed**, or **released** where the effect certainly did not happen.
//!
//! ```text
//!            claim                       commit
//!   unknown ───────▶ claimed until t ───────────▶ seen since t ───▶ unknown, when its time is over
//!      ▲                 │      │                                   or more came than fit
//!      └──── release ◀───┘      └─▶ run out: the next one may claim it
//! ```
//!
//! What holds:
//!
//! - While a claim lasts, nobody else gets one for that id: they hear `Busy`.
//! - A claim that nobody settles runs out. Its effect may have happened: whoever claims next may repeat it, and that
//!   is the price of losing nothing.
//! - A commit is judged by who holds the claim and not by time: late, but not taken by anybody else, it counts.
//! - An id is remembered for `time` since its commit. Being asked about does not make it stay longer: a sender that
//!   repeats itself for ever would otherwise fill the window.
//! - Where more ids come than fit, the oldest go before their time, and that is counted. A live claim never goes.
//!   Where there is nothing but live claims, the next one is refused.
//! - Time that goes backwards stands still here: nothing is forgotten twice, and nothing comes back.
//!
//! This is the pure part: no I/O, no clock, and time is handed in. A check allocates nothing but when the tables
//! grow, which happens at every doubling up to the bound.

use std::time::Duration;

use crate::moment::Moment;

mod mark;

mod id;

mod claims;

mod ids;

mod slots;

mod peaks;

pub use id::Id;
pub use mark::Mark;

use claims::{Claims, Held};
use ids::Ids;

/// The most that a window can be told to remember. The numbers in its tables have 32 bits.
pub const COUNT_MAX: usize = 1 << 30;

/// How many ids that are over their time a call clears away. More than one, so that it catches up; not all, so that
/// no call pays for an idle night.
const CLEARED_PER_CALL: usize = 4;

/// The bounds of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// How long an id is remembered after its commit. Longer than the transport may still deliver it again.
    pub time: Duration,
    /// How many ids are remembered, claims included. More than come in `time`, or they are forgotten early.
    pub count: usize,
    /// How long a claim lasts. Longer than the effect takes.
    pub claim: Duration,
}

impl Default for Settings {
    /// A day, a million ids (40 MB when it is full), claims of five minutes.
    fn default() -> Self {
        let minute = Duration::from_secs(60);
        Self { time: 24 * 60 * minute, count: 1_000_000, claim: 5 * minute }
    }
}

impl Settings {
    /// Whether a window can be made of them.
    ///
    /// # Errors
    /// With the first that makes no sense.
    pub fn check(&self) -> Result<(), SettingsError> {
        match self {
            Self { time, .. } if time.is_zero() => Err(SettingsError::NoTime),
            Self { claim, .. } if claim.is_zero() => Err(SettingsError::NoClaim),
            Self { count, .. } if !(1..=COUNT_MAX).contains(count) => Err(SettingsError::Count(*count)),
            Self { time, claim, .. } if claim > time => {
                Err(SettingsError::ClaimOutlasts { claim: *claim, time: *time })
            }
            _ => Ok(()),
        }
    }
}

/// Why no window can be made of settings.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// Nothing would be remembered.
    #[error(
        "a window of no time remembers nothing; set `time` to longer than the transport may deliver again"
    )]
    NoTime,
    /// Claims would run out at once.
    #[error("claims that last no time keep nobody out; set `claim` to longer than the effect takes")]
    NoClaim,
    /// Too few or too many.
    #[error("a window of {0} ids cannot be had; `count` is between 1 and {COUNT_MAX}")]
    Count(usize),
    /// The claim is longer than the memory.
    #[error("claims of {claim:?} outlast the window of {time:?}; shorten `claim` or widen `time`")]
    ClaimOutlasts {
        /// How long a claim lasts.
        claim: Duration,
        /// How long an id is remembered.
        time: Duration,
    },
}

/// The answer to a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claimed {
    /// Nobody has dealt with it as far as the window goes back: do it, then commit.
    First(Ticket),
    /// It was dealt with.
    Seen {
        /// When that was committed.
        since: Moment,
    },
    /// Somebody is at it.
    Busy {
        /// When their claim runs out, if it is not settled before. Past where its commit is being written.
        until: Moment,
    },
}

/// The right to deal with an id, until it runs out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket {
    id: Id,
    token: u64,
    until: Moment,
}

impl Ticket {
    /// When it runs out.
    #[must_use]
    pub const fn until(&self) -> Moment {
        self.until
    }

    /// Whose id it is for.
    #[must_use]
    pub const fn mark(&self) -> Mark {
        self.id.mark
    }
}

/// A commit that is under way: it was judged, and is being written down. Its claim does not run out meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "to be confirmed when it is written down, or given up"]
pub struct Pending {
    id: Id,
    token: u64,
}

impl Pending {
    /// What is to be written down.
    #[must_use]
    pub const fn mark(&self) -> Mark {
        self.id.mark
    }
}

/// Why a claim or a commit is refused for the time being.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "all {claims} places of the window are taken by claims that last; try again when some are settled, or raise `count`"
)]
pub struct Full {
    /// How many there are.
    pub claims: usize,
}

/// Why a commit comes too late, or cannot be done now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// The claim ran out, and somebody else has the id.
    #[error(
        "the claim ran out and somebody else has the id; its effect may happen twice: make `claim` longer"
    )]
    Taken {
        /// When theirs runs out.
        until: Moment,
    },
    /// The claim ran out, and somebody else dealt with the id.
    #[error(
        "the claim ran out and somebody else committed the id; its effect may have happened twice: make `claim` longer"
    )]
    Already {
        /// When they committed it.
        since: Moment,
    },
    /// There is no room.
    #[error(transparent)]
    Full(#[from] Full),
}

/// What a window has seen since it was made, and what it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Figures {
    /// Ids that are remembered now.
    pub ids: usize,
    /// Claims that are held now.
    pub claims: usize,
    /// Bytes set aside for ids.
    pub bytes: usize,
    /// Claims that were answered with `First`.
    pub first: u64,
    /// Claims that were answered with `Seen`: duplicates.
    pub seen: u64,
    /// Claims that were answered with `Busy`.
    pub busy: u64,
    /// Commits.
    pub committed: u64,
    /// Claims that were given back.
    pub released: u64,
    /// Claims that ran out and were taken by somebody else or cleared away: effects of unknown outcome.
    pub abandoned: u64,
    /// Commits that came after somebody else had taken the id: effects that may have happened twice.
    pub late: u64,
    /// Ids whose time was over.
    pub expired: u64,
    /// Ids that were forgotten before their time because more came than fit: what comes again of these runs again.
    pub evicted_early: u64,
    /// How long the one of these was remembered that was remembered for the shortest time: what the window is worth.
    pub youngest_evicted: Option<Duration>,
}

/// A window of ids.
///
/// ```
/// use redrive_core::window::{Claimed, Id, Settings, Window};
/// use redrive_core::Moment;
///
/// let mut window = Window::new(Settings::default()).unwrap();
/// let now = Moment::from_nanos(0);
/// let id = Id::of("orders", b"order-17");
/// let Claimed::First(ticket) = window.claim(id, now).unwrap() else { panic!("nobody was here before") };
/// assert!(matches!(window.claim(id, now), Ok(Claimed::Busy { .. })));
/// // … the effect …
/// window.commit(ticket, now).unwrap();
/// assert_eq!(window.claim(id, now), Ok(Claimed::Seen { since: now }));
/// ```
#[derive(Debug)]
pub struct Window {
    settings: Settings,
    /// The latest moment that was handed in.
    now: Moment,
    ids: Ids,
    claims: Claims,
    tokens: u64,
    figures: Figures,
}

impl Window {
    /// An empty one.
    ///
    /// # Errors
    /// Where the settings make no sense.
    pub fn new(settings: Settings) -> Result<Self, SettingsError> {
        settings.check()?;
        Ok(Self {
            settings,
            now: Moment::default(),
            ids: Ids::new(settings.count),
            claims: Claims::default(),
            tokens: 0,
            figures: Figures::default(),
        })
    }

    /// Its bounds.
    #[must_use]
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Asks for an id.
    ///
    /// # Errors
    /// Where everything that fits is live claims.
    pub fn claim(&mut self, id: impl Into<Id>, now: Moment) -> Result<Claimed, Full> {
        let now = self.pass(now);
        let id = id.into();
        let held = self.claims.get(id.mark).copied();
        if let Some(held) = held.filter(|held| held.is_live(now)) {
            self.figures.busy += 1;
            return Ok(Claimed::Busy { until: held.until });
        }
        if let Some(since) = self.since(&id, now) {
            self.figures.seen += 1;
            return Ok(Claimed::Seen { since });
        }
        if held.is_some() {
            self.figures.abandoned += 1;
        } else {
            self.make_room(now)?;
        }
        self.tokens += 1;
        self.figures.first += 1;
        let ticket = Ticket { id, token: self.tokens, until: now + self.settings.claim };
        self.hold(ticket, 0);
        Ok(Claimed::First(ticket))
    }

    /// Commits a claim, where nothing has to be written down.
    ///
    /// # Errors
    /// As [`prepare`](Self::prepare).
    pub fn commit(&mut self, ticket: Ticket, now: Moment) -> Result<(), Refused> {
        let at = self.pass(now);
        // As nearly always; the rest is what follows from it.
        if self.claims.take(ticket.id.mark, ticket.token) {
            self.remember(&ticket.id, at, true);
            return Ok(());
        }
        let pending = self.prepare(ticket, now)?;
        self.confirm(pending, now);
        Ok(())
    }

    /// Judges a commit, and holds its claim until it is [confirmed](Self::confirm) or [given up](Self::give_up).
    ///
    /// # Errors
    /// Where the claim ran out and somebody else has the id, or dealt with it.
    pub fn prepare(&mut self, ticket: Ticket, now: Moment) -> Result<Pending, Refused> {
        let now = self.pass(now);
        let Ticket { id, token, .. } = ticket;
        match self.claims.get_mut(id.mark) {
            Some(held) if held.token == token => held.settling += 1,
            Some(held) if held.is_live(now) => {
                self.figures.late += 1;
                return Err(Refused::Taken { until: held.until });
            }
            // Nobody has it, whether it was taken in between or not. The effect happened: it is remembered.
            other => {
                let is_held = other.is_some();
                if let Some(since) = self.since(&id, now) {
                    self.figures.late += 1;
                    return Err(Refused::Already { since });
                }
                if is_held {
                    self.figures.abandoned += 1;
                } else {
                    self.make_room(now)?;
                }
                // It lasts as long as its commit and no longer: claims run out in the order in which they were made.
                self.hold(Ticket { until: now, ..ticket }, 1);
            }
        }
        Ok(Pending { id, token })
    }

    /// What was prepared is written down: from now on the id is seen.
    pub fn confirm(&mut self, pending: Pending, at: Moment) {
        let at = self.pass(at);
        let Pending { id, token } = pending;
        let had_a_place = self.claims.take(id.mark, token);
        self.remember(&id, at, had_a_place);
    }

    /// What was prepared could not be written down: the claim is as it was before.
    pub fn give_up(&mut self, pending: Pending) {
        self.claims.give_up(pending.id.mark, pending.token, self.now);
    }

    /// Gives a claim back whose effect certainly did not happen. `false` where it is no longer that one's to give.
    pub fn release(&mut self, ticket: Ticket) -> bool {
        let idle = self.claims.get(ticket.id.mark).is_some_and(|held| held.settling == 0);
        let released = idle && self.claims.take(ticket.id.mark, ticket.token);
        self.figures.released += u64::from(released);
        released
    }

    /// Puts back what was committed before a restart, oldest first. What is later than `now` was written by a clock
    /// that ran ahead, and counts as now: it is remembered for the whole time, and no longer.
    pub fn restore(&mut self, mark: Mark, at: Moment, now: Moment) {
        let at = self.pass_to(at.min(now));
        if now.since(at) < self.settings.time {
            self.keep_within(at);
            self.ids.push_again(&mark.into(), at);
        }
    }

    /// How it stands.
    pub fn figures(&mut self, now: Moment) -> Figures {
        let now = self.pass(now);
        while self.clear_one(now) {}
        self.sweep(now);
        let (ids, claims, bytes) = (self.ids.ids(), self.claims.len(), self.ids.bytes());
        Figures { ids, claims, bytes, ..self.figures }
    }

    /// Since when an id is seen, if it still is.
    fn since(&self, id: &Id, now: Moment) -> Option<Moment> {
        self.ids.find(id).filter(|at| !self.is_over(*at, now))
    }

    fn is_over(&self, at: Moment, now: Moment) -> bool {
        now.since(at) >= self.settings.time
    }

    fn hold(&mut self, ticket: Ticket, settling: u32) {
        self.claims.put(ticket.id.mark, Held { token: ticket.token, until: ticket.until, settling });
    }

    /// Remembers what is committed. The same commit may have been made twice by somebody who did not wait for the
    /// first.
    fn remember(&mut self, id: &Id, at: Moment, had_a_place: bool) {
        let found = self.ids.find(id);
        let is_seen = found.is_some_and(|since| !self.is_over(since, at));
        if !is_seen && (had_a_place || self.make_room(at).is_ok()) {
            self.keep_within(at);
            self.ids.push(id, at, found.is_none());
            self.figures.committed += 1;
        }
    }

    /// Makes room for one more id, whatever has it.
    fn keep_within(&mut self, now: Moment) {
        while self.ids.entries() >= self.settings.count {
            self.forget(now);
        }
    }

    /// Follows the time, never backwards, and clears a little away.
    fn pass(&mut self, now: Moment) -> Moment {
        let now = self.pass_to(now);
        for _ in 0..CLEARED_PER_CALL {
            if !self.clear_one(now) {
                break;
            }
        }
        now
    }

    fn pass_to(&mut self, now: Moment) -> Moment {
        self.now = self.now.max(now);
        self.now
    }

    /// Forgets the oldest if its time is over.
    fn clear_one(&mut self, now: Moment) -> bool {
        self.ids.oldest().is_some_and(|at| self.is_over(at, now)) && self.forget(now)
    }

    /// Makes room for one more claim.
    fn make_room(&mut self, now: Moment) -> Result<(), Full> {
        if self.is_full() {
            self.sweep(now);
        }
        while self.is_full() {
            if !self.forget(now) {
                return Err(Full { claims: self.claims.len() });
            }
        }
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.claims.len() + self.ids.entries() >= self.settings.count
    }

    /// Forgets the claims that ran out.
    fn sweep(&mut self, now: Moment) {
        self.figures.abandoned += self.claims.sweep(now) as u64;
    }

    /// Forgets the oldest id.
    fn forget(&mut self, now: Moment) -> bool {
        let Some(age) = self.ids.oldest().map(|at| now.since(at)) else { return false };
        let is_over = age >= self.settings.time;
        if !self.ids.pop(is_over) {
            return true;
        }
        if is_over {
            self.figures.expired += 1;
        } else {
            let youngest = self.figures.youngest_evicted.map_or(age, |youngest| youngest.min(age));
            self.figures.evicted_early += 1;
            self.figures.youngest_evicted = Some(youngest);
        }
        true
    }
}
