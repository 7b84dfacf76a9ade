//! Dice with the questions that a simulation asks.

use redrive_core::{Dice, Seeded};

/// Everything that is left to chance comes from here.
#[derive(Debug)]
pub(super) struct Chance(Seeded);

impl Chance {
    pub(super) fn new(seed: u64) -> Self {
        // Neighbouring seeds are to have nothing in common.
        let mut dice = Seeded::new(seed);
        Self(Seeded::new(dice.roll()))
    }

    /// A number below `n`, or zero where there is none.
    pub(super) fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.0.roll() % (n.max(1) as u64)).unwrap_or(0)
    }

    /// A number from `low` to `high`, both included.
    pub(super) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.0.roll() % (high - low + 1)
    }

    /// True once in `n` times; never where `n` is zero.
    pub(super) fn one_in(&mut self, n: usize) -> bool {
        n > 0 && self.below(n) == 0
    }

    pub(super) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// Dice for somebody else, who may use as many rolls as he likes.
    pub(super) fn dice(&mut self) -> Seeded {
        Seeded::new(self.0.roll())
    }
}
