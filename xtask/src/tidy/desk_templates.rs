//! The desk's templates escape everything, have nothing inline, and stay light.
//!
//! The pages' policy would block inline scripts and styles in a browser; this finds them before one is opened.

use super::Violation;
use super::tree::Tree;

/// What a template must not have, in pieces so that this file does not find itself, and why.
const NEEDLES: [(&str, &str); 6] = [
    (concat!("|", "safe"), "every value is escaped; there is no exception"),
    (concat!("| ", "safe"), "every value is escaped; there is no exception"),
    (concat!("style", "=\""), "the policy blocks inline styles; use a class or an attribute of SVG"),
    (concat!("<", "style"), "the policy blocks inline styles; use desk.css"),
    (concat!("java", "script:"), "the policy blocks it; use desk.js"),
    (concat!("http", "-equiv"), "headers are set by the server"),
];

/// Sizes in bytes: a page should come over a poor line.
const SIZES: [(&str, usize); 2] = [("desk.css", 24 << 10), ("desk.js", 12 << 10)];

pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    let is_ours = |path: &str| path.contains("/templates/");
    let mut violations = Vec::new();
    for (path, text) in tree.texts_ending(".html").filter(|(path, _)| is_ours(path)) {
        for (index, line) in text.lines().enumerate() {
            for (needle, why) in NEEDLES.iter().filter(|(needle, _)| line.contains(needle)) {
                violations.push(Violation::new(path, index + 1, format!("has `{needle}`: {why}")));
            }
            let is_inline = line.split("<script").skip(1).any(|rest| !rest.starts_with(" src="));
            if is_inline {
                violations.push(Violation::new(path, index + 1, "has an inline script; use desk.js"));
            }
            if let Some(handler) = handler(line) {
                violations.push(Violation::new(path, index + 1, format!("has `{handler}`; use desk.js")));
            }
        }
    }
    for (path, text) in tree.texts().filter(|(path, _)| is_ours(path)) {
        let most = SIZES.iter().find(|(name, _)| path.ends_with(name)).map(|(_, most)| *most);
        if let Some(most) = most.filter(|most| text.len() > *most) {
            let what = format!("{} bytes, over {most}; a page has to stay light", text.len());
            violations.push(Violation::new(path, 1, what));
        }
    }
    violations
}

/// An attribute such as `onclick=`.
fn handler(line: &str) -> Option<&str> {
    let words = line.split([' ', '<', '>']).filter(|word| word.starts_with("on"));
    words.into_iter().find_map(|word| {
        let name = word.split_once('=')?.0;
        (name.len() > 3 && name.bytes().all(|byte| byte.is_ascii_lowercase())).then_some(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_escaped_or_inline_is_a_violation() {
        let cases = [
            (format!("<p>{{{{ text{} }}}}</p>", NEEDLES[0].0), 1),
            (format!("<p>{{{{ text {} }}}}</p>", NEEDLES[1].0), 1),
            (format!("<p {}color:red\">", NEEDLES[2].0), 1),
            ("<script>alert(1)</script>".to_owned(), 1),
            ("<script src=\"/x.js\" defer></script>".to_owned(), 0),
            ("<b onclick=\"x()\">".to_owned(), 1),
            ("<p>{{ text }} one = two on time</p>".to_owned(), 0),
        ];
        for (text, expected) in cases {
            let found = check(&Tree::of(&[("crates/x/templates/page.html", &text)]));
            assert_eq!(found.len(), expected, "{text}: {found:?}");
        }
        let large = "a".repeat((12 << 10) + 1);
        assert_eq!(check(&Tree::of(&[("crates/x/templates/desk.js", &large)])).len(), 1);
    }
}
