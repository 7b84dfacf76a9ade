//! Goals, and whether they are met, in lines that a tool can read.

use std::fmt;

/// A goal for one figure.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// What is measured.
    pub name: &'static str,
    /// What came out.
    pub value: f64,
    /// What is to come out.
    pub goal: Goal,
    /// Digits after the point.
    pub digits: usize,
}

/// On which side of a bound a figure is to be.
#[derive(Debug, Clone, Copy)]
pub enum Goal {
    /// No more than that.
    AtMost(f64),
    /// No less than that.
    AtLeast(f64),
}

impl Target {
    /// Whether the goal is met. Judged as printed, so that no line contradicts itself.
    #[must_use]
    pub fn is_met(&self) -> bool {
        let Self { value, digits, .. } = *self;
        format!("{value:.digits$}").parse().is_ok_and(|printed: f64| match self.goal {
            Goal::AtMost(most) => printed <= most,
            Goal::AtLeast(least) => printed >= least,
        })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, value, goal, digits } = *self;
        let verdict = if self.is_met() { "ok" } else { "short" };
        let (sign, bound) = match goal {
            Goal::AtMost(most) => ("<=", most),
            Goal::AtLeast(least) => (">=", least),
        };
        // A goal in whole units reads better without a point.
        let shown = if bound.fract() == 0.0 && digits < 2 { 0 } else { digits };
        write!(f, "target {name} value {value:.digits$} goal {sign}{bound:.shown$} {verdict}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_what_the_printed_value_says() {
        for (value, goal, digits, line) in [
            (12.34, Goal::AtMost(20.0), 1, "target x value 12.3 goal <=20 ok"),
            (20.04, Goal::AtMost(20.0), 1, "target x value 20.0 goal <=20 ok"),
            (20.06, Goal::AtMost(20.0), 1, "target x value 20.1 goal <=20 short"),
            (1.004, Goal::AtMost(1.0), 2, "target x value 1.00 goal <=1.00 ok"),
            (1.01, Goal::AtMost(1.0), 2, "target x value 1.01 goal <=1.00 short"),
            (0.0, Goal::AtMost(0.0), 0, "target x value 0 goal <=0 ok"),
            (f64::NAN, Goal::AtMost(1.0), 2, "target x value NaN goal <=1.00 short"),
            (0.496, Goal::AtLeast(0.5), 2, "target x value 0.50 goal >=0.50 ok"),
            (0.494, Goal::AtLeast(0.5), 2, "target x value 0.49 goal >=0.50 short"),
            (3.0, Goal::AtLeast(3.0), 1, "target x value 3.0 goal >=3 ok"),
            (f64::NAN, Goal::AtLeast(3.0), 1, "target x value NaN goal >=3 short"),
        ] {
            assert_eq!(Target { name: "x", value, goal, digits }.to_string(), line);
        }
    }
}
