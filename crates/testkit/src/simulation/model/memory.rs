//! Which identities are remembered, and for how long.

use redrive_core::Moment;
use redrive_core::event::State;
use redrive_core::queue_entry::Seq;
use redrive_store::EventStatus;

use super::{Check, Fate, Model, Record};

/// An identity whose event was edited into another one, which has its sequence number.
#[derive(Debug, Clone)]
pub(in super::super) struct Gone {
    pub(in super::super) seq: Seq,
    /// The id that it continues as.
    pub(in super::super) into: String,
    pub(in super::super) attempts: u32,
    pub(in super::super) remembered: Moment,
}

impl Model {
    /// The event that has or had the identity of an intent, forgotten or not.
    pub(in super::super) fn record_of(&self, intent: usize) -> Option<&Record> {
        self.events.get(&self.by_intent[intent]?).filter(|record| record.intent == intent)
    }

    /// Whether the identity of an intent has to be remembered at `now`.
    pub(in super::super) fn is_remembered(&self, intent: usize, now: Moment) -> bool {
        if let Some(gone) = self.gone.get(&intent) {
            return now <= gone.remembered;
        }
        self.record_of(intent).is_some_and(|record| record.fate.exists() || now <= record.remembered)
    }

    /// An event gets the identity of an intent: an earlier holder is forgotten.
    pub(super) fn give_identity(&mut self, intent: usize, seq: Seq) {
        self.forget_identity(intent);
        self.gone.remove(&intent);
        self.by_intent[intent] = Some(seq);
    }

    /// An expired identity was asked for: its earlier holder is forgotten, and cannot be restored.
    pub(super) fn forget_identity(&mut self, intent: usize) {
        if let Some(gone) = self.gone.get_mut(&intent) {
            gone.remembered = Moment::default();
        }
        let before = self.by_intent[intent].and_then(|seq| self.events.get_mut(&seq));
        if let Some(before) = before.filter(|before| before.intent == intent) {
            before.remembered = Moment::default();
        }
    }

    /// Whether an identity ever belonged to an event.
    pub(in super::super) fn is_known(&self, intent: usize) -> bool {
        self.by_intent[intent].is_some()
    }

    /// The store was asked to forget expired identities at `now`. It may, although the clock goes back.
    pub(in super::super) fn forget(&mut self, now: Moment) {
        self.lift_ended(now);
        self.purge(now);
        for record in self.events.values_mut() {
            if !record.fate.exists() && record.remembered < now {
                record.remembered = Moment::default();
            }
        }
        for gone in self.gone.values_mut() {
            if gone.remembered < now {
                gone.remembered = Moment::default();
            }
        }
    }

    /// Dead letters beyond their queue's retention are removed, and cannot be restored. Those that park a key
    /// stay.
    fn purge(&mut self, now: Moment) {
        let mut purged = 0;
        for (queue, spec) in self.specs.iter().enumerate() {
            let passed = |record: &&Record| {
                record.queue == queue && matches!(record.fate, Fate::Dead { holds: None, .. })
            };
            let mut letters: Vec<_> = self
                .events
                .values()
                .filter(passed)
                .map(|record| (record.death, record.died, record.seq))
                .collect();
            letters.sort_unstable();
            let kept =
                spec.keep.count.map_or(usize::MAX, |count| usize::try_from(count).unwrap_or(usize::MAX));
            let beyond = letters.len().saturating_sub(kept);
            for (place, (_, died, seq)) in letters.into_iter().enumerate() {
                let is_old = spec.keep.time.is_some_and(|time| died + time < now);
                let Some(record) = self.events.get_mut(&seq).filter(|_| place < beyond || is_old) else {
                    continue;
                };
                let Fate::Dead { reason, .. } = record.fate else { continue };
                record.fate = Fate::Discarded { was: reason, restorable: false };
                record.remembered = record.remembered.max(now + spec.window);
                purged += 1;
            }
        }
        if purged > 0 {
            self.audit.push(("purge", purged));
        }
    }

    /// Checks a store's answer about the identity of an intent.
    pub(in super::super) fn check_known(
        &self,
        intent: usize,
        found: Option<&EventStatus>,
        now: Moment,
    ) -> Check {
        if let Some(gone) = self.gone.get(&intent) {
            return check_gone(gone, found, now);
        }
        match self.record_of(intent) {
            Some(record) => self.check_found(record, found, now),
            None if found.is_none() => Ok(()),
            None => Err(format!("e{intent} was never published, and is {found:?}")),
        }
    }
}

/// Checks a store's answer about an identity whose event was edited.
fn check_gone(gone: &Gone, found: Option<&EventStatus>, now: Moment) -> Check {
    let Some(found) = found else {
        if now <= gone.remembered {
            return Err(format!("{:?}, which was edited into {}, is forgotten", gone.seq, gone.into));
        }
        return Ok(());
    };
    let says = (found.seq, found.state, found.attempts, found.edited_into.as_deref());
    let should = (gone.seq, State::Discarded, gone.attempts, Some(gone.into.as_str()));
    if says != should {
        return Err(format!("an event that was edited should be {should:?}, and is {says:?}"));
    }
    Ok(())
}
