//! Publishing: receipt and event together.
//!
//! The receipt is inserted first, without a look: its primary key says whether the identity is new, and only
//! if it is not, somebody looks why. An event that may run at once goes to `redrive_live`; one that has to wait
//! for its time, or for another of its key, to `redrive_held`.

use std::sync::Arc;

use redrive_core::Moment;
use redrive_core::entry::{Seq, StreamId};
use redrive_core::event::EventError;
use rusqlite::{OptionalExtension, params};

use super::desk::{Desk, Target};
use super::faults::{Fault, Step};
use super::find::found;
use super::held::{Held, Stand, delete_held};
use super::numbers::{column, seq};
use super::receipt::Receipt;
use super::rows::EventRow;
use super::together::Answer;
use crate::error::PublishError;
use crate::store::{New, Published};
use crate::stores::shared::receipt::times;

impl Desk {
    /// Keeps events that can be kept: all but those that were refused, which are named in their order.
    pub(super) fn publish_all(
        &mut self,
        events: &[New],
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

    /// Keeps an event that can be kept, or says what became of it before.
    pub(super) fn publish(&mut self, new: &New) -> Step<Result<Published, PublishError>> {
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

    /// Keeps a plain event whose identity is taken, at a place that is its own already, or says what became of it
    /// before.
    pub(super) fn keep_known(&mut self, target: &Target, new: &New, place: Seq) -> Step<Answer> {
        let identity = (target.stream.id, new.event.id.as_str());
        match self.before(identity, new) {
            Ok(Some(before)) => return Ok(before),
            Ok(None) => {}
            Err(Fault::Refused(error)) => return Ok(Err(error.into())),
            Err(fault) => return Err(fault),
        }
        Receipt::delete(&self.conn, identity.0, identity.1)?;
        let (calm, until) = times(&target.spec, new);
        let mut receipts = Receipt::inserting(&self.conn)?;
        Receipt::insert(&mut receipts, identity, new.fingerprint, place, (new.at, until))?;
        drop(receipts);
        let event = Arc::clone(&new.event);
        let row = EventRow { seq: place, event, ordered: false, published: new.at, calm, shard: 0 };
        self.keep_row(target, row, new.at)?;
        Ok(Ok(Published::Accepted(place)))
    }

    fn keep_new(&mut self, new: &New) -> Step<Option<Result<Published, PublishError>>> {
        let event = &new.event;
        let Some(target) = self.target(&event.queue, &event.tenant)? else { return Ok(None) };
        self.see(new.at);
        let due = event.when.moment(new.at);
        let (calm, until) = times(&target.spec, new);
        let identity = (target.stream.id, event.id.as_str());
        let place = seq(target.stream.id, target.next);
        let insert = |desk: &Self| {
            let mut receipts = Receipt::inserting(&desk.conn)?;
            Receipt::insert(&mut receipts, identity, new.fingerprint, place, (new.at, until))
        };
        if !insert(self)? {
            if let Some(before) = self.before(identity, new)? {
                return Ok(Some(before));
            }
            Receipt::delete(&self.conn, identity.0, identity.1)?;
            insert(self)?;
        }
        self.used(&target, 1);
        let ordered = target.spec.ordered && event.key.is_some();
        let row =
            EventRow { seq: place, event: Arc::clone(event), ordered, published: new.at, calm, shard: 0 };
        self.keep_row(&target, row, due)?;
        Ok(Some(Ok(Published::Accepted(place))))
    }

    fn keep_row(&mut self, target: &Target, row: EventRow, due: Moment) -> Step<()> {
        let stream = &target.stream;
        if let Some(key) = row.key() {
            if self.is_held_up(stream.id, key)? {
                let key = key.to_owned();
                Held::fresh(row, Stand::Blocked).insert(&self.conn)?;
                self.relieve(stream, &key)?;
                return Ok(());
            }
            if self.head_stand(stream, key)? == Stand::Withheld {
                Held::fresh(row, Stand::Withheld).insert(&self.conn)?;
                return Ok(());
            }
        }
        let entry = if due > row.published {
            let held = Held::fresh(row, Stand::Waits);
            held.insert(&self.conn)?;
            held.entry()
        } else {
            row.insert(&mut EventRow::inserting(&self.conn)?)?;
            row.entry(stream.id)
        };
        if !target.spec.pull {
            self.arrived.push(entry);
        }
        Ok(())
    }

    /// What became of this identity before. None where that need not be remembered any more.
    fn before(
        &mut self,
        (stream, id): (StreamId, &str),
        new: &New,
    ) -> Step<Option<Result<Published, PublishError>>> {
        let Some(receipt) = Receipt::find(&self.conn, stream, id)? else { return Ok(None) };
        if receipt.until < new.at && self.is_over(&receipt)? {
            return Ok(None);
        }
        if receipt.fingerprint != new.fingerprint {
            let (queue, id) = (new.event.queue.clone(), new.event.id.clone());
            return Ok(Some(Err(PublishError::IdReused { queue, id })));
        }
        let view = self.view()?;
        let found = found(&self.conn, &mut self.names, receipt, &view)?;
        Ok(Some(Ok(Published::Duplicate(Box::new(found)))))
    }

    /// Whether nothing is left of an event but its receipt. What was discarded goes now: nobody may restore it
    /// any more.
    pub(super) fn is_over(&self, receipt: &Receipt) -> rusqlite::Result<bool> {
        match self.remains(receipt.seq, &receipt.id)? {
            None => Ok(true),
            Some(true) => delete_held(&self.conn, receipt.seq).map(|_| true),
            Some(false) => Ok(false),
        }
    }

    /// Whether there is an event with this seq and id, and whether it was discarded.
    pub(super) fn remains(&self, seq: Seq, id: &str) -> rusqlite::Result<Option<bool>> {
        self.conn
            .prepare_cached(
                "SELECT 0 FROM redrive_live WHERE seq = ?1 AND id = ?2 \
                 UNION ALL SELECT state = 5 FROM redrive_held WHERE seq = ?1 AND id = ?2",
            )?
            .query_row(params![column(seq.0), id], |row| row.get(0))
            .optional()
    }

    fn queue_names(&self) -> rusqlite::Result<Vec<String>> {
        let mut names = self.conn.prepare_cached("SELECT name FROM redrive_queue ORDER BY name")?;
        names.query_map([], |row| row.get(0))?.collect()
    }
}
