//! The counts of a run.

use std::collections::BTreeMap;
use std::fmt;

use super::order::MessageOrder;

/// The counts of one run, or of many.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunStats {
    /// Steps in all.
    pub steps: u64,
    /// Attempts started.
    pub attempts: u64,
    /// Effects in the domain.
    pub effects: u64,
    /// Events that were published into a shard of their publisher's node.
    pub local_slots: u64,
    /// Stalled shards that the watchdog found, if it may repair them.
    pub stalls: u64,
    /// Faults on request, by kind.
    pub faults: BTreeMap<&'static str, u64>,
    /// Actions of operators and workers, by verb.
    pub orders: BTreeMap<&'static str, u64>,
    /// Events by outcome.
    pub fates: BTreeMap<&'static str, u64>,
    /// Which input followed which other in a scheduler.
    pub order: MessageOrder,
    /// Depends on every step: two runs of one seed have the same.
    pub digest: u64,
}

impl RunStats {
    pub(super) fn fault(&mut self, kind: &'static str) {
        *self.faults.entry(kind).or_default() += 1;
    }

    pub(super) fn ordered(&mut self, verb: &'static str) {
        *self.orders.entry(verb).or_default() += 1;
    }

    pub(super) fn fate(&mut self, fate: &'static str) {
        *self.fates.entry(fate).or_default() += 1;
    }

    pub(super) fn stir(&mut self, number: u64) {
        self.digest = (self.digest ^ number).wrapping_mul(0x0100_0000_01b3).rotate_left(17);
    }

    /// Adds the figures of another run.
    pub fn add(&mut self, other: &Self) {
        self.steps += other.steps;
        self.attempts += other.attempts;
        self.effects += other.effects;
        self.local_slots += other.local_slots;
        self.stalls += other.stalls;
        self.stir(other.digest);
        self.order.add(&other.order);
        let sums = [
            (&mut self.faults, &other.faults),
            (&mut self.fates, &other.fates),
            (&mut self.orders, &other.orders),
        ];
        for (sum, more) in sums {
            for (kind, number) in more {
                *sum.entry(kind).or_default() += number;
            }
        }
    }
}

impl fmt::Display for RunStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "steps     {:>12}", self.steps)?;
        writeln!(f, "attempts  {:>12}", self.attempts)?;
        writeln!(f, "effects   {:>12}", self.effects)?;
        writeln!(f, "near      {:>12}", self.local_slots)?;
        let tables = [
            ("events by fate", &self.fates),
            ("orders by verb", &self.orders),
            ("faults by kind", &self.faults),
        ];
        for (title, rows) in tables {
            writeln!(f, "\n{title}")?;
            for (kind, number) in rows {
                writeln!(f, "  {kind:<32}{number:>12}")?;
            }
        }
        Ok(())
    }
}
