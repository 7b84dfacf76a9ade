//! A public type name means one thing in the whole workspace.
//!
//! Rust would allow `http::Mode` beside `event::Mode`; a reader who meets `Mode` in a signature could not tell which.
//! The mirrors in `blocking` modules are exempt: they are the same thing without async. A `pub` item is taken to be
//! exported, because the lint `unreachable_pub` warns about one that is not.

use std::collections::BTreeMap;

use super::Violation;
use super::source::{Source, is_word};
use super::tree::Tree;

/// Crates whose names are not yet compared with those of the others. Remove a line when its crate is clean.
const NOT_YET: &[&str] = &[];

/// Not a public API: test helpers and tools.
const EXEMPT: &[&str] = &["crates/testkit/"];

pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    check_against(tree, NOT_YET)
}

fn check_against(tree: &Tree, not_yet: &[&str]) -> Vec<Violation> {
    let mut defined: BTreeMap<String, Vec<(&str, usize)>> = BTreeMap::new();
    for (path, text) in tree.texts_ending(".rs") {
        let is_exempt = not_yet.iter().chain(EXEMPT).any(|start| path.starts_with(start));
        let is_library = path.starts_with("crates/") && path.contains("/src/");
        if is_exempt || !is_library || path.contains("blocking") || path.ends_with("tests.rs") {
            continue;
        }
        for (line, name) in public_types(text) {
            let places = defined.entry(name).or_default();
            // Variants of one item under different `cfg`s are one definition.
            if places.iter().all(|(known, _)| *known != path) {
                places.push((path, line));
            }
        }
    }
    let twice = defined.into_iter().filter(|(_, places)| places.len() > 1);
    twice
        .flat_map(|(name, places)| {
            let (first, _) = places[0];
            places.into_iter().skip(1).map(move |(path, line)| {
                Violation::new(path, line, format!("`{name}` is also a public type of {first}; rename one"))
            })
        })
        .collect()
}

/// The public types that a file defines, with their lines.
fn public_types(text: &str) -> Vec<(usize, String)> {
    let source = Source::new(text).without_tests();
    let mut found = Vec::new();
    for (index, line) in source.code.lines().enumerate() {
        // Items of a macro such as `pin_project!` are indented; associated types, which are too, have no `pub`.
        let Some(item) = line.trim_start().strip_prefix("pub ") else { continue };
        for kind in ["struct ", "enum ", "trait ", "type ", "union "] {
            if let Some(rest) = item.strip_prefix(kind) {
                let length = rest.bytes().take_while(|byte| is_word(*byte)).count();
                found.push((index + 1, rest[..length].to_owned()));
            }
        }
    }
    found.retain(|(_, name)| !name.is_empty());
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_public_once() {
        let tree = Tree::of(&[
            ("crates/a/src/one.rs", "pub struct Mode;\npub(crate) struct Inner;\npub enum Phase {}"),
            ("crates/a/src/blocking.rs", "pub trait Phase {}"),
            ("crates/b/src/two.rs", "pub struct Inner;\n\npub type Mode = u8;\n"),
            ("crates/c/src/three.rs", "pub struct Mode;"),
            ("crates/b/tests/two.rs", "pub struct Mode;"),
            ("crates/b/src/four.rs", "#[cfg(test)]\nmod tests { pub struct Mode; }"),
        ]);
        let found = check_against(&tree, &["crates/c/"]);
        let found: Vec<_> = found.iter().map(|found| (found.path.as_str(), found.line)).collect();
        assert_eq!(found, [("crates/b/src/two.rs", 3)]);
    }
}
