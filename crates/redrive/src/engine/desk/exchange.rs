//! Dead letters as JSON lines: out of one store, into a file, into another store.
//!
//! A line is a whole dead letter: identity, payload, headers and attempt history. A text payload is written as text,
//! any other in base64, and so is text with control characters. An import keeps identity and history, leaves known
//! events alone, and runs nothing: the letters stay dead until an operator redrives them.

use std::io::{BufRead, Read as _, Write};
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use redrive_core::event::{AttemptHistory, DeadReason, EventError, Expiry, Fingerprint, Meta, State};
use redrive_core::queue_entry::Seq;
use redrive_core::triage::Filter;
use redrive_core::{Event, Moment};
use redrive_store::operate::{AuditLine, ImportedLetter, OperatorAction, Refusal};
use redrive_store::{EventQuery, EventStatus, StoreError};
use serde::{Deserialize, Serialize};

use super::Desk;

/// How many dead letters are read and stored at once.
const AT_ONCE: usize = 500;
/// Bytes of a line: a payload of the largest size in base64, its headers, its attempt history.
const LINE_BYTES_MAX: u64 = 4 << 20;

/// Why dead letters could not be exported or imported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExchangeError {
    /// Reading or writing the lines failed.
    #[error("cannot read or write the lines of dead letters")]
    Io(#[from] std::io::Error),
    /// A line is not a dead letter.
    #[error("line {line} is not a dead letter: {what}")]
    Line {
        /// The number of the line, from 1.
        line: usize,
        /// What is wrong with it.
        what: String,
    },
    /// The caller's check refused a dead letter.
    #[error("line {line} is refused")]
    Refused {
        /// The number of the line, from 1.
        line: usize,
    },
    /// The store operation failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The result of an export.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExportReport {
    /// How many dead letters were written.
    pub written: u64,
    /// Rows with a wrong checksum. They are left out.
    pub damaged: Vec<String>,
}

/// The result of an import.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ImportReport {
    /// How many dead letters were added.
    pub kept: u64,
    /// Dead letters that were refused, by line, and why.
    pub refused: Vec<(usize, Refusal)>,
}

/// A dead letter as it is written.
#[derive(Debug, Serialize, Deserialize)]
struct Line {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    tenant: String,
    queue: String,
    id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    payload: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    meta: Option<Meta>,
    published_ms: u64,
    died_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expires_ms: Option<u64>,
    attempts: u32,
    reason: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    history: Option<AttemptHistory>,
}

impl Line {
    fn of(event: &Event, found: &EventStatus) -> Self {
        let (payload, payload_base64) = match std::str::from_utf8(&event.payload) {
            Ok(text) if is_short(text) => (Some(text.to_owned()), None),
            _ => (None, Some(BASE64_STANDARD.encode(&event.payload))),
        };
        Self {
            tenant: event.tenant.clone(),
            queue: event.queue.clone(),
            id: event.id.clone(),
            key: event.key.clone(),
            payload,
            payload_base64,
            meta: event.meta.as_deref().cloned(),
            published_ms: millis(found.published),
            died_ms: millis(found.ended.unwrap_or(found.published)),
            expires_ms: event.expires.map(|expiry| millis(expiry.moment(found.published))),
            attempts: found.attempts,
            reason: found.reason.unwrap_or(DeadReason::Killed).as_str().to_owned(),
            history: found.history.as_deref().cloned(),
        }
    }

    fn letter(self) -> Result<ImportedLetter, String> {
        let payload = match (self.payload, self.payload_base64) {
            (Some(text), None) => text.into_bytes(),
            (None, Some(text)) => BASE64_STANDARD.decode(text).map_err(|error| error.to_string())?,
            (None, None) => Vec::new(),
            (Some(_), Some(_)) => return Err("it has both `payload` and `payload_base64`".to_owned()),
        };
        let mut event = Event::new(self.queue, self.id).tenant(self.tenant).payload(payload);
        event.key = self.key;
        event.meta = self.meta.map(Box::new);
        event.expires = self.expires_ms.map(|expires| Expiry::At(moment(expires)));
        event.check().map_err(|error: EventError| error.to_string())?;
        let reason = DeadReason::from_word(&self.reason);
        Ok(ImportedLetter {
            fingerprint: Fingerprint::of(&event),
            event: Arc::new(event),
            published: moment(self.published_ms),
            died: moment(self.died_ms),
            attempts: self.attempts,
            reason: reason.ok_or_else(|| format!("`{}` is not a reason for a dead letter", self.reason))?,
            history: self.history.map(Arc::new),
        })
    }
}

/// Whether a text is at most twice as long in JSON. Control characters are six times as long there, and every written
/// line must be short enough to be read back.
fn is_short(text: &str) -> bool {
    !text.contains(|c: char| c.is_control() && !matches!(c, '\n' | '\r' | '\t'))
}

/// A line of the audit as it is written.
#[derive(Debug, Serialize)]
struct Deed<'a> {
    number: u64,
    at_ms: u64,
    who: &'a str,
    from: &'a str,
    verb: &'a str,
    target: &'a str,
    count: u64,
    #[serde(skip_serializing_if = "str::is_empty")]
    note: &'a str,
}

impl<'a> Deed<'a> {
    fn of(line: &'a AuditLine) -> Self {
        let AuditLine { number, at, by, verb, target, count, note } = line;
        let (number, at_ms, count) = (*number, millis(*at), *count);
        Self { number, at_ms, who: &by.who, from: &by.from, verb, target, count, note }
    }
}

fn millis(moment: Moment) -> u64 {
    moment.as_nanos() / 1_000_000
}

fn moment(millis: u64) -> Moment {
    Moment::from_nanos(millis.saturating_mul(1_000_000))
}

impl Desk {
    /// Writes dead letters as JSON lines; returns how many, and which rows could not be read.
    ///
    /// # Errors
    /// If they cannot be read or written.
    pub async fn export(&self, filter: Filter, to: &mut impl Write) -> Result<ExportReport, ExchangeError> {
        let (mut exported, mut after) = (ExportReport::default(), None);
        loop {
            let (page, next) = self.export_page(filter.clone(), after, AT_ONCE, to).await?;
            exported.written += page.written;
            exported.damaged.extend(page.damaged);
            after = next;
            if after.is_none() {
                to.flush()?;
                return Ok(exported);
            }
        }
    }

    /// Writes one page of an [`export`](Self::export), for a caller that streams it in parts; returns where the next
    /// page begins, if there may be one.
    ///
    /// # Errors
    /// If they cannot be read or written.
    pub async fn export_page(
        &self,
        filter: Filter,
        after: Option<Seq>,
        limit: usize,
        to: &mut impl Write,
    ) -> Result<(ExportReport, Option<Seq>), ExchangeError> {
        let query = EventQuery { filter, state: Some(State::Dead), after, limit };
        let page = self.redrive.store().list(query).await?;
        for (event, found) in &page.events {
            serde_json::to_writer(&mut *to, &Line::of(event, found)).map_err(std::io::Error::from)?;
            to.write_all(b"\n")?;
        }
        Ok((ExportReport { written: page.events.len() as u64, damaged: page.damaged }, page.next))
    }

    /// Writes the audit as JSON lines, the latest first; returns how many.
    ///
    /// # Errors
    /// If it cannot be read or written.
    pub async fn export_audit(&self, to: &mut impl Write) -> Result<u64, ExchangeError> {
        let mut written = 0;
        let mut before = None;
        loop {
            let lines = self.redrive.store().audit(before, AT_ONCE).await?;
            for line in &lines {
                serde_json::to_writer(&mut *to, &Deed::of(line)).map_err(std::io::Error::from)?;
                to.write_all(b"\n")?;
                written += 1;
            }
            match lines.last() {
                Some(last) => before = Some(last.number),
                None => break,
            }
        }
        to.flush()?;
        Ok(written)
    }

    /// Reads dead letters from JSON lines and stores the unknown ones. They stay dead letters, with their attempt
    /// histories, until an operator redrives them.
    ///
    /// # Errors
    /// At the first line that is not a dead letter. The lines before it are stored, and a second import leaves them
    /// alone.
    pub async fn import(&self, from: &mut impl BufRead) -> Result<ImportReport, ExchangeError> {
        let mut imported = ImportReport::default();
        let mut number = 0;
        loop {
            let (letters, end) = read_some(from, &mut number);
            self.keep(letters, &mut imported).await?;
            match end {
                None => {}
                Some(Ok(())) => return Ok(imported),
                Some(Err(error)) => return Err(error),
            }
        }
    }

    /// As [`import`](Self::import), with a check of every event. It reads all lines before it stores a dead letter, so
    /// it takes the memory of all of them.
    ///
    /// # Errors
    /// [`ExchangeError::Refused`] with the first event that fails the check, and then none is stored; and as
    /// [`import`](Self::import).
    pub async fn import_if(
        &self,
        mut check: impl FnMut(&Event) -> bool,
        from: &mut impl BufRead,
    ) -> Result<ImportReport, ExchangeError> {
        let (mut all, mut number) = (Vec::new(), 0);
        let end = loop {
            let (letters, end) = read_some(from, &mut number);
            all.extend(letters);
            if let Some(end) = end {
                break end;
            }
        };
        if let Some((line, _)) = all.iter().find(|(_, letter)| !check(&letter.event)) {
            return Err(ExchangeError::Refused { line: *line });
        }
        let mut imported = ImportReport::default();
        while !all.is_empty() {
            let later = all.split_off(all.len().min(AT_ONCE));
            self.keep(std::mem::replace(&mut all, later), &mut imported).await?;
        }
        end.map(|()| imported)
    }

    /// Stores dead letters, each with the number of its line.
    async fn keep(
        &self,
        letters: Vec<(usize, ImportedLetter)>,
        imported: &mut ImportReport,
    ) -> Result<(), StoreError> {
        if letters.is_empty() {
            return Ok(());
        }
        let (lines, letters): (Vec<_>, Vec<_>) = letters.into_iter().unzip();
        let done = self.order(OperatorAction::Import(letters)).await?;
        imported.kept += done.changed;
        imported.refused.extend(done.refused.into_iter().map(|(at, why)| (lines[at], why)));
        Ok(())
    }
}

/// Reads some dead letters with the numbers of their lines, and the end if it was reached.
#[allow(clippy::type_complexity, reason = "letters, and an end")]
fn read_some(
    from: &mut impl BufRead,
    number: &mut usize,
) -> (Vec<(usize, ImportedLetter)>, Option<Result<(), ExchangeError>>) {
    let mut letters = Vec::new();
    while letters.len() < AT_ONCE {
        match read_line(from, number) {
            Ok(None) => return (letters, Some(Ok(()))),
            Ok(Some(None)) => {}
            Ok(Some(Some(letter))) => letters.push((*number, letter)),
            Err(error) => return (letters, Some(Err(error))),
        }
    }
    (letters, None)
}

/// The dead letter of the next line, if that is not empty; `None` at the end.
fn read_line(
    from: &mut impl BufRead,
    number: &mut usize,
) -> Result<Option<Option<ImportedLetter>>, ExchangeError> {
    let mut text = String::new();
    let read = from.take(LINE_BYTES_MAX).read_line(&mut text)?;
    *number += 1;
    let wrong = |what: String| ExchangeError::Line { line: *number, what };
    if read == 0 {
        return Ok(None);
    }
    if read as u64 == LINE_BYTES_MAX && !text.ends_with('\n') {
        return Err(wrong(format!("it is longer than {LINE_BYTES_MAX} bytes")));
    }
    if text.trim().is_empty() {
        return Ok(Some(None));
    }
    // Serde would also accept an array of the members' values.
    if !text.trim_start().starts_with('{') {
        return Err(wrong("it is not a JSON object".to_owned()));
    }
    let line: Line = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    line.letter().map(|letter| Some(Some(letter))).map_err(wrong)
}
