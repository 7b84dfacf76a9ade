//! Pages do not count what the code counts better: a sentence such as "twelve methods" is wrong after the next change.

use super::Violation;
use super::tree::Tree;

/// What is not counted.
const THINGS: [&str; 4] = ["verbs", "methods", "files", "crates"];

/// Numbers as words. Those in digits are found by their first letter.
const NUMBERS: [&str; 14] = [
    "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "dozen",
    "twenty", "hundred",
];

/// Pages about the past.
const EXEMPT: &[&str] = &["CHANGELOG.md"];

pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    let is_page = |path: &str| !path.contains('/') || path.starts_with("docs/");
    let pages = tree.texts_ending(".md").filter(|(path, _)| is_page(path) && !EXEMPT.contains(path));
    pages
        .flat_map(|(path, text)| {
            let lines = text.lines().enumerate();
            lines.filter_map(move |(index, line)| {
                let (number, thing) = counted(line)?;
                let what = format!("counts `{number} {thing}`; link to them instead");
                Some(Violation::new(path, index + 1, what))
            })
        })
        .collect()
}

/// A number right before a thing that is not counted.
fn counted(line: &str) -> Option<(&str, &str)> {
    let words: Vec<&str> =
        line.split(|c: char| !c.is_alphanumeric() && c != '-').filter(|word| !word.is_empty()).collect();
    let pairs = words.windows(2).map(|pair| (pair[0], pair[1]));
    let is_number = |word: &str| {
        let lower = word.to_lowercase();
        word.bytes().all(|byte| byte.is_ascii_digit()) || NUMBERS.contains(&lower.as_str())
    };
    pairs
        .into_iter()
        .find(|(number, thing)| is_number(number) && THINGS.contains(&thing.to_lowercase().as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_code_are_violations() {
        for (line, expected) in [
            ("The contract has 39 methods.", true),
            ("It is a dozen verbs, each one commit.", true),
            ("Seven crates", true),
            ("The methods are below.", false),
            ("at most 20 entries", false),
            ("`retry-after` files two", false),
            ("version 2 of files", false),
        ] {
            assert_eq!(counted(line).is_some(), expected, "{line}");
        }
        let pages = [("docs/a.md", "\nTwo files."), ("CHANGELOG.md", "Two files."), ("x/b.md", "Two files.")];
        let found = check(&Tree::of(&pages));
        assert_eq!(
            found.iter().map(|found| (found.path.as_str(), found.line)).collect::<Vec<_>>(),
            [("docs/a.md", 2)]
        );
    }
}
