//! Dedupe records: identities, and the ends of their events, as columns.
//!
//! A missing event means "done at the first attempt". Any other end (another state, a result, earlier attempts) is an
//! [`End`]: beside the dedupe record, or on it if the event was discarded or edited.

use std::sync::Arc;

use redrive_core::Moment;
use redrive_core::event::{AttemptHistory, Fingerprint, State};
use redrive_core::queue_entry::{EventChange, Seq, StreamId};

use super::cells::{Cells, Damage};
use super::history::{read_history, write_history};
use super::numbers::{column, from_moment, to_moment};
use super::rows::Sum;
use crate::event_status::EventStatus;
use crate::lease::TokenHash;
use crate::store::{NewEvent, QueueSpec};

/// The dedupe record of an identity.
#[derive(Debug, Clone)]
pub(in crate::stores) struct DedupeRecord {
    pub(in crate::stores) stream: StreamId,
    pub(in crate::stores) id: String,
    pub(in crate::stores) fingerprint: Fingerprint,
    pub(in crate::stores) seq: Seq,
    pub(in crate::stores) published: Moment,
    pub(in crate::stores) until: Moment,
    pub(in crate::stores) end: Option<End>,
}

/// How an event ended.
#[derive(Debug, Clone)]
pub(in crate::stores) struct End {
    pub(in crate::stores) state: State,
    pub(in crate::stores) at: Moment,
    pub(in crate::stores) attempts: u32,
    pub(in crate::stores) history: Option<Arc<AttemptHistory>>,
    pub(in crate::stores) result: Option<Vec<u8>>,
    /// The id of its replacement, if it was edited.
    pub(in crate::stores) became: Option<String>,
    /// The token of the lease that settled it as done, if it was leased. Such an end is beside the dedupe record.
    pub(in crate::stores) token: Option<TokenHash>,
}

impl DedupeRecord {
    /// Reads a dedupe record: fingerprint, seq, published, until, state, ended, attempts, history, result, became, crc.
    pub(in crate::stores) fn read(row: &impl Cells, stream: StreamId, id: &str) -> Result<Self, Damage> {
        let number = |at: usize| row.number(at);
        let maybe = |at: usize| row.maybe_number(at);
        let print: [u8; 16] = row.hash(0)?;
        let (seq, published, until) = (number(1)?, number(2)?, number(3)?);
        let state = row.maybe_text(4)?;
        let (ended, attempts) = (maybe(5)?, maybe(6)?);
        let history = row.maybe_text(7)?;
        let result = row.maybe_bytes(8)?;
        let became = row.maybe_text(9)?;
        let columns = Columns { stream: i64::from(stream.0), id, print: &print, seq, published, until };
        let left = (result.as_deref(), became.as_deref());
        if columns.sum(state.as_deref(), ended, attempts, history.as_deref(), left.0, left.1) != number(10)? {
            return Err(Damage);
        }
        let end = match state {
            None => None,
            Some(word) => Some(End {
                state: State::from_word(&word).ok_or(Damage)?,
                at: to_moment(ended.ok_or(Damage)?),
                attempts: u32::try_from(attempts.unwrap_or(0)).map_err(|_| Damage)?,
                history: read_history(history.as_deref())?,
                result,
                became,
                token: None,
            }),
        };
        Ok(Self {
            stream,
            id: id.to_owned(),
            fingerprint: Fingerprint(print),
            seq: Seq(u64::try_from(seq).map_err(|_| Damage)?),
            published: to_moment(published),
            until: to_moment(until),
            end,
        })
    }
}

impl End {
    /// Reads an end that is beside its dedupe record: state, ended, attempts, history, result, token, crc.
    pub(in crate::stores) fn read(row: &impl Cells, seq: Seq) -> Result<Self, Damage> {
        let state = row.text(0)?;
        let (ended, attempts) = (row.number(1)?, row.number(2)?);
        let history = row.maybe_text(3)?;
        let result = row.maybe_bytes(4)?;
        let token: Option<TokenHash> = row.maybe_hash(5)?;
        let left = (result.as_deref(), token.as_ref().map(<[u8; 16]>::as_slice));
        let crc = end_sum(column(seq.0), &state, ended, attempts, history.as_deref(), left);
        if crc != row.number(6)? {
            return Err(Damage);
        }
        Ok(Self {
            state: State::from_word(&state).ok_or(Damage)?,
            at: to_moment(ended),
            attempts: u32::try_from(attempts).map_err(|_| Damage)?,
            history: read_history(history.as_deref())?,
            result,
            became: None,
            token,
        })
    }
}

struct Columns<'a> {
    stream: i64,
    id: &'a str,
    print: &'a [u8; 16],
    seq: i64,
    published: i64,
    until: i64,
}

impl Columns<'_> {
    fn sum(
        &self,
        state: Option<&str>,
        ended: Option<i64>,
        attempts: Option<i64>,
        history: Option<&str>,
        result: Option<&[u8]>,
        became: Option<&str>,
    ) -> i64 {
        Sum::new()
            .number(self.stream)
            .text(self.id)
            .bytes(self.print)
            .number(self.seq)
            .number(self.published)
            .number(self.until)
            .maybe(state.map(str::as_bytes))
            .maybe_number(ended)
            .maybe_number(attempts)
            .maybe(history.map(str::as_bytes))
            .maybe(result)
            .maybe(became.map(str::as_bytes))
            .end()
    }
}
/// The checksum of an end that is beside its dedupe record.
pub(in crate::stores) fn end_sum(
    seq: i64,
    state: &str,
    ended: i64,
    attempts: i64,
    history: Option<&str>,
    (result, token): (Option<&[u8]>, Option<&[u8]>),
) -> i64 {
    Sum::new()
        .number(seq)
        .text(state)
        .number(ended)
        .number(attempts)
        .maybe(history.map(str::as_bytes))
        .maybe(result)
        .maybe(token)
        .end()
}

/// The checksum of a dedupe record without an end.
pub(in crate::stores) fn fresh_sum(
    (stream, id): (StreamId, &str),
    print: &[u8; 16],
    (seq, published, until): (i64, i64, i64),
) -> i64 {
    Columns { stream: i64::from(stream.0), id, print, seq, published, until }
        .sum(None, None, None, None, None, None)
}

impl DedupeRecord {
    /// The columns of its end.
    pub(in crate::stores) fn ended(&self) -> Ended {
        let end = self.end.as_ref();
        let (seq, published, until) =
            (column(self.seq.0), from_moment(self.published), from_moment(self.until));
        let state = end.map(|end| end.state.as_str());
        let at = end.map(|end| from_moment(end.at));
        let attempts = end.map(|end| i64::from(end.attempts));
        let history = end.and_then(|end| write_history(end.history.as_deref()));
        let result = end.and_then(|end| end.result.as_deref());
        let became = end.and_then(|end| end.became.as_deref());
        let (stream, print) = (i64::from(self.stream.0), &self.fingerprint.0);
        let columns = Columns { stream, id: &self.id, print, seq, published, until };
        let crc = columns.sum(state, at, attempts, history.as_deref(), result, became);
        Ended { until, state, at, attempts, history, crc }
    }

    /// The status of an event that has ended.
    pub(in crate::stores) fn into_found(self) -> EventStatus {
        let Self { seq, published, end, .. } = self;
        // An end without a record was a success at the first attempt.
        let plain = EventStatus { attempts: 1, ..EventStatus::new(seq, State::Done, published) };
        match end {
            None => plain,
            Some(end) => EventStatus {
                state: end.state,
                ended: Some(end.at),
                attempts: end.attempts,
                history: end.history,
                result: end.result,
                edited_into: end.became,
                ..plain
            },
        }
    }
}

/// The columns of a dedupe record that have the end of its event, and its expiry.
pub(in crate::stores) struct Ended {
    pub(in crate::stores) until: i64,
    pub(in crate::stores) state: Option<&'static str>,
    pub(in crate::stores) at: Option<i64>,
    pub(in crate::stores) attempts: Option<i64>,
    pub(in crate::stores) history: Option<String>,
    pub(in crate::stores) crc: i64,
}

/// The end of an event by this change, if it ends; `Some(None)` if it is simply done.
pub(in crate::stores) fn ending_of(change: &EventChange, at: Moment) -> Option<Option<End>> {
    let (state, attempts, history, result) = match change {
        EventChange::Done => return Some(None),
        EventChange::DoneWith { result, attempts, history } => {
            (State::Done, *attempts, history, result.as_ref())
        }
        EventChange::Dropped { attempts, history } => (State::Dropped, *attempts, history, None),
        EventChange::Expired { attempts, history } => (State::Expired, *attempts, history, None),
        _ => return None,
    };
    let (history, result) = (history.clone(), result.cloned());
    Some(Some(End { state, at, attempts, history, result, became: None, token: None }))
}

/// Until when an event may be settled without reading its dedupe record, and until when that is kept.
pub(in crate::stores) fn times(spec: &QueueSpec, new: &NewEvent) -> (Moment, Moment) {
    let due = new.event.when.moment(new.at);
    // The queue's own horizon at least: a settle reads the dedupe record only after `dedupe_ok_until`.
    let dedupe_ok_until = due.max(new.at) + new.horizon.unwrap_or_default().max(spec.horizon);
    (dedupe_ok_until, dedupe_ok_until + spec.window)
}
