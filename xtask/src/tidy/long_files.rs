//! A file tells one story, and a story has an end.

use super::Violation;
use super::tree::Tree;

/// Most files need half of that; one that needs more likely tells two stories.
const LINES_MAX: usize = 500;

/// Files that may be longer, each with its reason.
const ALLOWED: &[(&str, &str)] = &[];

pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    check_against(tree, ALLOWED)
}

fn check_against(tree: &Tree, allowed: &[(&str, &str)]) -> Vec<Violation> {
    let long = |text: &str| text.lines().count() > LINES_MAX;
    let listed = |path: &str| allowed.iter().any(|(allowed, _)| *allowed == path);
    let too_long =
        tree.texts_ending(".rs").filter(|(path, text)| long(text) && !listed(path)).map(|(path, text)| {
            let what = format!("{} lines, over {LINES_MAX}; split it by its stories", text.lines().count());
            Violation::new(path, LINES_MAX + 1, what)
        });
    let stale = allowed.iter().filter(|(path, _)| !tree.text(path).is_some_and(long)).map(|(path, _)| {
        Violation::new(path, 1, "allowed to be long, but is not; remove it from the table in long_files.rs")
    });
    too_long.chain(stale).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_files_need_a_reason_and_reasons_a_long_file() {
        let long = "//\n".repeat(LINES_MAX + 1);
        let just = "//\n".repeat(LINES_MAX);
        let tree =
            Tree::of(&[("just.rs", &just), ("long.rs", &long), ("table.rs", &long), ("long.md", &long)]);
        let allowed = [("table.rs", "a table"), ("just.rs", "was a table"), ("gone.rs", "was here")];
        let found: Vec<_> =
            check_against(&tree, &allowed).into_iter().map(|violation| violation.path).collect();
        assert_eq!(found, ["long.rs", "just.rs", "gone.rs"]);
    }
}
