//! Every choice of one run, as a value: a failing seed is shrunk to it, and `--replay` reads it.
//!
//! Choices are kept by part: one part for the plan, one for each event, one for each step. Removing a part
//! leaves the others as they are, so most of a run stays the same without one of its steps. A choice is
//! small: the number of the possible answer, or zero for "no". Zero is the dull answer, and a missing choice
//! is zero too.
//!
//! The text form has one line for each part:
//!
//! ```text
//! # what failed, and anything else after a hash
//! seed 7
//! without 3 4
//! setup 1 0 12
//! step 3 0
//! calm 5
//! ```

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// Every choice of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Choices {
    /// The seed that made them originally.
    pub seed: u64,
    /// Events that are never published.
    pub(super) without: BTreeSet<usize>,
    /// Before the first step: the plan, then each event.
    pub(super) setup: Vec<Vec<u64>>,
    /// The steps in which faults happen.
    pub(super) steps: Vec<Vec<u64>>,
    /// The steps after the last fault. After the last of these, a run continues with a random source of its
    /// own.
    pub(super) calm: Vec<Vec<u64>>,
}

/// The part of a run that a choice belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Setup,
    Steps,
    Calm,
}

impl Choices {
    /// The parts of a phase.
    pub(super) fn of(&self, phase: Phase) -> &Vec<Vec<u64>> {
        match phase {
            Phase::Setup => &self.setup,
            Phase::Steps => &self.steps,
            Phase::Calm => &self.calm,
        }
    }

    /// The parts of a phase, to be changed.
    pub(super) fn of_mut(&mut self, phase: Phase) -> &mut Vec<Vec<u64>> {
        match phase {
            Phase::Setup => &mut self.setup,
            Phase::Steps => &mut self.steps,
            Phase::Calm => &mut self.calm,
        }
    }
}

impl fmt::Display for Choices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}", self.seed)?;
        let mut line = |word: &str, numbers: &mut dyn Iterator<Item = u64>| {
            f.write_str(word)?;
            for number in numbers {
                write!(f, " {number}")?;
            }
            f.write_str("\n")
        };
        if !self.without.is_empty() {
            line("without", &mut self.without.iter().map(|event| *event as u64))?;
        }
        for (word, parts) in [("setup", &self.setup), ("step", &self.steps), ("calm", &self.calm)] {
            parts.iter().try_for_each(|part| line(word, &mut part.iter().copied()))?;
        }
        Ok(())
    }
}

/// A file of choices that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChoicesError {
    /// The number of the line, from 1.
    pub line: usize,
    what: String,
}

impl fmt::Display for ChoicesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.what)
    }
}

impl std::error::Error for ChoicesError {}

impl FromStr for Choices {
    type Err = ChoicesError;

    fn from_str(text: &str) -> Result<Self, ChoicesError> {
        let mut choices = Self::default();
        for (line, words) in (1..).zip(text.lines()) {
            let error = |what: String| ChoicesError { line, what };
            let mut words = words.split_whitespace();
            let Some(first) = words.next().filter(|first| !first.starts_with('#')) else { continue };
            let number = |word: &str| {
                word.parse::<u64>().map_err(|_| error(format!("expected a number, found `{word}`")))
            };
            let part = words.map(number).collect::<Result<Vec<u64>, _>>()?;
            match first {
                "seed" => match part[..] {
                    [seed] => choices.seed = seed,
                    _ => return Err(error("expected one number after `seed`".to_owned())),
                },
                "without" => {
                    choices.without.extend(part.into_iter().filter_map(|event| usize::try_from(event).ok()));
                }
                "setup" => choices.setup.push(part),
                "step" => choices.steps.push(part),
                "calm" => choices.calm.push(part),
                _ => {
                    let known = "`seed`, `without`, `setup`, `step` or `calm`";
                    return Err(error(format!("expected {known}, found `{first}`")));
                }
            }
        }
        if choices.setup.is_empty() {
            let line = text.lines().count().max(1);
            return Err(ChoicesError {
                line,
                what: "there is no line `setup`: is it a file of choices?".into(),
            });
        }
        Ok(choices)
    }
}

#[cfg(test)]
mod tests {
    use super::Choices;

    #[test]
    fn choices_are_read_as_they_were_written() {
        let choices = Choices {
            seed: 7,
            without: [3, 4].into(),
            setup: vec![vec![1, 0, u64::MAX], vec![]],
            steps: vec![vec![5], vec![]],
            calm: vec![vec![2, 2]],
        };
        assert_eq!(format!("# a remark\n\n{choices}").parse(), Ok(choices));
    }

    #[test]
    fn a_file_that_is_something_else_is_refused_with_its_line() {
        let cases = [
            ("", "line 1: there is no line `setup`: is it a file of choices?"),
            ("seed 7\nplan 3", "line 2: expected `seed`, `without`, `setup`, `step` or `calm`, found `plan`"),
            ("setup 1\nstep 2 x", "line 2: expected a number, found `x`"),
            ("seed", "line 1: expected one number after `seed`"),
        ];
        for (text, expected) in cases {
            assert_eq!(text.parse::<Choices>().unwrap_err().to_string(), expected, "{text}");
        }
    }
}
