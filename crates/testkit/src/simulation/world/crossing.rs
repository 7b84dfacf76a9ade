//! Publishers and owners that cross, as they do where several transactions are open at once.
//!
//! The store in memory has one after the other. Two things that others have are added here. A publisher draws the number
//! of an event and commits later, when larger ones may have been seen and begun. And an event is committed while the end
//! of the one before it is being written: that one looked for the next too early, so its answer names nobody, and
//! owners are told no more than that they missed something, before that answer.

use std::collections::BTreeSet;

use redrive_core::entry::{Entry, Seq, Settle, Settled, StreamId};
use redrive_core::scheduler::Input;

use super::World;
use super::node::{Mail, Op, Order};
use super::transact::NUMBER_BITS;
use crate::simulation::chance::Chance;
use crate::simulation::intent::{Act, Sent};
use crate::simulation::model::Check;
use crate::simulation::trace::say;
use crate::simulation::words::name;

/// Makes other dice of a seed.
const CROSSING: u64 = 0x0000_c055;

/// What is under way across others.
#[derive(Debug)]
pub(super) struct Crossing {
    /// Dice of its own, so that seeds from before there was such a thing still mean what they did.
    chance: Chance,
    /// Whether there is such a thing.
    is_on: bool,
    /// Events that have a number, and are not committed.
    begun: Vec<(usize, Seq)>,
    /// Ends, as epoch, event and rev, with who was published meanwhile.
    ends: BTreeSet<(u64, Seq, u32, Seq)>,
    /// Who is not named by the commit that is to be told.
    unnamed: BTreeSet<Seq>,
}

impl Crossing {
    pub(super) fn new(seed: u64, is_on: bool) -> Self {
        let chance = Chance::new(seed ^ CROSSING);
        Self { chance, is_on, begun: Vec::new(), ends: BTreeSet::new(), unnamed: BTreeSet::new() }
    }

    /// Whether nobody has a number and is not committed.
    pub(super) fn is_over(&self) -> bool {
        self.begun.is_empty()
    }
}

impl World {
    /// A publisher draws a number and leaves it at that, perhaps.
    pub(super) fn begin_late(&mut self, intent: usize) -> Check<bool> {
        let of = &self.intents[intent];
        let may = self.crossing.is_on && !self.calm && !self.limbo;
        if !may || of.chain.is_none() || of.sent != Sent::Not || !self.crossing.chance.one_in(3) {
            return Ok(false);
        }
        let seq = self.store.draw(&of.event.queue, &of.event.tenant).map_err(|error| error.to_string())?;
        say!(self, "a publisher of e{intent} draws {}", name(seq));
        self.model.draw(StreamId(u32::try_from(seq.0 >> NUMBER_BITS).unwrap_or(0)), seq)?;
        self.figures.fault("late commit of a publisher");
        self.intents[intent].sent = Sent::Begun;
        self.crossing.begun.push((intent, seq));
        Ok(true)
    }

    /// A publisher who has drawn a number commits, perhaps.
    pub(super) fn commit_late_perhaps(&mut self) -> Check<bool> {
        if self.crossing.is_over() || self.limbo || !self.crossing.chance.one_in(6) {
            return Ok(false);
        }
        self.commit_late()
    }

    /// A publisher who has drawn a number commits.
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

    /// Publishes the next of a key while the end of one before is being written on a node, perhaps.
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

    /// Something was published and its commit is told: perhaps the end of another one of its key was being written.
    pub(super) fn cross(&mut self, intent: usize, seq: Seq) {
        let Some(chain) = self.intents[intent].chain.filter(|_| self.crossing.is_on) else { return };
        let of_chain = |other: Seq| {
            let other = self.model.events.get(&other).filter(|record| record.seq != seq);
            other.is_some_and(|record| record.chain == Some(chain))
        };
        let nodes = || self.nodes.iter().filter(|node| node.up);
        let settles = nodes().flat_map(|node| &node.ops).filter_map(|op| match op {
            Op::Settle(Settle { grant, seq, rev, .. }) => Some((grant.epoch, *seq, *rev)),
            _ => None,
        });
        let works = nodes().flat_map(|node| &node.attempts).filter(|attempt| attempt.act == Act::Transact);
        let works = works
            .map(|attempt| (attempt.ticket.grant.epoch, attempt.ticket.entry.seq, attempt.ticket.entry.rev));
        let ends: Vec<_> = settles.chain(works).filter(|(_, other, _)| of_chain(*other)).collect();
        if ends.is_empty() || self.crossing.chance.one_in(4) {
            return;
        }
        say!(self, "{} crosses the end of another one of its key", name(seq));
        self.figures.fault("publish across an end");
        self.crossing.ends.extend(ends.into_iter().map(|(epoch, other, rev)| (epoch, other, rev, seq)));
        let (streams, order) = (self.model.streams(), Order::Arrival(self.stamp));
        for node in self.nodes.iter_mut().filter(|node| node.up) {
            node.inbox.push(Mail { recall: false, input: Input::Missed(streams.clone()), order });
        }
    }

    /// Whether the end of an event is still being written that was crossed: a load may come before its commit.
    pub(super) fn takes_longer(&mut self, node: usize, index: usize) -> bool {
        let Some(Op::Settle(settle)) = self.nodes[node].ops.get(index) else { return false };
        let is_crossed =
            self.crossing.ends.iter().any(|(epoch, seq, rev, _)| {
                (*epoch, *seq, *rev) == (settle.grant.epoch, settle.seq, settle.rev)
            });
        is_crossed && !self.crossing.chance.one_in(8)
    }

    /// The ends of events were written, and are not told yet: those that were crossed name nobody.
    pub(super) fn uncross(&mut self, settle: &Settle, answer: &mut Settled) {
        if let Settled::Applied { next, .. } = answer {
            self.forget_next(settle.grant.epoch, (settle.seq, settle.rev), next);
        }
        self.see_all(settle.grant.epoch, (settle.seq, settle.rev));
    }

    /// The same for one of them.
    pub(super) fn forget_next(&mut self, epoch: u64, (seq, rev): (Seq, u32), next: &mut Option<Entry>) {
        if let Some(next) = next.take_if(|next| self.crossing.ends.contains(&(epoch, seq, rev, next.seq))) {
            self.crossing.unnamed.insert(next.seq);
        }
    }

    /// Whoever tries again to write an end sees what was published before.
    pub(super) fn see_all(&mut self, epoch: u64, (seq, rev): (Seq, u32)) {
        self.crossing.ends.retain(|(of, end, as_of, _)| (*of, *end, *as_of) != (epoch, seq, rev));
    }

    /// Takes those out of what is told that are not named. Gives whether anything is left to be told.
    pub(super) fn is_left_to_tell(&self, entries: &mut Vec<Entry>) -> bool {
        let count = entries.len();
        entries.retain(|entry| !self.crossing.unnamed.contains(&entry.seq));
        count == entries.len() || !entries.is_empty()
    }

    /// What was to be told is told.
    pub(super) fn all_told(&mut self) {
        self.crossing.unnamed.clear();
    }
}
