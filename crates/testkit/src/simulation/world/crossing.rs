//! Publishers and owners that run concurrently, as they do when several transactions are open at once.
//!
//! The in-memory store performs one request after the other. This module adds two behaviours that other
//! stores have. A publisher draws the sequence number of an event and commits later, when larger numbers may
//! have been seen and started. And an event is committed while the settle of the one before it is being
//! written: that settle looked for the next event too early, so its answer names none, and before that answer
//! owners learn only that they missed something.

use std::collections::BTreeSet;

use redrive_core::queue_entry::{QueueEntry, Seq, SettleRequest, SettleResult, StreamId};
use redrive_core::scheduler::Input;

use super::World;
use super::node::{Mail, Op, Order};
use super::transact::NUMBER_BITS;
use crate::simulation::chance::{Chance, Source};
use crate::simulation::intent::{Act, Sent};
use crate::simulation::model::Check;
use crate::simulation::trace::say;
use crate::simulation::words::name;

/// Salt of its random stream.
const CROSSING: u64 = 0x0000_c055;

/// What runs concurrently.
#[derive(Debug)]
pub(super) struct Crossing {
    /// A random stream of its own, so that seeds from before there was such a thing still mean the same.
    chance: Chance,
    /// Whether this run has concurrent publishers.
    is_on: bool,
    /// Events that have a sequence number and are not committed.
    begun: Vec<(usize, Seq)>,
    /// Settles, as epoch, event and revision, with the event that was published meanwhile.
    ends: BTreeSet<(u64, Seq, u32, Seq)>,
    /// The events that the next announcement does not name.
    unnamed: BTreeSet<Seq>,
}

impl Crossing {
    pub(super) fn new(source: &Source, is_on: bool) -> Self {
        let chance = source.chance(CROSSING);
        Self { chance, is_on, begun: Vec::new(), ends: BTreeSet::new(), unnamed: BTreeSet::new() }
    }

    /// Whether every event with a sequence number is committed.
    pub(super) fn is_over(&self) -> bool {
        self.begun.is_empty()
    }
}

impl World {
    /// A publisher draws a sequence number and commits later, perhaps.
    pub(super) fn begin_late(&mut self, intent: usize) -> Check<bool> {
        let of = &self.intents[intent];
        let may = self.crossing.is_on && !self.calm && !self.limbo;
        if !may || of.chain.is_none() || of.sent != Sent::Not || !self.crossing.chance.one_in(3) {
            return Ok(false);
        }
        let seq = self.store.draw(&of.event.queue, &of.event.tenant).map_err(|error| error.to_string())?;
        say!(self, "a publisher of e{intent} draws the number {}, and commits later", name(seq));
        self.model.draw(StreamId(u32::try_from(seq.0 >> NUMBER_BITS).unwrap_or(0)), seq)?;
        self.figures.fault("late commit of a publisher");
        self.intents[intent].sent = Sent::Begun;
        self.crossing.begun.push((intent, seq));
        Ok(true)
    }

    /// A publisher that has drawn a sequence number commits, perhaps.
    pub(super) fn commit_late_perhaps(&mut self) -> Check<bool> {
        if self.crossing.is_over() || self.limbo || !self.crossing.chance.one_in(6) {
            return Ok(false);
        }
        self.commit_late()
    }

    /// A publisher that has drawn a sequence number commits.
    pub(super) fn commit_late(&mut self) -> Check<bool> {
        if self.crossing.is_over() {
            return Ok(false);
        }
        let index = self.crossing.chance.below(self.crossing.begun.len());
        let (intent, seq) = self.crossing.begun.swap_remove(index);
        self.intents[intent].sent = Sent::Not;
        self.publish_as(&[intent], Some(seq))?;
        Ok(true)
    }

    /// Publishes the next event of a key while the settle of an earlier one is being written on a node,
    /// perhaps.
    pub(super) fn publish_across(&mut self, node: usize) -> Check {
        if !self.crossing.is_on || self.limbo || !self.crossing.chance.one_in(3) {
            return Ok(());
        }
        let chain_of = |op: &Op| match op {
            Op::Settle(settle) => self.model.events.get(&settle.seq)?.chain,
            _ => None,
        };
        let chain = self.nodes[node].ops.iter().find_map(chain_of);
        let next = self.intents.iter().position(|of| of.sent == Sent::Not && of.chain == chain);
        match next.filter(|_| chain.is_some()) {
            Some(next) => self.publish(&[next]),
            None => Ok(()),
        }
    }

    /// An event was published and its commit is announced: perhaps another event of its key was being
    /// settled.
    pub(super) fn cross(&mut self, intent: usize, seq: Seq) {
        let Some(chain) = self.intents[intent].chain.filter(|_| self.crossing.is_on) else { return };
        let of_chain = |other: Seq| {
            let other = self.model.events.get(&other).filter(|record| record.seq != seq);
            other.is_some_and(|record| record.chain == Some(chain))
        };
        let nodes = || self.nodes.iter().filter(|node| node.up);
        let settles = nodes().flat_map(|node| &node.ops).filter_map(|op| match op {
            Op::Settle(SettleRequest { token, seq, rev, .. }) => Some((token.epoch, *seq, *rev)),
            _ => None,
        });
        let works = nodes().flat_map(|node| &node.attempts).filter(|attempt| attempt.act == Act::Transact);
        let works = works
            .map(|attempt| (attempt.ticket.token.epoch, attempt.ticket.entry.seq, attempt.ticket.entry.rev));
        let ends: Vec<_> = settles.chain(works).filter(|(_, other, _)| of_chain(*other)).collect();
        if ends.is_empty() || self.crossing.chance.one_in(4) {
            return;
        }
        say!(self, "{} is committed while the settle of another event of its key is", name(seq));
        self.figures.fault("publish across an end");
        self.crossing.ends.extend(ends.into_iter().map(|(epoch, other, rev)| (epoch, other, rev, seq)));
        let (streams, order) = (self.model.streams(), Order::Arrival(self.stamp));
        for node in self.nodes.iter_mut().filter(|node| node.up) {
            node.inbox.push(Mail { recall: false, input: Input::Missed(streams.clone()), order });
        }
    }

    /// Whether a settle that a publish overlapped is still being written: a load may come before its commit.
    pub(super) fn takes_longer(&mut self, node: usize, index: usize) -> bool {
        let Some(Op::Settle(settle)) = self.nodes[node].ops.get(index) else { return false };
        let is_crossed =
            self.crossing.ends.iter().any(|(epoch, seq, rev, _)| {
                (*epoch, *seq, *rev) == (settle.token.epoch, settle.seq, settle.rev)
            });
        is_crossed && !self.crossing.chance.one_in(8)
    }

    /// Settles are written and not answered yet: those that a publish overlapped name no next event.
    pub(super) fn uncross(&mut self, settle: &SettleRequest, answer: &mut SettleResult) {
        if let SettleResult::Applied { next, .. } = answer {
            self.forget_next(settle.token.epoch, (settle.seq, settle.rev), next);
        }
        self.see_all(settle.token.epoch, (settle.seq, settle.rev));
    }

    /// The same for one of them.
    pub(super) fn forget_next(&mut self, epoch: u64, (seq, rev): (Seq, u32), next: &mut Option<QueueEntry>) {
        if let Some(next) = next.take_if(|next| self.crossing.ends.contains(&(epoch, seq, rev, next.seq))) {
            self.crossing.unnamed.insert(next.seq);
        }
    }

    /// A repeated settle sees everything that was published before.
    pub(super) fn see_all(&mut self, epoch: u64, (seq, rev): (Seq, u32)) {
        self.crossing.ends.retain(|(of, end, as_of, _)| (*of, *end, *as_of) != (epoch, seq, rev));
    }

    /// Removes the events that are not to be named from an announcement. Returns whether anything is left.
    pub(super) fn is_left_to_tell(&self, entries: &mut Vec<QueueEntry>) -> bool {
        let count = entries.len();
        entries.retain(|entry| !self.crossing.unnamed.contains(&entry.seq));
        count == entries.len() || !entries.is_empty()
    }

    /// The announcement is made.
    pub(super) fn all_told(&mut self) {
        self.crossing.unnamed.clear();
    }
}
