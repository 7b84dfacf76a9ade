//! Effects in the store's own domain: the user's table, an inbox marker, another event, and the settle.

use std::time::Duration;

use redrive_core::queue_entry::{EventChange, Seq, StreamId};
use redrive_core::scheduler::DispatchedAttempt;
use redrive_store::{StoreError, Tx, TxJob, TxOutcome, TxSettle, TxWork, memory, prelude::*};

use super::World;
use super::perform::at_once;
use crate::simulation::intent::Intent;
use crate::simulation::model::{Accepted, Check, Judged};
use crate::simulation::trace::say;
use crate::simulation::words;

/// The handler's result on the dedupe record.
const LEFT: &[u8] = b"left";
/// How many bits of a sequence number are the number within its stream, in the in-memory store.
pub(super) const NUMBER_BITS: u32 = 40;

impl World {
    /// Runs a handler's work in a transaction that settles its event.
    pub(super) fn transact(
        &mut self,
        ticket: &DispatchedAttempt,
        aborts: bool,
    ) -> Check<Result<TxOutcome, StoreError>> {
        let (token, seq, rev) = (ticket.token, ticket.entry.seq, ticket.entry.rev);
        let intent = Intent::number(&ticket.entry.event.id);
        let child = self.intents[intent].child.filter(|_| !aborts);
        let result = (seq.0 % 2 == 0).then(|| LEFT.to_vec());
        let history = ticket.entry.progress.history.clone();
        let claim =
            TxSettle { token, seq, rev, at: self.now, attempts: ticket.attempt, history: history.clone() };
        let work = self.work(effect_id(seq, intent), child, aborts, result.clone());
        let job = TxJob { work, claim: Some(claim), time: Duration::from_secs(1), alone: false };

        let judged = self.model.judge(token, seq, rev, None);
        self.arm(true);
        let mut answer = at_once(self.store.transact(job));
        if let Ok(TxOutcome::Committed { next }) = &mut answer {
            self.forget_next(token.epoch, (seq, rev), next);
        }
        self.see_all(token.epoch, (seq, rev));
        say!(
            self,
            "the store runs the transaction of {} rev {rev} under {}: {}",
            words::name(seq),
            words::token(token),
            words::transacted(&answer)
        );
        let happened = match (&answer, judged) {
            (Ok(TxOutcome::Committed { .. }), Judged::Applied) => !aborts,
            (Ok(TxOutcome::Aborted(_)), Judged::Applied) => false,
            (Ok(TxOutcome::Stale), Judged::Stale) | (Ok(TxOutcome::Fenced), Judged::Fenced) => false,
            (Err(error), judged) => self.landed(error) && judged == Judged::Applied && !aborts,
            (Ok(answer), judged) => {
                return Err(format!(
                    "the store answered the transaction of {seq:?} with {answer:?} instead of {judged:?}"
                ));
            }
        };
        if happened {
            let attempts = ticket.attempt;
            let plain = attempts <= 1 && result.is_none() && history.is_none();
            let change =
                if plain { EventChange::Done } else { EventChange::DoneWith { result, attempts, history } };
            self.model.apply(seq, self.now, &change)?;
            self.model.crash(token.shard, seq, &change);
            self.model.effect(seq)?;
            self.figures.effects += 1;
            if let Some(child) = child {
                self.child_published(child)?;
            }
        }
        self.committed();
        if let Ok(TxOutcome::Committed { next: Some(next) }) = &answer {
            self.model.check_handed_out(next)?;
        }
        Ok(answer)
    }

    fn work(&self, id: String, child: Option<usize>, aborts: bool, result: Option<Vec<u8>>) -> TxWork {
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
            return Err(format!("e{intent} was published, and is not in the store: {found:?}"));
        };
        if self.model.is_remembered(intent, self.now) {
            return self.model.check_known(intent, Some(&found), self.now);
        }
        self.accepted(intent, found.seq, found.published)
    }

    /// Records an event that was accepted.
    pub(super) fn accepted(&mut self, intent: usize, seq: Seq, at: redrive_core::Moment) -> Check {
        let of = &self.intents[intent];
        let stream = StreamId(u32::try_from(seq.0 >> NUMBER_BITS).unwrap_or(0));
        let place = (of.new_event(at).shard(self.plan.shards), stream);
        let Intent { queue, chain, event, .. } = of;
        self.model.accept(Accepted { intent, queue: *queue, chain: *chain, event, at, seq, place })
    }
}

/// The name of an effect in the user's table: an edited event has the sequence number of another.
pub(super) fn effect_id(seq: Seq, intent: usize) -> String {
    format!("{}.{intent}", seq.0)
}
