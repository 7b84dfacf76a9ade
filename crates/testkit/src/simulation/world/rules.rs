//! Operators' commands on their way to the schedulers.
//!
//! A command that may have taken an event from its owner is announced as a recall, with the events that
//! became runnable by it. The rules are read afterwards, and delivered when they have been read. A process
//! that learned only that it missed something reads them as well, and sees by their version whether there was
//! a command.

use redrive_core::scheduler::Input;
use redrive_core::triage::ActiveRules;
use redrive_store::prelude::*;

use super::World;
use super::node::{Mail, Op, Order};
use super::perform::at_once;
use crate::simulation::model::Check;
use crate::simulation::trace::say;
use crate::simulation::words;

impl World {
    /// Delivers the store's announcements to the nodes' inboxes.
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
                    // A process that could not keep up knows of the command, and another process does not.
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

    /// A scheduler is notified that a command may have taken events from it.
    pub(super) fn recall(&mut self, number: usize, order: Order) {
        say!(self, "node {number} hears of an order");
        let node = &mut self.nodes[number];
        self.figures.order.hear(&mut node.last_heard, &Input::Recall, &node.tokens);
        node.scheduler.handle(Input::Recall, self.now, &mut node.random);
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

    /// Reads the rules for a node.
    pub(super) fn read_rules(&mut self, node: Option<usize>) -> Check {
        let Some(number) = node else { return Ok(()) };
        let failed = !self.calm && self.chance.one_in(self.plan.rates.failed_load);
        match at_once(self.store.controls()) {
            Ok(controls) if !failed => {
                // Announcements from before the read are delivered before the rules.
                self.answer(node, Order::Answer(self.stamp + 1), Input::Ruled(controls));
            }
            _ => self.nodes[number].ops.push(Op::Rules),
        }
        Ok(())
    }

    /// Delivers the rules to a scheduler, if they differ from the ones it knows.
    pub(super) fn ruled(&mut self, number: usize, controls: ActiveRules, order: Order) {
        let node = &mut self.nodes[number];
        node.is_asking = false;
        if controls.version != node.scheduler.rules_version() {
            say!(self, "node {number} hears of the rules: {}", words::rules(&controls));
            let node = &mut self.nodes[number];
            node.told = controls.clone();
            if let Order::Answer(stamp) = order {
                node.recalled = node.recalled.max(stamp - 1);
            }
            let input = Input::Ruled(controls);
            self.figures.order.hear(&mut node.last_heard, &input, &node.tokens);
            node.scheduler.handle(input, self.now, &mut node.random);
        }
        if std::mem::take(&mut self.nodes[number].is_asked_again) {
            self.ask_for_rules(number);
        }
    }
}
