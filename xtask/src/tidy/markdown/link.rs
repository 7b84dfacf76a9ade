//! Links, and where they lead.

use super::{prose, without_code};
use crate::tidy::tree;

/// A link and the line it stands on.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::tidy) struct Link {
    pub(in crate::tidy) line: usize,
    pub(in crate::tidy) target: String,
}

/// Where a link within the repository leads.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::tidy) struct LinkTarget {
    /// From the root; `None` if it leads out of the repository.
    pub(in crate::tidy) path: Option<String>,
    pub(in crate::tidy) anchor: Option<String>,
}

/// The links of a page, inline and `[name]: target`, outside of code.
pub(in crate::tidy) fn links(page: &str) -> Vec<Link> {
    let mut links = Vec::new();
    for (line, text) in prose(page) {
        let text = without_code(text);
        let definition = text.trim_start().strip_prefix('[').filter(|rest| !rest.starts_with('^'));
        let defined =
            definition.and_then(|rest| rest.split_once("]:")).map(|(_, target)| target.trim_start());
        let inline = text.match_indices("](").map(|(at, mark)| &text[at + mark.len()..]);
        links.extend(defined.into_iter().chain(inline).map(|rest| Link { line, target: destination(rest) }));
    }
    links
}

/// Where a link on a page leads; `None` for the web and for mail.
pub(in crate::tidy) fn resolve(page: &str, target: &str) -> Option<LinkTarget> {
    let (path, anchor) = match target.split_once('#') {
        Some((path, anchor)) => (path, Some(anchor.to_owned())),
        None => (target, None),
    };
    if path.contains(':') || path.starts_with("//") {
        return None;
    }
    let path = match path.strip_prefix('/') {
        _ if path.is_empty() => Some(page.to_owned()),
        Some(from_root) => tree::join("", from_root),
        None => tree::join(tree::folder(page), path),
    };
    Some(LinkTarget { path, anchor })
}

/// A link's destination, from just after its opening bracket: in `<…>`, or up to a space or the bracket's
/// end.
fn destination(rest: &str) -> String {
    if let Some((inside, _)) = rest.strip_prefix('<').and_then(|rest| rest.split_once('>')) {
        return inside.to_owned();
    }
    let mut depth = 0;
    let end = rest.find(|c: char| {
        depth += match c {
            '(' => 1,
            ')' => -1,
            _ => 0,
        };
        depth < 0 || c.is_whitespace()
    });
    rest[..end.unwrap_or(rest.len())].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found_outside_of_code() {
        let cases: &[(&str, &[&str])] = &[
            ("see [a](b.md) and ![c](d.png)", &["b.md", "d.png"]),
            ("[a](b.md \"title\")", &["b.md"]),
            ("[a](<b c.md>)", &["b c.md"]),
            ("[a](b_(c).md).", &["b_(c).md"]),
            ("[a]: b.md#c", &["b.md#c"]),
            ("[^1]: a footnote", &[]),
            ("`[a](b.md)` and [c](d.md)", &["d.md"]),
            ("``[a](b.md) ` [c](d.md)``", &[]),
            ("```\n[a](b.md)\n```", &[]),
            ("~~~md\n```\n[a](b.md)\n~~~\n[c](d.md)", &["d.md"]),
            ("[`a`](b.md)", &["b.md"]),
        ];
        for (page, expected) in cases {
            let found: Vec<_> = links(page).into_iter().map(|link| link.target).collect();
            assert_eq!(found, *expected, "{page}");
        }
    }

    #[test]
    fn links_resolve_from_their_page() {
        let place = |path: &str, anchor: Option<&str>| {
            Some(LinkTarget { path: Some(path.to_owned()), anchor: anchor.map(str::to_owned) })
        };
        let cases = [
            ("names.md", place("docs/names.md", None)),
            ("../README.md#use", place("README.md", Some("use"))),
            ("#below", place("docs/page.md", Some("below"))),
            ("/clippy.toml", place("clippy.toml", None)),
            ("../../out.md", Some(LinkTarget { path: None, anchor: None })),
            ("https://example.com/a#b", None),
            ("mailto:someone@example.com", None),
        ];
        for (target, expected) in cases {
            assert_eq!(resolve("docs/page.md", target), expected, "{target}");
        }
    }
}
