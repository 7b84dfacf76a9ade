//! What operators said, on its way to the schedulers.
//!
//! An order that may have taken something out of an owner's hands is told as a recall, with what became runnable
//! by it. The rules are read afterwards, and told when they have been read. A process that was told only that it
//! missed something reads them as well, and finds out by their version whether there was an order.

use redrive_core::scheduler::Input;
use redrive_core::triage::Controls;
use redrive_store::Store;

use super::World;
use super::node::{Mail, Op, Order};
use super::perform::at_once;
use crate::simulation::model::Check;
use crate::simulation::trace::say;

impl World {
    /// Puts into the mail what the store told its watchers.
    pub(super) fn hear(&mut self) {
        let order = Order::Arrival(self.stamp);
        for number in 0..self.nodes.len() {
            for mut arrivals in self.nodes[number].hear() {
                let is_left = self.is_left_to_tell(&mut arrivals.entries) || arrivals.recall;
                if !self.nodes[number].up || !is_left {
                    continue;
                }
                let missed = !self.calm && self.chance.one_in(self.plan.rates.missed_arrival);
                let mail = if missed {
                    self.figures.fault("missed arrival");
                    // A process that could not keep up knows of the order, and another process does not.
                    let recall = arrivals.recall && self.chance.one_in(2);
                    Mail { recall, input: Input::Missed(self.model.streams()), order }
                } else {
                    Mail { recall: arrivals.recall, input: Input::Arrived(arrivals.entries), order }
                };
                self.nodes[number].inbox.push(mail);
            }
        }
        self.all_told();
    }

    /// A scheduler is told that something may have been taken out of its hands.
    pub(super) fn recall(&mut self, number: usize, order: Order) {
        say!(self, "node {number} hears of an order");
        let node = &mut self.nodes[number];
        node.scheduler.handle(Input::Recall, self.now, &mut node.dice);
        if let Order::Arrival(stamp) = order {
            node.recalled = node.recalled.max(stamp);
        }
    }

    pub(super) fn ask_for_rules(&mut self, number: usize) {
        let node = &mut self.nodes[number];
        if std::mem::replace(&mut node.is_asking, true) {
            node.is_asked_again = true;
            return;
        }
        node.ops.push(Op::Rules);
    }

    /// The rules are read for a node.
    pub(super) fn read_rules(&mut self, node: Option<usize>) -> Check {
        let Some(number) = node else { return Ok(()) };
        let failed = !self.calm && self.chance.one_in(self.plan.rates.failed_load);
        match at_once(self.store.controls()) {
            Ok(controls) if !failed => {
                // Whatever was told before they were read is heard before they are.
                self.answer(node, Order::Answer(self.stamp + 1), Input::Ruled(controls));
            }
            _ => self.nodes[number].ops.push(Op::Rules),
        }
        Ok(())
    }

    /// A scheduler is told the rules, if there are others than those that it knows.
    pub(super) fn ruled(&mut self, number: usize, controls: Controls, order: Order) {
        let node = &mut self.nodes[number];
        node.is_asking = false;
        if controls.version != node.scheduler.rules_version() {
            say!(self, "node {number} hears of the rules {controls:?}");
            if !controls.list.is_empty() || !self.nodes[number].told.list.is_empty() {
                self.model.care_less();
            }
            let node = &mut self.nodes[number];
            node.told = controls.clone();
            if let Order::Answer(stamp) = order {
                node.recalled = node.recalled.max(stamp - 1);
            }
            node.scheduler.handle(Input::Ruled(controls), self.now, &mut node.dice);
        }
        if std::mem::take(&mut self.nodes[number].is_asked_again) {
            self.ask_for_rules(number);
        }
    }
}
