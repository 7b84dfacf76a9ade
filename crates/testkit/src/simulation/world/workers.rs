//! Outside workers: they lease events, settle them in time, late, twice or never, and mix up their leases.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redrive_core::event::State;
use redrive_core::observe::Outcome;
use redrive_core::queue_entry::{EventChange, QueueEntry, Seq};
use redrive_core::scheduler::{AttemptEnd, EndedAttempt, QueuePlan, judge};
use redrive_core::triage::Filter;
use redrive_core::{Disposition, Fault, Moment, SeededRandom};
use redrive_store::lease::{DecideSettle, LeaseRef, LeaseRequest, LeaseSettle, LeaseSettleResult, TokenHash};
use redrive_store::{EventQuery, prelude::*};

use super::World;
use super::perform::at_once;
use crate::simulation::intent::{Act, Intent};
use crate::simulation::model::{Check, Fate, Hand, Reply, Word, check_verdict};
use crate::simulation::trace::say;
use crate::simulation::words;

/// What was decided in a call, in order.
type Decided = Arc<Mutex<Vec<(Seq, u32, Option<Moment>, EventChange)>>>;

/// A lease that a worker has, or had.
#[derive(Debug, Clone)]
pub(super) struct Lot {
    intent: usize,
    attempt: u32,
    token: TokenHash,
    act: Act,
}

/// A lease request.
#[derive(Debug, Clone)]
pub(super) struct Call {
    queue: usize,
    at: Moment,
    decided: Decided,
}

impl World {
    /// A worker does something.
    pub(super) fn work_some(&mut self) -> Check<bool> {
        let Some(queue) = self.plan.pulled.filter(|_| !self.limbo) else { return Ok(false) };
        if self.calm {
            return self.work_to_the_end(queue);
        }
        if self.lots.is_empty() || self.chance.one_in(3) {
            self.lease(queue)?;
            return Ok(true);
        }
        let index = self.chance.below(self.lots.len());
        match self.chance.below(10) {
            0 => {
                self.figures.ordered("worker that dies");
                self.lots.swap_remove(index);
            }
            1 | 2 => self.extend(index)?,
            // Its worker dies each time.
            _ if self.lots[index].act == Act::Kill => drop(self.lots.swap_remove(index)),
            3..6 => {
                // Late, perhaps.
                self.pass_time();
                self.settle_lot(index)?;
            }
            _ => self.settle_lot(index)?,
        }
        Ok(true)
    }

    fn work_to_the_end(&mut self, queue: usize) -> Check<bool> {
        self.lots.retain(|lot| lot.act != Act::Kill);
        if !self.lots.is_empty() {
            self.settle_lot(0)?;
            return Ok(true);
        }
        if self.model.next_pull(queue).is_some_and(|next| next <= self.now) {
            self.lease(queue)?;
            return Ok(true);
        }
        Ok(false)
    }

    fn lease(&mut self, queue: usize) -> Check {
        self.figures.ordered("lease");
        let mut tokens = Vec::new();
        for _ in 0..self.chance.below(4) + usize::from(self.calm) {
            self.tokens += 1;
            tokens.push(token(self.tokens));
        }
        let until = self.now + Duration::from_secs(self.chance.pick(&[1, 5, 60]));
        let call = Call { queue, at: self.now, decided: Decided::default() };
        let ended = EndedAttempt::new(AttemptEnd::Outcome(Outcome::TimedOut));
        let lease = LeaseRequest {
            queue: self.plan.queues[queue].name.to_string(),
            tenant: None,
            at: self.now,
            until,
            tokens: tokens.clone(),
            bytes_max: usize::MAX,
            lapsed: {
                let mut decide = self.decide(queue, ended, &call.decided);
                Box::new(move |entry, _| decide(entry, None))
            },
        };
        self.arm(false);
        let answer = at_once(self.store.lease(lease));
        self.committed();
        say!(
            self,
            "a worker leases up to {} events of queue {queue}: {}",
            tokens.len(),
            words::leased(&answer)
        );
        match answer {
            Ok(leased) => {
                if leased.lapsed != self.lapsed(&call)? {
                    return Err(format!(
                        "the store says that {} leases lapsed, which is not so",
                        leased.lapsed
                    ));
                }
                self.expire_leased(&call)?;
                for (entry, token) in leased.entries.iter().zip(tokens) {
                    self.leased(entry, token, until)?;
                }
                // An event that should have been leased and was not is found at the end of the run.
                Ok(())
            }
            Err(error) => {
                if self.landed(&error) {
                    self.unleased = Some(call);
                    if !self.limbo {
                        self.recover_leases()?;
                    }
                }
                Ok(())
            }
        }
    }

    /// A worker's outcome, as a decision that is recorded.
    fn decide(&self, queue: usize, ended: EndedAttempt, decided: &Decided) -> DecideSettle {
        let plan: QueuePlan = self.plan.queues[queue].plan();
        let (now, decided) = (self.now, Arc::clone(decided));
        Box::new(move |entry: &QueueEntry, _| {
            let mut random = SeededRandom::new(entry.seq.0 ^ now.as_nanos());
            let change = judge(&plan, entry, now, &ended, now, &mut random).unwrap_or(EventChange::Done);
            let mut decided = decided.lock().unwrap_or_else(PoisonError::into_inner);
            decided.push((entry.seq, entry.progress.attempts + 1, entry.expires, change.clone()));
            change
        })
    }

    /// The leases that lapsed in a call are attempts with an unknown outcome.
    fn lapsed(&mut self, call: &Call) -> Check<usize> {
        let decided = std::mem::take(&mut *call.decided.lock().unwrap_or_else(PoisonError::into_inner));
        let count = decided.len();
        for (seq, attempt, expires, change) in decided {
            self.figures.ordered("lease that lapsed");
            let word = Word { end: AttemptEnd::Outcome(Outcome::TimedOut), attempt, at: call.at, expires };
            check_verdict(&word, &change, &self.plan.queues[call.queue])?;
            self.model.lapse(seq, call.at, &change)?;
        }
        let missed = self.model.leased(call.queue).find(|(_, lease)| lease.until <= call.at);
        if let Some((record, _)) = missed {
            return Err(format!("the lease of {:?} lapsed, and the store did not count it", record.seq));
        }
        self.model.let_overdue_go(call.queue, call.at);
        Ok(count)
    }

    /// Events that were found to be expired instead of being leased. Whether a call reached them depends on
    /// how much it asked for.
    fn expire_leased(&mut self, call: &Call) -> Check {
        let expired: Vec<(Seq, usize)> = self
            .model
            .events
            .values()
            .filter(|record| record.queue == call.queue && record.fate == Fate::Pending)
            .filter(|record| record.expires.is_some_and(|expires| expires <= call.at))
            .map(|record| (record.seq, record.intent))
            .collect();
        for (seq, intent) in expired {
            let event = &self.intents[intent].event;
            let found = at_once(self.store.find(&event.tenant, &event.queue, &event.id));
            let found = found.map_err(|error| format!("a lookup failed: {error}"))?;
            if let Some(found) = found.filter(|found| found.state == State::Expired) {
                let change = EventChange::Expired { attempts: found.attempts, history: found.history };
                self.model.apply(seq, call.at, &change)?;
            }
        }
        Ok(())
    }

    fn leased(&mut self, entry: &QueueEntry, token: TokenHash, until: Moment) -> Check {
        let attempt = entry.progress.attempts + 1;
        let hand = Hand { attempt, token: Some(token), until, out: true };
        self.model.hand_out(entry, hand, self.now)?;
        let intent = Intent::number(&entry.event.id);
        let act = self.intents[intent].act(attempt, entry.progress.mode);
        self.lots.push(Lot { intent, attempt, token, act });
        self.figures.attempts += 1;
        Ok(())
    }

    /// A lease request happened, and no worker received its answer.
    pub(super) fn recover_leases(&mut self) -> Check {
        let Some(call) = self.unleased.take() else { return Ok(()) };
        self.lapsed(&call)?;
        self.expire_leased(&call)?;
        let filter = Filter::queue(&*self.plan.queues[call.queue].name);
        let query =
            EventQuery { filter, state: Some(State::Running), limit: usize::MAX, ..EventQuery::default() };
        let listed = at_once(self.store.list(query)).map_err(|error| format!("a listing failed: {error}"))?;
        for (_, found) in listed.events {
            let record = &self.model.events[&found.seq];
            if record.lease.as_ref().is_none_or(|lease| !lease.out) {
                let (attempt, until) = (found.attempts + 1, found.until.unwrap_or_default());
                self.model.keep_lease(found.seq, Hand { attempt, token: None, until, out: true }, call.at);
            }
        }
        Ok(())
    }

    fn held(&mut self, lot: &Lot) -> LeaseRef {
        let event = &self.intents[lot.intent].event;
        let (tenant, queue, id) = (event.tenant.clone(), event.queue.clone(), event.id.clone());
        let Lot { mut attempt, mut token, .. } = *lot;
        if !self.calm && self.chance.one_in(12) {
            attempt = attempt + 1 - 2 * u32::from(self.chance.one_in(2));
        }
        if !self.calm && self.chance.one_in(12) {
            token[15] ^= 1;
        }
        LeaseRef { tenant, queue, id, attempt, token }
    }

    fn settle_lot(&mut self, index: usize) -> Check {
        self.figures.ordered("settle of a lease");
        let lot = self.lots[index].clone();
        let queue = self.intents[lot.intent].queue;
        let lease = self.held(&lot);
        let should = self.model.judge_lease(lot.intent, lease.attempt, lease.token, false);
        let end = end(lot.act);
        let decided = Decided::default();
        let decide = self.decide(queue, EndedAttempt::new(end.clone()), &decided);
        self.arm(false);
        let (at, attempt) = (self.now, lease.attempt);
        let answer = at_once(self.store.settle_leased(vec![LeaseSettle { lease, at, decide }]));
        self.committed();
        say!(
            self,
            "a worker settles its lease of e{}, attempt {attempt}, as {}: {answer:?}",
            lot.intent,
            end.as_str()
        );
        let happened = match &answer {
            Ok(answers) => {
                let [is] = &answers[..] else { return Err("there is no answer to a settle".to_owned()) };
                self.model.check_reply(lot.intent, is, should, at)?;
                self.figures.ordered(word(is));
                true
            }
            Err(error) => self.landed(error),
        };
        if let Some(seq) = if let Reply::Applied(seq) = should { Some(seq) } else { None }
            && happened
        {
            let decided = decided.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let Some((_, attempt, expires, change)) = decided else {
                return Err(format!("the store settled {seq:?} without asking what becomes of it"));
            };
            check_verdict(&Word { end, attempt, at, expires }, &change, &self.plan.queues[queue])?;
            if self.model.settle_lease(seq, at, &change)? {
                self.figures.ordered(match change {
                    EventChange::Retry(_) => "late answer to a letter: again",
                    EventChange::Dead { .. } => "late answer to a letter: dead",
                    _ => "late answer to a letter: ended",
                });
            }
        }
        // Sometimes it is settled again, because the worker forgot that it was.
        if answer.is_ok() && (self.calm || !self.chance.one_in(3)) {
            self.lots.swap_remove(index);
        }
        Ok(())
    }

    fn extend(&mut self, index: usize) -> Check {
        self.figures.ordered("extension of a lease");
        let lot = self.lots[index].clone();
        let lease = self.held(&lot);
        let should = self.model.judge_lease(lot.intent, lease.attempt, lease.token, true);
        let until = self.now + Duration::from_secs(self.chance.pick(&[1, 30]));
        self.arm(false);
        let answer = at_once(self.store.extend(vec![lease], self.now, until));
        self.committed();
        say!(self, "a worker extends its lease of e{}, attempt {}: {answer:?}", lot.intent, lot.attempt);
        let happened = match &answer {
            Ok(answers) => {
                let [is] = &answers[..] else { return Err("there is no answer to an extension".to_owned()) };
                self.model.check_reply(lot.intent, is, should, self.now)?;
                true
            }
            Err(error) => self.landed(error),
        };
        if let Reply::Applied(seq) = should
            && happened
            && let Some(lease) = self.model.events.get_mut(&seq).and_then(|record| record.lease.as_mut())
        {
            lease.until = until;
        }
        Ok(())
    }
}

fn token(number: u64) -> TokenHash {
    (u128::from(number) << 8).to_be_bytes()
}

/// A worker's outcome in place of a handler's.
fn end(act: Act) -> AttemptEnd {
    let fault = |fault: Fault| AttemptEnd::Outcome(fault.into());
    match act {
        Act::Fail | Act::Panic | Act::Abort | Act::Linger | Act::LateTransact | Act::Kill => {
            fault(Fault::transient())
        }
        Act::FailAsking(wait) => fault(Fault::transient().not_before(wait)),
        Act::Overload => fault(Fault::overload()),
        Act::Permanent | Act::Undecodable | Act::Unclassified => fault(Fault::permanent()),
        Act::Discard => AttemptEnd::Outcome(Disposition::Drop.into()),
        Act::Succeed | Act::SucceedWith(_) | Act::Transact => AttemptEnd::Outcome(Disposition::Ok.into()),
    }
}

fn word(is: &LeaseSettleResult) -> &'static str {
    match is {
        LeaseSettleResult::Applied => "lease: applied",
        LeaseSettleResult::Already => "lease: already",
        LeaseSettleResult::Conflict(_) => "lease: conflict",
        LeaseSettleResult::Lapsed(_) => "lease: lapsed",
        LeaseSettleResult::Unknown => "lease: unknown",
    }
}
