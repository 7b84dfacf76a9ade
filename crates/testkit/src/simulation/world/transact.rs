//! Effects in the domain of the store: the user's table, a marker, another event, and the settle.

use std::time::Duration;

use redrive_core::entry::{Change, Seq, StreamId};
use redrive_core::scheduler::Ticket;
use redrive_store::{Claim, Job, Store, StoreError, Transacted, Tx, Work, memory};

use super::World;
use super::perform::at_once;
use crate::simulation::intent::Intent;
use crate::simulation::model::{Accepted, Check, Judged};
use crate::simulation::trace::say;
use crate::simulation::words;

/// What the handler leaves on the receipt.
const LEFT: &[u8] = b"left";
/// How many bits of a seq are the number within its stream, as the store in memory has it.
pub(super) const NUMBER_BITS: u32 = 40;

impl World {
    /// Runs a handler's work in a transaction that settles its event.
    pub(super) fn transact(
        &mut self,
        ticket: &Ticket,
        aborts: bool,
    ) -> Check<Result<Transacted, StoreError>> {
        let (grant, seq, rev) = (ticket.grant, ticket.entry.seq, ticket.entry.rev);
        let intent = Intent::number(&ticket.entry.event.id);
        let child = self.intents[intent].child.filter(|_| !aborts);
        let result = (seq.0 % 2 == 0).then(|| LEFT.to_vec());
        let story = ticket.entry.progress.story.clone();
        let claim = Claim { grant, seq, rev, at: self.now, attempts: ticket.attempt, story: story.clone() };
        let work = self.work(effect_id(seq, intent), child, aborts, result.clone());
        let job = Job { work, claim: Some(claim), time: Duration::from_secs(1), alone: false };

        let judged = self.model.judge(grant, seq, rev, None);
        self.arm(true);
        let mut answer = at_once(self.store.transact(job));
        if let Ok(Transacted::Committed { next }) = &mut answer {
            self.forget_next(grant.epoch, (seq, rev), next);
        }
        self.see_all(grant.epoch, (seq, rev));
        say!(
            self,
            "the store transacts {} rev {rev} for {}: {}",
            words::name(seq),
            words::grant(grant),
            words::transacted(&answer)
        );
        let happened = match (&answer, judged) {
            (Ok(Transacted::Committed { .. }), Judged::Applied) => !aborts,
            (Ok(Transacted::Aborted(_)), Judged::Applied) => false,
            (Ok(Transacted::Stale), Judged::Stale) | (Ok(Transacted::Fenced), Judged::Fenced) => false,
            (Err(error), judged) => self.landed(error) && judged == Judged::Applied && !aborts,
            (Ok(answer), judged) => {
                return Err(format!("the work of {seq:?} is {answer:?}, and should be {judged:?}"));
            }
        };
        if happened {
            let attempts = ticket.attempt;
            let plain = attempts <= 1 && result.is_none() && story.is_none();
            let change = if plain { Change::Done } else { Change::DoneWith { result, attempts, story } };
            self.model.apply(seq, self.now, &change)?;
            self.model.strike(grant.shard, seq, &change);
            self.model.effect(seq)?;
            self.figures.effects += 1;
            if let Some(child) = child {
                self.child_published(child)?;
            }
        }
        self.committed();
        if let Ok(Transacted::Committed { next: Some(next) }) = &answer {
            self.model.check_handed_out(next)?;
        }
        Ok(answer)
    }

    fn work(&self, id: String, child: Option<usize>, aborts: bool, result: Option<Vec<u8>>) -> Work {
        let child = child.map(|child| self.intents[child].new_event(self.now));
        let until = self.now + Duration::from_secs(86_400);
        Box::new(move |tx: &mut dyn Tx| {
            let id = id.clone();
            if tx.mark("handler", &id, until)? {
                let table = memory::table(tx).ok_or("not a store in memory")?;
                *table.entry(id).or_insert_with(|| vec![0]).first_mut().ok_or("empty")? += 1;
            }
            if let Some(child) = &child {
                tx.publish(child.clone())?;
            }
            if aborts { Err("changed its mind".into()) } else { Ok(result.clone()) }
        })
    }

    /// The event that a handler published is there, or will be.
    fn child_published(&mut self, child: usize) -> Check {
        if self.limbo {
            self.unresolved.push(child);
            return Ok(());
        }
        self.resolve(child)
    }

    /// Looks for an event that has to be there.
    pub(super) fn resolve(&mut self, intent: usize) -> Check {
        let event = &self.intents[intent].event;
        let found = at_once(self.store.find(&event.tenant, &event.queue, &event.id));
        let Ok(Some(found)) = found else {
            return Err(format!("e{intent} was published, and is not there: {found:?}"));
        };
        if self.model.is_remembered(intent, self.now) {
            return self.model.check_known(intent, Some(&found), self.now);
        }
        self.accepted(intent, found.seq, found.published)
    }

    /// An event is there.
    pub(super) fn accepted(&mut self, intent: usize, seq: Seq, at: redrive_core::Moment) -> Check {
        let of = &self.intents[intent];
        let stream = StreamId(u32::try_from(seq.0 >> NUMBER_BITS).unwrap_or(0));
        let place = (of.new_event(at).shard(self.plan.shards), stream);
        let Intent { queue, chain, event, .. } = of;
        self.model.accept(Accepted { intent, queue: *queue, chain: *chain, event, at, seq, place })
    }
}

/// Under which name an effect is in the user's table: an event that was edited has the place of another.
pub(super) fn effect_id(seq: Seq, intent: usize) -> String {
    format!("{}.{intent}", seq.0)
}
