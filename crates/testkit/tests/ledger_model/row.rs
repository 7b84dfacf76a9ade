//! The ledger's own record as part of a state, which has to be hashed.

use std::cmp::Ordering;
use std::hash::{Hash, Hasher};
use std::time::Duration;

use redrive_core::Moment;
use redrive_core::ledger::{Phase, Record, age};

/// The epochs of one tick never reach those of the next: in life a nanosecond and a take-over are as far apart.
const TICK: Duration = Duration::from_secs(1);

/// The moment of a tick.
pub(crate) fn at(tick: u8) -> Moment {
    Moment::default() + ticks(tick)
}

/// So many ticks.
pub(crate) fn ticks(count: u8) -> Duration {
    TICK * u32::from(count)
}

/// A record. What is the same in all of them (the fingerprint, the retention) is not hashed, and still compared.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Row(pub(crate) Record);

impl Eq for Row {}

/// Any order will do: of states that are alike one stands for all.
impl Ord for Row {
    fn cmp(&self, other: &Self) -> Ordering {
        let key = |row: &Self| (row.0.epoch, row.0.attempt, row.0.first, row.0.phase.as_str());
        key(self).cmp(&key(other)).then_with(|| format!("{self:?}").cmp(&format!("{other:?}")))
    }
}

impl PartialOrd for Row {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Hash for Row {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Record { first, epoch, attempt, phase, .. } = &self.0;
        (first, epoch, attempt, phase.as_str()).hash(state);
        match phase {
            Phase::InFlight { began, until } => (began, until).hash(state),
            Phase::Retriable { not_before, since } => (not_before, since).hash(state),
            Phase::Unknown { since } => since.hash(state),
            Phase::Completed { reply, at } => (&reply.body, at).hash(state),
            Phase::Tombstone { until, .. } => until.hash(state),
        }
    }
}

impl Row {
    /// Whose effect the answer tells of, where there is one.
    pub(crate) fn answer(&self) -> Option<u8> {
        let Phase::Completed { reply, .. } = &self.0.phase else { return None };
        reply.body.as_ref()?.first().copied()
    }

    /// Nothing more becomes of it by itself.
    pub(crate) fn is_at_rest(&self, now: u8) -> bool {
        let aged = age(self.0.clone(), at(now)).map(|record| record.phase);
        !matches!(aged, Some(Phase::InFlight { .. } | Phase::Retriable { .. }))
    }
}
