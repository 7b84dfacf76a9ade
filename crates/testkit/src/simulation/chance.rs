//! A random source with the questions that a simulation asks.

use redrive_core::{RandomSource, SeededRandom};

use super::choices::Phase;
use super::tape::Tape;

/// All random choices come from here.
#[derive(Debug)]
pub(super) struct Chance {
    random: SeededRandom,
    /// Where choices are recorded or played; there is none in a normal run.
    tape: Option<Tape>,
}

/// What decides in a run: the random source of a seed, or recorded choices.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) seed: u64,
    pub(super) tape: Option<Tape>,
}

impl Source {
    /// Only the random source of a seed.
    pub(super) const fn random(seed: u64) -> Self {
        Self { seed, tape: None }
    }

    /// One of the run's random streams. Each has a salt, so that they have nothing in common.
    pub(super) fn chance(&self, salt: u64) -> Chance {
        Chance { tape: self.tape.clone(), ..Chance::new(self.seed ^ salt) }
    }
}

impl Chance {
    pub(super) fn new(seed: u64) -> Self {
        // Neighbouring seeds must have nothing in common.
        let mut random = SeededRandom::new(seed);
        Self { random: SeededRandom::new(random.roll()), tape: None }
    }

    /// A number below `n`, or zero if `n` is zero.
    pub(super) fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.number(n.max(1) as u64)).unwrap_or(0)
    }

    /// A number from `low` to `high`, both included.
    pub(super) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.number(high - low + 1)
    }

    /// True once in `n` times; never if `n` is zero.
    pub(super) fn one_in(&mut self, n: usize) -> bool {
        let (random, n) = (&mut self.random, n as u64);
        let mut roll = || n > 0 && random.roll().is_multiple_of(n);
        match &self.tape {
            None => roll(),
            Some(tape) => tape.yes(n, roll),
        }
    }

    pub(super) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// A separate random source, of which the caller may use any number of rolls.
    pub(super) fn random(&mut self) -> SeededRandom {
        let random = &mut self.random;
        SeededRandom::new(match &self.tape {
            None => random.roll(),
            Some(tape) => tape.number(0, || random.roll()),
        })
    }

    /// Marks that a new part of the run begins.
    pub(super) fn part(&self, phase: Phase) {
        if let Some(tape) = &self.tape {
            tape.part(phase);
        }
    }

    fn number(&mut self, limit: u64) -> u64 {
        let random = &mut self.random;
        match &self.tape {
            None => random.roll() % limit,
            Some(tape) => tape.number(limit, || random.roll() % limit),
        }
    }
}
