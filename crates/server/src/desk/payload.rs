//! A payload as JSON, as text, or in hex; and what may be edited in a page.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use crate::desk::printing::{hex, is_harmless, pretty};

/// How much of a payload a page shows, in bytes of the printed text. The rest is in the raw file.
const SHOWN_MAX: usize = 64 << 10;

/// Bytes of a payload that a page reads to print it: indented JSON is larger than its source.
const READ_MAX: usize = 64 << 10;

/// How deeply nested JSON may be to be indented; as deep as `serde_json` reads.
const DEPTH_MAX: usize = 128;

/// A payload, printed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Shown {
    /// `json`, `text` or `hex`.
    pub(crate) view: &'static str,
    pub(crate) text: String,
    /// Whether there is more than is shown.
    pub(crate) is_cut: bool,
    pub(crate) bytes: usize,
}

/// The payload of an answer of the API.
pub(crate) fn bytes(event: &Value) -> Option<Vec<u8>> {
    match (&event["payload"], &event["payload_base64"]) {
        (Value::String(text), _) => Some(text.clone().into_bytes()),
        (_, Value::String(text)) => STANDARD.decode(text).ok(),
        _ => None,
    }
}

/// Prints a payload as asked, or as what it is.
pub(crate) fn show(payload: &[u8], asked: &str) -> Shown {
    let text = std::str::from_utf8(payload).ok();
    let is_json = text.is_some_and(is_json);
    let view = match (asked, text) {
        ("hex", _) | (_, None) => "hex",
        ("text", _) => "text",
        _ if is_json => "json",
        _ => "text",
    };
    let begin = &payload[..payload.len().min(READ_MAX)];
    let mut printed = match (view, text) {
        ("hex", _) | (_, None) => hex(begin),
        ("json", Some(text)) if text.len() <= READ_MAX => pretty(text),
        (_, Some(text)) => text[..text.floor_char_boundary(READ_MAX)].to_owned(),
    };
    let is_cut = begin.len() < payload.len() || printed.len() > SHOWN_MAX;
    printed.truncate(printed.floor_char_boundary(SHOWN_MAX));
    Shown { view, text: printed, is_cut, bytes: payload.len() }
}

/// Whether a text is JSON that can be indented. A deeply nested one would grow with the square of its depth.
fn is_json(text: &str) -> bool {
    is_shallow(text) && serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
}

/// Whether brackets outside of strings are nested at most [`DEPTH_MAX`] deep.
fn is_shallow(text: &str) -> bool {
    let (mut depth, mut in_string, mut is_escaped) = (0_usize, false, false);
    for byte in text.bytes() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if in_string => is_escaped = true,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => depth += 1,
            b']' | b'}' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > DEPTH_MAX {
            return false;
        }
    }
    true
}

/// A payload as a text that a browser's form returns as it was; `None` if there is none such.
///
/// Forms turn line ends into CR LF and lose control characters. JSON has escapes for everything, so an invisible
/// character becomes its escape; another text with such characters is edited on the command line.
pub(crate) fn editable(payload: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(payload).ok().filter(|text| text.len() <= READ_MAX)?;
    let is_plain = |c: char| is_harmless(c) || matches!(c, '\n' | '\t');
    if is_json(text) {
        let pretty = pretty(text);
        let mut plain = String::with_capacity(pretty.len());
        for c in pretty.chars() {
            if is_plain(c) {
                plain.push(c);
            } else {
                let mut units = [0; 2];
                c.encode_utf16(&mut units).iter().for_each(|unit| plain.push_str(&format!("\\u{unit:04x}")));
            }
        }
        return Some(plain);
    }
    text.chars().all(is_plain).then(|| text.to_owned())
}

/// What a form returned, with the line ends that it was given.
pub(crate) fn returned(text: &str) -> String {
    text.replace("\r\n", "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_shown_as_what_it_is_or_as_asked() {
        let views = [
            (&b"{\"a\":1}"[..], "", "json", "{\n  \"a\": 1\n}"),
            (b"{\"a\":1}", "text", "text", "{\"a\":1}"),
            (b"hello", "json", "text", "hello"),
            (b"hi", "hex", "hex", "00000000  68 69"),
            (b"\xff", "text", "hex", "00000000  ff"),
        ];
        for (payload, asked, view, begin) in views {
            let shown = show(payload, asked);
            assert_eq!(shown.view, view, "{asked} {payload:?}");
            assert!(shown.text.starts_with(begin), "{shown:?}");
            assert!(!shown.is_cut);
        }
    }

    #[test]
    fn a_large_or_deep_payload_is_cut() {
        let large = vec![b'a'; 1 << 20];
        let shown = show(&large, "");
        assert!(shown.is_cut && shown.text.len() <= SHOWN_MAX && shown.bytes == 1 << 20);
        let deep = "[".repeat(10_000) + &"]".repeat(10_000);
        assert_eq!(show(deep.as_bytes(), "").view, "text");
        let wide = format!("{}{}{}", "[".repeat(120), "1,".repeat(10_000) + "1", "]".repeat(120));
        let shown = show(wide.as_bytes(), "");
        assert!(shown.view == "json" && shown.is_cut && shown.text.len() <= SHOWN_MAX);
    }

    #[test]
    fn what_can_be_edited_comes_back_as_it_was() {
        assert_eq!(editable(b"{\"a\":\"\\n\"}").as_deref(), Some("{\n  \"a\": \"\\n\"\n}"));
        assert_eq!(
            editable("{\"a\":\"\u{202e}\"}".as_bytes()).as_deref(),
            Some("{\n  \"a\": \"\\u202e\"\n}")
        );
        assert_eq!(editable("plain\ntext".as_bytes()).as_deref(), Some("plain\ntext"));
        assert_eq!(editable(b"bell\x07"), None);
        assert_eq!(editable(b"\xff"), None);
        assert_eq!(returned("a\r\nb"), "a\nb");
    }
}
