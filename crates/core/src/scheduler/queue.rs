//! A queue as the scheduler sees it: what bounds it, and whose turn it is.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::flow::FlowKey;
use crate::disposition::Fault;
use crate::entry::Park;
use crate::moment::Moment;
use crate::policy::Policy;
use crate::rate::Rate;

/// How many events are kept in memory at least, whatever the concurrency. An event stays there until its end is
/// written, so this is also what can run while the disk stands still: half of it for each lane is a tenth of a
/// second of 5,000 due a second, as long as a busy disk takes to write a log back.
pub const WINDOW_MIN: usize = 1_024;

/// How many events are kept in memory at most, whatever the concurrency.
pub const WINDOW_MAX: usize = 16_384;

/// How a queue is run.
#[derive(Debug, Clone)]
pub struct QueuePlan {
    /// Its name.
    pub name: Arc<str>,
    /// What may be repeated, with the budget and the breaker of its destination.
    pub policy: Policy,
    /// How many attempts at once.
    pub concurrency: u32,
    /// How many attempts a second, beside what the policy says.
    pub rate: Option<Rate>,
    /// The share of the concurrency that retries may claim while there are first attempts to make.
    pub retry_share: f64,
    /// Whether the events of a key run one at a time. Otherwise a key means nothing.
    pub ordered: bool,
    /// What becomes of the events that follow a dead letter of the same key.
    pub after_dead: AfterDead,
    /// What a panic of the handler means.
    pub panics: Fault,
    /// How many events are kept in memory, those under way included; at least two.
    pub window_max: usize,
    /// How many bytes of payload are kept in memory; one event may go over it.
    pub window_bytes_max: usize,
}

impl QueuePlan {
    /// The defaults: 16 at once, a quarter of them for retries, one of a key at a time, no parking, a panic is permanent; in memory
    /// [`WINDOW_MIN`] events, and 64 MiB.
    #[must_use]
    pub fn new(name: impl Into<Arc<str>>, policy: Policy) -> Self {
        Self {
            name: name.into(),
            policy,
            concurrency: 16,
            rate: None,
            retry_share: 0.25,
            ordered: true,
            after_dead: AfterDead::GoOn,
            panics: Fault::permanent(),
            window_max: WINDOW_MIN,
            window_bytes_max: 64 << 20,
        }
    }

    /// So many at once, with the window that goes with it.
    #[must_use]
    pub fn concurrency(mut self, concurrency: u32) -> Self {
        self.concurrency = concurrency.max(1);
        self.window_max = usize::try_from(self.concurrency).unwrap_or(usize::MAX).saturating_mul(8);
        self.window_max = self.window_max.clamp(WINDOW_MIN, WINDOW_MAX);
        self
    }
}

/// What becomes of the events that follow a dead letter of the same key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AfterDead {
    /// They go on without it.
    #[default]
    GoOn,
    /// They wait until somebody has dealt with it.
    Park,
    /// They wait so long, or until there are so many of them.
    ParkUpTo {
        /// How long; for ever where it is none.
        time: Option<Duration>,
        /// How many; any number where it is none.
        count: Option<u32>,
    },
}

impl AfterDead {
    pub(super) fn park(self, now: Moment) -> Park {
        match self {
            Self::GoOn => Park::GoOn,
            Self::Park => Park::Stay,
            Self::ParkUpTo { time, count } => Park::UpTo { until: time.map(|time| now + time), count },
        }
    }
}

/// Why an event runs, as far as shares are concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lane {
    /// For the first time.
    Live,
    /// Again.
    Retry,
}

impl Lane {
    pub(super) const BOTH: [Lane; 2] = [Lane::Live, Lane::Retry];

    pub(super) const fn other(self) -> Self {
        match self {
            Self::Live => Self::Retry,
            Self::Retry => Self::Live,
        }
    }

    pub(super) const fn index(self) -> usize {
        match self {
            Self::Live => 0,
            Self::Retry => 1,
        }
    }
}

/// A queue at work.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) plan: QueuePlan,
    /// Attempts under way, by lane.
    running: [u32; 2],
    /// Flows with something to run, in turn, by lane.
    pub(super) turns: [VecDeque<FlowKey>; 2],
    /// Nothing starts before; by lane, as a spent budget holds up retries alone.
    pub(super) closed_until: [Option<Moment>; 2],
    /// Who goes first where both lanes have a claim.
    favoured: Lane,
    /// What is in memory, by lane: retries that wait for the budget must not be in the way of first attempts.
    windows: [Window; 2],
    /// Flows that belong to it.
    pub(super) flows: usize,
    /// Events that arrived for the first time and are not in memory, because a load is to bring them.
    pub(super) aside: u32,
}

/// What a lane has in memory.
#[derive(Debug, Clone, Copy, Default)]
struct Window {
    /// Events.
    held: usize,
    /// Events that loads under way may bring.
    coming: usize,
    /// Bytes of their payloads.
    bytes: usize,
}

impl Queue {
    pub(super) fn new(mut plan: QueuePlan) -> Self {
        // One that has not run yet and one that has: either may be the only one in the store.
        plan.window_max = plan.window_max.max(2);
        Self {
            plan,
            running: [0; 2],
            turns: [VecDeque::new(), VecDeque::new()],
            closed_until: [None; 2],
            favoured: Lane::Live,
            windows: [Window::default(); 2],
            flows: 0,
            aside: 0,
        }
    }

    pub(super) fn running(&self) -> u32 {
        self.running[0] + self.running[1]
    }

    pub(super) fn started(&mut self, lane: Lane) {
        self.running[lane.index()] += 1;
        self.favoured = lane.other();
    }

    pub(super) fn ended(&mut self, lane: Lane) {
        self.running[lane.index()] -= 1;
    }

    /// Events in memory.
    pub(super) fn held(&self) -> usize {
        self.windows[0].held + self.windows[1].held
    }

    /// An event comes into memory.
    pub(super) fn hold(&mut self, lane: Lane, bytes: usize) {
        let window = &mut self.windows[lane.index()];
        window.held += 1;
        window.bytes += bytes;
    }

    /// An event leaves memory.
    pub(super) fn let_go(&mut self, lane: Lane, bytes: usize) {
        let window = &mut self.windows[lane.index()];
        window.held -= 1;
        window.bytes -= bytes;
    }

    /// So many events may come, by lane.
    pub(super) fn expect(&mut self, coming: [usize; 2]) {
        self.windows.iter_mut().zip(coming).for_each(|(window, coming)| window.coming += coming);
    }

    /// They have come, or will not.
    pub(super) fn no_longer_expect(&mut self, coming: [usize; 2]) {
        self.windows.iter_mut().zip(coming).for_each(|(window, coming)| window.coming -= coming);
    }

    /// How many more events of a lane may come into memory, beside those that are on their way. Each lane has half
    /// of the window.
    pub(super) fn room(&self, lane: Lane) -> usize {
        let Window { held, coming, .. } = self.windows[lane.index()];
        if self.bytes_left(lane) == 0 { 0 } else { (self.plan.window_max / 2).saturating_sub(held + coming) }
    }

    /// Whether nothing more of a lane may come into memory, whatever loads bring.
    pub(super) fn is_full(&self, lane: Lane) -> bool {
        self.bytes_left(lane) == 0 || self.windows[lane.index()].held >= self.plan.window_max / 2
    }

    /// How many more bytes of a lane may come into memory.
    pub(super) fn bytes_left(&self, lane: Lane) -> usize {
        (self.plan.window_bytes_max / 2).saturating_sub(self.windows[lane.index()].bytes)
    }

    /// How many events of a lane each flow may have ready.
    pub(super) fn flow_max(&self) -> usize {
        (self.plan.window_max / 2 / self.flows.max(1)).max(4)
    }

    /// Closes a lane until then.
    pub(super) fn close(&mut self, lane: Lane, until: Moment) {
        self.closed_until[lane.index()] = Some(until);
    }

    /// The lane that is to go next, if there is a place and something to run.
    pub(super) fn next_lane(&mut self, now: Moment) -> Option<Lane> {
        if self.running() >= self.plan.concurrency {
            return None;
        }
        let mut can = Lane::BOTH.map(|lane| !self.turns[lane.index()].is_empty());
        for lane in Lane::BOTH {
            let closed = &mut self.closed_until[lane.index()];
            match closed {
                Some(until) if *until > now => can[lane.index()] = false,
                _ => *closed = None,
            }
        }
        match can {
            [false, false] => None,
            [true, false] => Some(Lane::Live),
            [false, true] => Some(Lane::Retry),
            [true, true] => Some(self.below_share()),
        }
    }

    /// Both have something to run: whoever is below its share; where both are or neither is, in turn.
    fn below_share(&self) -> Lane {
        let share = f64::from(self.plan.concurrency) * self.plan.retry_share;
        let [live, retry] = self.running.map(f64::from);
        match (live < f64::from(self.plan.concurrency) - share, retry < share) {
            (true, false) => Lane::Live,
            (false, true) => Lane::Retry,
            _ => self.favoured,
        }
    }

    pub(super) fn forget_shard(&mut self, shard: u32) {
        for turns in &mut self.turns {
            turns.retain(|key| key.shard != shard);
        }
    }
}
