//! Who takes which shard, and who starts and stops.

use redrive_core::entry::Grant;
use redrive_core::scheduler::Input;
use redrive_store::{Store, StoreError};

use super::World;
use super::node::{Node, Op, Order};
use super::perform::at_once;
use crate::simulation::model::Check;
use crate::simulation::trace::say;
use crate::simulation::words;

impl World {
    /// Starts a node that is down, stops one that is drained, or gives a shard to somebody.
    pub(super) fn own_some(&mut self) -> Check<bool> {
        if self.limbo {
            return Ok(false);
        }
        if let Some(node) = self.nodes.iter().position(|node| !node.up) {
            self.restart(node);
            return Ok(true);
        }
        if let Some(node) = self.some_node(|node| node.drained && node.scheduler.is_quiet()) {
            self.stop(node)?;
            return Ok(true);
        }
        let Some(shard) = self.holders.iter().position(|holder| !self.is_held(*holder)) else {
            return Ok(false);
        };
        let Some(node) = self.some_node(|node| !node.draining) else { return Ok(false) };
        self.take(node, u32::try_from(shard).unwrap_or(0))?;
        Ok(true)
    }

    /// Whether somebody lives who has a shard.
    pub(super) fn is_held(&self, holder: Option<(usize, u32)>) -> bool {
        holder.is_some_and(|(node, life)| self.nodes[node].up && self.nodes[node].life == life)
    }

    fn restart(&mut self, number: usize) {
        say!(self, "node {number} starts");
        let life = self.nodes[number].life + 1;
        let dice = self.chance.dice();
        self.nodes[number] = Node::start(life, &self.store, &self.plan, dice, self.now, self.stamp);
    }

    /// A node takes a shard, whoever has it.
    pub(super) fn take(&mut self, number: usize, shard: u32) -> Check {
        self.arm(false);
        let answer = at_once(self.store.take(shard, self.now));
        self.committed();
        say!(self, "node {number} takes shard {shard}: {}", words::taken(&answer));
        match answer {
            Ok(taken) => {
                let unclean = self.model.take(shard, &self.nodes[number].told, self.now);
                self.model.check_taken(&taken, unclean)?;
                self.holders[shard as usize] = Some((number, self.nodes[number].life));
                let order = Order::Own(self.stamp);
                self.answer(Some(number), order, Input::Own(taken));
            }
            Err(error) => {
                if self.landed(&error) {
                    self.model.take(shard, &self.nodes[number].told, self.now);
                }
                self.holders[shard as usize] = None;
            }
        }
        Ok(())
    }

    /// A drained node stops. What it has is given back, unless it had reason to be careful and has not found
    /// out yet: then the next owner is to be careful as well.
    fn stop(&mut self, number: usize) -> Check {
        let node = &self.nodes[number];
        let busy: Vec<_> =
            node.under_way().into_iter().filter(|(grant, _)| self.model.is_current(*grant)).collect();
        if !busy.is_empty() {
            return Err(format!("node {number} gives its shards back with {busy:?} under way"));
        }
        if !node.scheduler.is_careful() {
            for grant in node.grants.clone() {
                self.release(number, grant)?;
            }
        }
        self.figures.fault("clean stop");
        self.go_down(number);
        Ok(())
    }

    /// A node is asked for one of its shards.
    pub(super) fn ask_back(&mut self) {
        let Some(number) = self.some_node(|node| !node.draining && !node.grants.is_empty()) else { return };
        let node = &self.nodes[number];
        let grant = node.grants[self.giving.below(node.grants.len())];
        say!(self, "node {number} is to give {} back", words::grant(grant));
        self.answer(Some(number), Order::Free, Input::GiveBack(grant));
    }

    /// A node has done what it had to do in a shard, and gives it back.
    pub(super) fn given(&mut self, number: usize, grant: Grant, clean: bool) -> Check {
        let node = &self.nodes[number];
        let busy: Vec<_> = node.under_way().into_iter().filter(|(of, _)| *of == grant).collect();
        let is_current = self.model.is_current(grant);
        if !busy.is_empty() && is_current {
            return Err(format!("node {number} gives {grant:?} back with {busy:?} under way"));
        }
        self.figures.fault("shard given back");
        if clean {
            self.release(number, grant)?;
        }
        self.nodes[number].grants.retain(|own| *own != grant);
        if is_current {
            self.holders[grant.shard as usize] = None;
        }
        Ok(())
    }

    fn release(&mut self, number: usize, grant: Grant) -> Check {
        self.arm(false);
        let answer = at_once(self.store.release(grant));
        self.committed();
        say!(self, "node {number} gives {} back: {answer:?}", words::grant(grant));
        let released = match &answer {
            Ok(()) if !self.model.is_current(grant) => {
                return Err(format!("{grant:?} could still be given back"));
            }
            Ok(()) => true,
            Err(StoreError::NotOwner { .. }) => false,
            Err(error) => self.landed(error) && self.model.is_current(grant),
        };
        if released {
            self.model.release(grant.shard);
        }
        Ok(())
    }

    /// A process ends. What it had sent to the store may still happen there.
    pub(super) fn go_down(&mut self, number: usize) {
        let node = &mut self.nodes[number];
        node.up = false;
        node.inbox.clear();
        drop(at_once(node.store.close()));
        let (ops, attempts) = (std::mem::take(&mut node.ops), std::mem::take(&mut node.attempts));
        for op in ops {
            if !matches!(op, Op::Load(..) | Op::Rules) && self.chance.one_in(2) {
                self.orphans.push(op);
            }
        }
        for attempt in attempts {
            use crate::simulation::intent::Act::{LateTransact, Transact};
            if matches!(attempt.act, Transact | LateTransact) && self.chance.one_in(2) {
                self.orphans.push(Op::Transact(attempt.ticket));
            }
        }
    }
}
