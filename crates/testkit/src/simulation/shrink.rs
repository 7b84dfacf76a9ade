//! Shrinks a failing seed: the shortest run that still fails in the same way.
//!
//! The choices of the run are recorded. Then parts are removed and choices are set to zero; each time the run
//! is repeated, and a smaller run that still fails in the same way is kept, until no removal helps or the
//! time is over. Two failures are the same if their sentences are, up to the first colon and without their
//! numbers.

use std::fmt;
use std::time::{Duration, Instant};

use redrive_core::{RandomSource, SeededRandom};

use super::chance::Source;
use super::choices::{Choices, Phase};
use super::tape::Tape;
use super::trace::Trace;
use super::{Failure, Ran, perform, replay};

/// How many random removals are tried after the last that helped: about a second.
const RANDOM_TRIES: usize = 3000;

/// A failing seed, shrunk.
#[derive(Debug)]
pub struct Shrunk {
    /// The remaining choices. [`replay`] fails with them as the seed did.
    pub choices: Choices,
    /// The failure, with every step.
    pub failure: Box<Failure>,
    /// The size of the original run.
    pub before: Size,
    /// The size of the shrunk run.
    pub after: Size,
    /// How many runs it took.
    pub runs: u64,
    /// Whether nothing more can be removed; otherwise the time was over.
    pub is_shortest: bool,
}

/// The size of a run, up to its end or failure.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Size {
    /// Steps.
    pub steps: u64,
    /// Events that were published.
    pub events: u64,
    /// Processes.
    pub nodes: u64,
    /// Shards.
    pub shards: u64,
    /// Faults that happened.
    pub faults: u64,
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { steps, events, nodes, shards, faults } = self;
        write!(f, "{steps} steps, {events} events, {nodes} nodes, {shards} shards, {faults} faults")
    }
}

/// Shrinks a seed for at most `time`; `None` if the seed does not fail.
///
/// ```
/// use std::time::Duration;
///
/// assert!(redrive_testkit::simulation::shrink(7, Duration::from_secs(1)).is_none());
/// ```
#[must_use]
pub fn shrink(seed: u64, time: Duration) -> Option<Shrunk> {
    let tape = Tape::record(seed);
    let first = perform(&Source { seed, tape: Some(tape.clone()) }, Trace::none());
    let what = first.result.err()?;
    let best = tape.taken();
    let weight = weight(&best, &first.size);
    let until = Instant::now() + time;
    let (before, after) = (first.size, first.size);
    let mut shrinker = Shrinker { kind: kind(&what), best, weight, size: after, runs: 0, until };
    while shrinker.shrink() || shrinker.remove_pairs() || shrinker.remove_some() {}
    let is_shortest = !shrinker.is_late();
    let Shrinker { best: choices, size: after, runs, .. } = shrinker;
    let failure = replay(&choices).err()?;
    Some(Shrunk { choices, failure, before, after, runs, is_shortest })
}

/// The part of a failure that stays the same in another run: the sentence up to its details, without numbers.
fn kind(what: &str) -> String {
    let sentence = what.split(": ").next().unwrap_or(what);
    let mut kind = String::with_capacity(sentence.len());
    for letter in sentence.chars() {
        match letter {
            '0'..='9' if kind.ends_with('#') => {}
            '0'..='9' => kind.push('#'),
            letter => kind.push(letter),
        }
    }
    kind.replace("# event is ", "# events are ")
}

/// The cost of a run to its reader. Fewer steps count most, then a smaller world, then dull choices.
fn weight(choices: &Choices, size: &Size) -> u64 {
    let parts = [&choices.setup, &choices.steps, &choices.calm].into_iter().flatten();
    let bits = parts.flatten().map(|choice| u64::from(u64::BITS - choice.leading_zeros()) + 1).sum::<u64>();
    100 * (size.steps + size.faults) + 300 * size.events + 1000 * (size.nodes + size.shards) + bits
}

struct Shrinker {
    kind: String,
    best: Choices,
    weight: u64,
    size: Size,
    runs: u64,
    until: Instant,
}

impl Shrinker {
    /// Tries every removal once; returns whether one of them helped, so that another round may.
    fn shrink(&mut self) -> bool {
        let before = self.weight;
        self.accepts(Choices { calm: Vec::new(), ..self.best.clone() });
        self.remove_parts(Phase::Calm);
        self.remove_parts(Phase::Steps);
        self.leave_out_events();
        for phase in [Phase::Setup, Phase::Steps, Phase::Calm] {
            self.clear_parts(phase);
            self.lower_choices(phase);
        }
        self.weight < before && !self.is_late()
    }

    fn is_late(&self) -> bool {
        Instant::now() >= self.until
    }

    /// Keeps a candidate if it is smaller and fails in the same way.
    fn accepts(&mut self, candidate: Choices) -> bool {
        if self.is_late() {
            return false;
        }
        self.runs += 1;
        let tape = Tape::play(&candidate);
        let source = Source { seed: candidate.seed, tape: Some(tape.clone()) };
        let Ran { result, size, .. } = perform(&source, Trace::none());
        if !result.is_err_and(|what| kind(&what) == self.kind) {
            return false;
        }
        let choices = tape.taken();
        let weight = weight(&choices, &size);
        let is_smaller = weight < self.weight;
        if is_smaller {
            (self.best, self.weight, self.size) = (choices, weight, size);
        }
        is_smaller
    }

    /// Removes steps: half of them at once, then a quarter, down to one at a time, from the last to the first.
    fn remove_parts(&mut self, phase: Phase) {
        let mut size = self.best.of(phase).len().div_ceil(2);
        while size > 0 {
            let mut end = self.best.of(phase).len();
            while end > 0 {
                let start = end.saturating_sub(size);
                let mut candidate = self.best.clone();
                candidate.of_mut(phase).drain(start..end);
                self.accepts(candidate);
                end = start.min(self.best.of(phase).len());
            }
            size /= 2;
        }
    }

    /// Removes two steps that need each other, such as a fault and its repair: the nearest first. Returns
    /// whether it found such a pair.
    fn remove_pairs(&mut self) -> bool {
        let count = self.best.steps.len();
        for distance in 1..count {
            for first in (0..count - distance).rev() {
                let mut candidate = self.best.clone();
                candidate.steps.remove(first + distance);
                candidate.steps.remove(first);
                if self.accepts(candidate) {
                    return true;
                }
            }
        }
        false
    }

    /// Removes several steps and perhaps an event at random: steps that need each other and are neither near
    /// nor a pair.
    fn remove_some(&mut self) -> bool {
        let mut random = SeededRandom::new(self.weight);
        let mut below = |n: usize| usize::try_from(random.roll() % (n as u64).max(1)).unwrap_or(0);
        for _ in 0..RANDOM_TRIES {
            let mut candidate = self.best.clone();
            for _ in 0..below(8) + 2 {
                let steps = candidate.steps.len();
                let index = below(steps + candidate.calm.len());
                let (part, index) = match index.checked_sub(steps) {
                    None => (&mut candidate.steps, index),
                    Some(index) => (&mut candidate.calm, index),
                };
                if index < part.len() {
                    part.remove(index);
                }
            }
            if below(4) == 0 {
                let event = below(candidate.setup.len());
                candidate.without.insert(event);
            }
            if self.accepts(candidate) {
                return true;
            }
        }
        false
    }

    fn leave_out_events(&mut self) {
        // The first part of the setup is the plan, the next ones are the events.
        for event in (0..self.best.setup.len().saturating_sub(1)).rev() {
            if !self.best.without.contains(&event) {
                let mut candidate = self.best.clone();
                candidate.without.insert(event);
                if let Some(part) = candidate.setup.get_mut(event + 1) {
                    part.clear();
                }
                self.accepts(candidate);
            }
        }
    }

    /// Makes every choice of a part the dull one.
    fn clear_parts(&mut self, phase: Phase) {
        for part in (0..self.best.of(phase).len()).rev() {
            let mut candidate = self.best.clone();
            match candidate.of_mut(phase).get_mut(part) {
                Some(part) if !part.is_empty() => part.clear(),
                _ => continue,
            }
            self.accepts(candidate);
        }
    }

    /// Makes choices duller one by one.
    fn lower_choices(&mut self, phase: Phase) {
        for part in (0..self.best.of(phase).len()).rev() {
            let count = |best: &Choices| best.of(phase).get(part).map_or(0, Vec::len);
            for index in (0..count(&self.best)).rev() {
                for change in [Lower::Zero, Lower::ZeroAlone, Lower::Remove, Lower::Halve, Lower::Less] {
                    let mut candidate = self.best.clone();
                    let changed =
                        candidate.of_mut(phase).get_mut(part).is_some_and(|part| change.apply(part, index));
                    if changed && self.accepts(candidate) && change != Lower::Less {
                        break;
                    }
                }
            }
        }
    }
}

/// A way to make a choice duller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lower {
    Zero,
    /// Zero, and without the choices that are asked only after another answer.
    ZeroAlone,
    Remove,
    Halve,
    Less,
}

impl Lower {
    /// Whether it changed anything.
    fn apply(self, part: &mut Vec<u64>, index: usize) -> bool {
        let Some(choice) = part.get_mut(index) else { return false };
        match self {
            Self::Remove => {
                part.remove(index);
            }
            _ if *choice == 0 => return false,
            Self::Zero => *choice = 0,
            Self::ZeroAlone => {
                *choice = 0;
                if index + 1 < part.len() {
                    part.remove(index + 1);
                }
            }
            Self::Halve => *choice /= 2,
            Self::Less => *choice -= 1,
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::kind;

    #[test]
    fn failures_are_the_same_whatever_their_numbers() {
        let cases = [
            (
                "15 events are runnable and no action is planned: e1, e2",
                "1 event is runnable and no action is planned: e7",
            ),
            ("e12 (1.30) starts before it is due", "e3 (1.2) starts before it is due"),
        ];
        for (one, other) in cases {
            assert_eq!(kind(one), kind(other));
        }
        assert_ne!(kind("e1 starts before it is due"), kind("e1 starts after it expired"));
    }
}
