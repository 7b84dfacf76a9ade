//! Publishing: dedupe record and event together.
//!
//! The dedupe record is inserted first, without a lookup: its primary key says whether the identity is new, and only
//! if it is not, a lookup says why. An event that may run at once goes to `redrive_fresh`; an event that has to wait
//! for its time, or for another event of its key, goes to `redrive_tracked`.

use std::sync::Arc;

use redrive_core::Moment;
use redrive_core::event::EventError;
use redrive_core::queue_entry::{Seq, StreamId};
use rusqlite::{OptionalExtension, params};

use super::batch::Answer;
use crate::error::PublishError;
use crate::store::{NewEvent, Published};
use crate::stores::shared::dedupe::times;
use crate::stores::shared::numbers::{column, seq};
use crate::stores::shared::tracked::states;
use crate::stores::sqlite::events::dedupe::DedupeRecord;
use crate::stores::sqlite::events::fresh::EventRow;
use crate::stores::sqlite::events::tracked::{RowState, TrackedEvent, delete_tracked};
use crate::stores::sqlite::faults::{Fault, Step};
use crate::stores::sqlite::read::find::found;
use crate::stores::sqlite::writer::tx::{Target, WriterTx};

impl WriterTx {
    /// Stores valid events: all but the refused ones, which are listed in order.
    pub(in crate::stores::sqlite) fn publish_all(
        &mut self,
        events: &[NewEvent],
        refused: &[(usize, EventError)],
        answers: &mut Vec<Answer>,
    ) -> Step<()> {
        self.disk.check()?;
        answers.clear();
        let mut refused = refused.iter().peekable();
        while let Some(new) = events.get(answers.len()) {
            let at = answers.len();
            let good = refused.peek().map_or(events.len(), |(refused, _)| *refused);
            self.publish_run(&events[at..good], answers)?;
            if answers.len() > at {
                continue;
            }
            answers.push(match refused.next_if(|(refused, _)| *refused == at) {
                Some((_, error)) => Err(error.clone().into()),
                None => self.publish(new)?,
            });
        }
        Ok(())
    }

    /// Stores a valid event, or returns the status of the first one with its identity.
    pub(in crate::stores::sqlite) fn publish(
        &mut self,
        new: &NewEvent,
    ) -> Step<Result<Published, PublishError>> {
        match self.keep_new(new) {
            Ok(Some(published)) => Ok(published),
            Ok(None) => {
                let queue = new.event.queue.clone();
                Ok(Err(PublishError::NoQueue { queue, known: self.queue_names()? }))
            }
            Err(Fault::Refused(error)) => Ok(Err(error.into())),
            Err(fault) => Err(fault),
        }
    }

    /// Stores a plain event whose identity is taken, under a seq that is its own already, or returns the status of the
    /// first one.
    pub(in crate::stores::sqlite) fn keep_known(
        &mut self,
        target: &Target,
        new: &NewEvent,
        place: Seq,
    ) -> Step<Answer> {
        let identity = (target.stream.id, new.event.id.as_str());
        match self.before(identity, new) {
            Ok(Some(before)) => return Ok(before),
            Ok(None) => {}
            Err(Fault::Refused(error)) => return Ok(Err(error.into())),
            Err(fault) => return Err(fault),
        }
        DedupeRecord::delete(&self.conn, identity.0, identity.1)?;
        let (dedupe_ok_until, until) = times(&target.spec, new);
        let mut dedupe_records = DedupeRecord::inserting(&self.conn)?;
        DedupeRecord::insert(&mut dedupe_records, identity, new.fingerprint, place, (new.at, until))?;
        drop(dedupe_records);
        let event = Arc::clone(&new.event);
        let row =
            EventRow { seq: place, event, ordered: false, published: new.at, dedupe_ok_until, shard: 0 };
        self.keep_row(target, row, new.at)?;
        Ok(Ok(Published::Accepted(place)))
    }

    fn keep_new(&mut self, new: &NewEvent) -> Step<Option<Result<Published, PublishError>>> {
        let event = &new.event;
        let Some(target) = self.target(&event.queue, &event.tenant)? else { return Ok(None) };
        self.advance_clock(new.at);
        let due = event.when.moment(new.at);
        let (dedupe_ok_until, until) = times(&target.spec, new);
        let identity = (target.stream.id, event.id.as_str());
        let place = seq(target.stream.id, target.next);
        let insert = |tx: &Self| {
            let mut dedupe_records = DedupeRecord::inserting(&tx.conn)?;
            DedupeRecord::insert(&mut dedupe_records, identity, new.fingerprint, place, (new.at, until))
        };
        if !insert(self)? {
            if let Some(before) = self.before(identity, new)? {
                return Ok(Some(before));
            }
            DedupeRecord::delete(&self.conn, identity.0, identity.1)?;
            insert(self)?;
        }
        self.used(&target, 1);
        let ordered = target.spec.ordered && event.key.is_some();
        let row = EventRow {
            seq: place,
            event: Arc::clone(event),
            ordered,
            published: new.at,
            dedupe_ok_until,
            shard: 0,
        };
        self.keep_row(&target, row, due)?;
        Ok(Some(Ok(Published::Accepted(place))))
    }

    fn keep_row(&mut self, target: &Target, row: EventRow, due: Moment) -> Step<()> {
        let stream = &target.stream;
        if let Some(key) = row.key() {
            if self.is_held_up(stream.id, key)? {
                let key = key.to_owned();
                TrackedEvent::fresh(row, RowState::Blocked).insert(&self.conn)?;
                self.relieve(stream, &key)?;
                return Ok(());
            }
            if self.head_state(stream, key)? == RowState::Withheld {
                TrackedEvent::fresh(row, RowState::Withheld).insert(&self.conn)?;
                return Ok(());
            }
        }
        let entry = if due > row.published {
            let tracked = TrackedEvent::fresh(row, RowState::Waiting);
            tracked.insert(&self.conn)?;
            tracked.entry()
        } else {
            row.insert(&mut EventRow::inserting(&self.conn)?)?;
            row.entry(stream.id)
        };
        if !target.spec.pull {
            self.arrived.push(entry);
        }
        Ok(())
    }

    /// The status of the first event with this identity. `None` if that has expired.
    fn before(
        &mut self,
        (stream, id): (StreamId, &str),
        new: &NewEvent,
    ) -> Step<Option<Result<Published, PublishError>>> {
        let Some(dedupe) = DedupeRecord::find(&self.conn, stream, id)? else { return Ok(None) };
        if dedupe.until < new.at && self.is_over(&dedupe)? {
            return Ok(None);
        }
        if dedupe.fingerprint != new.fingerprint {
            let (queue, id) = (new.event.queue.clone(), new.event.id.clone());
            return Ok(Some(Err(PublishError::IdReused { queue, id })));
        }
        let view = self.view()?;
        let found = found(&self.conn, &mut self.names, dedupe, &view)?;
        Ok(Some(Ok(Published::Duplicate(Box::new(found)))))
    }

    /// Whether only the dedupe record is left of an event. A discarded event is deleted now: its time to be restored
    /// is over.
    pub(in crate::stores::sqlite) fn is_over(&self, dedupe: &DedupeRecord) -> rusqlite::Result<bool> {
        match self.remains(dedupe.seq, &dedupe.id)? {
            None => Ok(true),
            Some(true) => delete_tracked(&self.conn, dedupe.seq).map(|_| true),
            Some(false) => Ok(false),
        }
    }

    /// Whether there is an event with this seq and id, and whether it was discarded.
    pub(in crate::stores::sqlite) fn remains(&self, seq: Seq, id: &str) -> rusqlite::Result<Option<bool>> {
        self.conn
            .prepare_cached(concat!(
                "SELECT 0 FROM redrive_fresh WHERE seq = ?1 AND id = ?2 \
                 UNION ALL SELECT state = ",
                states!(Discarded),
                " FROM redrive_tracked WHERE seq = ?1 AND id = ?2"
            ))?
            .query_row(params![column(seq.0), id], |row| row.get(0))
            .optional()
    }

    fn queue_names(&self) -> rusqlite::Result<Vec<String>> {
        let mut names = self.conn.prepare_cached("SELECT name FROM redrive_queue ORDER BY name")?;
        names.query_map([], |row| row.get(0))?.collect()
    }
}
