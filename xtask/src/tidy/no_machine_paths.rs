//! The repository stands alone: nothing in it points to a path of one machine.

use super::Violation;
use super::tree::Tree;

/// In pieces, so that this file does not find itself.
const NEEDLES: [&str; 3] = [concat!("..", "/shared"), concat!("/", "work/"), concat!("/", "root/")];

pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (path, text) in tree.texts() {
        for (index, line) in text.lines().enumerate() {
            for needle in NEEDLES.into_iter().filter(|needle| has_path(line, needle)) {
                let what = format!("points to `{needle}` outside the repository; say it without that path");
                violations.push(Violation::new(path, index + 1, what));
            }
        }
    }
    violations
}

/// Whether the path starts there, rather than going on from a longer one as in `homework/`.
fn has_path(line: &str, needle: &str) -> bool {
    let goes_on = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '~' | '}');
    line.match_indices(needle).any(|(at, _)| !line[..at].ends_with(goes_on))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_a_machine_are_violations() {
        let [shared, work, root] = NEEDLES;
        let cases = [
            (format!("see [it]({shared}/PLAN.md)"), 1),
            (format!("cd {work}main"), 1),
            (format!("file://{work}main and {root}.cargo"), 2),
            (format!("docs{work}page.md, ~{work}page.md, {{dir}}{root}page.md"), 0),
            ("the work at the root is shared".to_owned(), 0),
        ];
        for (text, expected) in cases {
            let found = check(&Tree::of(&[("notes.txt", &text)]));
            assert_eq!(found.len(), expected, "{text}: {found:?}");
        }
    }
}
