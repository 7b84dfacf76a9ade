//! Publishers: they repeat until they have an answer, and sometimes again after that.

use redrive_core::Event;
use redrive_core::queue_entry::Seq;
use redrive_store::{NewEvent, PublishError, Published, StoreError, prelude::*};

use super::World;
use super::perform::at_once;
use crate::simulation::intent::Sent;
use crate::simulation::model::Check;
use crate::simulation::trace::say;
use crate::simulation::words;

/// How many events are published together, at most.
const BATCH: usize = 3;

impl World {
    /// Publishes an event that is not acknowledged, or, seldom, one that is.
    pub(super) fn publish_some(&mut self) -> Check<bool> {
        let first = self.chance.below(self.intents.len());
        let all = (first..self.intents.len()).chain(0..first);
        let open = |sent: Sent| matches!(sent, Sent::Not | Sent::Unsure);
        let mut batch: Vec<usize> =
            all.filter(|intent| open(self.intents[*intent].sent)).take(BATCH).collect();
        if !self.calm && self.chance.one_in(4) {
            return self.publish_again(first);
        }
        if batch.is_empty() {
            return Ok(false);
        }
        batch.truncate(self.chance.below(batch.len()) + 1);
        if self.intents[batch[0]].sent == Sent::Unsure && !self.calm && self.chance.one_in(3) {
            return self.look_up(batch[0]);
        }
        if self.begin_late(batch[0])? {
            return Ok(true);
        }
        self.publish(&batch)?;
        Ok(true)
    }

    pub(super) fn publish(&mut self, batch: &[usize]) -> Check {
        self.publish_as(batch, None)
    }

    /// Publishes, perhaps under a sequence number that was drawn before.
    pub(super) fn publish_as(&mut self, batch: &[usize], drawn: Option<Seq>) -> Check {
        batch.iter().for_each(|intent| self.look_near(*intent));
        let news = batch.iter().map(|intent| self.intents[*intent].new_event(self.now)).collect();
        self.arm(false);
        let answer = match drawn {
            Some(seq) => at_once(self.store.publish_late(news, seq)),
            None => at_once(self.store.publish(news)),
        };
        say!(self, "a publisher publishes {}: {}", words::intents(batch), words::published(&answer));
        let mut accepted = Vec::new();
        match answer {
            Ok(answers) => {
                for (intent, answer) in batch.iter().zip(answers) {
                    if let Ok(Published::Accepted(seq)) = &answer {
                        accepted.push((*intent, *seq));
                    }
                    self.published(*intent, answer)?;
                }
            }
            Err(error) => {
                let landed = self.landed(&error);
                for intent in batch {
                    if !error.is_definite() {
                        self.intents[*intent].sent = Sent::Unsure;
                    }
                    let known = self.model.is_remembered(*intent, self.now);
                    if landed && !known && self.limbo {
                        self.unresolved.push(*intent);
                    } else if landed && !known {
                        self.resolve(*intent)?;
                    }
                }
            }
        }
        self.committed();
        accepted.into_iter().for_each(|(intent, seq)| self.cross(intent, seq));
        Ok(())
    }

    /// A publisher in the process of some node keeps the event there if a local slot is free. It asks for the
    /// same shard in all its tries.
    fn look_near(&mut self, intent: usize) {
        let of = &self.intents[intent];
        let Some(chance) = self.local_slots.as_mut().filter(|_| of.sent == Sent::Not) else { return };
        let (first, count) = (chance.below(self.nodes.len()), self.nodes.len());
        let mut nodes = (first..count).chain(0..first).map(|node| &self.nodes[node]).filter(|node| node.up);
        let place = nodes.find_map(|node| node.local_slots.take(&of.event, self.now));
        let Some(shard) = place.map(|place| place.shard()) else { return };
        say!(self, "the publisher of e{intent} asks for shard {shard}, which its own node owns");
        self.figures.local_slots += 1;
        self.intents[intent].local_shard = Some(shard);
    }

    fn published(&mut self, intent: usize, answer: Result<Published, PublishError>) -> Check {
        match answer {
            Ok(Published::Accepted(seq)) => self.accepted(intent, seq, self.now)?,
            Ok(Published::Duplicate(found)) => {
                self.model.check_known(intent, Some(&found), self.now)?;
            }
            Err(error) => return Err(format!("e{intent} was refused: {error}")),
        }
        let lost = !self.calm && self.chance.one_in(self.plan.rates.lost_answer);
        if lost {
            self.figures.fault("lost acknowledgement");
        }
        self.intents[intent].sent = if lost { Sent::Unsure } else { Sent::Acknowledged };
        Ok(())
    }

    /// Publishes an acknowledged event again, or another payload under its id.
    fn publish_again(&mut self, intent: usize) -> Check<bool> {
        if self.intents[intent].sent != Sent::Acknowledged || self.limbo {
            return Ok(false);
        }
        if !self.chance.one_in(4) {
            self.publish(&[intent])?;
            return Ok(true);
        }
        let remembered = self.model.is_remembered(intent, self.now);
        if !remembered {
            return Ok(false);
        }
        let other = Event::clone(&self.intents[intent].event).payload(*b"something else");
        let new = NewEvent::at(other, self.now);
        let answer = at_once(self.store.publish(vec![new]));
        match answer.as_deref() {
            Ok([Err(PublishError::IdReused { .. })]) => Ok(true),
            answer => Err(format!("another payload under the id of e{intent} was not refused: {answer:?}")),
        }
    }

    /// A publisher with an unknown outcome looks its event up. Only an answer counts, and a store that cannot
    /// know gives none.
    fn look_up(&mut self, intent: usize) -> Check<bool> {
        let event = &self.intents[intent].event;
        let found = at_once(self.store.find(&event.tenant, &event.queue, &event.id));
        say!(self, "a publisher looks for e{intent}: {}", words::found(&found));
        match found {
            Ok(Some(found)) if !self.limbo => {
                self.model.check_known(intent, Some(&found), self.now)?;
                self.intents[intent].sent = Sent::Acknowledged;
            }
            Ok(Some(_)) => {}
            Ok(None) => {
                if self.model.is_remembered(intent, self.now) {
                    return Err(format!("e{intent} is in the store, and a lookup did not find it"));
                }
                // Forgotten, because its publisher waited for longer than it is remembered; or never there.
                let forgotten = self.model.is_known(intent);
                self.intents[intent].sent = if forgotten { Sent::Acknowledged } else { Sent::Disproved };
            }
            Err(StoreError::Poisoned { .. }) if self.limbo => {}
            Err(error) => return Err(format!("a lookup failed: {error}")),
        }
        Ok(true)
    }
}
