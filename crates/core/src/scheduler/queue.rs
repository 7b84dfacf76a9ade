//! A queue as the scheduler sees it: its limits, and which flow's turn it is.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::flow::FlowKey;
use crate::disposition::Fault;
use crate::moment::Moment;
use crate::policy::Policy;
use crate::queue_entry::ParkFollowers;
use crate::rate::Rate;

/// The fewest events that fit into memory, whatever the concurrency. An event stays in memory until its
/// settle is written, so this is also how many can run while the disk stands still: half of it for each lane
/// is a tenth of a second at 5,000 due a second, as long as a busy disk takes to write back a log.
pub const WINDOW_MIN: usize = 1_024;

/// The most events that fit into memory, whatever the concurrency.
pub const WINDOW_MAX: usize = 16_384;

/// How a queue runs.
#[derive(Debug, Clone)]
pub struct QueuePlan {
    /// Its name.
    pub name: Arc<str>,
    /// The retry policy, with the budget and the breaker of its destination.
    pub policy: Policy,
    /// How many attempts run at once.
    pub concurrency: u32,
    /// How many attempts start each second, in addition to the policy's limit.
    pub rate: Option<Rate>,
    /// The share of the concurrency that retries may claim while first attempts are waiting.
    pub retry_share: f64,
    /// Whether the events of a key run one at a time. If not, keys have no effect.
    pub ordered: bool,
    /// What happens to the events that follow a dead letter of the same key.
    pub after_dead: AfterDead,
    /// How a panic of the handler is classified.
    pub panics: Fault,
    /// How many events are kept in memory, including running ones; at least two.
    pub window_max: usize,
    /// How many bytes of payload are kept in memory; one event may exceed it.
    pub window_bytes_max: usize,
}

impl QueuePlan {
    /// The defaults: 16 at once, a quarter of them for retries, one event of a key at a time, no parking, a
    /// panic is permanent; in memory [`WINDOW_MIN`] events and 64 MiB.
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

    /// Sets the concurrency, and the window that goes with it.
    #[must_use]
    pub fn concurrency(mut self, concurrency: u32) -> Self {
        self.concurrency = concurrency.max(1);
        self.window_max = usize::try_from(self.concurrency).unwrap_or(usize::MAX).saturating_mul(8);
        self.window_max = self.window_max.clamp(WINDOW_MIN, WINDOW_MAX);
        self
    }
}

/// What happens to the events that follow a dead letter of the same key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AfterDead {
    /// They run without it.
    #[default]
    GoOn,
    /// They stay parked until an operator has dealt with the dead letter.
    Park,
    /// They stay parked for a time or up to a number of parked events.
    ParkUpTo {
        /// How long; `None` for ever.
        time: Option<Duration>,
        /// How many; `None` for any number.
        count: Option<u32>,
    },
}

impl AfterDead {
    pub(super) fn park(self, now: Moment) -> ParkFollowers {
        match self {
            Self::GoOn => ParkFollowers::No,
            Self::Park => ParkFollowers::UntilResolved,
            Self::ParkUpTo { time, count } => {
                ParkFollowers::UpTo { until: time.map(|time| now + time), count }
            }
        }
    }
}

/// Whether an event runs for the first time, for the shares of the concurrency.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lane {
    /// First attempts.
    Live,
    /// Retries.
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

/// The state of a queue.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) plan: QueuePlan,
    /// Running attempts, by lane.
    running: [u32; 2],
    /// Flows with events to run, in turn, by lane.
    pub(super) turns: [VecDeque<FlowKey>; 2],
    /// No attempt starts before; by lane, because a spent budget stops only retries.
    pub(super) closed_until: [Option<Moment>; 2],
    /// The lane that goes first when both have a claim.
    favoured: Lane,
    /// The events in memory, by lane: retries that wait for the budget must not crowd out first attempts.
    windows: [LaneWindow; 2],
    /// Flows that belong to it.
    pub(super) flows: usize,
    /// Events that arrived for the first time and are not in memory, because a load will bring them.
    pub(super) aside: u32,
}

/// The events of a lane in memory.
#[derive(Debug, Clone, Copy, Default)]
struct LaneWindow {
    /// Events.
    held: usize,
    /// Events that running loads may bring.
    coming: usize,
    /// Bytes of their payloads.
    bytes: usize,
}

impl Queue {
    pub(super) fn new(mut plan: QueuePlan) -> Self {
        // One for each lane: either lane may have the only event in the store.
        plan.window_max = plan.window_max.max(2);
        Self {
            plan,
            running: [0; 2],
            turns: [VecDeque::new(), VecDeque::new()],
            closed_until: [None; 2],
            favoured: Lane::Live,
            windows: [LaneWindow::default(); 2],
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

    /// Counts an event that comes into memory.
    pub(super) fn hold(&mut self, lane: Lane, bytes: usize) {
        let window = &mut self.windows[lane.index()];
        window.held += 1;
        window.bytes += bytes;
    }

    /// Counts an event that leaves memory.
    pub(super) fn let_go(&mut self, lane: Lane, bytes: usize) {
        let window = &mut self.windows[lane.index()];
        window.held -= 1;
        window.bytes -= bytes;
    }

    /// Reserves room for events that a load may bring, by lane.
    pub(super) fn expect(&mut self, coming: [usize; 2]) {
        self.windows.iter_mut().zip(coming).for_each(|(window, coming)| window.coming += coming);
    }

    /// Frees that room.
    pub(super) fn no_longer_expect(&mut self, coming: [usize; 2]) {
        self.windows.iter_mut().zip(coming).for_each(|(window, coming)| window.coming -= coming);
    }

    /// How many more events of a lane fit into memory, beside those that loads may bring. Each lane has half
    /// of the window.
    pub(super) fn room(&self, lane: Lane) -> usize {
        let LaneWindow { held, coming, .. } = self.windows[lane.index()];
        if self.bytes_left(lane) == 0 { 0 } else { (self.plan.window_max / 2).saturating_sub(held + coming) }
    }

    /// Whether no more events of a lane fit into memory, whatever loads bring.
    pub(super) fn is_full(&self, lane: Lane) -> bool {
        self.bytes_left(lane) == 0 || self.windows[lane.index()].held >= self.plan.window_max / 2
    }

    /// How many more bytes of a lane fit into memory.
    pub(super) fn bytes_left(&self, lane: Lane) -> usize {
        (self.plan.window_bytes_max / 2).saturating_sub(self.windows[lane.index()].bytes)
    }

    /// How many events of a lane each flow may have ready.
    pub(super) fn flow_max(&self) -> usize {
        (self.plan.window_max / 2 / self.flows.max(1)).max(4)
    }

    /// Closes a lane until this moment.
    pub(super) fn close(&mut self, lane: Lane, until: Moment) {
        self.closed_until[lane.index()] = Some(until);
    }

    /// The lane that goes next, if there is a slot and an event to run.
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

    /// Both lanes have events to run: the one below its share goes; if both or neither are, they alternate.
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
