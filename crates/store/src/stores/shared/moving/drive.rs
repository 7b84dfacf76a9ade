//! A move, step by step.

use std::collections::HashMap;
use std::sync::Arc;

use redrive_core::queue_entry::StreamId;

use super::row::{self, Row, Sum};
use super::table::{Form, Table, tables};
use super::{BATCH_ROWS, Mark, Role, Side, Values};
use crate::error::StoreError;
use crate::moving::{
    ComparedTable, MoveControl, MoveError, MoveOptions, MoveProgress, MoveReport, MoveStep, StoreLocation,
};
use crate::sql::Value;
use crate::stores::shared::rows::Stream;

/// How many damaged rows are listed.
const NAMED: usize = 20;
/// How many streams are cached; with more, all are read again.
const STREAMS_MAX: usize = 10_000;

type Told<'a> = &'a mut dyn FnMut(&MoveProgress) -> MoveControl;

/// Moves a store.
pub(crate) fn run(
    from: &StoreLocation,
    to: &StoreLocation,
    options: &MoveOptions,
    told: Told<'_>,
) -> Result<MoveReport, MoveError> {
    let mut from = open(from, Role::From)?;
    let mut to = open(to, Role::Into)?;
    let mut moving = Moving {
        tables: tables(),
        refuses_zero: to.refuses_zero(),
        shards: to.shards(),
        options,
        streams: HashMap::new(),
        damaged: (Vec::new(), 0),
        told,
    };
    let (from, to) = (&mut *from, &mut *to);
    let mut moved = MoveReport { from: from.place(), to: to.place(), ..MoveReport::default() };
    if moved.from == moved.to {
        return Err(MoveError::Refused(format!("{} is both the source and the target", moved.to)));
    }
    if options.start_over {
        moving.start_over(from, to)?;
    }
    let is_done = moving.begin(from, to)?;
    moved.left = from.others()?;
    if !is_done {
        moving.copy(from, to)?;
        to.count_on(&from.counters()?)?;
        moved.tables = moving.compare(from, to)?;
        moved.damaged = moving.damaged;
        to.done()?;
    }
    if options.keep_source {
        from.free()?;
    } else {
        from.leave()?;
    }
    Ok(moved)
}

/// Removes the mark of a move from a source.
pub(crate) fn undo(from: &StoreLocation) -> Result<Option<String>, MoveError> {
    let mut from = open(from, Role::From)?;
    let Some(mark) = from.mark(Role::From)? else { return Ok(None) };
    from.free()?;
    Ok(Some(mark.place))
}

/// The tables that are moved.
pub(crate) fn known() -> Vec<(&'static str, &'static str, Vec<&'static str>)> {
    let names = |table: Table| table.columns.into_iter().map(|(name, _)| name).collect();
    tables().into_iter().map(|table| (table.sqlite, table.postgres, names(table))).collect()
}

fn open(place: &StoreLocation, role: Role) -> Result<Box<dyn Side>, MoveError> {
    match place {
        #[cfg(feature = "sqlite")]
        StoreLocation::File(path) => Ok(Box::new(crate::stores::sqlite::moving::File::open(path, role)?)),
        #[cfg(feature = "postgres")]
        StoreLocation::Database(url, settings) => {
            Ok(Box::new(crate::stores::postgres::moving::PgMover::open(url, settings, role)?))
        }
    }
}

struct Moving<'a> {
    tables: Vec<Table>,
    shards: u32,
    refuses_zero: bool,
    options: &'a MoveOptions,
    streams: HashMap<StreamId, Arc<Stream>>,
    damaged: (Vec<String>, u64),
    told: Told<'a>,
}

impl Moving<'_> {
    /// Empties a target with an unfinished move of this source. Any other target is left alone: the move reports what
    /// is wrong with it when it begins.
    fn start_over(&mut self, from: &mut dyn Side, to: &mut dyn Side) -> Result<(), MoveError> {
        let Some(here) = to.mark(Role::Into)?.filter(|here| !here.is_done) else { return Ok(()) };
        let (source, target) = (from.place(), to.place());
        if from.mark(Role::From)?.is_some_and(|there| there.is_done || there.place != target) {
            return Ok(());
        }
        if here.place != source || here.life != from.life()? {
            return Err(MoveError::Refused(format!(
                "{target} holds an unfinished move of {}, and not of this {source}; nothing was deleted; drop its schema, or the file, if you do not need it any more",
                here.place
            )));
        }
        Ok(to.empty(&here, &self.tables)?)
    }

    /// Makes sure that this move holds both sides exclusively. Returns whether an earlier run had finished all but the
    /// source.
    fn begin(&mut self, from: &mut dyn Side, to: &mut dyn Side) -> Result<bool, MoveError> {
        let there = from.mark(Role::From)?;
        let here = to.mark(Role::Into)?;
        let (source, target) = (from.place(), to.place());
        let is_ours = |mark: &Mark, there: &Mark| mark.id == there.id;
        if let Some(unfinished) = from.mark(Role::Into)?.filter(|mark| !mark.is_done) {
            return Err(MoveError::Refused(format!(
                "a move of {} into {source} is not finished, so the store is incomplete",
                unfinished.place
            )));
        }
        match (&there, &here) {
            (Some(there), _) if there.is_done => {
                let place = &there.place;
                Err(MoveError::Refused(format!("{source} was already moved to {place}")))
            }
            (Some(there), Some(here)) if is_ours(here, there) => Ok(here.is_done),
            (Some(there), None) if there.place == target => {
                to.begin(&Mark { place: source, ..there.clone() }, &self.tables)?;
                Ok(false)
            }
            (Some(there), _) => Err(MoveError::Refused(format!(
                "a move of {source} to {} has begun, which is another target; continue that one, or abandon it with `redrive move --undo`",
                there.place
            ))),
            (None, Some(here)) if !here.is_done => Err(MoveError::Refused(format!(
                "{target} holds a move of {} that was abandoned or is another one; `--start-over` empties the target if it was of this source",
                here.place
            ))),
            (None, _) => {
                let id = number();
                self.check_empty(to)?;
                let mark = Mark { id, place: target, life: from.life()?, is_done: false };
                from.fence(&mark)?;
                let begun = to.begin(&Mark { place: source, ..mark }, &self.tables);
                if matches!(begun, Err(MoveError::Refused(_))) {
                    from.free()?;
                }
                begun.map(|()| false)
            }
        }
    }

    /// Checks before anything is changed; [`Side::begin`] checks again.
    fn check_empty(&self, to: &mut dyn Side) -> Result<(), MoveError> {
        for table in &self.tables {
            if to.count(table)? > 0 {
                return Err(not_empty(&to.place(), table.name));
            }
        }
        Ok(())
    }

    /// Writes the rows that are not written yet.
    fn copy(&mut self, from: &mut dyn Side, to: &mut dyn Side) -> Result<(), MoveError> {
        let cursors = to.cursors()?;
        for table in self.tables.clone() {
            let of = from.count(&table)?;
            let mut after = cursors.get(table.name).map(|cursor| decode(cursor)).transpose()?;
            let mut rows = if after.is_some() { to.count(&table)? } else { 0 };
            loop {
                let read = from.read(&table, after.as_deref(), self.batch_rows())?;
                let Some(last) = read.last() else { break };
                let key = last[..table.key].to_vec();
                rows += read.len() as u64;
                let mut batch = Vec::with_capacity(read.len());
                for values in read {
                    batch.extend(self.check(from, &table, values)?);
                }
                to.put(&table, batch, &encode(&key)?)?;
                after = Some(key);
                self.tell(MoveStep::Copy, &table, rows, of)?;
            }
        }
        Ok(())
    }

    /// Checks a row of the source, and converts it. `None` if the target cannot store it.
    fn check(
        &mut self,
        from: &mut dyn Side,
        table: &Table,
        values: Values,
    ) -> Result<Option<Row>, MoveError> {
        let (row, is_whole) = self.whole(from, table, values)?;
        let unfit = row::unfit(table, &row.values, self.refuses_zero);
        if is_whole && unfit.is_none() {
            return Ok(Some(row));
        }
        let mut name = row::named(table, &row.values);
        if !self.options.even_damaged {
            return Err(match unfit {
                Some(why) if is_whole => MoveError::Unfit { row: name, why },
                _ => MoveError::Damaged { row: name },
            });
        }
        let kept = if let Some(why) = unfit {
            name.push_str(&format!(" (left out: {why})"));
            None
        } else {
            Some(row)
        };
        self.damaged.1 += 1;
        if self.damaged.0.len() < NAMED {
            self.damaged.0.push(name);
        }
        Ok(kept)
    }

    /// A row in the form that both sides share, and whether it is intact.
    fn whole(
        &mut self,
        of: &mut dyn Side,
        table: &Table,
        mut values: Values,
    ) -> Result<(Row, bool), MoveError> {
        if table.form != Form::Event {
            let is_whole = row::check(table, &values).is_ok();
            return Ok((Row { values, home: None }, is_whole));
        }
        let id = row::stream_at(&values).unwrap_or(StreamId(0));
        let stream = self.stream(of, id)?;
        let is_known = stream.is_some();
        let stream =
            stream.unwrap_or_else(|| Arc::new(Stream { id, queue: String::new(), tenant: String::new() }));
        let (home, whole) = row::event(&mut values, &stream, self.shards);
        Ok((Row { values, home: Some(home) }, is_known && whole.is_ok()))
    }

    fn stream(&mut self, of: &mut dyn Side, id: StreamId) -> Result<Option<Arc<Stream>>, StoreError> {
        if let Some(known) = self.streams.get(&id) {
            return Ok(Some(Arc::clone(known)));
        }
        let Some(found) = of.stream(id)? else { return Ok(None) };
        if self.streams.len() >= STREAMS_MAX {
            self.streams.clear();
        }
        self.streams.insert(id, Arc::clone(&found));
        Ok(Some(found))
    }

    /// Reads both sides from the beginning, and returns the sum of each table.
    fn compare(&mut self, from: &mut dyn Side, to: &mut dyn Side) -> Result<Vec<ComparedTable>, MoveError> {
        // Of the source only, and anew: an earlier run may have found others.
        self.damaged = (Vec::new(), 0);
        let mut compared = Vec::new();
        for table in self.tables.clone() {
            let of = 2 * from.count(&table)?;
            let there = self.sum(from, &table, Whose::Source, (0, of))?;
            self.streams.clear();
            let here = self.sum(to, &table, Whose::Target, (there.rows, of))?;
            self.streams.clear();
            if there != here {
                return Err(MoveError::Differs { table: table.name, from: there.rows, to: here.rows });
            }
            compared.push(ComparedTable { table: table.name, rows: there.rows, sum: there.sum });
        }
        Ok(compared)
    }

    fn sum(
        &mut self,
        of: &mut dyn Side,
        table: &Table,
        which: Whose,
        (done, all): (u64, u64),
    ) -> Result<Sum, MoveError> {
        let (mut sum, mut after) = (Sum::default(), None::<Values>);
        loop {
            let read = of.read(table, after.as_deref(), self.batch_rows())?;
            let Some(last) = read.last() else { return Ok(sum) };
            after = Some(last[..table.key].to_vec());
            for values in read {
                let row = match which {
                    Whose::Source => self.check(of, table, values)?,
                    Whose::Target => Some(self.whole(of, table, values)?.0),
                };
                if let Some(row) = row {
                    sum.add(&row.values);
                }
            }
            self.tell(MoveStep::Compare, table, done + sum.rows, all)?;
        }
    }

    const fn batch_rows(&self) -> usize {
        if self.options.batch_rows == 0 { BATCH_ROWS } else { self.options.batch_rows }
    }

    fn tell(&mut self, step: MoveStep, table: &Table, rows: u64, of: u64) -> Result<(), MoveError> {
        match (self.told)(&MoveProgress { step, table: table.name, rows, of }) {
            MoveControl::On => Ok(()),
            MoveControl::Stop => Err(MoveError::Stopped),
        }
    }
}

/// Whose rows are read.
#[derive(Clone, Copy)]
enum Whose {
    Source,
    Target,
}

/// The error: a target is not empty.
pub(in crate::stores) fn not_empty(place: &str, table: &str) -> MoveError {
    MoveError::Refused(format!(
        "{place} is not empty: it has {table}; nothing is overwritten; name another schema or file"
    ))
}

/// A random number for a move.
fn number() -> String {
    use std::hash::{BuildHasher as _, RandomState};
    let words = [(); 2].map(|()| RandomState::new().hash_one(std::process::id()));
    format!("{:016x}{:016x}", words[0], words[1])
}

/// A key as text.
fn encode(key: &[Value]) -> Result<String, StoreError> {
    let words: Vec<serde_json::Value> = key
        .iter()
        .map(|value| match value {
            Value::Integer(number) => Ok((*number).into()),
            Value::Text(text) => Ok(text.as_str().into()),
            _ => Err(broken("a key of a row is neither a number nor a text")),
        })
        .collect::<Result<_, _>>()?;
    Ok(serde_json::Value::Array(words).to_string())
}

fn decode(cursor: &str) -> Result<Values, StoreError> {
    let words: Vec<serde_json::Value> =
        serde_json::from_str(cursor).map_err(|_| broken("the progress of a move cannot be read"))?;
    let value = |word: serde_json::Value| match word {
        serde_json::Value::String(text) => Ok(Value::Text(text)),
        word => {
            word.as_i64().map(Value::Integer).ok_or_else(|| broken("the progress of a move cannot be read"))
        }
    };
    words.into_iter().map(value).collect()
}

fn broken(what: &str) -> StoreError {
    StoreError::Broken { what: what.to_owned(), source: None }
}
