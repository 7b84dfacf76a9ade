//! One turn of one contender in a process of its own: what it is asked, and what it answers.
//!
//! A process of its own, because contenders bring versions of SQLite that cannot be linked together, because
//! one contender's threads and caches must not slow the next, and because syncs are counted from outside.

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

/// Bytes of every event's payload.
pub const PAYLOAD_BYTES: usize = 256;

/// How long a contender works before the clock starts: threads are up, statements prepared, the write-ahead
/// log has its size.
pub const WARM_UP: Duration = Duration::from_millis(300);

/// Between two events of [`Work::Idle`]: long enough for every thread to go to sleep, short enough for hundreds
/// of events in a second.
pub const IDLE_PAUSE: Duration = Duration::from_millis(2);

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Publish, an empty handler, acknowledged: the whole life of an event.
    Life,
    /// Publish alone, without a handler.
    Publish,
    /// One event at a time in an engine that is otherwise idle: how long from publish to handler.
    Idle,
}

/// How a contender is set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Setup {
    /// As its own first example sets it up.
    Shipped,
    /// The best we could make of it with `journal_mode=WAL` and `synchronous=FULL`.
    Full,
}

/// How events are handed in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Publisher {
    /// Callers that know nothing of each other, each with one event at a time: requests to a server.
    Each,
    /// One caller that hands in as many as there is room for in one call: an import.
    Bulk,
}

/// A request to measure.
#[derive(Debug, Clone, PartialEq)]
pub struct Turn {
    /// What is measured.
    pub work: Work,
    /// How the contender is set up.
    pub setup: Setup,
    /// How events are handed in.
    pub publisher: Publisher,
    /// Events in flight: as many callers, each of which waits for its event's handler, or for its publish.
    pub callers: usize,
    /// Writes in one transaction, for a contender that can be told.
    pub batch: usize,
    /// How long to measure, after the warm-up.
    pub time: Duration,
    /// An empty folder for the database.
    pub folder: PathBuf,
}

impl Turn {
    /// The request as words on a command line.
    #[must_use]
    pub fn to_args(&self) -> Vec<String> {
        let Self { work, setup, publisher, callers, batch, time, folder } = self;
        let words = [
            ("--work", name(&WORKS, *work).to_owned()),
            ("--setup", name(&SETUPS, *setup).to_owned()),
            ("--publisher", name(&PUBLISHERS, *publisher).to_owned()),
            ("--callers", callers.to_string()),
            ("--batch", batch.to_string()),
            ("--millis", time.as_millis().to_string()),
            ("--folder", folder.display().to_string()),
        ];
        words.into_iter().flat_map(|(word, value)| [word.to_owned(), value]).collect()
    }

    /// Reads the request from words on a command line, among which there may be others.
    ///
    /// # Errors
    /// If a word is missing or its value means nothing.
    pub fn from_args(args: &[String]) -> Result<Self, String> {
        let number = |word| value(args, word)?.parse::<usize>().map_err(|error| format!("{word}: {error}"));
        Ok(Self {
            work: meaning(&WORKS, value(args, "--work")?)?,
            setup: meaning(&SETUPS, value(args, "--setup")?)?,
            publisher: meaning(&PUBLISHERS, value(args, "--publisher")?)?,
            callers: number("--callers")?,
            batch: number("--batch")?,
            time: Duration::from_millis(u64::try_from(number("--millis")?).map_err(|e| e.to_string())?),
            folder: value(args, "--folder")?.into(),
        })
    }

    /// Reads the request from this process's command line.
    ///
    /// # Errors
    /// As [`Turn::from_args`].
    pub fn from_command_line() -> Result<Self, String> {
        Self::from_args(&std::env::args().collect::<Vec<_>>())
    }
}

const WORKS: [(Work, &str); 3] = [(Work::Life, "life"), (Work::Publish, "publish"), (Work::Idle, "idle")];
const SETUPS: [(Setup, &str); 2] = [(Setup::Shipped, "shipped"), (Setup::Full, "full")];
const PUBLISHERS: [(Publisher, &str); 2] = [(Publisher::Each, "each"), (Publisher::Bulk, "bulk")];

fn name<T: PartialEq>(names: &[(T, &'static str)], wanted: T) -> &'static str {
    names.iter().find(|(meaning, _)| *meaning == wanted).map_or("?", |(_, name)| name)
}

fn meaning<T: Copy>(names: &[(T, &'static str)], word: &str) -> Result<T, String> {
    let found = names.iter().find(|(_, name)| *name == word);
    found.map(|(meaning, _)| *meaning).ok_or_else(|| format!("`{word}` means nothing here"))
}

/// What follows a word on a command line.
///
/// # Errors
/// If the word is not there, or is the last one.
pub fn value<'a>(args: &'a [String], word: &str) -> Result<&'a str, String> {
    let at = args.iter().position(|arg| arg == word).ok_or_else(|| format!("{word} is missing"))?;
    args.get(at + 1).map(String::as_str).ok_or_else(|| format!("{word} wants a value"))
}

/// What a contender answers.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Life cycles, or publishes, that were finished while the clock ran.
    pub done: u64,
    /// When the clock started, in seconds since 1970: what a trace from outside is cut by.
    pub from: f64,
    /// When it stopped.
    pub to: f64,
    /// Committed write transactions while the clock ran.
    pub transactions: u64,
    /// Writes of events in these: a life cycle is two, its publish and its end.
    pub writes: u64,
    /// The middle of all waits from publish to handler, in microseconds; for [`Work::Idle`] alone.
    pub p50_us: Option<f64>,
    /// The settings that were in force, as the database said.
    pub settings: String,
}

impl Outcome {
    /// How many a second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        float(self.done) / (self.to - self.from)
    }

    /// How many transactions a second.
    #[must_use]
    pub fn transaction_rate(&self) -> f64 {
        float(self.transactions) / (self.to - self.from)
    }

    /// Writes in one transaction, on average.
    #[must_use]
    pub fn batch(&self) -> f64 {
        float(self.writes) / float(self.transactions)
    }

    /// The answer as a line of its own.
    #[must_use]
    pub fn to_line(&self) -> String {
        let Self { done, from, to, transactions, writes, p50_us, settings } = self;
        let json = json!({
            "done": done, "from": from, "to": to, "transactions": transactions, "writes": writes,
            "p50_us": p50_us, "settings": settings,
        });
        format!("outcome {json}")
    }

    /// Finds the answer in what a contender printed.
    ///
    /// # Errors
    /// If it is not there or not whole.
    pub fn from_output(output: &str) -> Result<Self, String> {
        let line = output.lines().find_map(|line| line.strip_prefix("outcome "));
        let line = line.ok_or("no line `outcome …`")?;
        let json: Value = serde_json::from_str(line).map_err(|error| format!("{line}: {error}"))?;
        let lacks = |name: &str| format!("{line}: lacks {name}");
        let whole = |name: &str| json[name].as_u64().ok_or_else(|| lacks(name));
        let real = |name: &str| json[name].as_f64().ok_or_else(|| lacks(name));
        Ok(Self {
            done: whole("done")?,
            from: real("from")?,
            to: real("to")?,
            transactions: whole("transactions")?,
            writes: whole("writes")?,
            p50_us: json["p50_us"].as_f64(),
            settings: json["settings"].as_str().ok_or_else(|| lacks("settings"))?.to_owned(),
        })
    }
}

/// Now, in seconds since 1970.
#[must_use]
pub fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// Events are counted in millions, which a float holds exactly.
fn float(count: u64) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

/// What a payload is made of, so that making one costs a copy and no more.
const FILLING: &str = match std::str::from_utf8(&[b'x'; PAYLOAD_BYTES]) {
    Ok(filling) => filling,
    Err(_) => "",
};

/// The payload of an event: its number, then filling.
#[must_use]
pub fn payload(number: u64) -> String {
    let mut payload = String::with_capacity(PAYLOAD_BYTES);
    push_digits::<20>(&mut payload, number);
    payload.push_str(&FILLING[payload.len()..]);
    payload
}

/// Writes a number with zeroes in front. The formatter of the standard library would do it zero by zero, and take as
/// long as a part of what is measured.
fn push_digits<const WIDTH: usize>(to: &mut String, mut number: u64) {
    let mut digits = ['0'; WIDTH];
    for digit in digits.iter_mut().rev() {
        *digit = char::from(b'0' + u8::try_from(number % 10).unwrap_or_default());
        number /= 10;
    }
    to.extend(digits);
}

/// The number of the event with this payload.
#[must_use]
pub fn number(payload: &str) -> Option<u64> {
    payload.get(..20)?.parse().ok()
}

/// The identity of an event. They ascend, as those of a clock do (ULID, UUIDv7), and as text are as long as
/// those.
#[must_use]
pub fn id(number: u64) -> String {
    let mut id = String::with_capacity(36);
    id.push_str("018f5c3e-7b1a-7");
    push_digits::<21>(&mut id, number);
    id
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn() -> Turn {
        Turn {
            work: Work::Publish,
            setup: Setup::Full,
            publisher: Publisher::Bulk,
            callers: 16,
            batch: 64,
            time: Duration::from_millis(1_500),
            folder: "some where".into(),
        }
    }

    #[test]
    fn what_is_asked_arrives() {
        let mut args = vec!["engine".to_owned(), "--contender".to_owned(), "raw".to_owned()];
        args.extend(turn().to_args());
        assert_eq!(Turn::from_args(&args), Ok(turn()));
        args.pop();
        assert_eq!(Turn::from_args(&args), Err("--folder wants a value".to_owned()));
        args.pop();
        assert_eq!(Turn::from_args(&args), Err("--folder is missing".to_owned()));
    }

    #[test]
    fn what_is_answered_arrives() {
        let outcome = Outcome {
            done: 3_000,
            from: 1_700_000_000.25,
            to: 1_700_000_002.25,
            transactions: 100,
            writes: 6_000,
            p50_us: None,
            settings: "journal_mode=wal".to_owned(),
        };
        let output = format!("talk\n{}\nmore talk\n", outcome.to_line());
        assert_eq!(Outcome::from_output(&output), Ok(outcome.clone()));
        assert_eq!((outcome.rate(), outcome.transaction_rate(), outcome.batch()), (1_500.0, 50.0, 60.0));
        assert!(Outcome::from_output("talk").is_err());
        assert!(Outcome::from_output("outcome {\"done\":1}").is_err());
    }

    #[test]
    fn a_payload_has_its_size_and_its_number() {
        assert_eq!(payload(17).len(), PAYLOAD_BYTES);
        assert_eq!(number(&payload(17)), Some(17));
        assert_eq!(number("short"), None);
        assert_eq!(id(17), "018f5c3e-7b1a-7000000000000000000017");
        assert!(payload(u64::MAX).starts_with("18446744073709551615xx"));
        assert!(id(9) < id(10));
    }
}
