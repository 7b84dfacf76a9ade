//! Faults: crashes, takeovers, stops, clocks, disks.

use std::time::Duration;

use redrive_core::Moment;
use redrive_core::scheduler::Input;

use super::World;
use super::node::Order;
use super::perform::at_once;
use crate::simulation::intent::Sent;
use crate::simulation::model::Check;
use crate::simulation::trace::say;
use redrive_store::prelude::*;

/// How far a clock goes back, at most.
const BACK_SECS_MAX: u64 = 3000;

impl World {
    /// A fault happens, if this seed has it.
    pub(super) fn fault(&mut self) -> Check<bool> {
        if self.limbo {
            return Ok(false);
        }
        if self.giving.one_in(self.plan.give_back) {
            self.ask_back();
        }
        let rates = &self.plan.rates;
        let (crash, take_over, drain, backward) = (rates.crash, rates.take_over, rates.drain, rates.backward);
        if self.chance.one_in(crash) {
            let Some(node) = self.some_node(|_| true) else { return Ok(false) };
            self.figures.fault("crash");
            self.crash(node);
        } else if self.chance.one_in(take_over) {
            return self.take_over();
        } else if self.chance.one_in(drain) {
            let Some(node) = self.some_node(|node| !node.draining) else { return Ok(false) };
            say!(self, "node {node} is asked to stop");
            self.nodes[node].draining = true;
            self.answer(Some(node), Order::Free, Input::Drain);
        } else if self.chance.one_in(backward) {
            self.go_back();
        } else if self.chance.one_in(3) {
            self.forget();
        }
        Ok(true)
    }

    /// The store forgets expired records.
    pub(super) fn forget(&mut self) {
        say!(self, "the store forgets old identities");
        let forgotten = match at_once(self.store.forget(self.now)) {
            Ok(_) => true,
            Err(error) => self.landed(&error),
        };
        self.committed();
        if forgotten {
            self.model.forget(self.now);
        }
    }

    /// A process dies for an outside reason.
    fn crash(&mut self, number: usize) {
        say!(self, "node {number} crashes");
        for token in self.nodes[number].tokens.clone() {
            if self.model.is_current(token) {
                self.model.excuse(token.shard);
            }
        }
        self.go_down(number);
    }

    /// A live node is taken for dead: it continues, and does not know.
    fn take_over(&mut self) -> Check<bool> {
        let shard = self.chance.below(self.holders.len());
        if !self.is_held(self.holders[shard]) {
            return Ok(false);
        }
        let Some(node) = self.some_node(|node| !node.draining) else { return Ok(false) };
        self.figures.fault("take-over from the living");
        self.take(node, u32::try_from(shard).unwrap_or(0))?;
        Ok(true)
    }

    /// The machine stops, and when it starts again its clock is wrong.
    fn go_back(&mut self) {
        self.figures.fault("clock set back");
        for node in 0..self.nodes.len() {
            if self.nodes[node].up {
                self.crash(node);
            }
        }
        self.orphans.clear();
        let back = Duration::from_secs(self.chance.between(1, BACK_SECS_MAX));
        self.set_back += back;
        let nanos = u64::try_from(back.as_nanos()).unwrap_or(0);
        self.now = Moment::from_nanos(self.now.as_nanos().saturating_sub(nanos));
    }

    /// The store is opened again after a failed sync: every process has to.
    pub(super) fn recover(&mut self) -> Check {
        say!(self, "the store is opened again");
        for node in 0..self.nodes.len() {
            if self.nodes[node].up {
                self.crash(node);
            }
        }
        self.orphans.clear();
        self.store = self.store.reopen();
        self.limbo = false;
        self.recover_leases()?;
        for intent in std::mem::take(&mut self.unresolved) {
            self.resolve(intent)?;
            if self.intents[intent].sent == Sent::Disproved {
                return Err(format!("e{intent} is in the store, and its publisher was told that it is not"));
            }
        }
        Ok(())
    }
}
