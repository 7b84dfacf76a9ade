//! Texts for users name their subject: a publisher, an owner, a node, a client or an operator.
//!
//! The words below leave it out. They are looked for in pages, in the strings of the code (errors, log lines, `--help`),
//! in the documentation comments of the command line, which become `--help`, and in the texts of the API and the
//! configuration.

use super::Violation;
use super::source::Source;
use super::tree::Tree;

/// In pieces, so that this file does not find itself.
const VAGUE: [&str; 3] = [concat!("no", "body"), concat!("who", "ever"), concat!("some", "body")];

/// Paths that are not clean yet. Remove a line when it is.
const NOT_YET: &[&str] = &[];

/// Test helpers: their strings are read by developers only.
const EXEMPT: &[&str] = &["crates/testkit/", "CHANGELOG.md"];

pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    check_against(tree, NOT_YET)
}

fn check_against(tree: &Tree, not_yet: &[&str]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (path, text) in tree.texts() {
        if not_yet.iter().chain(EXEMPT).any(|start| path.starts_with(start)) {
            continue;
        }
        for (line, text) in texts_for_users(path, text) {
            let lower = text.to_lowercase();
            for word in VAGUE.into_iter().filter(|word| has_word(&lower, word)) {
                let what = format!("`{word}` in a text for users; name the subject instead");
                violations.push(Violation::new(path, line, what));
            }
        }
    }
    violations
}

/// The texts of a file that users read, with their lines.
fn texts_for_users<'a>(path: &str, text: &'a str) -> Vec<(usize, &'a str)> {
    let numbered = |text: &'a str| text.lines().enumerate().map(|(index, line)| (index + 1, line));
    let is_page = path.ends_with(".md") && (!path.contains('/') || path.starts_with("docs/"));
    let is_rules = path.starts_with("docs/") && path.ends_with(".yml");
    if is_page
        || is_rules
        || path.ends_with("/default.toml")
        || (path.contains("/openapi/") && path.ends_with(".json"))
    {
        return numbered(text).collect();
    }
    if !path.ends_with(".rs") || !path.contains("/src/") || path.ends_with("/tests.rs") {
        return Vec::new();
    }
    let source = Source::new(text).without_tests();
    let kept = |at: usize| source.code.as_bytes().get(at.saturating_sub(1)) == Some(&b'"');
    let strings = source.strings.iter().filter(|string| kept(string.start));
    let mut texts: Vec<_> =
        strings.map(|string| (source.line(string.start), &text[string.clone()])).collect();
    if path.contains("/cli/") || path.ends_with("/cli.rs") {
        texts.extend(numbered(text).filter(|(_, line)| line.trim_start().starts_with("///")));
    }
    texts
}

fn has_word(text: &str, word: &str) -> bool {
    let is_letter = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word)
        .any(|(at, _)| !text[..at].ends_with(is_letter) && !text[at + word.len()..].starts_with(is_letter))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vague_subjects_are_found_where_users_read() {
        let [none, any, some] = VAGUE;
        let page = format!("one\n{none} reads\n");
        let code = format!("// {any}\nfn f() {{ error(\"{some} did\"); }}\n/// {any}\n");
        let help = format!("/// {any}\n// {some}\n");
        let test = format!("#[cfg(test)]\nmod tests {{ fn f() {{ error(\"{some}\"); }} }}\n");
        let tree = Tree::of(&[
            ("README.md", &page),
            ("docs/a.md", &page),
            ("crates/a/src/lib.rs", &code),
            ("crates/a/src/cli/b.rs", &help),
            ("crates/a/src/tested.rs", &test),
            ("crates/a/tests/t.rs", &code),
            ("crates/later/src/lib.rs", &code),
            ("benches/notes.txt", &page),
        ]);
        let found = check_against(&tree, &["crates/later/"]);
        let found: Vec<_> = found.iter().map(|found| (found.path.as_str(), found.line)).collect();
        let expected =
            [("README.md", 2), ("crates/a/src/cli/b.rs", 1), ("crates/a/src/lib.rs", 2), ("docs/a.md", 2)];
        assert_eq!(found, expected);
    }

    #[test]
    fn only_whole_words_count() {
        assert!(has_word(&format!("tell {}.", VAGUE[0]), VAGUE[0]));
        assert!(!has_word(&format!("a_{}_else", VAGUE[0]), VAGUE[0]));
    }
}
