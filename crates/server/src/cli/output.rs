//! Output: data to stdout, messages to stderr.
//!
//! Event texts may contain anything; `printing` escapes what would control a terminal.

use std::io::Write as _;
use std::time::{Duration, SystemTime};

use anyhow::Result;
use serde_json::Value;
use unicode_width::UnicodeWidthStr as _;

pub(super) use crate::desk::printing::{body, plain};

/// Maximum width of a table column.
const COLUMN_MAX: usize = 60;
/// The output format.
#[derive(Debug, Clone, Copy)]
pub(super) struct Output {
    /// Print JSON.
    pub(super) json: bool,
}

impl Output {
    /// Prints a response as JSON, or as text made by `words`.
    pub(super) fn answer(&self, value: &Value, words: impl FnOnce(&Value) -> String) -> Result<()> {
        if self.json { put(&format!("{value:#}\n")) } else { put(&words(value)) }
    }
}

/// Prints to stdout. A closed pipe is not an error.
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

/// Prints a message to stderr in one write. A stderr that is gone, such as a closed terminal, is not an error:
/// `eprintln!` would panic, and end a server whose terminal closes while it writes.
pub(super) fn say(text: impl std::fmt::Display) {
    let line = format!("redrive: {text}\n");
    let _ = std::io::stderr().lock().write_all(line.as_bytes());
}

/// Formats a table with a heading. Empty columns are left out. A wide terminal shows more of long cells.
pub(super) fn table(heads: &[&str], rows: &[Vec<String>]) -> String {
    let terminal = console::Term::stdout();
    table_within(terminal.size_checked().map(|(_, columns)| usize::from(columns)), heads, rows)
}

/// The same for so many columns of a terminal, if it is one.
fn table_within(terminal: Option<usize>, heads: &[&str], rows: &[Vec<String>]) -> String {
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| plain(cell)).collect()).collect();
    let widest = |at: usize, most: usize| {
        let cells = rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.width().min(most));
        cells.max().filter(|width| *width > 0).map_or(0, |width| width.max(heads[at].width()) + 2)
    };
    // What the terminal has left when every column has its usual width.
    let usual: usize = (0..heads.len()).map(|at| widest(at, COLUMN_MAX)).sum();
    let mut spare = terminal.unwrap_or_default().saturating_sub(usual);
    let mut most = vec![COLUMN_MAX; heads.len()];
    // The last columns have the longest texts.
    for at in (0..heads.len()).rev() {
        let more = widest(at, usize::MAX).saturating_sub(widest(at, COLUMN_MAX)).min(spare);
        (most[at], spare) = (COLUMN_MAX + more, spare - more);
    }
    let cut = |(at, cell): (usize, &String)| short(cell, most.get(at).copied().unwrap_or(COLUMN_MAX));
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().enumerate().map(cut).collect()).collect();
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

/// Truncates a text to `most` characters.
fn short(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most - 1).chain(['…']).collect()
}

/// Formats name-value pairs, one per line. Empty values are left out.
pub(super) fn facts(facts: &[(&str, String)]) -> String {
    let used = facts.iter().filter(|(_, value)| !value.is_empty());
    let width = used.clone().map(|(name, _)| name.width()).max().unwrap_or_default();
    used.map(|(name, value)| format!("{name:width$}  {}\n", plain(value))).collect()
}

/// A member as text; empty if absent.
pub(super) fn text(value: &Value, name: &str) -> String {
    match &value[name] {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// A moment relative to now.
pub(super) fn ago(moment: &str) -> String {
    let Ok(time) = humantime::parse_rfc3339(moment) else { return moment.to_owned() };
    match SystemTime::now().duration_since(time) {
        Ok(past) => format!("{} ago", roughly(past)),
        Err(error) => format!("in {}", roughly(error.duration())),
    }
}

/// A moment, with its age.
pub(super) fn when(moment: &str) -> String {
    if moment.is_empty() { String::new() } else { format!("{moment} ({})", ago(moment)) }
}

/// A duration in its two largest units.
pub(super) fn roughly(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h {}m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{}d {}h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

/// A number with its noun in the right form.
pub(super) fn several(number: u64, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_empty_ones_are_left_out() {
        let rows = [["a", "", "1"], ["日本", "", "22"]].map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(table(&["ID", "KEY", "N"], &rows), "ID    N\na     1\n日本  22\n");
    }

    #[test]
    fn a_wide_terminal_shows_more_of_long_cells() {
        let (long, longer) = ("a".repeat(80), "b".repeat(100));
        let rows = [vec!["1".to_owned(), long.clone(), longer.clone()]];
        let told = |terminal| table_within(terminal, &["ID", "ERROR", "TITLE"], &rows);
        assert!(!told(None).contains(&"a".repeat(61)) && told(Some(80)) == told(None));
        let some = told(Some(170));
        assert!(some.contains(&longer) && !some.contains(&long), "the last column comes first: {some}");
        assert!(some.lines().all(|line| line.chars().count() <= 170), "{some}");
        assert!(told(Some(250)).contains(&long) && told(Some(250)).contains(&longer));
    }

    #[test]
    fn a_time_is_told_by_its_largest_units() {
        let told = [(5, "5s"), (65, "1m"), (3660, "1h 1m"), (90_000, "1d 1h")];
        for (seconds, text) in told {
            assert_eq!(roughly(Duration::from_secs(seconds)), text);
        }
    }
}
