//! The ledger's own record as part of a state, which must be hashable.

use std::cmp::Ordering;
use std::hash::{Hash, Hasher};
use std::time::Duration;

use redrive_core::Moment;
use redrive_core::ledger::{LedgerRecord, RecordPhase, age};

/// The epochs of one tick never reach those of the next: in production a nanosecond and a takeover are as far
/// apart.
const TICK: Duration = Duration::from_secs(1);

/// The moment of a tick.
pub(crate) fn at(tick: u8) -> Moment {
    Moment::default() + ticks(tick)
}

/// This many ticks.
pub(crate) fn ticks(count: u8) -> Duration {
    TICK * u32::from(count)
}

/// A record. The parts that all records share (the fingerprint, the retention) are compared but not hashed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Row(pub(crate) LedgerRecord);

impl Eq for Row {}

/// Any order will do: of symmetric states one represents all.
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
        let LedgerRecord { first, epoch, attempt, phase, .. } = &self.0;
        (first, epoch, attempt, phase.as_str()).hash(state);
        match phase {
            RecordPhase::InFlight { began, until } => (began, until).hash(state),
            RecordPhase::Retriable { not_before, since } => (not_before, since).hash(state),
            RecordPhase::Unknown { since } => since.hash(state),
            RecordPhase::Completed { reply, at } => (&reply.body, at).hash(state),
            RecordPhase::Tombstone { until, .. } => until.hash(state),
        }
    }
}

impl Row {
    /// The run whose effect the reply reports, if there is a reply.
    pub(crate) fn answer(&self) -> Option<u8> {
        let RecordPhase::Completed { reply, .. } = &self.0.phase else { return None };
        reply.body.as_ref()?.first().copied()
    }

    /// Whether it does not change any more by itself.
    pub(crate) fn is_at_rest(&self, now: u8) -> bool {
        let aged = age(self.0.clone(), at(now)).map(|record| record.phase);
        !matches!(aged, Some(RecordPhase::InFlight { .. } | RecordPhase::Retriable { .. }))
    }
}
