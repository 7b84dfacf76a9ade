//! Dead letters as JSON lines: out of one store, into a file, into another store.
//!
//! A line is a whole letter: identity, payload, headers, and its story. A payload that is text is written as text,
//! any other in base64, and so is text with control characters. Importing keeps identity and story: what is known already is left alone, and nothing runs
//! until somebody puts it back.

use std::io::{BufRead, Read as _, Write};
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use redrive_core::entry::Seq;
use redrive_core::event::{DeadReason, EventError, Expiry, Fingerprint, Meta, State, Story};
use redrive_core::triage::Filter;
use redrive_core::{Event, Moment};
use redrive_store::operate::{AuditLine, Letter, Refusal, What};
use redrive_store::{Found, Query, StoreError};
use serde::{Deserialize, Serialize};

use super::Desk;

/// How many letters are read and kept at once.
const AT_ONCE: usize = 500;
/// Bytes of a line: a payload of the largest size in base64, its headers, its story.
const LINE_BYTES_MAX: u64 = 4 << 20;

/// Why letters could not be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExchangeError {
    /// The other side of the line.
    #[error("cannot read or write letters")]
    Io(#[from] std::io::Error),
    /// A line that is no letter.
    #[error("line {line} is no letter: {what}")]
    Line {
        /// Which, from 1.
        line: usize,
        /// What is wrong with it.
        what: String,
    },
    /// A letter of another tenant than the one whose letters are imported.
    #[error("line {line} is of the tenant `{tenant}`")]
    Tenant {
        /// Which, from 1.
        line: usize,
        /// Whose it is.
        tenant: String,
    },
    /// The store could not.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What was exported.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Exported {
    /// How many letters were written.
    pub written: u64,
    /// Rows that could not be read: a checksum did not fit. They are left out.
    pub damaged: Vec<String>,
}

/// What became of an import.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Imported {
    /// How many letters are kept now that were not before.
    pub kept: u64,
    /// Those that were not kept, by their line, and why.
    pub refused: Vec<(usize, Refusal)>,
}

/// A letter as it is written.
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
    story: Option<Story>,
}

impl Line {
    fn of(event: &Event, found: &Found) -> Self {
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
            story: found.story.as_deref().cloned(),
        }
    }

    fn letter(self) -> Result<Letter, String> {
        let payload = match (self.payload, self.payload_base64) {
            (Some(text), None) => text.into_bytes(),
            (None, Some(text)) => BASE64_STANDARD.decode(text).map_err(|error| error.to_string())?,
            (None, None) => Vec::new(),
            (Some(_), Some(_)) => return Err("it has two payloads".to_owned()),
        };
        let mut event = Event::new(self.queue, self.id).tenant(self.tenant).payload(payload);
        event.key = self.key;
        event.meta = self.meta.map(Box::new);
        event.expires = self.expires_ms.map(|expires| Expiry::At(moment(expires)));
        event.check().map_err(|error: EventError| error.to_string())?;
        let reason = DeadReason::from_word(&self.reason);
        Ok(Letter {
            fingerprint: Fingerprint::of(&event),
            event: Arc::new(event),
            published: moment(self.published_ms),
            died: moment(self.died_ms),
            attempts: self.attempts,
            reason: reason.ok_or_else(|| format!("nothing dies of `{}`", self.reason))?,
            story: self.story.map(Arc::new),
        })
    }
}

/// Whether a text is at most twice as long in JSON. Control characters are six times as long there, and a line that
/// is written has to be one that is read.
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
    /// Writes dead letters as JSON lines; gives how many, and which could not be read.
    ///
    /// # Errors
    /// Where they cannot be read or written.
    pub async fn export(&self, filter: Filter, to: &mut impl Write) -> Result<Exported, ExchangeError> {
        let (mut exported, mut after) = (Exported::default(), None);
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

    /// Writes a page of what [`export`](Self::export) writes, for whoever sends it on bit by bit; gives where the
    /// next one begins, if there may be one.
    ///
    /// # Errors
    /// Where they cannot be read or written.
    pub async fn export_page(
        &self,
        filter: Filter,
        after: Option<Seq>,
        limit: usize,
        to: &mut impl Write,
    ) -> Result<(Exported, Option<Seq>), ExchangeError> {
        let query = Query { filter, state: Some(State::Dead), after, limit };
        let page = self.redrive.store().list(query).await?;
        for (event, found) in &page.events {
            serde_json::to_writer(&mut *to, &Line::of(event, found)).map_err(std::io::Error::from)?;
            to.write_all(b"\n")?;
        }
        Ok((Exported { written: page.events.len() as u64, damaged: page.damaged }, page.next))
    }

    /// Writes the audit as JSON lines, the latest first; gives how many.
    ///
    /// # Errors
    /// Where it cannot be read or written.
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

    /// Reads dead letters from JSON lines and keeps those that are not known yet. They stay dead letters, with their
    /// stories, until somebody puts them back.
    ///
    /// # Errors
    /// At the first line that is no letter; those before it are kept, and a second import leaves them alone.
    pub async fn import(&self, from: &mut impl BufRead) -> Result<Imported, ExchangeError> {
        let mut imported = Imported::default();
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

    /// The same for letters of one tenant. All lines are read before any letter is kept, so it takes the room of all
    /// of them.
    ///
    /// # Errors
    /// Where one is of another tenant, and then none is kept; and as [`import`](Self::import).
    pub async fn import_of(&self, tenant: &str, from: &mut impl BufRead) -> Result<Imported, ExchangeError> {
        let (mut all, mut number) = (Vec::new(), 0);
        let end = loop {
            let (letters, end) = read_some(from, &mut number);
            all.extend(letters);
            if let Some(end) = end {
                break end;
            }
        };
        if let Some((line, letter)) = all.iter().find(|(_, letter)| letter.event.tenant != tenant) {
            return Err(ExchangeError::Tenant { line: *line, tenant: letter.event.tenant.clone() });
        }
        let mut imported = Imported::default();
        while !all.is_empty() {
            let later = all.split_off(all.len().min(AT_ONCE));
            self.keep(std::mem::replace(&mut all, later), &mut imported).await?;
        }
        end.map(|()| imported)
    }

    /// Keeps letters, each with the number of its line.
    async fn keep(&self, letters: Vec<(usize, Letter)>, imported: &mut Imported) -> Result<(), StoreError> {
        if letters.is_empty() {
            return Ok(());
        }
        let (lines, letters): (Vec<_>, Vec<_>) = letters.into_iter().unzip();
        let done = self.order(What::Import(letters)).await?;
        imported.kept += done.changed;
        imported.refused.extend(done.refused.into_iter().map(|(at, why)| (lines[at], why)));
        Ok(())
    }
}

/// Reads some letters with the numbers of their lines, and how it ended if it did.
#[allow(clippy::type_complexity, reason = "letters, and an end")]
fn read_some(
    from: &mut impl BufRead,
    number: &mut usize,
) -> (Vec<(usize, Letter)>, Option<Result<(), ExchangeError>>) {
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

/// The letter of the next line, if that is not empty; none at the end.
fn read_line(from: &mut impl BufRead, number: &mut usize) -> Result<Option<Option<Letter>>, ExchangeError> {
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
    // The list of its members' values would be read as well.
    if !text.trim_start().starts_with('{') {
        return Err(wrong("it is no JSON object".to_owned()));
    }
    let line: Line = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    line.letter().map(|letter| Some(Some(letter))).map_err(wrong)
}
