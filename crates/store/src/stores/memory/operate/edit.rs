//! Events that operators write: a dead letter with another payload, and imported dead letters.

use std::sync::Arc;

use redrive_core::Moment;
use redrive_core::event::{Mode, State as Where};
use redrive_core::planted::{PlantedBug, has};
use redrive_core::queue_entry::{EventProgress, ParkFollowers};

use crate::operate::{CommandResult, EditedEvent, EventRef, ImportedLetter, Refusal};
use crate::stores::memory::row::{End, Identity, RedrivenBy};
use crate::stores::memory::state::State;

/// How many dead letters one command may import.
const LETTERS_MAX: usize = 10_000;

impl State {
    /// Redrives a dead letter as another event with the same seq.
    pub(in crate::stores::memory) fn edit(
        &mut self,
        target: &EventRef,
        edited: &EditedEvent,
        at: Moment,
    ) -> Result<CommandResult, Refusal> {
        let mut row = self.known(target)?;
        if row.letter().is_none() {
            return Err(Refusal::State { is: self.place_of(&row, at) });
        }
        let original = Arc::clone(&row.entry.event);
        let mut event = (*edited.event).clone();
        event.tenant.clone_from(&original.tenant);
        event.queue.clone_from(&original.queue);
        event.key.clone_from(&original.key);
        event.check().map_err(|error| Refusal::Senseless(error.to_string()))?;
        let identity = Identity::of(&event);
        if self.is_remembered(&identity, at) {
            return Err(Refusal::IdTaken { id: event.id });
        }
        if row.is_passed() && !edited.out_of_order {
            return Err(Refusal::OutOfOrder);
        }

        let EventProgress { attempts, history, .. } = row.entry.progress.clone();
        let unsure = history.as_ref().is_some_and(|history| history.is_unsure());
        let end = End { into: Some(event.id.clone()), ..End::of(Where::Discarded, at, attempts, history) };
        self.stamp(&Identity::of(&original), at, Some(end));
        if has(PlantedBug::EditLosesPlace) {
            self.write(row.entry.seq, None);
            if let Ok((_, seq)) = self.next_seq(&event.queue, &event.tenant) {
                row.entry.seq = seq;
            }
        }
        let queue = self.queues.get(&event.queue).cloned().unwrap_or_default();
        let until = at + queue.horizon + queue.window;
        self.keep_receipt(row.entry.seq, identity, edited.fingerprint, at, until);
        let out_of_order = row.is_passed() || row.entry.progress.out_of_order;
        row.entry.progress = EventProgress { mode: Mode::Redrive, out_of_order, ..EventProgress::fresh(at) };
        row.entry.published = at;
        row.entry.expires = event.expires.map(|expiry| expiry.moment(at));
        row.entry.event = Arc::new(event);
        self.put_back(row, RedrivenBy::Order(self.next_line()), at);
        Ok(CommandResult {
            changed: 1,
            unsure: if unsure { vec![0] } else { Vec::new() },
            ..CommandResult::default()
        })
    }

    /// Imports dead letters. They block no key.
    pub(in crate::stores::memory) fn import(
        &mut self,
        letters: &[ImportedLetter],
        at: Moment,
    ) -> CommandResult {
        let mut done = CommandResult::default();
        if letters.len() > LETTERS_MAX {
            let what = format!("at most {LETTERS_MAX} dead letters are imported at once; send them in parts");
            done.refused.push((0, Refusal::Senseless(what)));
            return done;
        }
        for (place, letter) in letters.iter().enumerate() {
            match self.import_one(letter, at) {
                Ok(()) => done.changed += 1,
                Err(refusal) => done.refused.push((place, refusal)),
            }
        }
        done
    }

    fn import_one(&mut self, letter: &ImportedLetter, at: Moment) -> Result<(), Refusal> {
        let senseless = |error: &dyn std::error::Error| Refusal::Senseless(error.to_string());
        letter.event.check().map_err(|error| senseless(&error))?;
        self.declared(&letter.event.queue)?;
        let identity = Identity::of(&letter.event);
        if self.is_remembered(&identity, at) {
            return Err(Refusal::IdTaken { id: identity.id });
        }
        let queue = self.queues.get(&letter.event.queue).cloned().unwrap_or_default();
        let mut row = self.row(&letter.event, letter.published, &queue).map_err(|error| senseless(&error))?;
        let until = at + queue.horizon + queue.window;
        self.keep_receipt(row.entry.seq, identity, letter.fingerprint, letter.published, until);
        row.entry.progress.attempts = letter.attempts;
        row.entry.progress.mode = if letter.attempts > 0 { Mode::Retry } else { Mode::Live };
        row.entry.progress.history.clone_from(&letter.history);
        self.bury(row, letter.reason, letter.died, ParkFollowers::No);
        Ok(())
    }
}
