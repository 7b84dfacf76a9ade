//! The loop around a scheduler: it delivers messages and asks what to do.

use redrive_core::queue_entry::{EventChange, SettleRequest};
use redrive_core::scheduler::{Action, DispatchedAttempt, Input};

use super::World;
use super::node::{Attempt, Entry, Mail, Op};
use crate::simulation::intent::Intent;
use crate::simulation::model::{Check, Start, Word, check_verdict};
use crate::simulation::trace::say;
use crate::simulation::words;

impl World {
    /// A random node for which this holds.
    pub(super) fn some_node(&mut self, has: impl Fn(&super::Node) -> bool) -> Option<usize> {
        let first = self.chance.below(self.nodes.len());
        let mut all = (first..self.nodes.len()).chain(0..first);
        all.find(|node| self.nodes[*node].up && has(&self.nodes[*node]))
    }

    /// Delivers one message or several at once to a scheduler, and performs its actions.
    pub(super) fn deliver_some(&mut self) -> Check<bool> {
        let Some(node) = self.some_node(|node| !node.inbox.is_empty()) else { return Ok(false) };
        let several = if self.chance.one_in(4) { self.chance.below(4) } else { 0 };
        for _ in 0..=several {
            self.deliver(node);
        }
        self.act(node)?;
        Ok(true)
    }

    fn deliver(&mut self, number: usize) {
        let count = self.nodes[number].inbox.len();
        if count == 0 {
            return;
        }
        let wanted = self.chance.below(count);
        let node = &mut self.nodes[number];
        let Mail { recall, input, order } = node.inbox.remove(node.first_before(wanted));
        if recall {
            self.recall(number, order);
        }
        if let Input::Ruled(controls) = input {
            self.ruled(number, controls, order);
            return;
        }
        say!(self, "node {number} hears {}", words::input(&input));
        if recall || matches!(input, Input::Missed(_)) {
            self.ask_for_rules(number);
        }
        let node = &mut self.nodes[number];
        self.figures.order.hear(&mut node.last_heard, &input, &node.tokens);
        match &input {
            Input::Own(taken) => {
                node.tokens.retain(|token| token.shard != taken.token.shard);
                node.tokens.push(taken.token);
            }
            Input::Ended { token, seq, rev, ended } => {
                let at = self.now;
                if let Some(entry) = node.ledger.get_mut(&(token.epoch, *seq, *rev))
                    && entry.word.is_none()
                {
                    let Entry { attempt, expires, .. } = *entry;
                    entry.word = Some(Word { end: ended.end.clone(), attempt, at, expires });
                }
            }
            Input::Drain => node.drained = true,
            _ => {}
        }
        node.scheduler.handle(input, self.now, &mut node.random);
    }

    /// Asks a scheduler what to do.
    pub(super) fn act(&mut self, number: usize) -> Check {
        let mut actions = std::mem::take(&mut self.actions);
        let node = &mut self.nodes[number];
        node.local_slots.hear();
        node.scheduler.act(self.now, &mut actions);
        let planned = actions.len();
        node.scheduler.act(self.now, &mut actions);
        if let Some(late) = actions.get(planned).filter(|_| !self.heals) {
            let late = words::action(late);
            return Err(format!("node {number} plans {late} only when it is asked a second time"));
        }
        node.local_slots.update(&node.scheduler, self.now);
        for action in actions.drain(..) {
            self.take_on(number, action)?;
        }
        self.actions = actions;
        for (queue, setup) in self.plan.queues.iter().enumerate() {
            let held = self.nodes[number].scheduler.held_in(queue);
            if held > setup.window {
                return Err(format!(
                    "node {number} has {held} events of queue {} in memory, more than its window of {}",
                    setup.name, setup.window
                ));
            }
        }
        Ok(())
    }

    fn take_on(&mut self, number: usize, action: Action) -> Check {
        if !matches!(action, Action::Attempt(_)) {
            say!(self, "node {number} wants {}", words::action(&action));
        }
        match action {
            Action::Load(id, load) => self.nodes[number].ops.push(Op::Load(id, load)),
            Action::Note(note, list) => self.nodes[number].ops.push(Op::Note(note, list)),
            Action::Attempt(ticket) => self.start(number, ticket)?,
            Action::Settle(settle) => {
                self.check_settle(number, &settle)?;
                let same = |op: &Op| matches!(op, Op::Settle(other) if *other == settle);
                if self.nodes[number].ops.iter().any(same) {
                    return Err(format!("node {number} sends the same settle twice: {settle:?}"));
                }
                self.nodes[number].ops.push(Op::Settle(settle));
            }
            Action::EventSettled(_) => {}
            Action::Damaged(row) => return Err(format!("the store returned a damaged row: {row}")),
            Action::Lost(token) => {
                let node = &mut self.nodes[number];
                node.tokens.retain(|own| *own != token);
            }
            Action::Check(..) => return Err(format!("node {number} checks a shard without being asked to")),
            Action::Stalled { token, waiting } => self.stalled_shard(number, token, waiting)?,
            Action::Given { token, clean } => self.given(number, token, clean)?,
        }
        Ok(())
    }

    fn start(&mut self, number: usize, ticket: Box<DispatchedAttempt>) -> Check {
        let DispatchedAttempt { token, queue, ref entry, attempt, .. } = *ticket;
        let (seq, rev, expires) = (entry.seq, entry.rev, entry.expires);
        say!(
            self,
            "node {number} starts attempt {attempt} of {} rev {rev} under {}",
            words::name(seq),
            words::token(token)
        );
        let node = &mut self.nodes[number];
        let beside = node.under_way();
        let attempts_max = Some(self.plan.queues[queue].attempts).filter(|_| !self.plan.operators);
        let start = Start {
            ticket: &ticket,
            now: self.now,
            beside: &beside,
            drained: node.drained,
            attempts_max,
            told: &node.told,
            recalled: if self.limbo { node.recalled } else { node.recalled() },
        };
        self.model.check_start(&start)?;
        self.model.check_beside(&beside)?;
        node.ledger
            .insert((token.epoch, seq, rev), Entry { attempt, via: queue, expires, ..Entry::default() });
        let number = Intent::number(&ticket.entry.event.id);
        let act = self.intents[number].act(attempt, ticket.entry.progress.mode);
        node.attempts.push(Attempt { ticket, act, late: false });
        self.figures.attempts += 1;
        Ok(())
    }

    /// A settle follows from its own attempt's outcome, and from no other; and it is sent once.
    fn check_settle(&mut self, number: usize, settle: &SettleRequest) -> Check {
        let key = (settle.token.epoch, settle.seq, settle.rev);
        let is_strike = matches!(settle.change, EventChange::CountCrash | EventChange::Unpark);
        let entry = self.nodes[number].ledger.get_mut(&key).filter(|_| !is_strike);
        let Some(entry) = entry else {
            return self.model.check_unasked(settle, self.now);
        };
        if let Some(before) = &entry.settle {
            if before.change == settle.change {
                return Ok(());
            }
            return Err(format!(
                "one attempt of {:?} is settled in two ways: {:?}, {:?}",
                settle.seq, before.change, settle.change
            ));
        }
        let Some(word) = &entry.word else {
            return self.model.check_unasked(settle, self.now);
        };
        check_verdict(word, &settle.change, &self.plan.queues[entry.via])?;
        entry.settle = Some(settle.clone());
        Ok(())
    }
}
