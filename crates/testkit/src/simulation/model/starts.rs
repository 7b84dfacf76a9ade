//! Whether an attempt may start.

use redrive_core::Moment;
use redrive_core::entry::{Change, Grant, Seq, Settle};
use redrive_core::event::{DeadReason, Mode};
use redrive_core::scheduler::Ticket;
use redrive_core::triage::Controls;

use super::{Check, Fate, Model, Record};

/// An attempt that starts, and what else its node does.
#[derive(Debug)]
pub(in super::super) struct Start<'a> {
    pub(in super::super) ticket: &'a Ticket,
    pub(in super::super) now: Moment,
    /// What is under way on the node, this one excluded.
    pub(in super::super) beside: &'a [(Grant, Seq)],
    pub(in super::super) drained: bool,
    /// How many attempts there are; none where operators may have changed that.
    pub(in super::super) attempts_max: Option<u32>,
    /// The rules that the node was told of.
    pub(in super::super) told: &'a Controls,
    /// The last commit whose orders the node has heeded.
    pub(in super::super) recalled: u64,
}

impl Model {
    /// What must hold when an attempt starts.
    pub(in super::super) fn check_start(&self, start: &Start<'_>) -> Check {
        let Start { ticket, now, beside, drained, attempts_max, recalled, .. } = *start;
        let (entry, grant) = (&ticket.entry, ticket.grant);
        let seq = entry.seq;
        let wrong = |what: String| Err(format!("{seq:?} starts {what}"));
        let Some(record) = self.events.get(&seq) else { return wrong("and was never published".into()) };
        if drained {
            return wrong("on a node that is being drained".into());
        }
        if beside.contains(&(grant, seq)) {
            return wrong("while it is under way on the same node".into());
        }
        // Who was there before one that was published late need not wait for it.
        let is_before = |before: &&Record| before.put_back <= recalled && before.overtaken_by < seq;
        if let Some(before) = self.blocker(record).filter(is_before) {
            return wrong(format!("before {:?} of its key is over ({:?})", before.seq, before.fate));
        }
        self.check_rules(start, record)?;
        if entry.progress.due > now {
            return wrong(format!("before it is due at {:?}", entry.progress.due));
        }
        if entry.expires.is_some_and(|expires| expires <= now) {
            return wrong("after it expired".into());
        }
        if let Some(max) = attempts_max.filter(|max| ticket.attempt > *max) {
            return wrong(format!("for the {}th time of {max}", ticket.attempt));
        }
        if ticket.deadline.is_none() {
            return wrong("without an end".into());
        }
        // What an old owner still does is its own affair, as long as it changes nothing in the store.
        if !self.is_current(grant) {
            return Ok(());
        }
        // It was taken away, and nobody has told the node yet. What it says will change nothing.
        if record.taken_away > recalled || entry.rev < record.hastened {
            return Ok(());
        }
        if record.fate != Fate::Pending || entry.rev != record.rev {
            let (fate, rev) = (record.fate, record.rev);
            return wrong(format!("as of rev {}, but it is {fate:?} as of rev {rev}", entry.rev));
        }
        if entry.progress.due != record.progress.due {
            return wrong(format!("as if due at {:?}", entry.progress.due));
        }
        if ticket.attempt != record.progress.attempts + 1 {
            return wrong(format!("as attempt {} after {}", ticket.attempt, record.progress.attempts));
        }
        if record.progress.suspect {
            let struck = self.owners[grant.shard as usize].struck.contains(&seq);
            if !struck {
                return wrong("as a suspect without a strike".into());
            }
            if !beside.is_empty() {
                return wrong(format!("as a suspect beside {beside:?}"));
            }
        }
        let careful = self.owners[grant.shard as usize].careful.contains(&seq);
        if careful && !self.is_noted(grant.shard, seq) {
            return wrong("in a careful shard without being noted".into());
        }
        Ok(())
    }

    /// What operators said of an attempt that starts, as far as its node was told.
    fn check_rules(&self, start: &Start<'_>, record: &Record) -> Check {
        let Start { ticket, now, beside, told, recalled, .. } = *start;
        let (entry, seq) = (&ticket.entry, ticket.entry.seq);
        let has_run = entry.progress.attempts > 0 || entry.progress.mode != Mode::Live;
        if told.is_closed(&entry.event.queue, &entry.event.tenant, has_run, now) {
            return Err(format!("{seq:?} starts, and its node was told of a rule that forbids it"));
        }
        if let Some(held) = self.withholding(record).filter(|held| held.since <= recalled) {
            return Err(format!("{seq:?} starts, and its node was told that its key is held back: {held:?}"));
        }
        let of_key = |(_, other): &&(Grant, Seq)| {
            let other = &self.events[other];
            // One that has ended may still wait to hear of it.
            let waits = other.fate == Fate::Pending && other.taken_away <= recalled;
            let is_away =
                matches!(other.fate, Fate::Discarded { .. } | Fate::Dead { reason: DeadReason::Killed, .. });
            let was_taken = is_away && (1..=recalled).contains(&other.taken_away);
            record.chain.is_some() && other.chain == record.chain && (waits || was_taken)
        };
        match beside.iter().find(of_key) {
            Some((_, other)) => Err(format!("{seq:?} starts while {other:?} of its key is under way")),
            None => Ok(()),
        }
    }

    /// The attempts of a node when one starts: a suspect runs alone, so nothing starts beside it.
    pub(in super::super) fn check_beside(&self, beside: &[(Grant, Seq)]) -> Check {
        let lone = beside.iter().find(|(grant, seq)| {
            self.is_current(*grant) && self.owners[grant.shard as usize].struck.contains(seq)
        });
        match lone {
            Some((_, seq)) => Err(format!("something starts beside {seq:?}, which is to run alone")),
            None => Ok(()),
        }
    }

    /// A change without an attempt: whether its time has come.
    pub(in super::super) fn check_unasked(&self, settle: &Settle, now: Moment) -> Check {
        let Settle { grant, seq, rev, ref change, .. } = *settle;
        let Some(record) = self.events.get(&seq) else { return Err(format!("{seq:?} is not there")) };
        match change {
            // Of an old owner who tries again, while others went on: it will change nothing.
            _ if !self.is_current(grant) && record.rev != rev => Ok(()),
            // Of one that an order changed meanwhile: it will change nothing.
            _ if record.taken_away.max(record.put_back) > 0 && record.rev != rev => Ok(()),
            Change::Expired { .. } if record.expires.is_some_and(|expires| expires <= now) => Ok(()),
            Change::Strike | Change::GoOn => Ok(()),
            Change::Dead { reason: DeadReason::KilledProcess, .. } => Ok(()),
            // An operator sent it to a queue that has no handler.
            Change::Dead { reason: DeadReason::Unroutable, progress, .. } if progress.route.is_some() => {
                Ok(())
            }
            // The policy's time in all was over before it could run again.
            Change::Dead { reason: DeadReason::TimeSpent, progress, .. }
                if progress.started.is_some() && progress.attempts == record.progress.attempts =>
            {
                Ok(())
            }
            // A strike that is taken back, because it did not run after all.
            Change::Again(progress)
                if progress.suspect
                    && progress.attempts == record.progress.attempts
                    && progress.due == record.progress.due =>
            {
                Ok(())
            }
            change => Err(format!("{seq:?} is settled as {change:?} without an answer of its attempt")),
        }
    }
}
