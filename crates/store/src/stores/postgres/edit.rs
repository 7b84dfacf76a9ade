//! Events that come from operators: a dead letter with another payload, and letters from elsewhere.

use std::sync::Arc;

use redrive_core::Moment;
use redrive_core::entry::{Park, StreamId};
use redrive_core::event::Fingerprint;

use super::act::or_refused;
use super::desk::{Desk, one};
use super::faults::Step;
use super::held::{Held, PutBack};
use super::receipt::End;
use super::rows::EventRow;
use crate::operate::{Edited, Letter, Operated, Refusal, Target, refused};
use crate::stores::shared::numbers::{bits, seq};

/// How many letters are kept in one commit at most.
const LETTERS_MAX: usize = 10_000;

impl Desk {
    /// Puts a dead letter back as another event, at the same place.
    pub(super) async fn edit(
        &mut self,
        target: &Target,
        edited: &Edited,
        line: u64,
        at: Moment,
    ) -> Step<Result<Operated, Refusal>> {
        let met = match self.meet(target).await? {
            Ok(met) => met,
            Err(refusal) => return Ok(Err(refusal)),
        };
        if !met.held.stand.is_dead() {
            return Ok(Err(Refusal::State { is: self.place_of(&met).await? }));
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
        if self.is_taken(stream.id, &event.id, at).await? {
            return Ok(Err(Refusal::IdTaken { id: event.id }));
        }
        if held.is_passed() && !edited.out_of_order {
            return Ok(Err(Refusal::OutOfOrder));
        }

        let spec = self.spec(&stream.queue).await?.unwrap_or_default();
        let calm = at + spec.horizon;
        let fingerprint = Fingerprint::of(&event);
        let times = (at, calm + spec.window);
        // Somebody may have been quicker since it was looked at.
        if !self.insert_receipt((stream.id, &event.id), fingerprint, held.row.seq, times).await? {
            return Ok(Err(Refusal::IdTaken { id: event.id }));
        }
        let is_unsure = held.progress.story.as_ref().is_some_and(|story| story.is_unsure());
        let end = End::edited(&held.progress, event.id.clone(), at);
        self.stamp(&stream, &original.id, at, Some(end)).await?;

        held.progress = held.edited(at);
        let by = PutBack::Order(line);
        self.put_back(&mut held, &stream, by, at).await?;
        // It stays in the shard of the original, whatever its own id would say.
        let EventRow { seq, ordered, shard, .. } = held.row;
        held.row = EventRow { seq, event: Arc::new(event), ordered, published: at, calm, shard };
        self.delete_held(seq).await?;
        self.insert_held(&held).await?;
        self.revive(held, false, &stream).await?;
        let unsure = if is_unsure { vec![0] } else { Vec::new() };
        Ok(Ok(Operated { changed: 1, unsure, ..Operated::default() }))
    }

    /// Whether an identity is remembered. One that need not be any more is forgotten.
    async fn is_taken(&mut self, stream: StreamId, id: &str, at: Moment) -> Step<bool> {
        let receipt = match or_refused(self.receipt(stream, id).await)? {
            Ok(Some(receipt)) => receipt,
            Ok(None) => return Ok(false),
            // Nobody knows whose it is.
            Err(_) => return Ok(true),
        };
        if receipt.until >= at || !self.is_over(&receipt).await? {
            return Ok(true);
        }
        self.delete_receipt_at(stream, id, receipt.seq).await?;
        Ok(false)
    }

    /// Keeps dead letters from elsewhere. They hold up nobody.
    pub(super) async fn import(&mut self, letters: &[Letter], at: Moment) -> Step<Operated> {
        if letters.len() > LETTERS_MAX {
            let what = format!("at most {LETTERS_MAX} letters are kept at once; send them in parts");
            return Ok(refused(Refusal::Senseless(what)));
        }
        let mut done = Operated::default();
        for (place, letter) in letters.iter().enumerate() {
            match self.import_one(letter, at).await? {
                Ok(()) => done.changed += 1,
                Err(refusal) => done.refused.push((place, refusal)),
            }
        }
        Ok(done)
    }

    async fn import_one(&mut self, letter: &Letter, at: Moment) -> Step<Result<(), Refusal>> {
        let event = &letter.event;
        if let Err(error) = event.check() {
            return Ok(Err(Refusal::Senseless(error.to_string())));
        }
        let Some(spec) = self.spec(&event.queue).await? else {
            return Ok(Err(Refusal::NoQueue { queue: event.queue.clone() }));
        };
        let stream = self.office.open_stream(&event.queue, &event.tenant).await?;
        if self.is_taken(stream.id, &event.id, at).await? {
            return Ok(Err(Refusal::IdTaken { id: event.id.clone() }));
        }
        let calm = at + spec.horizon;
        let drawn = one!(self, "SELECT nextval('redrive.place')")?;
        let (place, times) = (seq(stream.id, bits(drawn)), (letter.published, calm + spec.window));
        if !self.insert_receipt((stream.id, &event.id), letter.fingerprint, place, times).await? {
            return Ok(Err(Refusal::IdTaken { id: event.id.clone() }));
        }
        let (ordered, shard) = (spec.ordered && event.key.is_some(), self.shard_of(event));
        let row = EventRow {
            seq: place,
            event: Arc::clone(event),
            ordered,
            published: letter.published,
            calm,
            shard,
        };
        let held = Held::imported(row, letter);
        self.insert_held(&held).await?;
        self.bury(held, false, Park::GoOn, &stream).await?;
        Ok(Ok(()))
    }
}
