//! The arrows as ARCHITECTURE.md lists them, one line a crate or more:
//!
//! ```text
//! redrive-core ->
//! redrive-server -> redrive redrive-http
//! redrive-http -dev-> redrive-testkit
//! ```

use crate::tidy::markdown;

/// All arrows, in order.
pub(super) struct Table {
    pub(super) arrows: Vec<Arrow>,
}

/// A line: one crate and what it may depend on.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Arrow {
    pub(super) line: usize,
    from: String,
    to: Vec<String>,
    dev: bool,
}

/// A line that is no arrow, with its number.
type Malformed<'a> = (usize, &'a str);

impl Table {
    /// Reads the page's fences; `None` if it has none for arrows.
    pub(super) fn read(page: &str) -> Option<(Self, Vec<Malformed<'_>>)> {
        let mut table = Self { arrows: Vec::new() };
        let mut malformed = Vec::new();
        for (line, text) in markdown::fenced(page, "arrows")? {
            if text.trim().is_empty() {
                continue;
            }
            match arrow(line, text) {
                Some(arrow) => table.arrows.push(arrow),
                None => malformed.push((line, text)),
            }
        }
        Some((table, malformed))
    }

    /// Whether the crate stands at the start of a plain arrow.
    pub(super) fn has_line_for(&self, name: &str) -> bool {
        self.arrows.iter().any(|arrow| arrow.from == name && !arrow.dev)
    }

    /// A plain arrow allows dev-dependencies too.
    pub(super) fn allows(&self, from: &str, to: &str, dev: bool) -> bool {
        let drawn = |arrow: &&Arrow| arrow.from == from && arrow.to.iter().any(|it| it == to);
        self.arrows.iter().filter(drawn).any(|arrow| dev || !arrow.dev)
    }
}

impl Arrow {
    /// Every crate on the line.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        [&self.from].into_iter().chain(&self.to).map(String::as_str)
    }
}

fn arrow(line: usize, text: &str) -> Option<Arrow> {
    let (from, to, dev) = match text.split_once("-dev->") {
        Some((from, to)) => (from, to, true),
        None => text.split_once("->").map(|(from, to)| (from, to, false))?,
    };
    let from = from.trim();
    let is_name = |word: &str| {
        !word.is_empty() && !word.contains(|c: char| c.is_whitespace() || matches!(c, '>' | ','))
    };
    let to: Vec<String> = to.split([' ', ',']).filter(|word| !word.is_empty()).map(str::to_owned).collect();
    // A dev arrow to nothing says nothing.
    let meant = is_name(from) && to.iter().all(|word| is_name(word)) && !(dev && to.is_empty());
    meant.then(|| Arrow { line, from: from.to_owned(), to, dev })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_arrows_or_malformed() {
        type Case<'a> = (&'a str, Option<(&'a str, &'a [&'a str], bool)>);
        let cases: &[Case<'_>] = &[
            ("redrive-core ->", Some(("redrive-core", &[], false))),
            ("server -> redrive", Some(("server", &["redrive"], false))),
            ("server -> redrive, http core", Some(("server", &["redrive", "http", "core"], false))),
            ("http -dev-> testkit", Some(("http", &["testkit"], true))),
            ("  core  ->  a  ", Some(("core", &["a"], false))),
            ("core", None),
            ("-> core", None),
            ("a b -> core", None),
            ("a -> b -> c", None),
            ("http -dev->", None),
        ];
        for (text, expected) in cases {
            let expected = expected.map(|(from, to, dev)| Arrow {
                line: 7,
                from: from.to_owned(),
                to: to.iter().map(|it| (*it).to_owned()).collect(),
                dev,
            });
            assert_eq!(arrow(7, text), expected, "{text}");
        }
    }
}
