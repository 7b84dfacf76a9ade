//! Records the choices of a run, or plays them.
//!
//! All random streams of a run share one tape. A run that plays choices records at the same time which of
//! them it took: a choice that it never reached is not in the recording.

use std::cell::RefCell;
use std::rc::Rc;

use redrive_core::{RandomSource, SeededRandom};

use super::choices::{Choices, Phase};

/// The seed that decides after the last choice, so that a run comes to an end whatever was removed from it.
const TAIL: u64 = 1;

/// The choices of a run, shared by all its random streams.
#[derive(Debug, Clone)]
pub(super) struct Tape(Rc<RefCell<Reel>>);

#[derive(Debug)]
struct Reel {
    /// The choices to play; the random source decides where there are none.
    given: Option<Choices>,
    taken: Choices,
    /// The current part, and how many of its choices were taken.
    phase: Phase,
    part: usize,
    at: usize,
    tail: SeededRandom,
}

impl Tape {
    /// Records what the random source of a seed decides.
    pub(super) fn record(seed: u64) -> Self {
        Self::new(seed, None)
    }

    /// Plays choices.
    pub(super) fn play(choices: &Choices) -> Self {
        Self::new(choices.seed, Some(choices.clone()))
    }

    fn new(seed: u64, given: Option<Choices>) -> Self {
        let without = given.as_ref().map(|given| given.without.clone()).unwrap_or_default();
        let taken = Choices { seed, without, setup: vec![Vec::new()], ..Choices::default() };
        let reel = Reel { given, taken, phase: Phase::Setup, part: 0, at: 0, tail: SeededRandom::new(TAIL) };
        Self(Rc::new(RefCell::new(reel)))
    }

    /// A new part begins.
    pub(super) fn part(&self, phase: Phase) {
        let mut reel = self.0.borrow_mut();
        reel.part = if reel.phase == phase { reel.part + 1 } else { 0 };
        reel.phase = phase;
        reel.at = 0;
        if !reel.is_in_tail() {
            reel.taken.of_mut(phase).push(Vec::new());
        }
    }

    /// How many steps have faults, if that is played.
    pub(super) fn steps(&self) -> Option<usize> {
        self.0.borrow().given.as_ref().map(|given| given.steps.len())
    }

    /// The events that are never published.
    pub(super) fn without(&self) -> Vec<usize> {
        self.0.borrow().taken.without.iter().copied().collect()
    }

    /// A number below `limit`, or any number if `limit` is zero.
    pub(super) fn number(&self, limit: u64, roll: impl FnOnce() -> u64) -> u64 {
        self.0.borrow_mut().take(|reel| match reel.next() {
            Next::Choice(choice) if limit > 0 => choice % limit,
            Next::Choice(choice) => choice,
            Next::RandomSource => roll(),
            Next::Tail => 0,
        })
    }

    /// Whether a rare thing happens: once in `n` times.
    pub(super) fn yes(&self, n: u64, roll: impl FnOnce() -> bool) -> bool {
        let yes = self.0.borrow_mut().take(|reel| match reel.next() {
            Next::Choice(choice) => u64::from(choice > 0 && n > 0),
            Next::RandomSource => u64::from(roll()),
            // By chance: a loop that lasts as long as this says "no" would last for ever.
            Next::Tail => u64::from(n > 0 && reel.tail.roll().is_multiple_of(n)),
        });
        yes > 0
    }

    /// The choices that were taken. Zeros at the end of a part are left out.
    pub(super) fn taken(&self) -> Choices {
        let mut taken = self.0.borrow().taken.clone();
        for phase in [Phase::Setup, Phase::Steps, Phase::Calm] {
            for part in taken.of_mut(phase) {
                part.truncate(part.iter().rposition(|choice| *choice > 0).map_or(0, |last| last + 1));
            }
        }
        taken
    }
}

/// What decides.
enum Next {
    Choice(u64),
    RandomSource,
    Tail,
}

impl Reel {
    fn take(&mut self, choose: impl FnOnce(&mut Self) -> u64) -> u64 {
        let choice = choose(self);
        self.at += 1;
        if !self.is_in_tail()
            && let Some(part) = self.taken.of_mut(self.phase).last_mut()
        {
            part.push(choice);
        }
        choice
    }

    fn next(&self) -> Next {
        let Some(given) = &self.given else { return Next::RandomSource };
        match given.of(self.phase).get(self.part) {
            Some(part) => Next::Choice(part.get(self.at).copied().unwrap_or(0)),
            None if self.phase == Phase::Calm => Next::Tail,
            None => Next::Choice(0),
        }
    }

    /// Whether the last choice was played.
    fn is_in_tail(&self) -> bool {
        self.phase == Phase::Calm && self.given.as_ref().is_some_and(|given| self.part >= given.calm.len())
    }
}
