//! What is written, and what the store says to it.

use std::cmp::Reverse;
use std::time::Duration;

use super::care::Shard;
use super::flow::FlowKey;
use super::{Action, Place, Scheduler, Timer, Told};
use crate::entry::{Change, Entry, Grant, Park, Seq, Settle, Settled};
use crate::moment::Moment;
use crate::planted::{Flaw, has};

/// How long to wait before a settle is tried again that could not be written: the disk is full, the database
/// is busy.
const SETTLE_AGAIN: Duration = Duration::from_millis(100);

/// A dead letter that is being told to hold up nobody any more.
#[derive(Debug)]
pub(super) struct Letter {
    pub(super) flow: FlowKey,
    /// As of which change: what is said of an earlier one is said of its death.
    pub(super) rev: u32,
    /// Whether something arrived meanwhile that nobody named: it may be the next of its key.
    pub(super) is_crossed: bool,
}

/// When a settled event wants to be looked at again.
fn comes_back(change: &Change) -> Option<Moment> {
    match change {
        Change::Again(progress) => Some(progress.due),
        Change::Dead { park: Park::UpTo { until, .. }, .. } => *until,
        _ => None,
    }
}

impl Scheduler {
    /// Has something written of an event in memory.
    pub(super) fn settle(&mut self, seq: Seq, change: Change, now: Moment) {
        let Some(held) = self.held.get_mut(&seq) else { return };
        let Some(shard) = self.shards.get(&held.entry.shard) else { return };
        let settle = Settle { grant: shard.grant(), seq, rev: held.entry.rev, at: now, change };
        held.place = Place::Settling(settle.clone());
        self.ready.push(settle);
    }

    pub(super) fn settled(&mut self, seq: Seq, rev: u32, settled: Settled, now: Moment) {
        let shard = self.held.get(&seq).map(|held| held.entry.shard);
        let Some(held) = self.held.get_mut(&seq).filter(|held| held.entry.rev == rev) else {
            // Not in memory: a dead letter that no longer holds up its key.
            let letter = self.take_letter(seq, rev);
            if let Settled::Applied { next: Some(next), .. } = settled {
                self.look_for(&next);
            }
            if let Some(letter) = letter.filter(|letter| letter.is_crossed && !has(Flaw::NextMissedBySettle))
            {
                self.hunger(letter.flow);
            }
            return;
        };
        match (settled, &held.place) {
            (Settled::Applied { rev, .. }, Place::Striking(_)) => self.struck(seq, rev, now),
            // It is the one whose fate was unknown that is in the way of this one. Another strike would be one
            // too many: nothing died.
            (Settled::Stale, Place::Striking(_))
                if self.unsure.contains(&seq) && !has(Flaw::StrikesWithoutDeath) =>
            {
                self.struck(seq, rev + 1, now);
            }
            (Settled::Applied { next, .. }, Place::Settling(settle)) => {
                let change = settle.change.clone();
                self.gone(seq, Some(change), next, now);
            }
            (Settled::Stale, _) => self.reload(seq),
            (Settled::Fenced, _) => {
                if let Some(shard) = shard {
                    self.lose(shard);
                }
            }
            (Settled::Applied { .. }, _) => {}
        }
    }

    /// An event is settled and leaves memory; perhaps it becomes due again, perhaps another may run.
    pub(super) fn gone(&mut self, seq: Seq, change: Option<Change>, next: Option<Entry>, now: Moment) {
        let Some(key) = self.held.get(&seq).and_then(|held| self.key_of(&held.entry)) else { return };
        let Some(flow) = self.flows.get_mut(&key) else { return };
        let is_followed = self.held.get(&seq).is_some_and(|held| flow.is_followed(&held.entry));
        let is_old = self.wary.contains(&seq) && !has(Flaw::RecallMissesAnswers);
        let stays = matches!(change, Some(Change::Dead { .. } | Change::Again(_)));
        let (queue, is_crossed) = (flow.queue, self.put_back.contains(&seq));
        if let Some(due) = change.as_ref().and_then(comes_back) {
            flow.note_due(due);
            self.arm(key, due.max(now));
        }
        let entry = self.let_go(seq);
        let has_key = entry.as_ref().is_some_and(|entry| entry.event.key.is_some());
        let is_ordered = has_key && self.queues[queue].plan.ordered;
        let next_seq = next.as_ref().map(|next| next.seq);
        if let Some((entry, change)) = entry.zip(change.filter(|change| *change != Change::Done)) {
            self.tidings.push(Action::Told(Box::new(Told { queue, entry, change })));
        }
        match next {
            Some(next) if is_followed && !has(Flaw::LateAnswerNamesNext) => self.look_for(&next),
            Some(next) if is_old => self.look_for(&next),
            Some(next) => self.arrive(next, now),
            None => {}
        }
        match next_seq.filter(|next| self.held.contains_key(next)) {
            _ if !is_crossed => {}
            _ if stays => self.hunger(key),
            _ if !is_ordered || has(Flaw::NextMissedBySettle) => {}
            // Its end finds whatever was published before it began; if it does not end, there is a load.
            Some(next) => drop(self.put_back.insert(next)),
            None => self.hunger(key),
        }
        self.forget_flow(key);
    }

    /// An answer names an event that may run, and is so late that it may have run since: answers come in any
    /// order, and it was told as an arrival or found by a load as well. If it is not in memory, only the store
    /// knows.
    fn look_for(&mut self, next: &Entry) {
        if self.held.contains_key(&next.seq) {
            return;
        }
        if let Some(key) = self.flow_of(next.shard, next.stream, &next.event.queue, &next.event.tenant) {
            self.hunger(key);
        }
    }

    /// Somebody else changed it, or a settle whose fate was unknown had been written: what is in memory is
    /// old, and the store knows better.
    pub(super) fn reload(&mut self, seq: Seq) {
        let Some(key) = self.let_go(seq).and_then(|entry| self.key_of(&entry)) else { return };
        if self.shards.get(&key.shard).is_some_and(Shard::is_careful)
            && let Some(flow) = self.flows.get_mut(&key)
        {
            flow.is_past_care = [false; 2];
            if let Some(loading) = &mut flow.loading {
                loading.is_blind = true;
            }
        }
        self.hunger(key);
    }

    pub(super) fn settle_failed(&mut self, seq: Seq, rev: u32, unknown: bool, now: Moment) {
        if let Some(letter) = self.take_letter(seq, rev) {
            self.tell_again(letter.flow, now);
        }
        let Some(held) = self.held.get(&seq).filter(|held| held.entry.rev == rev) else { return };
        let (Place::Settling(settle) | Place::Striking(settle)) = &held.place else { return };
        let epoch = settle.grant.epoch;
        if unknown && has(Flaw::UnknownSettleForgotten) {
            self.let_go(seq);
            return;
        }
        if unknown && matches!(held.place, Place::Striking(_)) {
            self.unsure.insert(seq);
        }
        // Unknown or not, the same conditional write again: if it had happened, the store says `Stale`.
        self.timers.push(Reverse((now + SETTLE_AGAIN, Timer::Settle(seq, rev, epoch))));
    }

    /// The letter that an answer is about, if it is about one.
    fn take_letter(&mut self, seq: Seq, rev: u32) -> Option<Letter> {
        self.letters.get(&seq).is_some_and(|letter| letter.rev == rev).then(|| self.letters.remove(&seq))?
    }

    /// A dead letter could not be told to hold up nobody any more. The next load finds it again.
    fn tell_again(&mut self, key: FlowKey, now: Moment) {
        let Some(flow) = self.flows.get_mut(&key).filter(|_| !has(Flaw::LettersForgotten)) else { return };
        let again = now + SETTLE_AGAIN;
        flow.note_due(again);
        self.arm(key, again);
    }

    pub(super) fn settle_again(&mut self, seq: Seq, rev: u32, epoch: u64) {
        let Some(held) = self.held.get(&seq) else { return };
        let (Place::Settling(settle) | Place::Striking(settle)) = &held.place else { return };
        // Another one, which is under way already, is not to be written twice.
        let same = (settle.rev, settle.grant.epoch) == (rev, epoch);
        if same || has(Flaw::SettlesTwice) {
            self.ready.push(settle.clone());
        }
    }

    pub(super) fn lost_push(&mut self, grant: Grant) {
        self.tidings.push(Action::Lost(grant));
    }

    pub(super) fn damaged_push(&mut self, rows: Vec<String>) {
        self.tidings.extend(rows.into_iter().map(Action::Damaged));
    }

    pub(super) fn report(&mut self, actions: &mut Vec<Action>) {
        actions.append(&mut self.tidings);
    }
}
