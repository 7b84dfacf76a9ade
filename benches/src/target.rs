//! Goals, and whether they are met, in lines that a tool can read.

/// A goal for one figure: no more than `most`.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// What is measured.
    pub name: &'static str,
    /// What came out.
    pub value: f64,
    /// What may come out at most.
    pub most: f64,
    /// Digits after the point.
    pub digits: usize,
}

impl Target {
    /// Whether the goal is met. Judged as printed, so that no line contradicts itself.
    #[must_use]
    pub fn is_met(&self) -> bool {
        let Self { value, digits, .. } = *self;
        format!("{value:.digits$}").parse().is_ok_and(|printed: f64| printed <= self.most)
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { name, value, most, digits } = *self;
        let verdict = if self.is_met() { "ok" } else { "short" };
        // A goal in whole units reads better without a point.
        let shown = if most.fract() == 0.0 && digits < 2 { 0 } else { digits };
        write!(f, "target {name} value {value:.digits$} goal <={most:.shown$} {verdict}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_what_the_printed_value_says() {
        for (value, most, digits, line) in [
            (12.34, 20.0, 1, "target x value 12.3 goal <=20 ok"),
            (20.04, 20.0, 1, "target x value 20.0 goal <=20 ok"),
            (20.06, 20.0, 1, "target x value 20.1 goal <=20 short"),
            (1.004, 1.0, 2, "target x value 1.00 goal <=1.00 ok"),
            (1.01, 1.0, 2, "target x value 1.01 goal <=1.00 short"),
            (0.0, 0.0, 0, "target x value 0 goal <=0 ok"),
            (f64::NAN, 1.0, 2, "target x value NaN goal <=1.00 short"),
        ] {
            assert_eq!(Target { name: "x", value, most, digits }.to_string(), line);
        }
    }
}
