//! Groups: dead letters that have something in common, counted by stream and cause.
//!
//! The counts are kept with every death and every end of one, so that looking at a million letters reads a row for
//! each cause and not for each letter. What is not counted so is in [`sampled`].

use std::collections::{BTreeSet, HashMap};

use redrive_core::Moment;
use redrive_core::entry::StreamId;
use redrive_core::triage::CauseId;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::faults::Step;
use super::held::PutBack;
use super::names::Names;
use super::numbers::{bits, column, from_moment, signed, to_moment};
use crate::operate::{Group, GroupBy, GroupQuery, Redriven};

mod sampled;

/// How many groups are given where nobody says.
const GROUPS: usize = 100;

/// Dead letters of one cause in one stream.
#[derive(Debug, Clone)]
pub(super) struct Tally {
    pub(super) title: String,
    pub(super) letters: u64,
    pub(super) holding: u64,
    pub(super) first: Moment,
    pub(super) last: Moment,
    /// What put some of them back last, and what became of that.
    pub(super) redriven: Option<(PutBack, Redriven)>,
    pub(super) is_changed: bool,
}

impl Tally {
    pub(super) const fn new(title: String, at: Moment) -> Self {
        Self { title, letters: 0, holding: 0, first: at, last: at, redriven: None, is_changed: false }
    }

    /// Some of its letters were put back. Each order and each job is a redrive of its own.
    pub(super) fn put_back(&mut self, letters: u64, by: PutBack, at: Moment) {
        match &mut self.redriven {
            Some((last, redriven)) if *last == by => redriven.letters += letters,
            redriven => *redriven = Some((by, Redriven { at, letters, failed: 0 })),
        }
    }

    /// One that was put back is dead again.
    pub(super) fn failed_again(&mut self, by: PutBack) {
        if let Some((last, redriven)) = &mut self.redriven
            && *last == by
        {
            redriven.failed += 1;
        }
    }

    /// The row of a stream and a cause.
    pub(super) fn read(
        conn: &Connection,
        stream: StreamId,
        CauseId(cause): CauseId,
    ) -> rusqlite::Result<Option<Self>> {
        conn.prepare_cached(
            "SELECT title, letters, holding, first, last, redrive, redriven_at, redriven_letters, redriven_failed \
             FROM redrive_group WHERE stream = ?1 AND cause = ?2",
        )?
        .query_row(params![stream.0, signed(cause)], |row| Self::from_row(row, 0))
        .optional()
    }

    fn from_row(row: &Row<'_>, from: usize) -> rusqlite::Result<Self> {
        let number = |n: usize| row.get::<_, i64>(from + n);
        let redriven = match row.get::<_, Option<i64>>(from + 5)? {
            None => None,
            Some(by) => Some((
                PutBack::from_column(by),
                Redriven { at: to_moment(number(6)?), letters: bits(number(7)?), failed: bits(number(8)?) },
            )),
        };
        Ok(Self {
            title: row.get(from)?,
            letters: bits(number(1)?),
            holding: bits(number(2)?),
            first: to_moment(number(3)?),
            last: to_moment(number(4)?),
            redriven,
            is_changed: false,
        })
    }

    pub(super) fn write(
        &self,
        conn: &Connection,
        stream: StreamId,
        CauseId(cause): CauseId,
    ) -> rusqlite::Result<()> {
        let by = self.redriven.map(|(by, _)| by.to_column());
        let redriven = self.redriven.map(|(_, redriven)| redriven);
        let (letters, failed) = redriven.map_or((0, 0), |redriven| (redriven.letters, redriven.failed));
        conn.prepare_cached(
            "INSERT INTO redrive_group VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11) ON CONFLICT DO UPDATE \
             SET letters = ?4, holding = ?5, first = ?6, last = ?7, redrive = ?8, redriven_at = ?9, \
             redriven_letters = ?10, redriven_failed = ?11",
        )?
        .execute(params![
            stream.0,
            signed(cause),
            self.title,
            column(self.letters),
            column(self.holding),
            from_moment(self.first),
            from_moment(self.last),
            by,
            redriven.map_or(0, |redriven| from_moment(redriven.at)),
            column(letters),
            column(failed),
        ])
        .map(drop)
    }
}

/// Several tallies that are one group for whoever looks.
pub(super) struct Merged {
    group: Group,
    queues: BTreeSet<String>,
    by: Option<PutBack>,
}

/// Dead letters, put together, in the transaction that is open.
pub(super) fn groups(conn: &Connection, names: &mut Names, query: &GroupQuery) -> Step<Vec<Group>> {
    if let GroupBy::Type | GroupBy::Key = query.by {
        return sampled::groups(conn, names, query);
    }
    let mut merged: HashMap<(Option<CauseId>, String), Merged> = HashMap::new();
    let mut select = conn.prepare_cached(
        "SELECT stream, cause, title, letters, holding, first, last, redrive, redriven_at, redriven_letters, \
         redriven_failed FROM redrive_group WHERE letters > 0",
    )?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let Some(stream) = names.of(conn, StreamId(row.get(0)?))? else { continue };
        if !query.is_of(&stream.queue, &stream.tenant) {
            continue;
        }
        let cause = CauseId(bits(row.get(1)?));
        let tally = Tally::from_row(row, 2)?;
        let (cause, title) = match query.by {
            GroupBy::Cause => (Some(cause), tally.title.clone()),
            GroupBy::Queue => (None, stream.queue.clone()),
            _ => (None, stream.tenant.clone()),
        };
        // One cause has one title; only what was cut off a list of causes may differ.
        let name = if cause.is_some() { String::new() } else { title.clone() };
        let into = merged.entry((cause, name)).or_insert_with(|| Merged::new(cause, title, &tally));
        into.add(&tally, &stream.queue);
    }
    Ok(page(merged.into_values().map(Merged::end).collect(), query.limit))
}

/// Those with most letters, the first ones first.
pub(super) fn page(mut groups: Vec<Group>, limit: usize) -> Vec<Group> {
    groups.sort_by(|a, b| {
        b.letters.cmp(&a.letters).then(b.last.cmp(&a.last)).then_with(|| a.title.cmp(&b.title))
    });
    groups.truncate(if limit == 0 { GROUPS } else { limit });
    groups
}

impl Merged {
    pub(super) fn new(cause: Option<CauseId>, title: String, first: &Tally) -> Self {
        let group = Group {
            cause,
            title,
            queues: Vec::new(),
            letters: 0,
            first: first.first,
            last: first.last,
            keys_blocked: 0,
            redriven: None,
            looked: None,
        };
        Self { group, queues: BTreeSet::new(), by: None }
    }

    pub(super) fn add(&mut self, tally: &Tally, queue: &str) {
        let group = &mut self.group;
        group.letters += tally.letters;
        group.keys_blocked += tally.holding;
        group.first = group.first.min(tally.first);
        group.last = group.last.max(tally.last);
        if !self.queues.contains(queue) {
            self.queues.insert(queue.to_owned());
        }
        let Some((by, more)) = tally.redriven else { return };
        match &mut group.redriven {
            // The same redrive, in another stream.
            Some(redriven) if self.by == Some(by) => {
                redriven.letters += more.letters;
                redriven.failed += more.failed;
                redriven.at = redriven.at.max(more.at);
            }
            Some(redriven) if redriven.at >= more.at => {}
            redriven => (*redriven, self.by) = (Some(more), Some(by)),
        }
    }

    pub(super) fn end(self) -> Group {
        Group { queues: self.queues.into_iter().collect(), ..self.group }
    }
}
