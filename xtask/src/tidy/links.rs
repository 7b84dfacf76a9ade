//! Links between our pages lead somewhere: to a file, and to a heading in it. The web is not fetched.

use super::Violation;
use super::markdown::{self, LinkTarget};
use super::tree::Tree;

pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (page, text) in tree.texts_ending(".md") {
        for link in markdown::links(text) {
            let place = markdown::resolve(page, &link.target);
            if let Some(what) = place.and_then(|place| fault(tree, &link.target, &place)) {
                violations.push(Violation::new(page, link.line, what));
            }
        }
    }
    violations
}

fn fault(tree: &Tree, target: &str, place: &LinkTarget) -> Option<String> {
    if target.is_empty() {
        return Some("the link is empty; give it a target".to_owned());
    }
    let Some(path) = place.path.as_deref().filter(|path| tree.has(path)) else {
        return Some(format!("link to `{target}`, which is not there; mend the path or remove the link"));
    };
    let anchor = place.anchor.as_deref()?;
    let text = tree.text(path).filter(|_| path.ends_with(".md"))?;
    let known = markdown::anchors(text).contains(anchor);
    (!known).then(|| format!("link to `{target}`, but {path} has no heading `#{anchor}`; name one it has"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_links_that_lead_nowhere_are_violations() {
        let cases = [
            ("[a](names.md)", None),
            ("[a](names.md#stop-reasons)", None),
            ("[a](errors/)", None),
            ("[a](../src/lib.rs#L3)", None),
            ("[a](#here)\n\n# Here", None),
            ("[a](https://example.com/nowhere)", None),
            ("```\n[a](nowhere.md)\n```", None),
            ("\n[a](nowhere.md)", Some((2, "`nowhere.md`, which is not there"))),
            ("[a](../../outside.md)", Some((1, "which is not there"))),
            ("[a](names.md#headers)", Some((1, "docs/names.md has no heading `#headers`"))),
            ("[a](#nowhere)", Some((1, "docs/page.md has no heading `#nowhere`"))),
            ("[a]()", Some((1, "the link is empty"))),
        ];
        for (page, expected) in cases {
            let tree = Tree::of(&[
                ("docs/page.md", page),
                ("docs/names.md", "## Stop reasons"),
                ("docs/errors/RD0001.md", ""),
                ("src/lib.rs", ""),
            ]);
            let found = check(&tree);
            assert_eq!(found.len(), usize::from(expected.is_some()), "{page}: {found:?}");
            if let Some((line, what)) = expected {
                assert_eq!(found[0].line, line, "{page}");
                assert!(found[0].what.contains(what), "{page}: {found:?}");
            }
        }
    }
}
