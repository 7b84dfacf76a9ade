//! The names that users meet on the wire and in dashboards are all in the manual.
//!
//! They are the strings in core's `names.rs`; the page must show each in back-quotes, alone or as part of an
//! example such as `` `redrive-attempt: 3` ``.

use super::Violation;
use super::markdown;
use super::source::Source;
use super::tree::Tree;

const CODE: &str = "crates/core/src/names.rs";
const PAGE: &str = "docs/reference/names.md";

pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    let Some(code) = tree.text(CODE) else {
        return vec![Violation::new(CODE, 1, "not there; the names users meet are defined in this file")];
    };
    let Some(page) = tree.text(PAGE) else {
        return vec![Violation::new(PAGE, 1, format!("not there; describe the names in {CODE}"))];
    };
    let shown = markdown::code_spans(page);
    names(code)
        .into_iter()
        .filter(|(_, name)| !shown.iter().any(|span| mentions(span, name)))
        .map(|(line, name)| {
            Violation::new(CODE, line, format!("`{name}` is not in {PAGE}; describe it there"))
        })
        .collect()
}

/// The strings of the file with their lines, without those in tests and attributes.
fn names(code: &str) -> Vec<(usize, &str)> {
    let source = Source::new(code).without_tests();
    // Within tests the quote before a string is blanked too.
    let in_code = |at: usize| source.code.as_bytes()[at - 1] == b'"' && !in_attribute(&source.code[..at]);
    let strings = source.strings.iter().filter(|at| !at.is_empty() && in_code(at.start));
    strings.map(|at| (source.line(at.start), &code[at.clone()])).collect()
}

fn in_attribute(before: &str) -> bool {
    before.rfind("#[").is_some_and(|start| !before[start..].contains(']'))
}

/// Whether the name stands in the span with no more of a name around it.
fn mentions(span: &str, name: &str) -> bool {
    let goes_on = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.');
    span.match_indices(name).any(|(at, _)| {
        let (before, after) = (&span[..at], &span[at + name.len()..]);
        !before.ends_with(goes_on) && !after.starts_with(goes_on)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: &str = r#"
        //! Such as "this".
        #[doc(alias = "header")]
        pub const ATTEMPT: &str = "redrive-attempt";
        pub const RETRIES: &str = "redrive_retries_total";
        #[cfg(test)]
        mod tests { const IGNORED: &str = "ignored"; }
    "#;

    #[test]
    fn a_name_missing_from_the_page_is_a_violation() {
        let cases: &[(&str, &[usize])] = &[
            ("`redrive-attempt: 3`, `redrive_retries_total{policy}`", &[]),
            ("`redrive-attempt`", &[5]),
            ("redrive-attempt, `redrive_retries_total`", &[4]),
            ("`redrive-attempts`, `my_redrive_retries_total`", &[4, 5]),
        ];
        for (page, expected) in cases {
            let tree = Tree::of(&[(CODE, NAMES), (PAGE, page)]);
            let lines: Vec<_> = check(&tree).into_iter().map(|violation| violation.line).collect();
            assert_eq!(lines, *expected, "{page}");
        }
    }

    #[test]
    fn neither_side_may_be_missing() {
        for files in [[(CODE, NAMES)], [(PAGE, "")]] {
            assert_eq!(check(&Tree::of(&files)).len(), 1, "{files:?}");
        }
    }
}
