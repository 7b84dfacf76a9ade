//! The output of a benchmark, line by line.

use std::fmt;

use anyhow::Context;
use serde_json::Value;

/// The lines of a run that mean something to us.
#[derive(Default)]
pub(super) struct Report {
    pub(super) targets: Vec<Target>,
    pub(super) figures: Option<Value>,
}

/// A promise and whether it was kept.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Target {
    name: String,
    value: String,
    goal: String,
    pub(super) met: bool,
}

impl Report {
    /// Takes in a line, and says whether people should see it.
    ///
    /// A `target` or `figures` line that cannot be parsed is an error: ignored, it would be an unchecked promise.
    pub(super) fn read(&mut self, line: &str) -> anyhow::Result<bool> {
        if let Some(json) = line.strip_prefix("figures ") {
            self.figures = Some(serde_json::from_str(json).context("the `figures` line is not JSON")?);
            return Ok(false);
        }
        if line.starts_with("target ") {
            let target = target(line).with_context(|| {
                format!("cannot read `{line}`; it should be `target NAME value V goal G ok|short`")
            })?;
            self.targets.push(target);
        }
        Ok(true)
    }

    /// Whether any target was missed.
    pub(super) fn falls_short(&self) -> bool {
        self.targets.iter().any(|target| !target.met)
    }
}

/// Reads `target NAME value V goal G ok|short`; values may be several words, as in `12 ms`.
fn target(line: &str) -> Option<Target> {
    let (rest, verdict) = line.strip_prefix("target ")?.trim_end().rsplit_once(' ')?;
    let (rest, goal) = rest.rsplit_once(" goal ")?;
    let (name, value) = rest.split_once(" value ")?;
    let met = match verdict {
        "ok" => true,
        "short" => false,
        _ => return None,
    };
    let [name, value, goal] = [name, value, goal].map(|words| words.trim().to_owned());
    Some(Target { name, value, goal, met })
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}, the goal is {}", self.name, self.value, self.goal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_lines_are_read() {
        let cases = [
            ("target claim_p99 value 3.1 goal 5 ok", Some(("claim_p99", "3.1", "5", true))),
            ("target claim_p99 value 12 ms goal 10 ms short", Some(("claim_p99", "12 ms", "10 ms", false))),
            ("target claim_p99  value  7  goal  9  ok", Some(("claim_p99", "7", "9", true))),
            ("target claim_p99 value 3.1 goal 5", None),
            ("target claim_p99 value 3.1 goal 5 maybe", None),
            ("target claim_p99 goal 5 ok", None),
        ];
        for (line, expected) in cases {
            let expected = expected.map(|(name, value, goal, met)| {
                let [name, value, goal] = [name, value, goal].map(str::to_owned);
                Target { name, value, goal, met }
            });
            assert_eq!(target(line), expected, "{line}");
        }
    }

    #[test]
    fn figures_are_kept_and_not_shown() {
        let mut report = Report::default();
        let shown = ["policy    ns", "target a value 1 goal 2 ok", r#"figures {"ns":[1,2]}"#]
            .map(|line| report.read(line).unwrap());
        assert_eq!(shown, [true, true, false]);
        assert_eq!(report.figures.unwrap()["ns"][1], 2);
    }

    #[test]
    fn one_short_target_is_enough_to_fall_short() {
        let mut report = Report::default();
        report.read("target a value 3 goal 2 ok").unwrap();
        assert!(!report.falls_short());
        report.read("target b value 1 goal 2 short").unwrap();
        assert!(report.falls_short());
    }

    #[test]
    fn lines_that_break_the_contract_are_errors() {
        for line in ["target a value 3", "figures {"] {
            assert!(Report::default().read(line).is_err(), "{line}");
        }
    }
}
