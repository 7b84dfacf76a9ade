//! Events that come from operators: a dead letter with another payload, and letters from elsewhere.

use std::sync::Arc;

use redrive_core::Moment;
use redrive_core::entry::{Park, StreamId};
use redrive_core::event::Fingerprint;

use super::act::or_refused;
use super::desk::Desk;
use super::faults::Step;
use super::held::{Held, PutBack, delete_held};
use super::numbers::seq;
use super::receipt::{End, Receipt};
use super::rows::EventRow;
use crate::operate::refused;
use crate::operate::{Edited, Letter, Operated, Refusal, Target};

/// How many letters are kept in one commit at most.
const LETTERS_MAX: usize = 10_000;

impl Desk {
    /// Puts a dead letter back as another event, at the same place.
    pub(super) fn edit(
        &mut self,
        target: &Target,
        edited: &Edited,
        at: Moment,
    ) -> Step<Result<Operated, Refusal>> {
        let met = match self.meet(target)? {
            Ok(met) => met,
            Err(refusal) => return Ok(Err(refusal)),
        };
        if !met.held.stand.is_dead() {
            return Ok(Err(Refusal::State { is: self.place_of(&met)? }));
        }
        let (mut held, stream) = (met.held, met.stream);
        let original = Arc::clone(&held.row.event);
        let mut event = (*edited.event).clone();
        event.tenant.clone_from(&original.tenant);
        event.queue.clone_from(&original.queue);
        event.key.clone_from(&original.key);
        if let Err(error) = event.check() {
            return Ok(Err(Refusal::Senseless(error.to_string())));
        }
        if self.is_taken(stream.id, &event.id, at)? {
            return Ok(Err(Refusal::IdTaken { id: event.id }));
        }
        if held.is_passed() && !edited.out_of_order {
            return Ok(Err(Refusal::OutOfOrder));
        }

        let is_unsure = held.progress.story.as_ref().is_some_and(|story| story.is_unsure());
        let end = End::edited(&held.progress, event.id.clone(), at);
        self.stamp(&stream, &original.id, at, Some(end))?;
        let spec = self.spec(&stream.queue)?.unwrap_or_default();
        let calm = at + spec.horizon;
        let fingerprint = Fingerprint::of(&event);
        let times = (at, calm + spec.window);
        Receipt::insert(
            &mut Receipt::inserting(&self.conn)?,
            (stream.id, &event.id),
            fingerprint,
            held.row.seq,
            times,
        )?;

        held.progress = held.edited(at);
        let by = PutBack::Order(self.next_line()?);
        self.put_back(&mut held, &stream, by, at)?;
        let EventRow { seq, ordered, .. } = held.row;
        held.row = EventRow { seq, event: Arc::new(event), ordered, published: at, calm, shard: 0 };
        delete_held(&self.conn, seq)?;
        held.insert(&self.conn)?;
        self.revive(held, false, &stream)?;
        let unsure = if is_unsure { vec![0] } else { Vec::new() };
        Ok(Ok(Operated { changed: 1, unsure, ..Operated::default() }))
    }

    /// Whether an identity is remembered. One that need not be any more is forgotten.
    fn is_taken(&mut self, stream: StreamId, id: &str, at: Moment) -> Step<bool> {
        let receipt = match or_refused(Receipt::find(&self.conn, stream, id))? {
            Ok(Some(receipt)) => receipt,
            Ok(None) => return Ok(false),
            // Nobody knows whose it is.
            Err(_) => return Ok(true),
        };
        if receipt.until >= at || !self.is_over(&receipt)? {
            return Ok(true);
        }
        Receipt::delete(&self.conn, stream, id)?;
        Ok(false)
    }

    /// Keeps dead letters from elsewhere. They hold up nobody.
    pub(super) fn import(&mut self, letters: &[Letter], at: Moment) -> Step<Operated> {
        if letters.len() > LETTERS_MAX {
            let what = format!("at most {LETTERS_MAX} letters are kept at once; send them in parts");
            return Ok(refused(Refusal::Senseless(what)));
        }
        let mut done = Operated::default();
        for (place, letter) in letters.iter().enumerate() {
            match self.import_one(letter, at)? {
                Ok(()) => done.changed += 1,
                Err(refusal) => done.refused.push((place, refusal)),
            }
        }
        Ok(done)
    }

    fn import_one(&mut self, letter: &Letter, at: Moment) -> Step<Result<(), Refusal>> {
        let event = &letter.event;
        if let Err(error) = event.check() {
            return Ok(Err(Refusal::Senseless(error.to_string())));
        }
        let target = match or_refused(self.target(&event.queue, &event.tenant))? {
            Ok(Some(target)) => target,
            Ok(None) => return Ok(Err(Refusal::NoQueue { queue: event.queue.clone() })),
            Err(refusal) => return Ok(Err(refusal)),
        };
        let stream = Arc::clone(&target.stream);
        if self.is_taken(stream.id, &event.id, at)? {
            return Ok(Err(Refusal::IdTaken { id: event.id.clone() }));
        }
        let calm = at + target.spec.horizon;
        let (place, times) = (seq(stream.id, target.next), (letter.published, calm + target.spec.window));
        Receipt::insert(
            &mut Receipt::inserting(&self.conn)?,
            (stream.id, &event.id),
            letter.fingerprint,
            place,
            times,
        )?;
        self.used(&target, 1);
        let ordered = target.spec.ordered && event.key.is_some();
        let row = EventRow {
            seq: place,
            event: Arc::clone(event),
            ordered,
            published: letter.published,
            calm,
            shard: 0,
        };
        let held = Held::imported(row, letter);
        held.insert(&self.conn)?;
        self.bury(held, false, Park::GoOn, &stream)?;
        Ok(Ok(()))
    }
}
