//! A row on its way: checked, and converted to the one form that both sides share.
//!
//! An event is in one of two tables on either side, and each side keeps the order of keys in its own way: a SQLite
//! file marks the events that wait for another, PostgreSQL marks none. On its way an event has all its columns, and
//! simply lives; the target decides the rest. So two stores with the same contents have the same rows here, however
//! each of them stores them.

use std::sync::Arc;

use redrive_core::Event;
use redrive_core::event::{Mode, identity};
use redrive_core::queue_entry::{Seq, StreamId};
use sha2::{Digest, Sha256};

use super::table::{Form, Kind, Table};
use crate::sql::Value;
use crate::stores::shared::cells::{Cells, Damage};
use crate::stores::shared::columns::Columns;
use crate::stores::shared::dedupe::{DedupeRecord, End};
use crate::stores::shared::jobs::read_job_row;
use crate::stores::shared::ledger::whole;
use crate::stores::shared::numbers::{bits, stream_of};
use crate::stores::shared::rows::{EVENT_COLUMNS, EventRow, Stream};
use crate::stores::shared::tracked::{RowState, TrackedEvent};

/// The position of an event's state.
pub(in crate::stores) const STATE: usize = EVENT_COLUMNS + 1;

/// A row to write.
#[derive(Debug, Clone)]
pub(in crate::stores) struct Row {
    pub(in crate::stores) values: Vec<Value>,
    /// Its destination, if it is an event.
    pub(in crate::stores) home: Option<Home>,
}

/// The destination of an event.
#[derive(Debug, Clone)]
pub(in crate::stores) struct Home {
    pub(in crate::stores) stream: Arc<Stream>,
    #[cfg_attr(not(feature = "postgres"), allow(dead_code, reason = "a file has one shard"))]
    pub(in crate::stores) shard: u32,
    /// Whether it never ran, never changed, and need not wait for its time.
    pub(in crate::stores) is_fresh: bool,
}

/// The values of a row, from some column on.
pub(in crate::stores) struct Part<'a>(pub(in crate::stores) &'a [Value]);

impl Cells for Part<'_> {
    fn number(&self, at: usize) -> Result<i64, Damage> {
        self.maybe_number(at)?.ok_or(Damage)
    }

    fn maybe_number(&self, at: usize) -> Result<Option<i64>, Damage> {
        match self.0.get(at) {
            Some(Value::Integer(number)) => Ok(Some(*number)),
            Some(Value::Null) => Ok(None),
            _ => Err(Damage),
        }
    }

    fn word(&self, at: usize) -> Result<Option<&str>, Damage> {
        match self.0.get(at) {
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(Value::Null) => Ok(None),
            _ => Err(Damage),
        }
    }

    fn blob(&self, at: usize) -> Result<Option<&[u8]>, Damage> {
        match self.0.get(at) {
            Some(Value::Bytes(bytes)) => Ok(Some(bytes)),
            Some(Value::Null) => Ok(None),
            _ => Err(Damage),
        }
    }
}

/// The stream of an event, by its seq.
pub(in crate::stores) fn stream_at(values: &[Value]) -> Result<StreamId, Damage> {
    Part(values).number(0).map(|seq| stream_of(Seq(bits(seq))))
}

/// Checks a row of any table except events, as far as possible.
pub(super) fn check(table: &Table, values: &[Value]) -> Result<(), Damage> {
    let row = Part(values);
    match table.form {
        Form::DedupeRecord => {
            let stream = StreamId(u32::try_from(row.number(1)?).map_err(|_| Damage)?);
            DedupeRecord::read(&Part(&values[table.key..]), stream, &row.text(0)?).map(drop)
        }
        Form::End => End::read(&Part(&values[table.key..]), Seq(bits(row.number(0)?))).map(drop),
        Form::Request => whole(&row).map(drop),
        Form::Job => read_job_row(&row).map(drop),
        Form::Plain | Form::Event => {
            let fits = table.columns.iter().zip(values).all(|((_, kind), value)| fits(*kind, value));
            if fits { Ok(()) } else { Err(Damage) }
        }
    }
}

fn fits(kind: Kind, value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Integer(_) => kind == Kind::Number,
        Value::Text(_) => kind == Kind::Text,
        Value::Bytes(_) => kind == Kind::Bytes,
        Value::Real(_) => false,
    }
}

/// Why a row cannot be written anywhere, or into PostgreSQL.
pub(super) fn unfit(table: &Table, values: &[Value], to_postgres: bool) -> Option<String> {
    table.columns.iter().zip(values).find_map(|((name, kind), value)| match value {
        value if !fits(*kind, value) => Some(format!("its column {name} is not {}", word(*kind))),
        Value::Text(text) if to_postgres && text.contains('\0') => {
            Some(format!("its column {name} has a zero byte, which PostgreSQL cannot store in a text"))
        }
        _ => None,
    })
}

const fn word(kind: Kind) -> &'static str {
    match kind {
        Kind::Number => "a number",
        Kind::Text => "text",
        Kind::Bytes => "bytes",
    }
}

/// Converts an event to the form that both sides share. Returns whether it is intact.
pub(super) fn event(
    values: &mut Vec<Value>,
    stream: &Arc<Stream>,
    shards: u32,
) -> (Home, Result<(), Damage>) {
    let is_bare = matches!(values.get(EVENT_COLUMNS), Some(Value::Null));
    let read = whole_event(values, stream, is_bare);
    let (shard, is_fresh) = match &read {
        Ok((event, is_fresh)) => (identity::shard(event, shards), *is_fresh),
        Err(Damage) => {
            // It keeps its wrong checksum and its table, and lives or not as before: its reader reports it.
            if let Some(Value::Integer(state @ (1 | 4))) = values.get_mut(STATE) {
                *state = RowState::Waiting as i64;
            }
            (identity::shard(&seen(values, stream), shards), is_bare)
        }
    };
    (Home { stream: Arc::clone(stream), shard, is_fresh }, read.map(drop))
}

/// Reads an event, and converts the columns that are specific to a side. Returns the event, and whether it is fresh.
fn whole_event(
    values: &mut Vec<Value>,
    stream: &Stream,
    is_bare: bool,
) -> Result<(Arc<Event>, bool), Damage> {
    let row = EventRow::read(&Part(values), stream)?;
    let (seq, event, published) = (row.seq, Arc::clone(&row.event), row.published);
    let fresh = TrackedEvent::fresh(row, RowState::Waiting).columns();
    let is_due = event.when.moment(published) <= published;
    if is_bare {
        set_columns(values, &fresh, seq);
        return Ok((event, is_due));
    }
    let mut columns = Columns::read(&Part(values), EVENT_COLUMNS, seq)?;
    if columns.state == RowState::Blocked as i64 || columns.state == RowState::Withheld as i64 {
        columns.state = RowState::Waiting as i64;
        set_columns(values, &columns, seq);
    }
    let is_fresh = is_due && columns == fresh;
    Ok((event, is_fresh))
}

/// As much of an event as its shard depends on, even if it is damaged.
fn seen(values: &[Value], stream: &Stream) -> Event {
    let row = Part(values);
    let text = |at: usize| row.maybe_text(at).ok().flatten();
    let event = Event::new(stream.queue.as_str(), text(1).unwrap_or_default()).tenant(stream.tenant.as_str());
    match text(2).or(text(3)) {
        Some(key) => event.key(key),
        None => event,
    }
}

/// Whether an event has run: it then counts as a retry.
pub(in crate::stores) fn has_run(values: &[Value]) -> bool {
    let row = Part(values);
    let is_fresh = matches!(row.word(EVENT_COLUMNS + 4), Ok(Some(mode)) if mode == Mode::Live.as_str());
    !is_fresh || !matches!(row.maybe_number(EVENT_COLUMNS + 3), Ok(Some(0)))
}

/// Replaces the changing columns of a row.
pub(in crate::stores) fn set_columns(values: &mut Vec<Value>, columns: &Columns, seq: Seq) {
    values.truncate(EVENT_COLUMNS);
    // The flow is not moved: it follows from the others.
    values.extend(columns.params(seq).into_iter().skip(1).map(Value::from));
}

/// The size of a row.
#[cfg(feature = "sqlite")]
pub(in crate::stores) fn bytes(values: &[Value]) -> usize {
    let of = |value: &Value| match value {
        Value::Text(text) => text.len(),
        Value::Bytes(bytes) => bytes.len(),
        _ => 0,
    };
    values.iter().map(|value| 16 + of(value)).sum()
}

/// The name of a row in messages.
pub(super) fn named(table: &Table, values: &[Value]) -> String {
    let key: Vec<String> = values
        .iter()
        .take(table.key)
        .map(|value| match value {
            Value::Integer(number) => number.to_string(),
            Value::Text(text) => text.clone(),
            _ => "?".to_owned(),
        })
        .collect();
    format!("{} row {}", table.name, key.join(" "))
}

/// The number of rows, and a checksum of them as a set, independent of their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Sum {
    pub(super) rows: u64,
    pub(super) sum: u128,
}

impl Sum {
    /// Adds a row: half a SHA-256 of its values, each prefixed with its kind and length.
    pub(super) fn add(&mut self, values: &[Value]) {
        let mut hash = Sha256::new();
        let mut part = |kind: u8, bytes: &[u8]| {
            hash.update([kind]);
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        for value in values {
            match value {
                Value::Null => part(0, &[]),
                Value::Integer(number) => part(1, &number.to_le_bytes()),
                Value::Real(number) => part(2, &number.to_le_bytes()),
                Value::Text(text) => part(3, text.as_bytes()),
                Value::Bytes(bytes) => part(4, bytes),
            }
        }
        let hash: [u8; 32] = hash.finalize().into();
        let mut half = [0; 16];
        half.copy_from_slice(&hash[..16]);
        self.rows += 1;
        self.sum = self.sum.wrapping_add(u128::from_le_bytes(half));
    }
}
