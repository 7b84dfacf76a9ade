//! Workers outside: they lease events, settle them in time, late, twice or never, and mix up their papers.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redrive_core::entry::{Change, Entry, Seq};
use redrive_core::event::State;
use redrive_core::observe::Outcome;
use redrive_core::scheduler::{Ending, QueuePlan, Said, judge};
use redrive_core::triage::Filter;
use redrive_core::{Disposition, Fault, Moment, Seeded};
use redrive_store::lease::{Decide, Held, Lease, LeaseSettle, LeaseSettled, TokenHash};
use redrive_store::{Query, Store};

use super::World;
use super::perform::at_once;
use crate::simulation::intent::{Act, Intent};
use crate::simulation::model::{Check, Fate, Hand, Reply, Word, check_verdict};
use crate::simulation::trace::say;

/// What was decided in a call, in the order in which it was.
type Decided = Arc<Mutex<Vec<(Seq, u32, Option<Moment>, Change)>>>;

/// What a worker has in its hands, or had.
#[derive(Debug, Clone)]
pub(super) struct Lot {
    intent: usize,
    attempt: u32,
    token: TokenHash,
    act: Act,
}

/// A call for leases.
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
                self.figures.order("worker that dies");
                self.lots.swap_remove(index);
            }
            1 | 2 => self.extend(index)?,
            // It dies of it, each time.
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
        self.figures.order("lease");
        let mut tokens = Vec::new();
        for _ in 0..self.chance.below(4) + usize::from(self.calm) {
            self.tokens += 1;
            tokens.push(token(self.tokens));
        }
        let until = self.now + Duration::from_secs(self.chance.pick(&[1, 5, 60]));
        let call = Call { queue, at: self.now, decided: Decided::default() };
        let ending = Ending::new(Said::Outcome(Outcome::TimedOut));
        let lease = Lease {
            queue: self.plan.queues[queue].name.to_string(),
            tenant: None,
            at: self.now,
            until,
            tokens: tokens.clone(),
            bytes_max: usize::MAX,
            lapsed: {
                let mut decide = self.decide(queue, ending, &call.decided);
                Box::new(move |entry, _| decide(entry, None))
            },
        };
        self.arm(false);
        let answer = at_once(self.store.lease(lease));
        self.committed();
        say!(self, "a worker leases up to {} of queue {queue}: {answer:?}", tokens.len());
        match answer {
            Ok(leased) => {
                if leased.lapsed != self.lapsed(&call)? {
                    return Err(format!("{} leases are over, it says", leased.lapsed));
                }
                self.expire_leased(&call)?;
                for (entry, token) in leased.entries.iter().zip(tokens) {
                    self.leased(entry, token, until)?;
                }
                // Whoever could have been handed out and was not is looked for in vain for ever.
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

    /// What a worker says, as a decision that is written down.
    fn decide(&self, queue: usize, ending: Ending, decided: &Decided) -> Decide {
        let plan: QueuePlan = self.plan.queues[queue].plan();
        let (now, decided) = (self.now, Arc::clone(decided));
        Box::new(move |entry: &Entry, _| {
            let mut dice = Seeded::new(entry.seq.0 ^ now.as_nanos());
            let change = judge(&plan, entry, now, &ending, now, &mut dice).unwrap_or(Change::Done);
            let mut decided = decided.lock().unwrap_or_else(PoisonError::into_inner);
            decided.push((entry.seq, entry.progress.attempts + 1, entry.expires, change.clone()));
            change
        })
    }

    /// The leases that were over in a call are attempts of unknown outcome.
    fn lapsed(&mut self, call: &Call) -> Check<usize> {
        let decided = std::mem::take(&mut *call.decided.lock().unwrap_or_else(PoisonError::into_inner));
        let count = decided.len();
        for (seq, attempt, expires, change) in decided {
            self.figures.order("lease that lapsed");
            let word = Word { said: Said::Outcome(Outcome::TimedOut), attempt, at: call.at, expires };
            check_verdict(&word, &change, &self.plan.queues[call.queue])?;
            self.model.lapse(seq, call.at, &change)?;
        }
        let missed = self.model.leased(call.queue).find(|(_, lease)| lease.until <= call.at);
        if let Some((record, _)) = missed {
            return Err(format!("the lease of {:?} is over, and nobody said so", record.seq));
        }
        self.model.let_overdue_go(call.queue, call.at);
        Ok(count)
    }

    /// What was found to be expired instead of being handed out. Whether somebody came to look at it depends on
    /// how much was asked for.
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
            let found = found.map_err(|error| format!("cannot look: {error}"))?;
            if let Some(found) = found.filter(|found| found.state == State::Expired) {
                let change = Change::Expired { attempts: found.attempts, story: found.story };
                self.model.apply(seq, call.at, &change)?;
            }
        }
        Ok(())
    }

    fn leased(&mut self, entry: &Entry, token: TokenHash, until: Moment) -> Check {
        let attempt = entry.progress.attempts + 1;
        let hand = Hand { attempt, token: Some(token), until, out: true };
        self.model.hand_out(entry, hand, self.now)?;
        let intent = Intent::number(&entry.event.id);
        let act = self.intents[intent].act(attempt, entry.progress.mode);
        self.lots.push(Lot { intent, attempt, token, act });
        self.figures.attempts += 1;
        Ok(())
    }

    /// A call for leases happened, and nobody was told what it gave.
    pub(super) fn recover_leases(&mut self) -> Check {
        let Some(call) = self.unleased.take() else { return Ok(()) };
        self.lapsed(&call)?;
        self.expire_leased(&call)?;
        let filter = Filter::queue(&*self.plan.queues[call.queue].name);
        let query = Query { filter, state: Some(State::Running), limit: usize::MAX, ..Query::default() };
        let listed = at_once(self.store.list(query)).map_err(|error| format!("cannot list: {error}"))?;
        for (_, found) in listed.events {
            let record = &self.model.events[&found.seq];
            if record.lease.as_ref().is_none_or(|lease| !lease.out) {
                let (attempt, until) = (found.attempts + 1, found.until.unwrap_or_default());
                self.model.keep_lease(found.seq, Hand { attempt, token: None, until, out: true }, call.at);
            }
        }
        Ok(())
    }

    fn held(&mut self, lot: &Lot) -> Held {
        let event = &self.intents[lot.intent].event;
        let (tenant, queue, id) = (event.tenant.clone(), event.queue.clone(), event.id.clone());
        let Lot { mut attempt, mut token, .. } = *lot;
        if !self.calm && self.chance.one_in(12) {
            attempt = attempt + 1 - 2 * u32::from(self.chance.one_in(2));
        }
        if !self.calm && self.chance.one_in(12) {
            token[15] ^= 1;
        }
        Held { tenant, queue, id, attempt, token }
    }

    fn settle_lot(&mut self, index: usize) -> Check {
        self.figures.order("settle of a lease");
        let lot = self.lots[index].clone();
        let queue = self.intents[lot.intent].queue;
        let lease = self.held(&lot);
        let should = self.model.judge_lease(lot.intent, lease.attempt, lease.token, false);
        let said = said(lot.act);
        let decided = Decided::default();
        let decide = self.decide(queue, Ending::new(said.clone()), &decided);
        self.arm(false);
        let (at, words) = (self.now, format!("{lease:?}"));
        let answer = at_once(self.store.settle_leased(vec![LeaseSettle { lease, at, decide }]));
        self.committed();
        say!(self, "a worker settles {words} as {said:?}: {answer:?}");
        let happened = match &answer {
            Ok(answers) => {
                let [is] = &answers[..] else { return Err("there is no answer to a settle".to_owned()) };
                self.model.check_reply(lot.intent, is, should, at)?;
                self.figures.order(word(is));
                true
            }
            Err(error) => self.landed(error),
        };
        if let Some(seq) = if let Reply::Applied(seq) = should { Some(seq) } else { None }
            && happened
        {
            let decided = decided.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let Some((_, attempt, expires, change)) = decided else {
                return Err(format!("nobody decided what becomes of {seq:?}"));
            };
            check_verdict(&Word { said, attempt, at, expires }, &change, &self.plan.queues[queue])?;
            if self.model.settle_lease(seq, at, &change)? {
                self.figures.order(match change {
                    Change::Again(_) => "late answer to a letter: again",
                    Change::Dead { .. } => "late answer to a letter: dead",
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
        self.figures.order("extension of a lease");
        let lot = self.lots[index].clone();
        let lease = self.held(&lot);
        let should = self.model.judge_lease(lot.intent, lease.attempt, lease.token, true);
        let until = self.now + Duration::from_secs(self.chance.pick(&[1, 30]));
        self.arm(false);
        let answer = at_once(self.store.extend(vec![lease], self.now, until));
        self.committed();
        say!(self, "a worker wants {lot:?} for longer: {answer:?}");
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

/// What a worker says in place of what a handler does.
fn said(act: Act) -> Said {
    let fault = |fault: Fault| Said::Outcome(fault.into());
    match act {
        Act::Fail | Act::Panic | Act::Abort | Act::Linger | Act::LateTransact | Act::Kill => {
            fault(Fault::transient())
        }
        Act::FailAsking(wait) => fault(Fault::transient().not_before(wait)),
        Act::Overload => fault(Fault::overload()),
        Act::Permanent | Act::Undecodable | Act::Unclassified => fault(Fault::permanent()),
        Act::Discard => Said::Outcome(Disposition::Discard.into()),
        Act::Succeed | Act::SucceedWith(_) | Act::Transact => Said::Outcome(Disposition::Ok.into()),
    }
}

fn word(is: &LeaseSettled) -> &'static str {
    match is {
        LeaseSettled::Applied => "lease: applied",
        LeaseSettled::Already => "lease: already",
        LeaseSettled::Conflict(_) => "lease: conflict",
        LeaseSettled::Lapsed(_) => "lease: lapsed",
        LeaseSettled::Unknown => "lease: unknown",
    }
}
