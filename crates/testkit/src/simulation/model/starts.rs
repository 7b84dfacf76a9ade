//! Whether an attempt may start.

use redrive_core::Moment;
use redrive_core::event::{DeadReason, Mode};
use redrive_core::queue_entry::{EventChange, FencingToken, Seq, SettleRequest};
use redrive_core::scheduler::DispatchedAttempt;
use redrive_core::triage::ActiveRules;

use super::{Check, Fate, Model, Record};

/// An attempt that starts, and what else its node does.
#[derive(Debug)]
pub(in super::super) struct Start<'a> {
    pub(in super::super) ticket: &'a DispatchedAttempt,
    pub(in super::super) now: Moment,
    /// The other running attempts of the node.
    pub(in super::super) beside: &'a [(FencingToken, Seq)],
    pub(in super::super) drained: bool,
    /// The most attempts; `None` if operators may have changed that.
    pub(in super::super) attempts_max: Option<u32>,
    /// The rules that the node knows.
    pub(in super::super) told: &'a ActiveRules,
    /// The last commit whose commands the node has processed.
    pub(in super::super) recalled: u64,
}

impl Model {
    /// What must hold when an attempt starts.
    pub(in super::super) fn check_start(&self, start: &Start<'_>) -> Check {
        let Start { ticket, now, beside, drained, attempts_max, recalled, .. } = *start;
        let (entry, token) = (&ticket.entry, ticket.token);
        let seq = entry.seq;
        let wrong = |what: String| Err(format!("{seq:?} starts {what}"));
        let Some(record) = self.events.get(&seq) else { return wrong("and was never published".into()) };
        if drained {
            return wrong("on a node that is being drained".into());
        }
        if beside.contains(&(token, seq)) {
            return wrong("while it is under way on the same node".into());
        }
        // An event that was there before one that was published late need not wait for it.
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
            return wrong(format!("as attempt {} of at most {max}", ticket.attempt));
        }
        if ticket.deadline.is_none() {
            return wrong("without a deadline".into());
        }
        // A former owner may continue, as long as it changes nothing in the store.
        if !self.is_current(token) {
            return Ok(());
        }
        // A command took it, and the node does not know yet. Its settle will change nothing.
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
            return wrong(format!(
                "as attempt {} after {} attempts",
                ticket.attempt, record.progress.attempts
            ));
        }
        if record.progress.suspect {
            let struck = self.owners[token.shard as usize].struck.contains(&seq);
            if !struck {
                return wrong("as a suspect without a strike".into());
            }
            if !beside.is_empty() {
                return wrong(format!("as a suspect beside {beside:?}"));
            }
        }
        let careful = self.owners[token.shard as usize].careful.contains(&seq);
        if careful && !self.is_noted(token.shard, seq) {
            return wrong("in a careful shard without being noted".into());
        }
        Ok(())
    }

    /// Checks an attempt that starts against the rules that its node knows.
    fn check_rules(&self, start: &Start<'_>, record: &Record) -> Check {
        let Start { ticket, now, beside, told, recalled, .. } = *start;
        let (entry, seq) = (&ticket.entry, ticket.entry.seq);
        let has_run = entry.progress.attempts > 0 || entry.progress.mode != Mode::Live;
        if told.is_closed(&entry.event.queue, &entry.event.tenant, has_run, now) {
            return Err(format!("{seq:?} starts against a rule that its node has heard of"));
        }
        if let Some(held) = self.withholding(record).filter(|held| held.since <= recalled) {
            return Err(format!(
                "{seq:?} starts against a rule for its key that its node has heard of: {held:?}"
            ));
        }
        let of_key = |(_, other): &&(FencingToken, Seq)| {
            let other = &self.events[other];
            // An ended event may still wait for its answer.
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
    pub(in super::super) fn check_beside(&self, beside: &[(FencingToken, Seq)]) -> Check {
        let lone = beside.iter().find(|(token, seq)| {
            self.is_current(*token) && self.owners[token.shard as usize].struck.contains(seq)
        });
        match lone {
            Some((_, seq)) => Err(format!("an event starts beside {seq:?}, which has to run alone")),
            None => Ok(()),
        }
    }

    /// A change without an attempt: whether its time has come.
    pub(in super::super) fn check_unasked(&self, settle: &SettleRequest, now: Moment) -> Check {
        let SettleRequest { token, seq, rev, ref change, .. } = *settle;
        let Some(record) = self.events.get(&seq) else {
            return Err(format!("{seq:?} is settled, and was never published"));
        };
        match change {
            // From a former owner that tries again, while others continued: it will change nothing.
            _ if !self.is_current(token) && record.rev != rev => Ok(()),
            // For an event that a command changed meanwhile: it will change nothing.
            _ if record.taken_away.max(record.put_back) > 0 && record.rev != rev => Ok(()),
            EventChange::Expired { .. } if record.expires.is_some_and(|expires| expires <= now) => Ok(()),
            EventChange::CountCrash | EventChange::Unpark => Ok(()),
            EventChange::Dead { reason: DeadReason::KilledProcess, .. } => Ok(()),
            // An operator rerouted it to a queue that has no handler.
            EventChange::Dead { reason: DeadReason::Unroutable, progress, .. }
                if progress.route.is_some() =>
            {
                Ok(())
            }
            // The policy's total time was over before it could run again.
            EventChange::Dead { reason: DeadReason::TimeSpent, progress, .. }
                if progress.started.is_some() && progress.attempts == record.progress.attempts =>
            {
                Ok(())
            }
            // A crash count that is taken back, because the event did not run after all.
            EventChange::Retry(progress)
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
