//! Handlers at work.

use redrive_core::observe::Outcome;
use redrive_core::scheduler::{AttemptEnd, EndedAttempt, Input};
use redrive_core::{Disposition, Fault};
use redrive_store::{StoreError, TxOutcome};

use super::World;
use super::node::{Attempt, Op, Order};
use crate::simulation::intent::Act;
use crate::simulation::model::Check;
use crate::simulation::trace::say;
use crate::simulation::words::name;

impl World {
    /// A handler makes progress.
    pub(super) fn attempt_some(&mut self) -> Check<bool> {
        let Some(number) = self.some_node(|node| !node.attempts.is_empty()) else { return Ok(false) };
        let count = self.nodes[number].attempts.len();
        let first = self.chance.below(count);
        for index in (first..count).chain(0..first) {
            let attempt = &self.nodes[number].attempts[index];
            let over = attempt.ticket.deadline.is_some_and(|deadline| deadline <= self.now);
            let slow = matches!(attempt.act, Act::Linger | Act::LateTransact);
            if slow && !attempt.late && !over {
                continue;
            }
            let may_be_late = slow || (attempt.act != Act::Kill && self.chance.one_in(3));
            let attempt = &mut self.nodes[number].attempts[index];
            if over && !attempt.late && may_be_late {
                attempt.late = true;
                let attempt = attempt.clone();
                self.tell(
                    number,
                    &attempt,
                    Order::Free,
                    EndedAttempt::new(AttemptEnd::Outcome(Outcome::TimedOut)),
                );
                return Ok(true);
            }
            let attempt = self.nodes[number].attempts.swap_remove(index);
            self.finish(number, attempt)?;
            return Ok(true);
        }
        Ok(false)
    }

    fn tell(&mut self, number: usize, attempt: &Attempt, order: Order, ended: EndedAttempt) {
        let (token, seq, rev) = (attempt.ticket.token, attempt.ticket.entry.seq, attempt.ticket.entry.rev);
        say!(self, "the attempt of {} rev {rev} on node {number} says {}", name(seq), ended.end.as_str());
        self.answer(Some(number), order, Input::Ended { token, seq, rev, ended });
    }

    fn finish(&mut self, number: usize, attempt: Attempt) -> Check {
        let drained = self.nodes[number].drained && !attempt.late;
        if drained && self.chance.one_in(6) {
            self.figures.fault("attempt given up at a stop");
            self.tell(number, &attempt, Order::Free, EndedAttempt::new(AttemptEnd::Released));
            if matches!(attempt.act, Act::Transact) && self.chance.one_in(2) {
                self.orphans.push(Op::Transact(attempt.ticket));
            }
            return Ok(());
        }
        let fault = |fault: Fault| AttemptEnd::Outcome(fault.into());
        let end = match attempt.act {
            Act::Succeed | Act::SucceedWith(_) | Act::Linger => AttemptEnd::Outcome(Disposition::Ok.into()),
            Act::Fail => fault(Fault::transient()),
            Act::FailAsking(wait) => fault(Fault::transient().not_before(wait)),
            Act::Overload => fault(Fault::overload()),
            Act::Permanent => fault(Fault::permanent()),
            Act::Unclassified => AttemptEnd::Outcome(Outcome::Unclassified),
            Act::Discard => AttemptEnd::Outcome(Disposition::Drop.into()),
            Act::Panic => AttemptEnd::Panicked,
            Act::Undecodable => AttemptEnd::Undecodable,
            Act::Kill => return self.kill(number, &attempt),
            Act::Transact | Act::LateTransact | Act::Abort => return self.finish_work(number, attempt),
        };
        let mut ended = EndedAttempt::new(end);
        if let Act::SucceedWith(byte) = attempt.act {
            ended.result = Some(vec![byte]);
        }
        self.tell(number, &attempt, Order::Free, ended);
        Ok(())
    }

    /// A handler that works in the domain of the store.
    fn finish_work(&mut self, number: usize, attempt: Attempt) -> Check {
        let answer = self.transact(&attempt.ticket, attempt.act == Act::Abort)?;
        let order = Order::Answer(self.stamp);
        let end = match answer {
            Ok(TxOutcome::Committed { next }) => AttemptEnd::Committed { next: next.map(Box::new) },
            Ok(TxOutcome::Stale) => AttemptEnd::Stale,
            Ok(TxOutcome::Fenced) => AttemptEnd::Fenced,
            Ok(_) => AttemptEnd::Outcome(Fault::transient().not_executed().into()),
            // The outcome is unknown, so the same request again: its answer tells.
            Err(StoreError::Unknown { .. }) if !self.limbo => {
                self.nodes[number].attempts.push(attempt);
                return Ok(());
            }
            Err(StoreError::Unknown { .. } | StoreError::Poisoned { .. }) => AttemptEnd::Released,
            Err(_) => AttemptEnd::NotKept,
        };
        self.tell(number, &attempt, order, EndedAttempt::new(end));
        Ok(())
    }

    /// A handler crashes its process.
    fn kill(&mut self, number: usize, attempt: &Attempt) -> Check {
        self.figures.fault("handler that kills");
        let (token, seq) = (attempt.ticket.token, attempt.ticket.entry.seq);
        say!(self, "the handler of {} kills node {number}", name(seq));
        self.model.killed(token, seq)?;
        // An event that runs alone beside leftovers of a former owner is as innocent as in any other crash.
        let stray = !self.model.is_current(token);
        for token in self.nodes[number].tokens.clone() {
            match self.model.is_current(token) {
                true if stray => self.model.excuse(token.shard),
                true => self.model.died(token.shard),
                false => {}
            }
        }
        self.go_down(number);
        Ok(())
    }
}
