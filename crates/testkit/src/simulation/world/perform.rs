//! Performs the schedulers' actions on the store, and compares its answers with the truth.

use std::task::{Context, Poll, Waker};

use redrive_core::queue_entry::{LoadRequest, Seq, SettleRequest, SettleResult};
use redrive_core::scheduler::{Input, LoadId, NoteId};
use redrive_store::memory::InjectedFault;
use redrive_store::{StoreError, StoreFuture, prelude::*};

use super::World;
use super::node::{Mail, Op, Order};
use crate::simulation::model::{Check, Judged};
use crate::simulation::trace::say;
use crate::simulation::words;

/// The most settles in one commit.
const GROUP: usize = 3;

/// The answer of a store whose futures are ready immediately.
pub(super) fn at_once<T>(mut answer: StoreFuture<T>) -> Result<T, StoreError> {
    match answer.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => panic!("the store in memory answers at once"),
    }
}

impl World {
    /// Performs one of the actions that nodes want, or had wanted before they died.
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
            Op::Load(id, load) => self.load(node, id, load),
            Op::Rules => self.read_rules(node),
            Op::Note(note, list) => self.note(node, note, list),
            Op::Settle(settle) => self.settle(node, settle),
            Op::Transact(ticket) => self.transact(&ticket, false).map(drop),
        }
    }

    /// Sends a message to a node, if it is still there.
    pub(super) fn answer(&mut self, node: Option<usize>, order: Order, input: Input) {
        if let Some(node) = node {
            self.nodes[node].inbox.push(Mail { recall: false, input, order });
        }
    }

    fn load(&mut self, node: Option<usize>, id: LoadId, load: LoadRequest) -> Check {
        let key = id.flow;
        if !self.calm && self.chance.one_in(self.plan.rates.failed_load) {
            self.figures.fault("failed load");
            self.answer(node, Order::Free, Input::LoadFailed(id));
            return Ok(());
        }
        say!(self, "the store answers a load of {:?} of shard {}", key.stream, key.shard);
        match at_once(self.store.load(load.clone())) {
            Ok(loaded) => {
                self.model.check_loaded(&load, &loaded)?;
                if !self.model.is_current(load.token) {
                    return Err(format!("{:?} is over, and the store answered a load under it", load.token));
                }
                self.answer(node, Order::Free, Input::Loaded(id, loaded));
            }
            Err(StoreError::NotOwner { .. }) => self.answer(node, Order::Free, Input::Lost(load.token)),
            Err(_) => self.answer(node, Order::Free, Input::LoadFailed(id)),
        }
        Ok(())
    }

    fn note(&mut self, node: Option<usize>, note: NoteId, list: Vec<Seq>) -> Check {
        let token = note.token;
        self.arm(false);
        let answer = at_once(self.store.note(token, list.clone()));
        self.committed();
        let current = self.model.is_current(token);
        say!(
            self,
            "the store notes {} under {}: {}",
            words::names(&list),
            words::token(token),
            words::answered(&answer)
        );
        let input = match answer {
            Ok(()) if !current => {
                return Err(format!("{token:?} is over, and the store took a note under it"));
            }
            Ok(()) => {
                self.model.note(token.shard, list);
                Input::Noted(note)
            }
            Err(StoreError::NotOwner { .. }) => Input::Lost(token),
            Err(error) => {
                if self.landed(&error) && current {
                    self.model.note(token.shard, list);
                }
                Input::NoteFailed(note)
            }
        };
        self.answer(node, Order::Free, input);
        Ok(())
    }

    /// Settles, perhaps with others in one commit.
    fn settle(&mut self, node: Option<usize>, first: SettleRequest) -> Check {
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
                group.iter().for_each(|settle| self.see_all(settle.token.epoch, (settle.seq, settle.rev)));
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

    fn settled(&mut self, node: Option<usize>, settle: SettleRequest, answer: SettleResult) -> Check {
        let SettleRequest { token, seq, rev, at, ref change } = settle;
        let judged = self.model.judge(token, seq, rev, Some(change));
        match (&answer, judged) {
            (SettleResult::Applied { next, .. }, Judged::Applied) => {
                self.model.apply(seq, at, change)?;
                self.model.crash(token.shard, seq, change);
                if node.is_none() && matches!(change, redrive_core::queue_entry::EventChange::CountCrash) {
                    // The owner that wrote its crash count is dead, and the event did not run.
                    self.model.excuse(token.shard);
                }
                if let Some(next) = next {
                    self.model.check_handed_out(next)?;
                }
            }
            (SettleResult::Stale, Judged::Stale) | (SettleResult::Fenced, Judged::Fenced) => {}
            _ => {
                return Err(format!(
                    "the store answered a settle with {answer:?} instead of {judged:?}: {settle:?}"
                ));
            }
        }
        let order = Order::Answer(self.stamp);
        self.answer(node, order, Input::Settled { token, seq, rev, settled: answer });
        Ok(())
    }

    fn settle_failed(
        &mut self,
        node: Option<usize>,
        settle: SettleRequest,
        landed: bool,
        error: &StoreError,
    ) -> Check {
        let SettleRequest { token, seq, rev, at, ref change } = settle;
        if landed && self.model.judge(token, seq, rev, Some(change)) == Judged::Applied {
            self.model.apply(seq, at, change)?;
            self.model.crash(token.shard, seq, change);
        }
        // A cut connection says as little about a commit that did not happen as about one that did.
        let unknown = !error.is_definite() || self.chance.one_in(2);
        self.answer(node, Order::Free, Input::SettleFailed { token, seq, rev, unknown });
        Ok(())
    }

    /// Makes the next request of the store fail, perhaps.
    pub(super) fn arm(&mut self, between: bool) {
        if self.calm || self.armed.is_some() || self.limbo {
            return;
        }
        let rates = &self.plan.rates;
        let fault = if self.chance.one_in(rates.refused_commit) {
            InjectedFault::BeforeCommit
        } else if self.chance.one_in(rates.unknown_commit) {
            InjectedFault::AfterCommit
        } else if self.chance.one_in(rates.failed_sync) {
            InjectedFault::FailedSync { lands: self.chance.one_in(2) }
        } else if between && self.chance.one_in(rates.between_commits) {
            InjectedFault::BetweenCommits
        } else {
            return;
        };
        self.armed = Some(fault);
        self.store.fail_next(fault);
    }

    /// Whether a failed request happened all the same.
    pub(super) fn landed(&mut self, error: &StoreError) -> bool {
        match error {
            StoreError::Passing { .. } => {
                self.armed = None;
                self.figures.fault("refused commit");
                false
            }
            StoreError::Unknown { .. } => match self.armed.take() {
                Some(InjectedFault::FailedSync { lands }) => {
                    self.limbo = true;
                    self.figures.fault("failed sync");
                    lands
                }
                Some(InjectedFault::BetweenCommits) => {
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

    /// A commit may have happened: watchers are notified.
    pub(super) fn committed(&mut self) {
        self.stamp += 1;
        self.model.stamp = self.stamp;
        self.hear();
    }
}
