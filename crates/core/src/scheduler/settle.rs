//! Settles, and the store's answers to them.

use std::cmp::Reverse;
use std::time::Duration;

use super::crash_guard::Shard;
use super::flow::FlowKey;
use super::{Action, Scheduler, SettledEvent, Timer, TrackedState};
use crate::moment::Moment;
use crate::planted::{PlantedBug, has};
use crate::queue_entry::{
    EventChange, FencingToken, ParkFollowers, QueueEntry, Seq, SettleRequest, SettleResult,
};

/// How long to wait before a settle that could not be written is repeated: the disk is full, the database is
/// busy.
const SETTLE_AGAIN: Duration = Duration::from_millis(100);

/// A dead letter whose key is being unparked.
#[derive(Debug)]
pub(super) struct UnparkedLetter {
    pub(super) flow: FlowKey,
    /// Whether events arrived meanwhile that were not named: one of them may be the next of its key.
    pub(super) is_crossed: bool,
}

/// When a settled event becomes due again.
fn comes_back(change: &EventChange) -> Option<Moment> {
    match change {
        EventChange::Retry(progress) => Some(progress.due),
        EventChange::Dead { park: ParkFollowers::UpTo { until, .. }, .. } => *until,
        _ => None,
    }
}

impl Scheduler {
    /// Writes a change to an event in memory.
    pub(super) fn settle(&mut self, seq: Seq, change: EventChange, now: Moment) {
        let Some(held) = self.tracked.get_mut(&seq) else { return };
        let Some(shard) = self.shards.get(&held.entry.shard) else { return };
        let settle = SettleRequest { token: shard.token(), seq, rev: held.entry.rev, at: now, change };
        held.state = TrackedState::Settling(settle.clone());
        self.ready.push(settle);
    }

    pub(super) fn settled(&mut self, seq: Seq, rev: u32, settled: SettleResult, now: Moment) {
        let shard = self.tracked.get(&seq).map(|held| held.entry.shard);
        let Some(held) = self.tracked.get_mut(&seq).filter(|held| held.entry.rev == rev) else {
            // Not in memory: a dead letter whose key is being unparked.
            let letter = self.take_letter(seq, rev);
            if let SettleResult::Applied { next: Some(next), .. } = settled {
                self.look_for(&next);
            }
            if let Some(letter) =
                letter.filter(|letter| letter.is_crossed && !has(PlantedBug::NextMissedBySettle))
            {
                self.hunger(letter.flow);
            }
            return;
        };
        match (settled, &held.state) {
            (SettleResult::Applied { rev, .. }, TrackedState::Striking(_)) => self.struck(seq, rev, now),
            // The earlier write with an unknown outcome was applied and makes this one stale. Counting once
            // more would be one too many: no process died.
            (SettleResult::Stale, TrackedState::Striking(_))
                if self.unsure.contains(&seq) && !has(PlantedBug::StrikesWithoutDeath) =>
            {
                self.struck(seq, rev + 1, now);
            }
            (SettleResult::Applied { next, .. }, TrackedState::Settling(settle)) => {
                let change = settle.change.clone();
                self.gone(seq, Some(change), next, now);
            }
            (SettleResult::Stale, _) => self.reload(seq),
            (SettleResult::Fenced, _) => {
                if let Some(shard) = shard {
                    self.lose(shard);
                }
            }
            (SettleResult::Applied { .. }, _) => {}
        }
    }

    /// An event is settled and leaves memory; it may become due again, or another event may run.
    pub(super) fn gone(
        &mut self,
        seq: Seq,
        change: Option<EventChange>,
        next: Option<QueueEntry>,
        now: Moment,
    ) {
        let Some(key) = self.tracked.get(&seq).and_then(|held| self.key_of(&held.entry)) else { return };
        let Some(flow) = self.flows.get_mut(&key) else { return };
        let is_followed = self.tracked.get(&seq).is_some_and(|held| flow.is_followed(&held.entry));
        let is_old = self.stale_after_recall.contains(&seq) && !has(PlantedBug::RecallMissesAnswers);
        let stays = matches!(change, Some(EventChange::Dead { .. } | EventChange::Retry(_)));
        let (queue, is_crossed) = (flow.queue, self.put_back.contains(&seq));
        if let Some(due) = change.as_ref().and_then(comes_back) {
            flow.note_due(due);
            self.arm(key, due.max(now));
        }
        let entry = self.let_go(seq);
        let has_key = entry.as_ref().is_some_and(|entry| entry.event.key.is_some());
        let is_ordered = has_key && self.queues[queue].plan.ordered;
        let next_seq = next.as_ref().map(|next| next.seq);
        if let Some((entry, change)) = entry.zip(change.filter(|change| *change != EventChange::Done)) {
            self.tidings.push(Action::EventSettled(Box::new(SettledEvent { queue, entry, change })));
        }
        match next {
            Some(next) if is_followed && !has(PlantedBug::LateAnswerNamesNext) => self.look_for(&next),
            Some(next) if is_old => self.look_for(&next),
            Some(next) => self.arrive(next, now),
            None => {}
        }
        match next_seq.filter(|next| self.tracked.contains_key(next)) {
            _ if !is_crossed => {}
            _ if stays => self.hunger(key),
            _ if !is_ordered || has(PlantedBug::NextMissedBySettle) => {}
            // Its settle finds every event published before it began; if it does not settle, a load finds
            // them.
            Some(next) => drop(self.put_back.insert(next)),
            None => self.hunger(key),
        }
        self.forget_flow(key);
    }

    /// An answer names an event that may run, but is so late that the event may have run since: answers come
    /// in any order, and the event was also reported as an arrival or found by a load. If it is not in
    /// memory, only the store knows.
    fn look_for(&mut self, next: &QueueEntry) {
        if self.tracked.contains_key(&next.seq) {
            return;
        }
        if let Some(key) = self.flow_of(next.shard, next.stream, &next.event.queue, &next.event.tenant) {
            self.owe_care(key, next);
            self.hunger(key);
        }
    }

    /// Another writer changed it, or an earlier settle with an unknown outcome had been written: the event in
    /// memory is out of date, so it is loaded again.
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
        let Some(held) = self.tracked.get(&seq).filter(|held| held.entry.rev == rev) else { return };
        let (TrackedState::Settling(settle) | TrackedState::Striking(settle)) = &held.state else { return };
        let epoch = settle.token.epoch;
        if unknown && has(PlantedBug::UnknownSettleForgotten) {
            self.let_go(seq);
            return;
        }
        if unknown && matches!(held.state, TrackedState::Striking(_)) {
            self.unsure.insert(seq);
        }
        // Unknown or not, repeat the same conditional write: if it had been applied, the store answers
        // `Stale`.
        self.timers.push(Reverse((now + SETTLE_AGAIN, Timer::Settle(seq, rev, epoch))));
    }

    /// The dead letter that an answer is about, if any.
    fn take_letter(&mut self, seq: Seq, rev: u32) -> Option<UnparkedLetter> {
        self.letters.remove(&(seq, rev))
    }

    /// A dead letter's key could not be unparked. The next load finds it again.
    fn tell_again(&mut self, key: FlowKey, now: Moment) {
        let Some(flow) = self.flows.get_mut(&key).filter(|_| !has(PlantedBug::LettersForgotten)) else {
            return;
        };
        let again = now + SETTLE_AGAIN;
        flow.note_due(again);
        self.arm(key, again);
    }

    pub(super) fn settle_again(&mut self, seq: Seq, rev: u32, epoch: u64) {
        let Some(held) = self.tracked.get(&seq) else { return };
        let (TrackedState::Settling(settle) | TrackedState::Striking(settle)) = &held.state else { return };
        // Another settle, which is already being written, must not be written twice.
        let same = (settle.rev, settle.token.epoch) == (rev, epoch);
        if same || has(PlantedBug::SettlesTwice) {
            self.ready.push(settle.clone());
        }
    }

    pub(super) fn lost_push(&mut self, token: FencingToken) {
        self.tidings.push(Action::Lost(token));
    }

    pub(super) fn damaged_push(&mut self, rows: Vec<String>) {
        self.tidings.extend(rows.into_iter().map(Action::Damaged));
    }

    pub(super) fn report(&mut self, actions: &mut Vec<Action>) {
        actions.append(&mut self.tidings);
    }
}
