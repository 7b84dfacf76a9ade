//! Every named configuration has its program, its test and its page.
//!
//! The list is `ALL` in `examples/configurations/src/rows.rs`. A configuration that waits for something else says so
//! there, and needs its page alone.

use super::Violation;
use super::tree::Tree;

const ROWS: &str = "examples/configurations/src/rows.rs";
const TESTS: &str = "examples/configurations/tests/configurations.rs";
const PAGE: &str = "docs/guides/configurations.md";
/// How many names there are: the theory has that many.
const NAMES: usize = 12;

pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    let Some(rows) = tree.text(ROWS) else { return Vec::new() };
    let [tests, page] = [TESTS, PAGE].map(|path| tree.text(path).unwrap_or_default());
    let mut violations = Vec::new();
    let names = names(rows);
    if names.len() != NAMES {
        let what = format!("{} configurations are listed, and there are {NAMES}", names.len());
        violations.push(Violation::new(ROWS, 1, what));
    }
    for (line, name, waits) in names {
        let mut lacks = |what: String| violations.push(Violation::new(ROWS, line, what));
        if !page.lines().any(|heading| heading == format!("## {name}")) {
            lacks(format!("`{name}` has no section `## {name}` in {PAGE}"));
        }
        if waits {
            continue;
        }
        let module = format!("examples/configurations/src/rows/{}.rs", name.replace('-', "_"));
        if tree.text(&module).is_none() {
            lacks(format!("`{name}` has no program {module}"));
        }
        if !tests.contains(&format!(": \"{name}\";")) {
            lacks(format!("`{name}` has no test in {TESTS}"));
        }
    }
    violations
}

/// The names of all rows, with their lines and whether they wait for something.
fn names(rows: &str) -> Vec<(usize, String, bool)> {
    let lines: Vec<&str> = rows.lines().collect();
    let mut found = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        if !matches!(line.trim(), "row(" | "..row(") {
            continue;
        }
        let name = lines.get(index + 1).and_then(|name| name.trim().strip_prefix('"')?.strip_suffix("\","));
        let waits = line.trim() == "..row(";
        found.extend(name.map(|name| (index + 2, name.to_owned(), waits)));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_without_program_test_or_page_is_a_violation() {
        let rows = "    row(\n        \"outbox\",\n    Row {\n        ..row(\n            \"saga\",\n";
        let (module, page) = ("examples/configurations/src/rows/outbox.rs", "## outbox\n## saga\n");
        let found = |files: &[(&str, &str)]| {
            let what = check(&Tree::of(files)).into_iter().map(|violation| violation.what);
            what.filter(|what| !what.contains("there are")).collect::<Vec<_>>()
        };
        let tests = "outbox: \"outbox\";";
        assert!(found(&[(ROWS, rows), (TESTS, tests), (PAGE, page), (module, "")]).is_empty());
        assert_eq!(found(&[(ROWS, rows), (TESTS, tests), (PAGE, page)]).len(), 1);
        assert_eq!(found(&[(ROWS, rows), (TESTS, ""), (PAGE, page), (module, "")]).len(), 1);
        assert_eq!(found(&[(ROWS, rows), (TESTS, tests), (PAGE, "## outbox\n"), (module, "")]).len(), 1);
        assert!(!check(&Tree::of(&[(ROWS, rows)])).is_empty());
    }
}
