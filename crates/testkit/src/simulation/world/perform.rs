//! Does with the store what the schedulers want, and holds its answers against what is true.

use std::task::{Context, Poll, Waker};

use redrive_core::entry::{Grant, Load, Seq, Settle, Settled};
use redrive_core::scheduler::{FlowKey, Input};
use redrive_store::memory::Fault;
use redrive_store::{Answer, Store, StoreError};

use super::World;
use super::node::{Mail, Op, Order};
use crate::simulation::model::{Check, Judged};
use crate::simulation::trace::say;
use crate::simulation::words;

/// How many settles are in one commit, at most.
const GROUP: usize = 3;

/// The answer of a store whose futures are ready at once.
pub(super) fn at_once<T>(mut answer: Answer<T>) -> Result<T, StoreError> {
    match answer.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => panic!("the store in memory answers at once"),
    }
}

impl World {
    /// Does one of the things that nodes want done, or had wanted before they died.
    pub(super) fn perform_some(&mut self) -> Check<bool> {
        let node = self.some_node(|node| !node.ops.is_empty());
        if !self.orphans.is_empty() && (node.is_none() || self.chance.one_in(2)) {
            let index = self.chance.below(self.orphans.len());
            let op = self.orphans.swap_remove(index);
            self.perform(None, op)?;
            return Ok(true);
        }
        let Some(node) = node else { return Ok(false) };
        self.publish_across(node)?;
        let index = self.chance.below(self.nodes[node].ops.len());
        if self.takes_longer(node, index) {
            return Ok(true);
        }
        let op = self.nodes[node].ops.swap_remove(index);
        self.perform(Some(node), op)?;
        Ok(true)
    }

    fn perform(&mut self, node: Option<usize>, op: Op) -> Check {
        match op {
            Op::Load(key, load) => self.load(node, key, load),
            Op::Rules => self.read_rules(node),
            Op::Note(grant, list) => self.note(node, grant, list),
            Op::Settle(settle) => self.settle(node, settle),
            Op::Transact(ticket) => self.transact(&ticket, false).map(drop),
        }
    }

    /// Something is told to a node, if it is still there.
    pub(super) fn answer(&mut self, node: Option<usize>, order: Order, input: Input) {
        if let Some(node) = node {
            self.nodes[node].inbox.push(Mail { recall: false, input, order });
        }
    }

    fn load(&mut self, node: Option<usize>, key: FlowKey, load: Load) -> Check {
        if !self.calm && self.chance.one_in(self.plan.rates.failed_load) {
            self.figures.fault("failed load");
            self.answer(node, Order::Free, Input::LoadFailed(key));
            return Ok(());
        }
        say!(self, "the store loads stream {} of shard {}", key.stream.0, key.shard);
        match at_once(self.store.load(load.clone())) {
            Ok(loaded) => {
                self.model.check_loaded(&load, &loaded)?;
                if !self.model.is_current(load.grant) {
                    return Err(format!("{:?} could still load", load.grant));
                }
                self.answer(node, Order::Free, Input::Loaded(key, loaded));
            }
            Err(StoreError::NotOwner { .. }) => self.answer(node, Order::Free, Input::Lost(load.grant)),
            Err(_) => self.answer(node, Order::Free, Input::LoadFailed(key)),
        }
        Ok(())
    }

    fn note(&mut self, node: Option<usize>, grant: Grant, list: Vec<Seq>) -> Check {
        self.arm(false);
        let answer = at_once(self.store.note(grant, list.clone()));
        self.committed();
        let current = self.model.is_current(grant);
        say!(self, "the store notes {} for {}: {answer:?}", words::names(&list), words::grant(grant));
        let input = match answer {
            Ok(()) if !current => return Err(format!("{grant:?} could still note")),
            Ok(()) => {
                self.model.note(grant.shard, list);
                Input::Noted(grant)
            }
            Err(StoreError::NotOwner { .. }) => Input::Lost(grant),
            Err(error) => {
                if self.landed(&error) && current {
                    self.model.note(grant.shard, list);
                }
                Input::NoteFailed(grant)
            }
        };
        self.answer(node, Order::Free, input);
        Ok(())
    }

    /// Settles, perhaps with others in one commit.
    fn settle(&mut self, node: Option<usize>, first: Settle) -> Check {
        let mut group = vec![first];
        if let Some(node) = node {
            let ops = &mut self.nodes[node].ops;
            while group.len() < GROUP && matches!(ops.last(), Some(Op::Settle(_))) {
                if let Some(Op::Settle(settle)) = ops.pop() {
                    group.push(settle);
                }
            }
        }
        self.arm(false);
        let mut answer = at_once(self.store.settle(group.clone()));
        match &mut answer {
            Ok(answers) => {
                group.iter().zip(answers).for_each(|(settle, answer)| self.uncross(settle, answer));
            }
            Err(_) => {
                group.iter().for_each(|settle| self.see_all(settle.grant.epoch, (settle.seq, settle.rev)));
            }
        }
        self.committed();
        match answer {
            Ok(answers) => {
                for (settle, answer) in group.into_iter().zip(answers) {
                    say!(self, "the store settles {}: {}", words::settle(&settle), words::settled(&answer));
                    self.settled(node, settle, answer)?;
                }
            }
            Err(error) => {
                let landed = self.landed(&error);
                for settle in &group {
                    let fate = if landed { "happened" } else { "did not happen" };
                    say!(self, "the store fails to settle {}; it {fate}", words::settle(settle));
                }
                for settle in group {
                    self.settle_failed(node, settle, landed, &error)?;
                }
            }
        }
        Ok(())
    }

    fn settled(&mut self, node: Option<usize>, settle: Settle, answer: Settled) -> Check {
        let Settle { grant, seq, rev, at, ref change } = settle;
        let judged = self.model.judge(grant, seq, rev, Some(change));
        match (&answer, judged) {
            (Settled::Applied { next, .. }, Judged::Applied) => {
                self.model.apply(seq, at, change)?;
                self.model.strike(grant.shard, seq, change);
                if node.is_none() && matches!(change, redrive_core::entry::Change::Strike) {
                    // Whoever struck it is dead, and it did not run.
                    self.model.excuse(grant.shard);
                }
                if let Some(next) = next {
                    self.model.check_handed_out(next)?;
                }
            }
            (Settled::Stale, Judged::Stale) | (Settled::Fenced, Judged::Fenced) => {}
            _ => return Err(format!("{settle:?} was answered with {answer:?}, and should be {judged:?}")),
        }
        let order = Order::Answer(self.stamp);
        self.answer(node, order, Input::Settled { grant, seq, rev, settled: answer });
        Ok(())
    }

    fn settle_failed(
        &mut self,
        node: Option<usize>,
        settle: Settle,
        landed: bool,
        error: &StoreError,
    ) -> Check {
        let Settle { grant, seq, rev, at, ref change } = settle;
        if landed && self.model.judge(grant, seq, rev, Some(change)) == Judged::Applied {
            self.model.apply(seq, at, change)?;
            self.model.strike(grant.shard, seq, change);
        }
        // A cut connection says as little of a commit that did not happen as of one that did.
        let unknown = !error.is_definite() || self.chance.one_in(2);
        self.answer(node, Order::Free, Input::SettleFailed { grant, seq, rev, unknown });
        Ok(())
    }

    /// Tells the store to fail, perhaps.
    pub(super) fn arm(&mut self, between: bool) {
        if self.calm || self.armed.is_some() || self.limbo {
            return;
        }
        let rates = &self.plan.rates;
        let fault = if self.chance.one_in(rates.refused_commit) {
            Fault::BeforeCommit
        } else if self.chance.one_in(rates.unknown_commit) {
            Fault::AfterCommit
        } else if self.chance.one_in(rates.failed_sync) {
            Fault::FailedSync { lands: self.chance.one_in(2) }
        } else if between && self.chance.one_in(rates.between_commits) {
            Fault::BetweenCommits
        } else {
            return;
        };
        self.armed = Some(fault);
        self.store.fail_next(fault);
    }

    /// Whether something that failed happened all the same.
    pub(super) fn landed(&mut self, error: &StoreError) -> bool {
        match error {
            StoreError::Passing { .. } => {
                self.armed = None;
                self.figures.fault("refused commit");
                false
            }
            StoreError::Unknown { .. } => match self.armed.take() {
                Some(Fault::FailedSync { lands }) => {
                    self.limbo = true;
                    self.figures.fault("failed sync");
                    lands
                }
                Some(Fault::BetweenCommits) => {
                    self.figures.fault("death between commits");
                    true
                }
                _ => {
                    self.figures.fault("commit of unknown fate");
                    true
                }
            },
            _ => false,
        }
    }

    /// Something may have been committed: whoever watches is told.
    pub(super) fn committed(&mut self) {
        self.stamp += 1;
        self.model.stamp = self.stamp;
        self.hear();
    }
}
