//! As much of Markdown as the checks need: here fences and code spans, below links and anchors.
//!
//! Read line by line: a link or code span broken over two lines goes unseen.

mod anchor;
mod link;

pub(super) use anchor::anchors;
pub(super) use link::{LinkTarget, links, resolve};

/// The lines inside the fences with that info string, with their numbers; `None` if there is no such fence.
pub(super) fn fenced<'a>(page: &'a str, info: &str) -> Option<Vec<(usize, &'a str)>> {
    let mut found = None;
    for (line, text, place) in lines(page) {
        match place {
            In::Mark if fence(text).is_some_and(|(_, said)| said == info) => {
                found.get_or_insert_with(Vec::new);
            }
            In::Fence(said) if said == info => found.get_or_insert_with(Vec::new).push((line, text)),
            _ => {}
        }
    }
    found
}

/// What a page puts in back-quotes, outside of fences.
pub(super) fn code_spans(page: &str) -> Vec<&str> {
    prose(page).flat_map(|(_, text)| spans(text)).map(|(_, inside)| inside).collect()
}

enum In<'a> {
    Prose,
    Mark,
    /// Inside a fence with that info string.
    Fence(&'a str),
}

/// Every line: number, text, and whether it is prose or within a fence.
fn lines(page: &str) -> impl Iterator<Item = (usize, &str, In<'_>)> {
    let mut open: Option<(&str, &str)> = None;
    page.lines().enumerate().map(move |(index, text)| {
        let place = match (open, fence(text)) {
            (None, None) => In::Prose,
            (None, opening) => {
                open = opening;
                In::Mark
            }
            (Some((mark, _)), Some((end, ""))) if end.starts_with(mark) => {
                open = None;
                In::Mark
            }
            (Some((_, info)), _) => In::Fence(info),
        };
        (index + 1, text, place)
    })
}

fn prose(page: &str) -> impl Iterator<Item = (usize, &str)> {
    lines(page).filter_map(|(line, text, place)| matches!(place, In::Prose).then_some((line, text)))
}

/// The mark and the info string of a line that opens or closes a fence.
fn fence(text: &str) -> Option<(&str, &str)> {
    let text = text.trim();
    let first = text.chars().next().filter(|first| matches!(first, '`' | '~'))?;
    let (mark, info) = text.split_at(text.len() - text.trim_start_matches(first).len());
    (mark.len() >= 3 && !info.contains('`')).then_some((mark, info.trim()))
}

/// The code spans of a line: where each starts, its back-quotes included, and what is inside.
fn spans(text: &str) -> Vec<(usize, &str)> {
    let mut spans = Vec::new();
    let mut at = 0;
    while let Some(start) = text[at..].find('`').map(|found| at + found) {
        let quotes = text[start..].len() - text[start..].trim_start_matches('`').len();
        at = start + quotes;
        let mark = "`".repeat(quotes);
        // A longer run of back-quotes does not close a shorter one.
        let end = text[at..].match_indices(&mark).map(|(found, _)| at + found).find(|end| {
            let after = text[end + quotes..].starts_with('`');
            let before = text[..*end].ends_with('`') && *end > at;
            !after && !before
        });
        if let Some(end) = end {
            spans.push((start, &text[at..end]));
            at = end + quotes;
        }
    }
    spans
}

fn without_code(text: &str) -> String {
    let mut plain = text.to_owned();
    for (start, inside) in spans(text) {
        let quotes = text[start..].len() - text[start..].trim_start_matches('`').len();
        let end = start + inside.len() + 2 * quotes;
        plain.replace_range(start..end, &" ".repeat(end - start));
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_spans_close_with_as_many_quotes() {
        let cases: &[(&str, &[&str])] = &[
            ("`a` b `c`", &["a", "c"]),
            ("``a ` b``", &["a ` b"]),
            ("`a`` b", &[]),
            ("```\n`a`\n```\n`b`", &["b"]),
        ];
        for (page, expected) in cases {
            assert_eq!(code_spans(page), *expected, "{page}");
        }
    }

    #[test]
    fn fences_are_found_by_their_info_string() {
        let page = "# A\n```arrows\na -> b\n```\n```sh\nls\n```\n```arrows\nc ->\n```\n";
        assert_eq!(fenced(page, "arrows"), Some(vec![(3, "a -> b"), (9, "c ->")]));
        assert_eq!(fenced(page, "toml"), None);
        assert_eq!(fenced("```arrows\n```\n", "arrows"), Some(Vec::new()));
    }
}
