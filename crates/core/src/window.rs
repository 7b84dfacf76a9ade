//! A dedupe window: ids that were processed, bounded by time and by count, and checked before every effect.
//!
//! It is for pipelines with their own transport: the transport delivers messages more than once, and each
//! must take effect once. The question "is this the first time?" cannot be answered in one step. If the
//! answer marked the id, a crash before the effect would lose it. The id is therefore **claimed**, the effect
//! happens, and then the claim is **committed**, or **released** if the effect certainly did not happen.
//!
//! ```text
//!            claim                       commit
//!   unknown ───────▶ claimed until t ───────────▶ seen since t ───▶ unknown, when it has expired
//!      ▲                 │      │                                   or was evicted
//!      └──── release ◀───┘      └─▶ expired: another caller may claim it
//! ```
//!
//! The guarantees:
//!
//! - While a claim lasts, no other caller gets one for that id: the answer is `Busy`.
//! - A claim that its holder does not settle expires. The next claim may repeat the effect, but never loses
//!   it.
//! - A commit is judged by the claim and not by time: a late one counts if no other caller has claimed the
//!   id.
//! - An id is remembered for `time` after its commit. Checking it does not extend that: a sender that repeats
//!   an id for ever would otherwise fill the window.
//! - If more ids arrive than fit, the oldest are evicted early, and that is counted. A live claim is never
//!   evicted. If the window holds only live claims, the next claim is refused.
//! - If time goes backwards, the window's time stands still: no id expires twice, and none comes back.
//!
//! This is the pure part: no I/O and no clock. A check allocates only when the tables grow.

use std::time::Duration;

use crate::moment::Moment;

mod mark;

mod id;

mod claims;

mod ids;

mod slots;

mod peaks;

pub use id::ScopedId;
pub use mark::IdMark;

use claims::{Claims, Held};
use ids::Ids;

/// The largest `count` of a window. The numbers in its tables have 32 bits.
pub const COUNT_MAX: usize = 1 << 30;

/// How many expired ids a call removes: more than one, to catch up; not all, to keep calls short.
const CLEARED_PER_CALL: usize = 4;

/// The bounds of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowSettings {
    /// How long an id is remembered after its commit. Make it longer than the transport may redeliver.
    pub time: Duration,
    /// How many ids and claims are remembered. If more arrive within `time`, the oldest are evicted early.
    pub count: usize,
    /// How long a claim lasts. Make it longer than the effect takes.
    pub claim: Duration,
}

impl Default for WindowSettings {
    /// A day, a million ids (40 MB when it is full), claims of five minutes.
    fn default() -> Self {
        let minute = Duration::from_secs(60);
        Self { time: 24 * 60 * minute, count: 1_000_000, claim: 5 * minute }
    }
}

impl WindowSettings {
    /// Checks the settings.
    ///
    /// # Errors
    /// The first setting that is invalid.
    pub fn check(&self) -> Result<(), WindowSettingsError> {
        match self {
            Self { time, .. } if time.is_zero() => Err(WindowSettingsError::NoTime),
            Self { claim, .. } if claim.is_zero() => Err(WindowSettingsError::NoClaim),
            Self { count, .. } if !(1..=COUNT_MAX).contains(count) => Err(WindowSettingsError::Count(*count)),
            Self { time, claim, .. } if claim > time => {
                Err(WindowSettingsError::ClaimOutlasts { claim: *claim, time: *time })
            }
            _ => Ok(()),
        }
    }
}

/// Why settings are refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WindowSettingsError {
    /// The window would remember nothing.
    #[error(
        "a window of no time remembers nothing; set `time` to longer than the transport may deliver again"
    )]
    NoTime,
    /// Claims would expire immediately.
    #[error("claims of zero length protect no effect; set `claim` to longer than the effect takes")]
    NoClaim,
    /// The count is too small or too large.
    #[error("a window cannot hold {0} ids; `count` is between 1 and {COUNT_MAX}")]
    Count(usize),
    /// Claims would last longer than ids are remembered.
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
pub enum ClaimResult {
    /// The window has not seen the id: do the work, then commit.
    First(ClaimTicket),
    /// The id was processed.
    Seen {
        /// When it was committed.
        since: Moment,
    },
    /// Another caller holds a claim for it.
    Busy {
        /// When that claim expires, if it is not settled before. In the past if its commit is being written.
        until: Moment,
    },
}

/// A claim on an id, until it expires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClaimTicket {
    id: ScopedId,
    token: u64,
    until: Moment,
}

impl ClaimTicket {
    /// When it expires.
    #[must_use]
    pub const fn until(&self) -> Moment {
        self.until
    }

    /// The mark of its id.
    #[must_use]
    pub const fn mark(&self) -> IdMark {
        self.id.mark
    }
}

/// A commit in progress: it was accepted and is being written. Its claim does not expire meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "to be confirmed when it is written down, or given up"]
pub struct PendingCommit {
    id: ScopedId,
    token: u64,
}

impl PendingCommit {
    /// The mark to write.
    #[must_use]
    pub const fn mark(&self) -> IdMark {
        self.id.mark
    }
}

/// Why a claim or a commit is refused for now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "all {claims} slots of the window hold live claims; try again when some are settled, or raise `count`"
)]
pub struct WindowFull {
    /// How many claims there are.
    pub claims: usize,
}

/// Why a commit is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CommitRefused {
    /// The claim expired, and another caller has claimed the id.
    #[error(
        "the claim expired and another caller holds the id; its effect may happen twice: make `claim` longer"
    )]
    Taken {
        /// When that caller's claim expires.
        until: Moment,
    },
    /// The claim expired, and another caller committed the id.
    #[error(
        "the claim expired and another caller committed the id; its effect may have happened twice: make `claim` longer"
    )]
    Already {
        /// When that caller committed it.
        since: Moment,
    },
    /// The window is full.
    #[error(transparent)]
    Full(#[from] WindowFull),
}

/// A window's counters since it was created, and its contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct WindowStats {
    /// Ids remembered now.
    pub ids: usize,
    /// Claims held now.
    pub claims: usize,
    /// Bytes allocated for ids.
    pub bytes: usize,
    /// Claims answered with `First`.
    pub first: u64,
    /// Claims answered with `Seen`: duplicates.
    pub seen: u64,
    /// Claims answered with `Busy`.
    pub busy: u64,
    /// Commits.
    pub committed: u64,
    /// Claims released.
    pub released: u64,
    /// Claims that expired and were taken by another caller or removed: effects with an unknown outcome.
    pub abandoned: u64,
    /// Commits that came after another caller had taken the id: effects that may have happened twice.
    pub late: u64,
    /// Ids that expired.
    pub expired: u64,
    /// Ids that were evicted early because the window was full: if they arrive again, they run again.
    pub evicted_early: u64,
    /// The shortest time that an evicted id was remembered: how much protection the window really gives.
    pub youngest_evicted: Option<Duration>,
}

/// A window of ids.
///
/// ```
/// use redrive_core::window::{ClaimResult, ScopedId, WindowSettings, WindowState};
/// use redrive_core::Moment;
///
/// let mut window = WindowState::new(WindowSettings::default()).unwrap();
/// let now = Moment::from_nanos(0);
/// let id = ScopedId::of("orders", b"order-17");
/// let ClaimResult::First(ticket) = window.claim(id, now).unwrap() else { panic!("the window is empty") };
/// assert!(matches!(window.claim(id, now), Ok(ClaimResult::Busy { .. })));
/// // … the effect …
/// window.commit(ticket, now).unwrap();
/// assert_eq!(window.claim(id, now), Ok(ClaimResult::Seen { since: now }));
/// ```
#[derive(Debug)]
pub struct WindowState {
    settings: WindowSettings,
    /// The latest moment passed in.
    now: Moment,
    ids: Ids,
    claims: Claims,
    tokens: u64,
    figures: WindowStats,
}

impl WindowState {
    /// An empty window.
    ///
    /// # Errors
    /// If the settings are invalid.
    pub fn new(settings: WindowSettings) -> Result<Self, WindowSettingsError> {
        settings.check()?;
        Ok(Self {
            settings,
            now: Moment::default(),
            ids: Ids::new(settings.count),
            claims: Claims::default(),
            tokens: 0,
            figures: WindowStats::default(),
        })
    }

    /// Its settings.
    #[must_use]
    pub const fn settings(&self) -> &WindowSettings {
        &self.settings
    }

    /// Claims an id.
    ///
    /// # Errors
    /// If the window holds only live claims.
    pub fn claim(&mut self, id: impl Into<ScopedId>, now: Moment) -> Result<ClaimResult, WindowFull> {
        let now = self.pass(now);
        let id = id.into();
        let held = self.claims.get(id.mark).copied();
        if let Some(held) = held.filter(|held| held.is_live(now)) {
            self.figures.busy += 1;
            return Ok(ClaimResult::Busy { until: held.until });
        }
        if let Some(since) = self.since(&id, now) {
            self.figures.seen += 1;
            return Ok(ClaimResult::Seen { since });
        }
        if held.is_some() {
            self.figures.abandoned += 1;
        } else {
            self.make_room(now)?;
        }
        self.tokens += 1;
        self.figures.first += 1;
        let ticket = ClaimTicket { id, token: self.tokens, until: now + self.settings.claim };
        self.hold(ticket, 0);
        Ok(ClaimResult::First(ticket))
    }

    /// Commits a claim in memory, if nothing has to be written.
    ///
    /// # Errors
    /// As [`prepare`](Self::prepare).
    pub fn commit(&mut self, ticket: ClaimTicket, now: Moment) -> Result<(), CommitRefused> {
        let at = self.pass(now);
        // Nearly always the claim is still held; the rest handles the other cases.
        if self.claims.take(ticket.id.mark, ticket.token) {
            self.remember(&ticket.id, at, true);
            return Ok(());
        }
        let pending = self.prepare(ticket, now)?;
        self.confirm(pending, now);
        Ok(())
    }

    /// Accepts a commit and holds its claim until [`confirm`](Self::confirm) or [`give_up`](Self::give_up).
    ///
    /// # Errors
    /// If the claim expired and another caller has claimed or committed the id.
    pub fn prepare(&mut self, ticket: ClaimTicket, now: Moment) -> Result<PendingCommit, CommitRefused> {
        let now = self.pass(now);
        let ClaimTicket { id, token, .. } = ticket;
        match self.claims.get_mut(id.mark) {
            Some(held) if held.token == token => held.settling += 1,
            Some(held) if held.is_live(now) => {
                self.figures.late += 1;
                return Err(CommitRefused::Taken { until: held.until });
            }
            // No caller holds it, claimed in between or not. The effect happened, so it is remembered.
            other => {
                let is_held = other.is_some();
                if let Some(since) = self.since(&id, now) {
                    self.figures.late += 1;
                    return Err(CommitRefused::Already { since });
                }
                if is_held {
                    self.figures.abandoned += 1;
                } else {
                    self.make_room(now)?;
                }
                // It lasts only as long as its commit: claims expire in the order in which they were made.
                self.hold(ClaimTicket { until: now, ..ticket }, 1);
            }
        }
        Ok(PendingCommit { id, token })
    }

    /// The prepared commit is written: from now on the id is seen.
    pub fn confirm(&mut self, pending: PendingCommit, at: Moment) {
        let at = self.pass(at);
        let PendingCommit { id, token } = pending;
        let had_a_place = self.claims.take(id.mark, token);
        self.remember(&id, at, had_a_place);
    }

    /// The prepared commit could not be written: the claim is as before.
    pub fn give_up(&mut self, pending: PendingCommit) {
        self.claims.give_up(pending.id.mark, pending.token, self.now);
    }

    /// Releases a claim whose effect certainly did not happen. Returns `false` if the ticket has lost it.
    pub fn release(&mut self, ticket: ClaimTicket) -> bool {
        let idle = self.claims.get(ticket.id.mark).is_some_and(|held| held.settling == 0);
        let released = idle && self.claims.take(ticket.id.mark, ticket.token);
        self.figures.released += u64::from(released);
        released
    }

    /// Restores ids that were committed before a restart, oldest first. A moment later than `now` comes from
    /// a clock that ran ahead, and counts as `now`: the id is remembered for the whole time, and no longer.
    pub fn restore(&mut self, mark: IdMark, at: Moment, now: Moment) {
        let at = self.pass_to(at.min(now));
        if now.since(at) < self.settings.time {
            self.keep_within(at);
            self.ids.push_again(&mark.into(), at);
        }
    }

    /// The counters.
    pub fn figures(&mut self, now: Moment) -> WindowStats {
        let now = self.pass(now);
        while self.clear_one(now) {}
        self.sweep(now);
        let (ids, claims, bytes) = (self.ids.ids(), self.claims.len(), self.ids.bytes());
        WindowStats { ids, claims, bytes, ..self.figures }
    }

    /// When an id was committed, if it is still remembered.
    fn since(&self, id: &ScopedId, now: Moment) -> Option<Moment> {
        self.ids.find(id).filter(|at| !self.is_over(*at, now))
    }

    fn is_over(&self, at: Moment, now: Moment) -> bool {
        now.since(at) >= self.settings.time
    }

    fn hold(&mut self, ticket: ClaimTicket, settling: u32) {
        self.claims.put(ticket.id.mark, Held { token: ticket.token, until: ticket.until, settling });
    }

    /// Remembers a committed id, perhaps for the second time: a caller may commit twice without waiting.
    fn remember(&mut self, id: &ScopedId, at: Moment, had_a_place: bool) {
        let found = self.ids.find(id);
        let is_seen = found.is_some_and(|since| !self.is_over(since, at));
        if !is_seen && (had_a_place || self.make_room(at).is_ok()) {
            self.keep_within(at);
            self.ids.push(id, at, found.is_none());
            self.figures.committed += 1;
        }
    }

    /// Makes room for one more id.
    fn keep_within(&mut self, now: Moment) {
        while self.ids.entries() >= self.settings.count {
            self.forget(now);
        }
    }

    /// Follows the time, never backwards, and removes a few expired ids.
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

    /// Removes the oldest id if it has expired.
    fn clear_one(&mut self, now: Moment) -> bool {
        self.ids.oldest().is_some_and(|at| self.is_over(at, now)) && self.forget(now)
    }

    /// Makes room for one more claim.
    fn make_room(&mut self, now: Moment) -> Result<(), WindowFull> {
        if self.is_full() {
            self.sweep(now);
        }
        while self.is_full() {
            if !self.forget(now) {
                return Err(WindowFull { claims: self.claims.len() });
            }
        }
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.claims.len() + self.ids.entries() >= self.settings.count
    }

    /// Removes expired claims.
    fn sweep(&mut self, now: Moment) {
        self.figures.abandoned += self.claims.sweep(now) as u64;
    }

    /// Removes the oldest id.
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
