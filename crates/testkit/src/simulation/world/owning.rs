//! Which node takes which shard, and which starts and stops.

use redrive_core::queue_entry::FencingToken;
use redrive_core::scheduler::Input;
use redrive_store::{StoreError, prelude::*};

use super::World;
use super::node::{Node, Op, Order};
use super::perform::at_once;
use crate::simulation::model::Check;
use crate::simulation::trace::say;
use crate::simulation::words;

impl World {
    /// Starts a node that is down, stops one that is drained, or gives a free shard to a node.
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

    /// Whether the holder of a shard is alive.
    pub(super) fn is_held(&self, holder: Option<(usize, u32)>) -> bool {
        holder.is_some_and(|(node, life)| self.nodes[node].up && self.nodes[node].life == life)
    }

    fn restart(&mut self, number: usize) {
        say!(self, "node {number} starts");
        let life = self.nodes[number].life + 1;
        let random = self.chance.random();
        self.nodes[number] = Node::start(life, &self.store, &self.plan, random, self.now, self.stamp);
    }

    /// A node takes a shard, with or without a current owner.
    pub(super) fn take(&mut self, number: usize, shard: u32) -> Check {
        self.arm(false);
        let answer = at_once(self.store.take(shard, self.now));
        self.committed();
        say!(self, "node {number} takes shard {shard}: {}", words::taken(&answer));
        match answer {
            Ok(taken) => {
                let unclean = self.model.take(shard, self.now);
                self.model.check_taken(&taken, unclean)?;
                self.holders[shard as usize] = Some((number, self.nodes[number].life));
                let order = Order::Own(self.stamp);
                self.answer(Some(number), order, Input::Own(taken));
            }
            Err(error) => {
                if self.landed(&error) {
                    self.model.take(shard, self.now);
                }
                self.holders[shard as usize] = None;
            }
        }
        Ok(())
    }

    /// A drained node stops. It releases its shards as clean, unless its crash guard was on and is not
    /// finished: then the next owner needs it as well.
    fn stop(&mut self, number: usize) -> Check {
        let node = &self.nodes[number];
        let busy: Vec<_> =
            node.under_way().into_iter().filter(|(token, _)| self.model.is_current(*token)).collect();
        if !busy.is_empty() {
            return Err(format!(
                "node {number} gives back its shards while attempts are under way: {busy:?}"
            ));
        }
        if !node.scheduler.is_careful() {
            for token in node.tokens.clone() {
                self.release(number, token)?;
            }
        }
        self.figures.fault("clean stop");
        self.go_down(number);
        Ok(())
    }

    /// A node is asked to hand off one of its shards.
    pub(super) fn ask_back(&mut self) {
        let Some(number) = self.some_node(|node| !node.draining && !node.tokens.is_empty()) else { return };
        let node = &self.nodes[number];
        let token = node.tokens[self.giving.below(node.tokens.len())];
        say!(self, "node {number} is asked to give back {}", words::token(token));
        self.answer(Some(number), Order::Free, Input::GiveBack(token));
    }

    /// A node has finished its work in a shard, and releases it.
    pub(super) fn given(&mut self, number: usize, token: FencingToken, clean: bool) -> Check {
        let node = &self.nodes[number];
        let busy: Vec<_> = node.under_way().into_iter().filter(|(of, _)| *of == token).collect();
        let is_current = self.model.is_current(token);
        if !busy.is_empty() && is_current {
            return Err(format!("node {number} gives back {token:?} while attempts are under way: {busy:?}"));
        }
        self.figures.fault("shard given back");
        if clean {
            self.release(number, token)?;
        }
        self.nodes[number].tokens.retain(|own| *own != token);
        if is_current {
            self.holders[token.shard as usize] = None;
        }
        Ok(())
    }

    fn release(&mut self, number: usize, token: FencingToken) -> Check {
        self.arm(false);
        let answer = at_once(self.store.release(token));
        self.committed();
        say!(self, "node {number} gives back {}: {}", words::token(token), words::answered(&answer));
        let released = match &answer {
            Ok(()) if !self.model.is_current(token) => {
                return Err(format!("{token:?} is over, and the store let its owner give it back"));
            }
            Ok(()) => true,
            Err(StoreError::NotOwner { .. }) => false,
            Err(error) => self.landed(error) && self.model.is_current(token),
        };
        // Events that operators redrove or released may be there before the owner knows of them.
        if released && !self.plan.operators {
            self.model.check_released(token.shard)?;
        }
        if released {
            self.model.release(token.shard);
        }
        Ok(())
    }

    /// A process ends. Its requests to the store may still happen there.
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
