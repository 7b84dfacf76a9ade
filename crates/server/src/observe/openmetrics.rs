//! OpenMetrics, for scrapers that ask for it: the same lines in a stricter form.
//!
//! A counter's family is named without `_total`, no line is empty, and the last one says that it is the last, so that a
//! scraper notices what was cut.

use http::HeaderMap;
use http::header::ACCEPT;

/// The media type of OpenMetrics.
const MEDIA_TYPE: &str = "application/openmetrics-text";
const OPEN: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Metrics in the format that a scraper asks for, with its content type.
pub(crate) fn negotiated(headers: &HeaderMap, text: String) -> (&'static str, String) {
    if prefers_openmetrics(headers) { (OPEN, converted(&text)) } else { (PROMETHEUS, text) }
}

/// Whether `Accept` ranks OpenMetrics above plain text.
fn prefers_openmetrics(headers: &HeaderMap) -> bool {
    let (mut open, mut plain) = (0.0_f32, 0.0_f32);
    let values = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    for wish in values.flat_map(|value| value.split(',')) {
        let mut parts = wish.split(';').map(str::trim);
        let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
        let quality = parts.find_map(|part| part.strip_prefix("q=")?.parse().ok()).unwrap_or(1.0_f32);
        match kind.as_str() {
            MEDIA_TYPE => open = open.max(quality),
            "text/plain" | "text/*" | "*/*" => plain = plain.max(quality),
            _ => {}
        }
    }
    open > 0.0 && open >= plain
}

/// Prometheus' text format as OpenMetrics.
fn converted(text: &str) -> String {
    let counters: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter"))
        .filter(|name| name.ends_with("_total"))
        .collect();
    let mut open = String::with_capacity(text.len() + 8);
    for line in text.lines().filter(|line| !line.is_empty()) {
        let named = ["# TYPE ", "# HELP "].iter().find_map(|word| Some((*word, line.strip_prefix(word)?)));
        match named.and_then(|(word, rest)| Some((word, rest.split_once(' ')?))) {
            Some((word, (name, rest))) if counters.contains(&name) => {
                open.extend([word, name.trim_end_matches("_total"), " ", rest]);
            }
            _ => open.push_str(line),
        }
        open.push('\n');
    }
    open.push_str("# EOF\n");
    open
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn a_scraper_gets_what_it_ranks_first() {
        for (accept, open) in [
            ("", false),
            ("*/*", false),
            ("text/plain", false),
            ("application/openmetrics-text", true),
            (
                "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.4,*/*;q=0.1",
                true,
            ),
            ("text/plain;q=0.9,application/openmetrics-text;q=0.2", false),
            ("application/openmetrics-text;q=0", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, HeaderValue::from_static(accept));
            assert_eq!(prefers_openmetrics(&headers), open, "{accept}");
        }
    }

    #[test]
    fn counters_lose_their_suffix_in_their_family_and_the_end_is_said() {
        let text =
            "# HELP a_total How many\n# TYPE a_total counter\na_total{q=\"x\"} 1\n\n# TYPE b gauge\nb 2\n";
        let open = "# HELP a How many\n# TYPE a counter\na_total{q=\"x\"} 1\n# TYPE b gauge\nb 2\n# EOF\n";
        assert_eq!(converted(text), open);
    }
}
