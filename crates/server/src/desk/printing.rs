//! Texts of events, as a terminal and a page print them.
//!
//! They may contain anything. Control characters and characters that change the writing direction are escaped, so that
//! what is shown is what is there.

/// Bytes per line of a hex dump.
const HEX_LINE: usize = 16;

/// Escapes characters that would control a terminal.
pub(crate) fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for c in text.chars() {
        if is_harmless(c) { plain.push(c) } else { plain.extend(c.escape_default()) }
    }
    plain
}

/// Whether a character prints as itself and changes nothing around it.
pub(crate) fn is_harmless(c: char) -> bool {
    let turns =
        matches!(c, '\u{200e}' | '\u{200f}' | '\u{61c}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    !c.is_control() && !turns && !matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{200b}')
}

/// The same, line by line.
pub(crate) fn plain_lines(text: &str) -> String {
    let line = |line: &str| plain(&line.strip_suffix('\r').unwrap_or(line).replace('\t', "    "));
    let lines = text.split('\n').map(line);
    lines.collect::<Vec<_>>().join("\n")
}

/// Formats a payload: pretty JSON, text, or hex.
pub(crate) fn body(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok() => {
            format!("{}\n", plain_lines(&pretty(text)))
        }
        Ok(text) => format!("{}\n", plain_lines(text)),
        Err(_) => hex(bytes),
    }
}

/// Indents JSON textually: the order of members and the digits of numbers stay as written.
pub(crate) fn pretty(json: &str) -> String {
    let (mut pretty, mut depth, mut in_text, mut is_escaped) = (String::new(), 0_usize, false, false);
    let mut letters = json.chars().filter(|c| !matches!(c, '\r')).peekable();
    while let Some(c) = letters.next() {
        if in_text {
            pretty.push(c);
            in_text = c != '"' || is_escaped;
            is_escaped = c == '\\' && !is_escaped;
            continue;
        }
        match c {
            ' ' | '\n' | '\t' => {}
            '{' | '[' => {
                pretty.push(c);
                while letters.next_if(|next| next.is_whitespace()).is_some() {}
                if let Some(end) = letters.next_if(|next| matches!(next, '}' | ']')) {
                    pretty.push(end);
                } else {
                    depth += 1;
                    new_line(&mut pretty, depth);
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                new_line(&mut pretty, depth);
                pretty.push(c);
            }
            ',' => {
                pretty.push(c);
                new_line(&mut pretty, depth);
            }
            ':' => pretty.push_str(": "),
            c => {
                pretty.push(c);
                in_text = c == '"';
            }
        }
    }
    pretty
}

fn new_line(text: &mut String, depth: usize) {
    text.push('\n');
    text.push_str(&"  ".repeat(depth));
}

/// A hex dump with offsets and letters.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let line = |(at, chunk): (usize, &[u8])| {
        let hex: Vec<String> = chunk.iter().map(|byte| format!("{byte:02x}")).collect();
        let shown = |byte: &u8| if (0x20..0x7f).contains(byte) { char::from(*byte) } else { '.' };
        let letters: String = chunk.iter().map(shown).collect();
        format!("{:08x}  {:47}  {letters}\n", at * HEX_LINE, hex.join(" "))
    };
    bytes.chunks(HEX_LINE).enumerate().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_do_something_to_a_terminal_is_escaped() {
        assert_eq!(plain("a\x1b[31mb\u{202e}c\nd ö"), "a\\u{1b}[31mb\\u{202e}c\\nd ö");
        assert_eq!(body(b"one\ttwo\r\n\x07"), "one    two\n\\u{7}\n");
    }

    #[test]
    fn a_payload_is_json_text_or_hex() {
        let shown = body(br#"{"b":{ },"a":[1.10,"\\",", \t\"]"]}"#);
        let lines = [
            "{",
            r#"  "b": {},"#,
            r#"  "a": ["#,
            "    1.10,",
            r#"    "\\","#,
            r#"    ", \t\"]""#,
            "  ]",
            "}",
            "",
        ];
        assert_eq!(shown, lines.join("\n"));
        assert_eq!(body(b"hello"), "hello\n");
        assert!(
            body(b"\xff\x00A").starts_with("00000000  ff 00 41 ") && body(b"\xff\x00A").ends_with("  ..A\n")
        );
    }
}
