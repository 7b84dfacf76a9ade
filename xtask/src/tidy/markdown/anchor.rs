//! The anchors that GitHub gives to headings.
//!
//! Headings underlined with `===` are not ours and not seen.

use std::collections::{BTreeMap, BTreeSet};

use super::prose;

/// The anchors of a page's headings. A heading said twice gets `-1`, `-2`.
pub(in crate::tidy) fn anchors(page: &str) -> BTreeSet<String> {
    let mut seen = BTreeMap::<String, usize>::new();
    let headings = prose(page).filter_map(|(_, text)| heading(text));
    headings
        .map(|heading| {
            let slug = slug(heading);
            let count = seen.entry(slug.clone()).or_default();
            *count += 1;
            if *count == 1 { slug } else { format!("{slug}-{}", *count - 1) }
        })
        .collect()
}

fn heading(text: &str) -> Option<&str> {
    let rest = text.trim_start_matches('#');
    let level = text.len() - rest.len();
    ((1..=6).contains(&level) && rest.starts_with(' ')).then(|| rest.trim().trim_end_matches('#').trim_end())
}

/// GitHub's rule: lower case, spaces to hyphens, punctuation dropped; of a link, its words.
fn slug(heading: &str) -> String {
    let mut words = heading.to_owned();
    while let Some(middle) = words.find("](") {
        let end = words[middle..].find(')').map_or(words.len(), |length| middle + length + 1);
        words.replace_range(middle..end, "");
    }
    let kept = words.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headings_slug_as_on_github() {
        let cases = [
            ("Names", "names"),
            ("How it works, in short", "how-it-works-in-short"),
            ("`Store` and `stores/`", "store-and-stores"),
            ("Why not a queue?", "why-not-a-queue"),
            ("snake_case -- kept", "snake_case----kept"),
            ("[The map](ARCHITECTURE.md) of it", "the-map-of-it"),
            ("Größe", "größe"),
        ];
        for (heading, expected) in cases {
            assert_eq!(slug(heading), expected, "{heading}");
        }
    }

    #[test]
    fn anchors_count_repeats_and_skip_code() {
        let page = "# One\n## Two ##\n## Two\n```\n# not a heading\n```\n#nor this\n";
        assert_eq!(anchors(page), ["one", "two", "two-1"].map(str::to_owned).into());
    }
}
