//! A folder of source files has at most 20 entries, so that its listing can be read at a glance.
//!
//! `x.rs` and `x/` count once. Folders of tests are exempt.

use std::collections::{BTreeMap, BTreeSet};

use super::Violation;
use super::tree::{Tree, folder};

const ENTRIES_MAX: usize = 20;

/// Folders that still have more entries. Remove a line when its folder is split.
const NOT_YET: &[&str] = &[];

pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    check_against(tree, NOT_YET)
}

fn check_against(tree: &Tree, not_yet: &[&str]) -> Vec<Violation> {
    let mut folders: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (path, _) in tree.texts_ending(".rs") {
        // The file counts in its folder, and each folder counts in the one above it.
        let mut entry = path.trim_end_matches(".rs");
        while let Some((parent, _)) = entry.rsplit_once('/') {
            folders.entry(parent).or_default().insert(entry);
            entry = parent;
        }
    }
    let is_source = |path: &str| path.contains("src") && !format!("{path}/").contains("/tests/");
    let large: Vec<(&str, usize)> = folders
        .iter()
        .filter(|(path, entries)| is_source(path) && entries.len() > ENTRIES_MAX)
        .map(|(path, entries)| (*path, entries.len()))
        .collect();
    let violations = large.iter().filter(|(path, _)| !not_yet.contains(path)).map(|(path, count)| {
        let what = format!("{count} entries, over {ENTRIES_MAX}; add sub-folders by topic");
        Violation::new(path, 1, what)
    });
    let is_large = |path: &str| large.iter().any(|(large, _)| *large == path);
    let stale = not_yet.iter().filter(|path| !is_large(path)).map(|path| {
        let what = format!("no longer over {ENTRIES_MAX} entries; remove it from NOT_YET in folder_size.rs");
        Violation::new(folder(&format!("{path}/")), 1, what)
    });
    violations.chain(stale).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_folders_are_violations_unless_listed_and_lists_shrink() {
        let files: Vec<String> = (0..=ENTRIES_MAX)
            .flat_map(|n| [format!("a/src/{n}.rs"), format!("b/src/{n}.rs"), format!("c/tests/{n}.rs")])
            .chain((0..ENTRIES_MAX).flat_map(|n| [format!("d/src/{n}.rs"), format!("d/src/{n}/x.rs")]))
            .collect();
        let files: Vec<(&str, &str)> = files.iter().map(|path| (path.as_str(), "")).collect();
        let found = check_against(&Tree::of(&files), &["b/src", "gone/src"]);
        let paths: Vec<_> = found.iter().map(|violation| violation.path.as_str()).collect();
        assert_eq!(paths, ["a/src", "gone/src"]);
    }
}
