//! Receipts: identities, and what became of them, as columns.
//!
//! What an event's absence does not say (another end than "done", a result, attempts before it) is an [`End`]: beside
//! the receipt, or on it where the event was taken away or edited.

use std::sync::Arc;

use redrive_core::Moment;
use redrive_core::entry::{Change, Seq, StreamId};
use redrive_core::event::{Fingerprint, State, Story};

use super::cells::{Cells, Damage};
use super::numbers::{column, from_moment, to_moment};
use super::rows::Sum;
use super::stories::{read_story, write_story};
use crate::found::Found;
use crate::lease::TokenHash;
use crate::store::{New, QueueSpec};

/// What is known of an identity.
#[derive(Debug, Clone)]
pub(in crate::stores) struct Receipt {
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
    pub(in crate::stores) story: Option<Arc<Story>>,
    pub(in crate::stores) result: Option<Vec<u8>>,
    /// The id under which it goes on, where an edit gave its place to another.
    pub(in crate::stores) became: Option<String>,
    /// Whose lease did it, where it was leased and is done. Such an end is beside the receipt.
    pub(in crate::stores) token: Option<TokenHash>,
}

impl Receipt {
    /// Reads a receipt: fingerprint, seq, published, until, state, ended, attempts, story, result, became, crc.
    pub(in crate::stores) fn read(row: &impl Cells, stream: StreamId, id: &str) -> Result<Self, Damage> {
        let number = |at: usize| row.number(at);
        let maybe = |at: usize| row.maybe_number(at);
        let print: [u8; 16] = row.hash(0)?;
        let (seq, published, until) = (number(1)?, number(2)?, number(3)?);
        let state = row.maybe_text(4)?;
        let (ended, attempts) = (maybe(5)?, maybe(6)?);
        let story = row.maybe_text(7)?;
        let result = row.maybe_bytes(8)?;
        let became = row.maybe_text(9)?;
        let columns = Columns { stream: i64::from(stream.0), id, print: &print, seq, published, until };
        let left = (result.as_deref(), became.as_deref());
        if columns.sum(state.as_deref(), ended, attempts, story.as_deref(), left.0, left.1) != number(10)? {
            return Err(Damage);
        }
        let end = match state {
            None => None,
            Some(word) => Some(End {
                state: State::from_word(&word).ok_or(Damage)?,
                at: to_moment(ended.ok_or(Damage)?),
                attempts: u32::try_from(attempts.unwrap_or(0)).map_err(|_| Damage)?,
                story: read_story(story.as_deref())?,
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
    /// Reads an end that is beside its receipt: state, ended, attempts, story, result, token, crc.
    pub(in crate::stores) fn read(row: &impl Cells, seq: Seq) -> Result<Self, Damage> {
        let state = row.text(0)?;
        let (ended, attempts) = (row.number(1)?, row.number(2)?);
        let story = row.maybe_text(3)?;
        let result = row.maybe_bytes(4)?;
        let token: Option<TokenHash> = row.maybe_hash(5)?;
        let left = (result.as_deref(), token.as_ref().map(<[u8; 16]>::as_slice));
        let crc = end_sum(column(seq.0), &state, ended, attempts, story.as_deref(), left);
        if crc != row.number(6)? {
            return Err(Damage);
        }
        Ok(Self {
            state: State::from_word(&state).ok_or(Damage)?,
            at: to_moment(ended),
            attempts: u32::try_from(attempts).map_err(|_| Damage)?,
            story: read_story(story.as_deref())?,
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
        story: Option<&str>,
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
            .maybe(story.map(str::as_bytes))
            .maybe(result)
            .maybe(became.map(str::as_bytes))
            .end()
    }
}
/// The checksum of an end that is beside its receipt.
pub(in crate::stores) fn end_sum(
    seq: i64,
    state: &str,
    ended: i64,
    attempts: i64,
    story: Option<&str>,
    (result, token): (Option<&[u8]>, Option<&[u8]>),
) -> i64 {
    Sum::new()
        .number(seq)
        .text(state)
        .number(ended)
        .number(attempts)
        .maybe(story.map(str::as_bytes))
        .maybe(result)
        .maybe(token)
        .end()
}

/// The checksum of a receipt without an end.
pub(in crate::stores) fn fresh_sum(
    (stream, id): (StreamId, &str),
    print: &[u8; 16],
    (seq, published, until): (i64, i64, i64),
) -> i64 {
    Columns { stream: i64::from(stream.0), id, print, seq, published, until }
        .sum(None, None, None, None, None, None)
}

impl Receipt {
    /// The columns that say how it ended.
    pub(in crate::stores) fn ended(&self) -> Ended {
        let end = self.end.as_ref();
        let (seq, published, until) =
            (column(self.seq.0), from_moment(self.published), from_moment(self.until));
        let state = end.map(|end| end.state.as_str());
        let at = end.map(|end| from_moment(end.at));
        let attempts = end.map(|end| i64::from(end.attempts));
        let story = end.and_then(|end| write_story(end.story.as_deref()));
        let result = end.and_then(|end| end.result.as_deref());
        let became = end.and_then(|end| end.became.as_deref());
        let (stream, print) = (i64::from(self.stream.0), &self.fingerprint.0);
        let columns = Columns { stream, id: &self.id, print, seq, published, until };
        let crc = columns.sum(state, at, attempts, story.as_deref(), result, became);
        Ended { until, state, at, attempts, story, crc }
    }

    /// What is known of an event that has ended.
    pub(in crate::stores) fn into_found(self) -> Found {
        let Self { seq, published, end, .. } = self;
        // What left nothing behind was done at the first attempt.
        let plain = Found { attempts: 1, ..Found::new(seq, State::Done, published) };
        match end {
            None => plain,
            Some(end) => Found {
                state: end.state,
                ended: Some(end.at),
                attempts: end.attempts,
                story: end.story,
                result: end.result,
                edited_into: end.became,
                ..plain
            },
        }
    }
}

/// The columns of a receipt that say how its event ended, and until when it is remembered.
pub(in crate::stores) struct Ended {
    pub(in crate::stores) until: i64,
    pub(in crate::stores) state: Option<&'static str>,
    pub(in crate::stores) at: Option<i64>,
    pub(in crate::stores) attempts: Option<i64>,
    pub(in crate::stores) story: Option<String>,
    pub(in crate::stores) crc: i64,
}

/// How an event ends with this change, if it ends; none within where its absence says it all.
pub(in crate::stores) fn ending_of(change: &Change, at: Moment) -> Option<Option<End>> {
    let (state, attempts, story, result) = match change {
        Change::Done => return Some(None),
        Change::DoneWith { result, attempts, story } => (State::Done, *attempts, story, result.as_ref()),
        Change::Dropped { attempts, story } => (State::Dropped, *attempts, story, None),
        Change::Expired { attempts, story } => (State::Expired, *attempts, story, None),
        _ => return None,
    };
    let (story, result) = (story.clone(), result.cloned());
    Some(Some(End { state, at, attempts, story, result, became: None, token: None }))
}

/// Until when an event may be settled without a look at its receipt, and until when that is remembered.
pub(in crate::stores) fn times(spec: &QueueSpec, new: &New) -> (Moment, Moment) {
    let due = new.event.when.moment(new.at);
    // The queue's own horizon at least: a settle looks at the receipt only after `calm`.
    let calm = due.max(new.at) + new.horizon.unwrap_or_default().max(spec.horizon);
    (calm, calm + spec.window)
}
