//! The table at the end of a run.

use std::fmt::Write;
use std::time::Duration;

use super::libtest::Tally;

/// How a step went.
pub(super) struct Outcome {
    pub(super) step: &'static str,
    pub(super) time: Duration,
    pub(super) ok: bool,
    pub(super) tally: Tally,
}

impl Outcome {
    pub(super) fn result(&self) -> &'static str {
        if self.ok { "ok" } else { "FAILED" }
    }

    pub(super) fn seconds(&self) -> String {
        format!("{:.1}s", self.time.as_secs_f64())
    }
}

/// A line a step, under a header.
pub(super) fn table(outcomes: &[Outcome]) -> String {
    let mut table = format!(
        "{:<10}{:>9}  {:<7}{:>8}{:>8}{:>9}\n",
        "step", "time", "result", "passed", "failed", "ignored"
    );
    for outcome in outcomes {
        let Tally { passed, failed, ignored } = outcome.tally;
        let (step, time, result) = (outcome.step, outcome.seconds(), outcome.result());
        // Writing to a String cannot fail.
        let _ = writeln!(table, "{step:<10}{time:>9}  {result:<7}{passed:>8}{failed:>8}{ignored:>9}");
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let outcomes = [
            Outcome {
                step: "tests",
                time: Duration::from_millis(61_340),
                ok: true,
                tally: Tally { passed: 120, failed: 0, ignored: 2 },
            },
            Outcome {
                step: "docs",
                time: Duration::from_secs(9),
                ok: false,
                tally: Tally::default().with_a_failure(),
            },
        ];
        let expected = "\
step           time  result   passed  failed  ignored
tests         61.3s  ok          120       0        2
docs           9.0s  FAILED        0       1        0
";
        assert_eq!(table(&outcomes), expected);
    }
}
