//! Counts tests by the `test result:` line that libtest prints for each binary.
//!
//! The line is meant for people and might change, yet libtest's JSON is still unstable. A change would show
//! as a run of zero tests.

use std::fmt;
use std::iter::Sum;
use std::ops::AddAssign;

/// How many tests passed, failed, and were ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) passed: u64,
    pub(super) failed: u64,
    pub(super) ignored: u64,
}

/// The counts in a line such as `test result: ok. 3 passed; 0 failed; 1 ignored; …`, if it is one.
pub(super) fn tally(line: &str) -> Option<Tally> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let count = |noun: &str| {
        let number = counts.split("; ").find_map(|part| part.strip_suffix(noun))?;
        number.trim_end().parse().ok()
    };
    Some(Tally { passed: count("passed")?, failed: count("failed")?, ignored: count("ignored")? })
}

impl Tally {
    /// The tally of a step that failed.
    ///
    /// One that does not compile, or whose tests abort, reports no failed test. Counting it as one keeps the
    /// last line of the summary from saying `0 failed` over a failure.
    pub(super) fn with_a_failure(mut self) -> Self {
        self.failed = self.failed.max(1);
        self
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }
}

impl Sum for Tally {
    fn sum<I: Iterator<Item = Self>>(tallies: I) -> Self {
        tallies.fold(Self::default(), |mut sum, tally| {
            sum += tally;
            sum
        })
    }
}

/// `3 passed, 0 failed`, and `, 1 skipped` where tests were ignored. Scripts read it.
impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)?;
        if self.ignored > 0 {
            write!(f, ", {} skipped", self.ignored)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_lines_are_read_and_others_are_not() {
        let some = |passed, failed, ignored| Some(Tally { passed, failed, ignored });
        let cases = [
            (
                "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 9 filtered out; finished in 0.00s",
                some(3, 0, 1),
            ),
            (
                "test result: FAILED. 12 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.2s",
                some(12, 2, 0),
            ),
            ("test replays_the_answer ... ok", None),
            ("test result: soon", None),
            ("  test result: ok. 3 passed; 0 failed; 1 ignored", None),
            ("", None),
        ];
        for (line, expected) in cases {
            assert_eq!(tally(line), expected, "{line}");
        }
    }

    #[test]
    fn the_sum_is_said_in_one_line() {
        let sum = |counts: [[u64; 3]; 2]| {
            let tallies = counts.map(|[passed, failed, ignored]| Tally { passed, failed, ignored });
            tallies.into_iter().sum::<Tally>().to_string()
        };
        assert_eq!(sum([[3, 0, 0], [4, 1, 0]]), "7 passed, 1 failed");
        assert_eq!(sum([[3, 0, 1], [4, 0, 1]]), "7 passed, 0 failed, 2 skipped");
    }

    #[test]
    fn a_failed_step_never_counts_zero_failures() {
        let crashed = Tally { passed: 5, failed: 0, ignored: 0 };
        assert_eq!(crashed.with_a_failure().failed, 1);
        let counted = Tally { passed: 5, failed: 3, ignored: 0 };
        assert_eq!(counted.with_a_failure().failed, 3);
    }
}
