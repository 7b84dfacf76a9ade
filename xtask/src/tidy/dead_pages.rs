//! Every page below docs/ can be found: another page links to it, or Rust source names its path.

use std::collections::BTreeSet;

use super::Violation;
use super::markdown;
use super::tree::Tree;

pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    let linked = linked(tree);
    let pages = tree.texts_ending(".md").map(|(path, _)| path).filter(|path| path.starts_with("docs/"));
    pages
        // GitHub shows a folder's README with the folder.
        .filter(|page| {
            !page.ends_with("/README.md") && !linked.contains(*page) && !named_in_source(tree, page)
        })
        .map(|page| Violation::new(page, 1, "no page links here; link to it, or delete it"))
        .collect()
}

/// Pages that some other page links to.
fn linked(tree: &Tree) -> BTreeSet<String> {
    let mut linked = BTreeSet::new();
    for (page, text) in tree.texts_ending(".md") {
        let places =
            markdown::links(text).into_iter().filter_map(|link| markdown::resolve(page, &link.target));
        linked.extend(places.filter_map(|place| place.path).filter(|path| path != page));
    }
    linked
}

/// Doc comments link by web address and `include_str!` by relative path; both end in the path from the root.
fn named_in_source(tree: &Tree, page: &str) -> bool {
    tree.texts_ending(".rs").any(|(_, text)| text.contains(page))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_without_a_way_in_is_dead() {
        let tree = Tree::of(&[
            ("README.md", "[a](docs/linked.md)"),
            ("docs/linked.md", ""),
            ("docs/README.md", ""),
            ("docs/included.md", ""),
            ("docs/itself.md", "[me](itself.md)"),
            ("docs/dead.md", ""),
            ("crates/core/src/lib.rs", "#![doc = include_str!(\"../../../docs/included.md\")]"),
        ]);
        let dead: Vec<_> = check(&tree).into_iter().map(|violation| violation.path).collect();
        assert_eq!(dead, ["docs/dead.md", "docs/itself.md"]);
    }
}
