//! The watchdog over stalled shards: it stays silent while the scheduler is right, and repairs a shard in
//! which a planted bug leaves events behind.

use std::time::Duration;

use redrive_core::queue_entry::{FencingToken, Seq};
use redrive_core::scheduler::{Action, Input, STALL_AFTER};
use redrive_store::prelude::*;

use super::World;
use super::perform::at_once;
use crate::simulation::model::Check;
use crate::simulation::trace::say;
use crate::simulation::words;

/// How long to wait for the watchdog if no action is planned.
const PATIENCE: Duration = Duration::from_secs(3 * STALL_AFTER.as_secs());

impl World {
    /// Lets the watchdog of each node look, while no message is on its way between nodes and store. Its reads
    /// are answered immediately, without random faults.
    pub(super) fn watch_all(&mut self) -> Check {
        for number in 0..self.nodes.len() {
            let (now, node) = (self.now, &mut self.nodes[number]);
            if !node.up {
                continue;
            }
            let mut checks = Vec::new();
            node.scheduler.watch(now, &mut checks);
            if checks.is_empty() {
                continue;
            }
            for check in checks {
                let Action::Check(key, load) = check else { continue };
                if let Ok(loaded) = at_once(self.store.load(load)) {
                    node.scheduler.handle(Input::Checked(key, loaded), now, &mut node.random);
                }
            }
            self.act(number)?;
        }
        Ok(())
    }

    /// If no action is planned, the watchdog has to notice. Returns whether it did.
    pub(super) fn is_woken_by_watchdog(&mut self) -> Check<bool> {
        let (before, end) = (self.figures.stalls, self.now + PATIENCE);
        while self.heals && self.figures.stalls == before && self.now < end {
            self.now = self.now + Duration::from_secs(1);
            self.watch_all()?;
        }
        Ok(self.figures.stalls > before)
    }

    /// The watchdog of a node found a shard that makes no progress.
    pub(super) fn stalled_shard(&mut self, number: usize, token: FencingToken, waiting: Seq) -> Check {
        let (shard, waiting) = (words::token(token), words::name(waiting));
        if !self.heals {
            return Err(format!("the watchdog of node {number} finds {shard} stalled: {waiting} waits"));
        }
        say!(self, "the watchdog of node {number} finds {shard} stalled: {waiting} waits");
        self.figures.stalls += 1;
        self.nodes[number].tokens.retain(|own| *own != token);
        if self.model.is_current(token) {
            self.holders[token.shard as usize] = None;
        }
        Ok(())
    }
}
