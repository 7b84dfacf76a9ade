//! What is printed: stdout is data, stderr is talk.
//!
//! Texts of events come from anywhere. Before they reach a terminal, letters are escaped that would do something there
//! or turn the direction of writing around.

use std::io::Write as _;
use std::time::{Duration, SystemTime};

use anyhow::Result;
use serde_json::Value;
use unicode_width::UnicodeWidthStr as _;

/// How wide a column of a table is at most.
const COLUMN_MAX: usize = 60;
/// How many bytes are on a line of a hex dump.
const HEX_LINE: usize = 16;

/// How to answer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Out {
    /// In JSON, for programs.
    pub(super) json: bool,
}

impl Out {
    /// An answer: as it is for programs, in words for people.
    pub(super) fn answer(&self, value: &Value, words: impl FnOnce(&Value) -> String) -> Result<()> {
        if self.json { put(&format!("{value:#}\n")) } else { put(&words(value)) }
    }
}

/// Prints to stdout. Whoever reads it may have had enough, which is no error.
pub(super) fn put(text: &str) -> Result<()> {
    put_bytes(text.as_bytes())
}

pub(super) fn put_bytes(bytes: &[u8]) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        written => Ok(written?),
    }
}

/// Says something to whoever looks on.
pub(super) fn say(text: impl std::fmt::Display) {
    eprintln!("redrive: {text}");
}

/// A text that does nothing to a terminal.
pub(super) fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for c in text.chars() {
        if is_harmless(c) { plain.push(c) } else { plain.extend(c.escape_default()) }
    }
    plain
}

fn is_harmless(c: char) -> bool {
    let turns =
        matches!(c, '\u{200e}' | '\u{200f}' | '\u{61c}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    !c.is_control() && !turns && !matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{200b}')
}

/// The same over several lines.
fn plain_lines(text: &str) -> String {
    let line = |line: &str| plain(&line.strip_suffix('\r').unwrap_or(line).replace('\t', "    "));
    let lines = text.split('\n').map(line);
    lines.collect::<Vec<_>>().join("\n")
}

/// A table with a line of heads. Columns in which nothing stands are left out.
pub(super) fn table(heads: &[&str], rows: &[Vec<String>]) -> String {
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| short(&plain(cell), COLUMN_MAX)).collect()).collect();
    let is_used = |at: usize| rows.iter().any(|row| row.get(at).is_some_and(|cell| !cell.is_empty()));
    let columns: Vec<usize> = (0..heads.len()).filter(|at| is_used(*at)).collect();
    let width = |at: usize| {
        let cells = rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.width());
        cells.max().unwrap_or_default().max(heads[at].width())
    };
    let widths: Vec<usize> = columns.iter().map(|at| width(*at)).collect();
    let mut text = String::new();
    let mut line = |cell: &dyn Fn(usize) -> String| {
        let mut line = String::new();
        for (at, width) in columns.iter().zip(&widths) {
            let cell = cell(*at);
            let gap = width.saturating_sub(cell.width()) + 2;
            line.push_str(&cell);
            line.push_str(&" ".repeat(gap));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    };
    line(&|at| heads[at].to_owned());
    for row in &rows {
        line(&|at| row.get(at).cloned().unwrap_or_default());
    }
    text
}

/// A text cut to so many letters.
fn short(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most - 1).chain(['…']).collect()
}

/// Names with what they are, one a line; what is empty is left out.
pub(super) fn facts(facts: &[(&str, String)]) -> String {
    let used = facts.iter().filter(|(_, value)| !value.is_empty());
    let width = used.clone().map(|(name, _)| name.width()).max().unwrap_or_default();
    used.map(|(name, value)| format!("{name:width$}  {}\n", plain(value))).collect()
}

/// A member's text; empty where there is none.
pub(super) fn text(value: &Value, name: &str) -> String {
    match &value[name] {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// How long ago a moment is, or in how long.
pub(super) fn ago(moment: &str) -> String {
    let Ok(time) = humantime::parse_rfc3339(moment) else { return moment.to_owned() };
    match SystemTime::now().duration_since(time) {
        Ok(past) => format!("{} ago", roughly(past)),
        Err(error) => format!("in {}", roughly(error.duration())),
    }
}

/// A moment, with how long ago it is.
pub(super) fn when(moment: &str) -> String {
    if moment.is_empty() { String::new() } else { format!("{moment} ({})", ago(moment)) }
}

/// A duration in its largest two units.
pub(super) fn roughly(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h {}m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{}d {}h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

/// A payload for people: pretty JSON, text, or hex.
pub(super) fn body(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok() => {
            format!("{}\n", plain_lines(&pretty(text)))
        }
        Ok(text) => format!("{}\n", plain_lines(text)),
        Err(_) => hex(bytes),
    }
}

/// JSON on lines of its own. By its letters and not by its meaning: order and digits stay as they were written.
fn pretty(json: &str) -> String {
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

fn hex(bytes: &[u8]) -> String {
    let line = |(at, chunk): (usize, &[u8])| {
        let hex: Vec<String> = chunk.iter().map(|byte| format!("{byte:02x}")).collect();
        let shown = |byte: &u8| if (0x20..0x7f).contains(byte) { char::from(*byte) } else { '.' };
        let letters: String = chunk.iter().map(shown).collect();
        format!("{:08x}  {:47}  {letters}\n", at * HEX_LINE, hex.join(" "))
    };
    bytes.chunks(HEX_LINE).enumerate().map(line).collect()
}

/// A number with its noun.
pub(super) fn several(number: u64, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
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
    fn columns_line_up_and_empty_ones_are_left_out() {
        let rows = [["a", "", "1"], ["日本", "", "22"]].map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(table(&["ID", "KEY", "N"], &rows), "ID    N\na     1\n日本  22\n");
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

    #[test]
    fn a_time_is_told_by_its_largest_units() {
        let told = [(5, "5s"), (65, "1m"), (3660, "1h 1m"), (90_000, "1d 1h")];
        for (seconds, text) in told {
            assert_eq!(roughly(Duration::from_secs(seconds)), text);
        }
    }
}
