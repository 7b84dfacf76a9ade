//! Handlers at work.

use redrive_core::observe::Outcome;
use redrive_core::scheduler::{Ending, Input, Said};
use redrive_core::{Disposition, Fault};
use redrive_store::{StoreError, Transacted};

use super::World;
use super::node::{Attempt, Op, Order};
use crate::simulation::intent::Act;
use crate::simulation::model::Check;
use crate::simulation::trace::say;
use crate::simulation::words::name;

impl World {
    /// A handler gets further.
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
                self.tell(number, &attempt, Order::Free, Ending::new(Said::Outcome(Outcome::TimedOut)));
                return Ok(true);
            }
            let attempt = self.nodes[number].attempts.swap_remove(index);
            self.finish(number, attempt)?;
            return Ok(true);
        }
        Ok(false)
    }

    fn tell(&mut self, number: usize, attempt: &Attempt, order: Order, ending: Ending) {
        let (grant, seq, rev) = (attempt.ticket.grant, attempt.ticket.entry.seq, attempt.ticket.entry.rev);
        say!(self, "the attempt of {} rev {rev} on node {number} says {}", name(seq), ending.said.as_str());
        self.answer(Some(number), order, Input::Ended { grant, seq, rev, ending });
    }

    fn finish(&mut self, number: usize, attempt: Attempt) -> Check {
        let drained = self.nodes[number].drained && !attempt.late;
        if drained && self.chance.one_in(6) {
            self.figures.fault("attempt given up at a stop");
            self.tell(number, &attempt, Order::Free, Ending::new(Said::Released));
            if matches!(attempt.act, Act::Transact) && self.chance.one_in(2) {
                self.orphans.push(Op::Transact(attempt.ticket));
            }
            return Ok(());
        }
        let fault = |fault: Fault| Said::Outcome(fault.into());
        let said = match attempt.act {
            Act::Succeed | Act::SucceedWith(_) | Act::Linger => Said::Outcome(Disposition::Ok.into()),
            Act::Fail => fault(Fault::transient()),
            Act::FailAsking(wait) => fault(Fault::transient().not_before(wait)),
            Act::Overload => fault(Fault::overload()),
            Act::Permanent => fault(Fault::permanent()),
            Act::Unclassified => Said::Outcome(Outcome::Unclassified),
            Act::Discard => Said::Outcome(Disposition::Discard.into()),
            Act::Panic => Said::Panicked,
            Act::Undecodable => Said::Undecodable,
            Act::Kill => return self.kill(number, &attempt),
            Act::Transact | Act::LateTransact | Act::Abort => return self.finish_work(number, attempt),
        };
        let mut ending = Ending::new(said);
        if let Act::SucceedWith(byte) = attempt.act {
            ending.result = Some(vec![byte]);
        }
        self.tell(number, &attempt, Order::Free, ending);
        Ok(())
    }

    /// A handler that works in the domain of the store.
    fn finish_work(&mut self, number: usize, attempt: Attempt) -> Check {
        let answer = self.transact(&attempt.ticket, attempt.act == Act::Abort)?;
        let order = Order::Answer(self.stamp);
        let said = match answer {
            Ok(Transacted::Committed { next }) => Said::Committed { next: next.map(Box::new) },
            Ok(Transacted::Stale) => Said::Stale,
            Ok(Transacted::Fenced) => Said::Fenced,
            Ok(_) => Said::Outcome(Fault::transient().not_executed().into()),
            // Nobody knows, so the same again: it tells.
            Err(StoreError::Unknown { .. }) if !self.limbo => {
                self.nodes[number].attempts.push(attempt);
                return Ok(());
            }
            Err(StoreError::Unknown { .. } | StoreError::Poisoned { .. }) => Said::Released,
            Err(_) => Said::NotKept,
        };
        self.tell(number, &attempt, order, Ending::new(said));
        Ok(())
    }

    /// A handler takes its process down.
    fn kill(&mut self, number: usize, attempt: &Attempt) -> Check {
        self.figures.fault("handler that kills");
        let (grant, seq) = (attempt.ticket.grant, attempt.ticket.entry.seq);
        say!(self, "the handler of {} kills node {number}", name(seq));
        self.model.killed(grant, seq)?;
        // Whoever runs alone beside what an old owner left behind is as innocent as in any other death.
        let stray = !self.model.is_current(grant);
        for grant in self.nodes[number].grants.clone() {
            match self.model.is_current(grant) {
                true if stray => self.model.excuse(grant.shard),
                true => self.model.died(grant.shard),
                false => {}
            }
        }
        self.go_down(number);
        Ok(())
    }
}
