//! A circuit breaker: it stops calls to a downstream that is down, and probes with a few calls when it may be
//! back.
//!
//! A closed breaker looks at the last `window` calls and opens when enough of them failed. An open breaker
//! lets no call through for `open_for`. Then it is half open: it lets at most `probes` calls through at a
//! time, closes when that many have succeeded, and opens again when one of them fails.
//!
//! The whole state is one 64-bit word, so every transition is one compare-and-set and the number of probes is
//! exact. The window counts calls, not seconds. A success on the healthy path therefore needs no clock and no
//! write: a full window without failures stays as it is.
//!
//! Only retryable faults and time-outs of `attempt_time` count as failures. A permanent error counts as a
//! success, because a downstream that answers is alive. An unclassified error and a caller's deadline count
//! as neither.

use std::time::Duration;

use crate::moment::{Clock, Moment, nanos};
use crate::policy::PolicyError;
use crate::sync::{Arc, AtomicU64, Ordering, change};

/// The settings of a [`Breaker`]. Defaults: it opens when half of the last 20 calls failed and the window
/// holds at least 10 calls; it stays open for 5 s; 3 probes.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
pub struct BreakerSettings {
    /// The share of failed calls in the window that opens the breaker; above 0, at most 1.
    pub failing: f64,
    /// How many of the last calls the window holds; 1 to 40.
    pub window: u32,
    /// How many calls the window must hold before the breaker can open; 1 to `window`.
    pub least_calls: u32,
    /// How long the breaker stays open.
    #[cfg_attr(feature = "serde", serde(with = "crate::config::duration"))]
    pub open_for: Duration,
    /// How many probes may run at once while half open, and how many must succeed to close the breaker; 1 to
    /// 1000.
    pub probes: u32,
}

impl Default for BreakerSettings {
    fn default() -> Self {
        Self { failing: 0.5, window: 20, least_calls: 10, open_for: Duration::from_secs(5), probes: 3 }
    }
}

/// The state of a breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BreakerState {
    /// Calls go through.
    Closed,
    /// A few calls go through as probes.
    HalfOpen,
    /// No call goes through.
    Open,
}

impl BreakerState {
    /// The value of the gauge `redrive_breaker_state`: 0 closed, 1 half open, 2 open.
    #[must_use]
    pub const fn as_number(self) -> u8 {
        match self {
            Self::Closed => 0,
            Self::HalfOpen => 1,
            Self::Open => 2,
        }
    }
}

/// A circuit breaker, shared by cloning. Use one for each downstream.
///
/// ```
/// use redrive_core::breaker::{Breaker, BreakerSettings, BreakerState};
/// use redrive_core::Moment;
/// use std::time::Duration;
///
/// let breaker = Breaker::new(BreakerSettings { window: 4, least_calls: 4, ..Default::default() })?;
/// let now = Moment::from_nanos(0);
/// for _ in 0..4 {
///     breaker.admit(&now).unwrap().failed(now);
/// }
/// assert!(breaker.admit(&now).is_err());
/// let later = now + Duration::from_secs(5);
/// assert_eq!(breaker.state(later), BreakerState::HalfOpen);
/// # Ok::<(), redrive_core::PolicyError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Breaker(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    settings: BreakerSettings,
    word: AtomicU64,
}

/// The state word, unpacked. Two bits hold the state. The 20 bits of `turn` count how often the breaker
/// opened, so that a late probe of an earlier turn is recognised. The other widths are given at each field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The last calls: newest in the lowest bit, 1 for a failure, below a marker bit that shows how many
    /// calls the window holds (42 bits).
    Closed { turn: u64, calls: u64 },
    /// When the open period ends, in milliseconds (42 bits).
    Open { turn: u64, until: u64 },
    /// Running probes and probes that succeeded (21 bits each).
    HalfOpen { turn: u64, probing: u64, succeeded: u64 },
}

const LOW: u64 = (1 << 42) - 1;
const TURN_MASK: u64 = (1 << 20) - 1;
const COUNT_MASK: u64 = (1 << 21) - 1;

impl State {
    const fn pack(self) -> u64 {
        match self {
            Self::Closed { turn, calls } => (turn << 42 | calls) << 2,
            Self::Open { turn, until } => (turn << 42 | until) << 2 | 1,
            Self::HalfOpen { turn, probing, succeeded } => (turn << 42 | probing << 21 | succeeded) << 2 | 2,
        }
    }

    const fn unpack(word: u64) -> Self {
        let rest = word >> 2;
        match word & 3 {
            0 => Self::Closed { turn: rest >> 42, calls: rest & LOW },
            1 => Self::Open { turn: rest >> 42, until: rest & LOW },
            _ => Self::HalfOpen {
                turn: rest >> 42,
                probing: rest >> 21 & COUNT_MASK,
                succeeded: rest & COUNT_MASK,
            },
        }
    }
}

/// A window without calls: only the marker bit.
const EMPTY: u64 = 1;

impl Default for Breaker {
    fn default() -> Self {
        Self::made(BreakerSettings::default())
    }
}

impl Breaker {
    /// A closed breaker with these settings.
    ///
    /// # Errors
    /// Refuses settings outside the ranges that the fields of [`BreakerSettings`] name.
    pub fn new(settings: BreakerSettings) -> Result<Self, PolicyError> {
        let BreakerSettings { failing, window, least_calls, probes, open_for } = &settings;
        let makes_sense = *failing > 0.0
            && *failing <= 1.0
            && (1..=40).contains(window)
            && (1..=*window).contains(least_calls)
            && (1..=1000).contains(probes)
            && !open_for.is_zero();
        if makes_sense { Ok(Self::made(settings)) } else { Err(PolicyError::Breaker(settings)) }
    }

    fn made(settings: BreakerSettings) -> Self {
        Self(Arc::new(Inner {
            settings,
            word: AtomicU64::new(State::Closed { turn: 0, calls: EMPTY }.pack()),
        }))
    }

    /// Asks to make a call. It reads the clock only when the breaker is not closed.
    ///
    /// # Errors
    /// The moment at which the open period ends, or the current moment if all probes are running.
    pub fn admit(&self, clock: &impl Clock) -> Result<BreakerPermit, Moment> {
        let state = State::unpack(self.0.word.load(Ordering::Acquire));
        if let State::Closed { .. } = state {
            return Ok(BreakerPermit { breaker: self.clone(), turn: None });
        }
        self.probe(clock.now()).map(|turn| BreakerPermit { breaker: self.clone(), turn })
    }

    /// Whether the breaker is closed and calls need no [`BreakerPermit`]. The caller then reports the result with
    /// [`settle_closed`](Self::settle_closed), so the healthy path allocates nothing and counts no
    /// references.
    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        matches!(State::unpack(self.0.word.load(Ordering::Acquire)), State::Closed { .. })
    }

    fn probe(&self, now: Moment) -> Result<Option<u64>, Moment> {
        let millis = now.as_nanos() / 1_000_000;
        let probes = u64::from(self.0.settings.probes);
        change(&self.0.word, |word| match State::unpack(word) {
            State::Closed { .. } => Ok((word, None)),
            State::Open { until, .. } if millis < until => {
                Err(Moment::from_nanos(until.saturating_mul(1_000_000)))
            }
            State::Open { turn, .. } => {
                Ok((State::HalfOpen { turn, probing: 1, succeeded: 0 }.pack(), Some(turn)))
            }
            State::HalfOpen { probing, .. } if probing >= probes => Err(now),
            State::HalfOpen { turn, probing, succeeded } => {
                Ok((State::HalfOpen { turn, probing: probing + 1, succeeded }.pack(), Some(turn)))
            }
        })
    }

    /// Records the result of a call that went through while the breaker was closed.
    #[inline]
    pub(crate) fn settle_closed(&self, failed: bool, clock: &impl Clock) {
        let settings = &self.0.settings;
        let full = 1u64 << settings.window;
        if !failed
            && matches!(State::unpack(self.0.word.load(Ordering::Acquire)), State::Closed { calls, .. } if calls == full)
        {
            return;
        }
        self.push_closed(failed, if failed { Some(clock.now()) } else { None });
    }

    fn push_closed(&self, failed: bool, now: Option<Moment>) {
        let settings = &self.0.settings;
        let _: Result<(), ()> = change(&self.0.word, |word| {
            // The call began while the breaker was closed. Its result no longer matters once the breaker has
            // opened.
            let State::Closed { turn, calls } = State::unpack(word) else {
                return Err(());
            };
            let calls = push(calls, failed, settings.window);
            let next = match now {
                Some(now) if self.too_many(calls) => self.opened(now, turn),
                _ => State::Closed { turn, calls },
            };
            Ok((next.pack(), ()))
        });
    }

    /// Records the result of a probe of turn `mine`; `None` if the probe was abandoned.
    fn settle_probe(&self, mine: u64, succeeded_now: Option<bool>, now: Option<Moment>) {
        let needed = u64::from(self.0.settings.probes);
        let _: Result<(), ()> = change(&self.0.word, |word| {
            let next = match State::unpack(word) {
                State::HalfOpen { turn, probing, succeeded } if turn == mine => {
                    let probing = probing.saturating_sub(1);
                    match (succeeded_now, now) {
                        (Some(false), Some(now)) => self.opened(now, turn),
                        (Some(true), _) if succeeded + 1 >= needed => State::Closed { turn, calls: EMPTY },
                        (Some(true), _) => State::HalfOpen { turn, probing, succeeded: succeeded + 1 },
                        _ => State::HalfOpen { turn, probing, succeeded },
                    }
                }
                // A probe of an earlier turn: its result no longer matters.
                _ => return Err(()),
            };
            Ok((next.pack(), ()))
        });
    }

    fn opened(&self, now: Moment, turn: u64) -> State {
        let until = now.as_nanos().saturating_add(nanos(self.0.settings.open_for)).div_ceil(1_000_000);
        State::Open { turn: (turn + 1) & TURN_MASK, until: until.min(LOW) }
    }

    fn too_many(&self, calls: u64) -> bool {
        let settings = &self.0.settings;
        let made = calls.ilog2();
        let failed = calls.count_ones() - 1;
        made >= settings.least_calls && f64::from(failed) >= settings.failing * f64::from(made)
    }

    /// The state at `now`.
    #[must_use]
    pub fn state(&self, now: Moment) -> BreakerState {
        match State::unpack(self.0.word.load(Ordering::Acquire)) {
            State::Closed { .. } => BreakerState::Closed,
            State::Open { until, .. } if now.as_nanos() / 1_000_000 < until => BreakerState::Open,
            State::Open { .. } | State::HalfOpen { .. } => BreakerState::HalfOpen,
        }
    }

    /// When the open period ends, if the breaker is open.
    #[must_use]
    pub fn open_until(&self) -> Option<Moment> {
        match State::unpack(self.0.word.load(Ordering::Acquire)) {
            State::Open { until, .. } => Some(Moment::from_nanos(until.saturating_mul(1_000_000))),
            _ => None,
        }
    }

    /// The settings of this breaker.
    #[must_use]
    pub fn settings(&self) -> &BreakerSettings {
        &self.0.settings
    }
}

/// Adds a call to the window and removes the oldest call when the window is full.
const fn push(calls: u64, failed: bool, window: u32) -> u64 {
    let pushed = calls << 1 | failed as u64;
    if pushed.ilog2() > window { pushed & ((1 << window) - 1) | 1 << window } else { pushed }
}

/// Permission to make one call. Dropping it without a result counts as neither success nor failure and frees
/// its probe.
#[derive(Debug)]
#[must_use = "a pass that is dropped at once admits nothing"]
pub struct BreakerPermit {
    breaker: Breaker,
    /// The turn of a probe; `None` if the breaker was closed.
    turn: Option<u64>,
}

impl BreakerPermit {
    /// Records that the downstream answered.
    pub fn succeeded(mut self) {
        match self.turn.take() {
            Some(turn) => self.breaker.settle_probe(turn, Some(true), None),
            None => self.breaker.settle_closed(false, &Moment::default()),
        }
    }

    /// Records a failure that suggests that the downstream is unhealthy.
    pub fn failed(mut self, now: Moment) {
        match self.turn.take() {
            Some(turn) => self.breaker.settle_probe(turn, Some(false), Some(now)),
            None => self.breaker.settle_closed(true, &now),
        }
    }
}

impl Drop for BreakerPermit {
    fn drop(&mut self) {
        if let Some(turn) = self.turn.take() {
            self.breaker.settle_probe(turn, None, None);
        }
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Moment {
        Moment::from_nanos(0) + Duration::from_millis(millis)
    }

    fn small() -> Breaker {
        Breaker::new(BreakerSettings { window: 4, least_calls: 2, probes: 2, ..BreakerSettings::default() })
            .unwrap()
    }

    fn open(breaker: &Breaker, now: Moment) {
        while let Ok(pass) = breaker.admit(&now) {
            pass.failed(now);
        }
    }

    #[test]
    fn it_opens_at_the_share_and_not_before_the_least_calls() {
        let breaker = small();
        breaker.admit(&at(0)).unwrap().failed(at(0));
        assert_eq!(breaker.state(at(0)), BreakerState::Closed, "one call is not yet a sign");
        breaker.admit(&at(0)).unwrap().succeeded();
        breaker.admit(&at(0)).unwrap().succeeded();
        breaker.admit(&at(0)).unwrap().failed(at(0));
        assert_eq!(breaker.state(at(0)), BreakerState::Open, "two of four");
        assert_eq!(breaker.admit(&at(10)).unwrap_err(), at(5_000));
    }

    #[test]
    fn old_failures_leave_the_window() {
        let breaker = small();
        breaker.admit(&at(0)).unwrap().failed(at(0));
        for _ in 0..4 {
            breaker.admit(&at(0)).unwrap().succeeded();
        }
        breaker.admit(&at(0)).unwrap().failed(at(0));
        assert_eq!(breaker.state(at(0)), BreakerState::Closed, "one of the last four");
    }

    #[test]
    fn half_open_lets_no_more_than_the_probes_through() {
        let breaker = small();
        open(&breaker, at(0));
        let first = breaker.admit(&at(6_000)).unwrap();
        let second = breaker.admit(&at(6_000)).unwrap();
        assert!(breaker.admit(&at(6_000)).is_err());
        drop(first);
        let third = breaker.admit(&at(6_000)).expect("an abandoned probe frees its place");
        second.succeeded();
        assert_eq!(breaker.state(at(6_000)), BreakerState::HalfOpen);
        third.succeeded();
        assert_eq!(breaker.state(at(6_000)), BreakerState::Closed);
    }

    #[test]
    fn a_failed_probe_opens_it_again_and_a_late_one_changes_nothing() {
        let breaker = small();
        open(&breaker, at(0));
        let late = breaker.admit(&at(6_000)).unwrap();
        breaker.admit(&at(6_000)).unwrap().failed(at(6_000));
        assert_eq!(breaker.open_until(), Some(at(11_000)));
        let fresh = breaker.admit(&at(12_000)).unwrap();
        late.succeeded();
        fresh.succeeded();
        assert_eq!(breaker.state(at(12_000)), BreakerState::HalfOpen, "one success of this turn, not two");
    }

    #[test]
    fn probes_are_exact_from_many_threads() {
        let breaker = small();
        open(&breaker, at(0));
        let passes: Vec<_> = std::thread::scope(|scope| {
            let tries: Vec<_> = (0..8).map(|_| scope.spawn(|| breaker.admit(&at(6_000)).ok())).collect();
            tries.into_iter().filter_map(|tried| tried.join().unwrap()).collect()
        });
        assert_eq!(passes.len(), 2);
    }

    #[test]
    fn every_state_survives_packing() {
        for state in [
            State::Closed { turn: 9, calls: 1 << 40 | 5 },
            State::Open { turn: TURN_MASK, until: LOW },
            State::HalfOpen { turn: 3, probing: 1000, succeeded: 999 },
        ] {
            assert_eq!(State::unpack(state.pack()), state);
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let good = BreakerSettings::default;
        for bad in [
            BreakerSettings { failing: 0.0, ..good() },
            BreakerSettings { failing: f64::NAN, ..good() },
            BreakerSettings { window: 41, ..good() },
            BreakerSettings { window: 5, least_calls: 6, ..good() },
            BreakerSettings { probes: 0, ..good() },
            BreakerSettings { open_for: Duration::ZERO, ..good() },
        ] {
            assert!(Breaker::new(bad.clone()).is_err(), "{bad:?}");
        }
    }
}
