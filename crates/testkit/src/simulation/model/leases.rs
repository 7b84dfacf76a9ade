//! Attempts by outside workers.

use redrive_core::Moment;
use redrive_core::event::Mode;
use redrive_core::queue_entry::{EventChange, ParkFollowers, QueueEntry, Seq};
use redrive_store::lease::{LeaseSettleResult, TokenHash};

use super::orders::is_passed;
use super::{Check, Fate, Hold, Model, Record};

/// The last lease of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) struct Hand {
    pub(in super::super) attempt: u32,
    /// `None` if no worker received it.
    pub(in super::super) token: Option<TokenHash>,
    pub(in super::super) until: Moment,
    /// Whether a worker has it.
    pub(in super::super) out: bool,
}

/// What a store should answer about a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Reply {
    Applied(Seq),
    Already,
    Lapsed,
    Conflict,
    Unknown,
}

impl Model {
    /// Whether an event belongs to a pulled queue.
    pub(in super::super) fn is_pulled(&self, record: &Record) -> bool {
        self.specs[record.queue].pull
    }

    /// Events that outside workers have, or should have settled by then.
    pub(in super::super) fn leased(&self, queue: usize) -> impl Iterator<Item = (&Record, &Hand)> {
        let of_queue = self.events.values().filter(move |record| record.queue == queue);
        of_queue.filter_map(|record| Some((record, record.lease.as_ref().filter(|lease| lease.out)?)))
    }

    /// A lease lapsed before a worker settled it. Returns whether the store may report that.
    pub(in super::super) fn lapse(&mut self, seq: Seq, at: Moment, change: &EventChange) -> Check {
        let lease = self.events.get(&seq).and_then(|record| record.lease.as_ref());
        if !lease.is_some_and(|lease| lease.out && lease.until <= at) {
            return Err(format!(
                "the store counts the lease of {seq:?} as lapsed, which it is not: {lease:?}"
            ));
        }
        let lease = lease.cloned();
        self.settle_lease(seq, at, change)?;
        // If it died of the lapse, its worker may still settle it.
        if let Some(record) = self.events.get_mut(&seq).filter(|record| record.fate.exists()) {
            record.lease = lease.map(|lease| Hand { out: false, ..lease });
        }
        Ok(())
    }

    /// The outcome of an outside attempt is written. A letter that died when its lease lapsed stays dead if
    /// its key was not parked, and parks as many events as before if it stays dead. Returns whether it was
    /// such a letter.
    pub(in super::super) fn settle_lease(
        &mut self,
        seq: Seq,
        at: Moment,
        change: &EventChange,
    ) -> Check<bool> {
        let Some(record) = self.events.get_mut(&seq) else {
            return Err(format!("a lease of {seq:?} is settled, which was never published"));
        };
        if let Some(lease) = &mut record.lease {
            lease.out = false;
        }
        let Fate::Dead { reason, holds } = record.fate else {
            return self.apply(seq, at, change).map(|()| false);
        };
        let park =
            holds.map_or(ParkFollowers::No, |Hold { until, count }| ParkFollowers::UpTo { until, count });
        let change = match change {
            EventChange::Retry(progress) if is_passed(record) => {
                EventChange::Dead { reason, progress: progress.clone(), park }
            }
            EventChange::Dead { reason, progress, .. } => {
                EventChange::Dead { reason: *reason, progress: progress.clone(), park }
            }
            change => change.clone(),
        };
        self.apply(seq, at, &change).map(|()| true)
    }

    /// An event was leased to an outside worker.
    pub(in super::super) fn hand_out(&mut self, entry: &QueueEntry, hand: Hand, at: Moment) -> Check {
        let seq = entry.seq;
        let Some(record) = self.events.get(&seq) else { return Err(format!("{seq:?} was never accepted")) };
        let wrong = |what: &str| Err(format!("{seq:?} is leased {what}: {record:?}"));
        if record.fate != Fate::Pending || record.lease.as_ref().is_some_and(|lease| lease.out) {
            return wrong("and is not free");
        }
        if self.blocker(record).is_some() {
            return wrong("before its turn");
        }
        if self.is_met(record) {
            return wrong("beside another one of its key");
        }
        if self.withholding(record).is_some() {
            return wrong("though its key is held back");
        }
        let (queue, tenant) = (&record.event.queue, &record.event.tenant);
        let has_run = record.progress.attempts > 0 || record.progress.mode != Mode::Live;
        if self.controls().is_closed(queue, tenant, has_run, at) {
            return wrong("though a rule holds it back");
        }
        if record.progress.due > at || record.expires.is_some_and(|expires| expires <= at) {
            return wrong("at the wrong time");
        }
        let is = (entry.rev, entry.progress.attempts + 1, entry.event.id.as_str());
        if is != (record.rev + 1, hand.attempt, record.event.id.as_str())
            || hand.attempt != record.progress.attempts + 1
        {
            return wrong(&format!("as {is:?}"));
        }
        self.keep_lease(seq, hand, at);
        Ok(())
    }

    /// An event has a lease.
    pub(in super::super) fn keep_lease(&mut self, seq: Seq, hand: Hand, at: Moment) {
        let Some(record) = self.events.get_mut(&seq) else { return };
        record.rev += 1;
        record.progress.started.get_or_insert(at);
        record.lease = Some(hand);
    }

    /// Dead letters of a pulled queue whose parking time is over park their keys no more.
    pub(in super::super) fn let_overdue_go(&mut self, queue: usize, at: Moment) {
        let over = self.overdue(at).filter(|record| record.queue == queue);
        let over: Vec<Seq> = over.map(|record| record.seq).collect();
        for seq in over {
            if let Some(record) = self.events.get_mut(&seq) {
                super::rules::let_go(record);
            }
        }
    }

    /// What a store should answer to a worker that settles or extends a lease.
    pub(in super::super) fn judge_lease(
        &self,
        intent: usize,
        attempt: u32,
        token: TokenHash,
        extends: bool,
    ) -> Reply {
        if let Some(gone) = self.gone.get(&intent) {
            return if gone.remembered > Moment::default() { Reply::Conflict } else { Reply::Unknown };
        }
        let Some(record) = self.record_of(intent) else { return Reply::Unknown };
        if !record.fate.exists() && record.remembered == Moment::default() {
            return Reply::Unknown;
        }
        let is_last = |lease: &Hand| lease.attempt == attempt && lease.token == Some(token);
        let given = record.lease.as_ref().filter(|lease| is_last(lease));
        let last = given.filter(|_| record.fate.exists());
        match last {
            Some(lease) if lease.out || !extends => Reply::Applied(record.seq),
            Some(_) => Reply::Lapsed,
            None if record.fate == Fate::Done && record.progress.attempts == attempt && given.is_some() => {
                Reply::Already
            }
            None => Reply::Conflict,
        }
    }

    /// Whether a store answers as it should.
    pub(in super::super) fn check_reply(
        &self,
        intent: usize,
        is: &LeaseSettleResult,
        should: Reply,
        now: Moment,
    ) -> Check {
        match (is, should) {
            (LeaseSettleResult::Applied, Reply::Applied(_))
            | (LeaseSettleResult::Already, Reply::Already)
            | (LeaseSettleResult::Unknown, Reply::Unknown) => Ok(()),
            (LeaseSettleResult::Conflict(found), Reply::Conflict)
            | (LeaseSettleResult::Lapsed(found), Reply::Lapsed) => self.check_known(intent, Some(found), now),
            _ => Err(format!("the store answered the lease of e{intent} with {is:?} instead of {should:?}")),
        }
    }

    /// Whether a worker has another event of its key: an event redriven out of order waits for the end of
    /// that lease.
    fn is_met(&self, record: &Record) -> bool {
        let has = |other: &Record| other.lease.as_ref().is_some_and(|lease| lease.out);
        let same = |other: &&Record| other.chain == record.chain && other.seq != record.seq;
        record.chain.is_some() && self.events.values().filter(same).any(has)
    }

    /// When something happens next in a pulled queue.
    pub(in super::super) fn next_pull(&self, queue: usize) -> Option<Moment> {
        let leases = self.leased(queue).map(|(_, lease)| lease.until);
        let free = self.events.values().filter(|record| record.queue == queue && self.is_free(record));
        let free = free.filter(|record| !self.is_met(record));
        let holds = self.events.values().filter(|record| record.queue == queue).filter_map(|record| {
            match record.fate {
                Fate::Dead { holds: Some(hold), .. } => hold.until,
                _ => None,
            }
        });
        leases.chain(free.map(|record| record.progress.due)).chain(holds).min()
    }
}
