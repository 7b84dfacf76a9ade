//! A consumer of the broker in memory.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use redrive_core::Moment;

use super::queue::LeaseState;
use super::{MemoryBroker, MemoryFault, State};
use crate::capabilities::{Capabilities, DelaySupport, OrderSupport};
use crate::message::Partition;
use crate::planted::{BrokerBug, has};
use crate::source::{
    AssignmentChange, AssignmentEvent, Lag, MessageOutcome, MessageSource, Receipt, Received, Settled,
    Settlement, SourceError, SourceFuture,
};

/// A consumer of one queue of a [`MemoryBroker`].
#[derive(Debug)]
pub struct MemorySource {
    broker: MemoryBroker,
    partition: Partition,
    consumer: u64,
    member: Mutex<Member>,
}

#[derive(Debug)]
struct Member {
    epoch: u64,
    is_closed: bool,
    paused: HashSet<Partition>,
    events: Vec<AssignmentEvent>,
}

impl MemorySource {
    pub(super) fn new(broker: MemoryBroker, queue: &str, consumer: u64) -> Self {
        let partition = Partition::new(queue, 0);
        let assigned =
            AssignmentEvent { partition: partition.clone(), epoch: 1, change: AssignmentChange::Assigned };
        let member = Member { epoch: 1, is_closed: false, paused: HashSet::new(), events: vec![assigned] };
        Self { broker, partition, consumer, member: Mutex::new(member) }
    }

    /// The consumer dies: what it received and did not settle is delivered again.
    pub fn kill(&self) {
        self.member().is_closed = true;
        self.broker.lock().queue(&self.partition.topic).release(self.consumer);
        self.broker.0.changed.notify_waiters();
    }

    /// The queue is taken from the consumer and given back: its deliveries are void.
    pub fn reassign(&self) {
        let mut member = self.member();
        let partition = self.partition.clone();
        let epoch = member.epoch;
        member.epoch += 1;
        let event = |epoch, change| AssignmentEvent { partition: partition.clone(), epoch, change };
        member.events.push(event(epoch, AssignmentChange::Revoked));
        member.events.push(event(epoch + 1, AssignmentChange::Assigned));
        if has(BrokerBug::PauseForgotten) {
            member.paused.clear();
        }
        drop(member);
        self.broker.lock().queue(&self.partition.topic).release(self.consumer);
        self.broker.0.changed.notify_waiters();
    }

    fn member(&self) -> std::sync::MutexGuard<'_, Member> {
        self.member.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, max: usize) -> Result<Vec<Received>, SourceError> {
        let (epoch, is_paused) = {
            let member = self.member();
            if member.is_closed {
                return Err(SourceError::Closed);
            }
            (member.epoch, member.paused.contains(&self.partition))
        };
        let (now, options) = (self.broker.now(), self.broker.0.options);
        let early = if has(BrokerBug::RetryEarly) { Duration::from_secs(1) } else { Duration::ZERO };
        let mut state = self.broker.lock();
        if is_paused {
            return Ok(Vec::new());
        }
        let positions = state.queue(&self.partition.topic).deliverable(now + early, options.ordered, max);
        let mut received = Vec::new();
        for position in positions {
            state.deliveries += 1;
            let delivery = state.deliveries;
            let Some(stored) = state.queue(&self.partition.topic).messages.get_mut(&position) else {
                continue;
            };
            stored.lease = Some(LeaseState { consumer: self.consumer, delivery, until: now + options.lease });
            stored.deliveries += 1;
            received.push(Received {
                receipt: Receipt { partition: self.partition.clone(), position, epoch, delivery },
                message: stored.message.clone(),
                deliveries: Some(stored.deliveries),
            });
        }
        Ok(received)
    }

    /// Settles one item, and asks once more if there is no answer: the broker remembers which delivery settled.
    fn settle_one(&self, settlement: &Settlement) -> Settled {
        let first = self.send(settlement, false);
        if first != Settled::Unknown { first } else { self.send(settlement, true) }
    }

    fn send(&self, settlement: &Settlement, again: bool) -> Settled {
        let now = self.broker.now();
        let mut state = self.broker.lock();
        let fault = state.faults.pop_front();
        match fault {
            Some(MemoryFault::RequestLost) => return Settled::Unknown,
            Some(MemoryFault::Refused) => return Settled::Refused("a planned fault".to_owned()),
            Some(MemoryFault::AnswerLost) | None => {}
        }
        let answer = self.write(&mut state, settlement, again, now);
        drop(state);
        self.broker.0.changed.notify_waiters();
        if fault.is_some() { Settled::Unknown } else { answer }
    }

    fn write(&self, state: &mut State, settlement: &Settlement, again: bool, now: Moment) -> Settled {
        let Settlement { receipt, outcome, outputs, .. } = settlement;
        let is_stale = self.member().epoch != receipt.epoch && !has(BrokerBug::StaleReceiptSettles);
        let (has_no_dead_place, limit) = (state.has_no_dead_place, self.broker.0.options.message_bytes_max);
        let queue = state.queue(&receipt.partition.topic);
        if again && queue.was_settled(receipt.position, receipt.delivery) {
            if has(BrokerBug::UnknownMakesTwo)
                && let MessageOutcome::Dead { headers } = outcome
            {
                let message = crate::Message { headers: headers.clone(), ..(*settlement.message).clone() };
                queue.bury(message);
            }
            return Settled::Settled;
        }
        if is_stale || !queue.is_leased(receipt.position, receipt.delivery) {
            return Settled::Lost;
        }
        if matches!(outcome, MessageOutcome::Dead { .. }) && has_no_dead_place {
            if has(BrokerBug::DeadWithoutPlaceDropped) {
                queue.settle(receipt.position, receipt.delivery, &MessageOutcome::Done);
                return Settled::Settled;
            }
            return Settled::Refused("there is no place for dead letters; make one".to_owned());
        }
        if outputs.iter().any(|output| output.message.size() > limit) {
            return Settled::Refused(format!("an output is larger than {limit} bytes"));
        }
        let outcome = match outcome {
            MessageOutcome::Retry { at, headers } => {
                let at = (*at).min(now + self.broker.0.options.delay_max);
                MessageOutcome::Retry { at, headers: headers.clone() }
            }
            outcome => outcome.clone(),
        };
        queue.settle(receipt.position, receipt.delivery, &outcome);
        state.publish_all(outputs, now);
        Settled::Settled
    }
}

impl MessageSource for MemorySource {
    fn capabilities(&self) -> Capabilities {
        let options = &self.broker.0.options;
        Capabilities {
            delay: DelaySupport::Exact { max: options.delay_max },
            order: if options.ordered { OrderSupport::Key } else { OrderSupport::None },
            atomic_publish: true,
            lease: Some(options.lease),
            message_bytes_max: options.message_bytes_max,
            survives_kill: false,
        }
    }

    fn now(&self) -> Moment {
        self.broker.now()
    }

    fn receive(&self, max: usize, wait: Duration) -> SourceFuture<'_, Result<Vec<Received>, SourceError>> {
        Box::pin(async move {
            let end = self.now() + wait;
            loop {
                let changed = self.broker.0.changed.notified();
                let received = self.take(max)?;
                let now = self.now();
                if !received.is_empty() || now >= end {
                    return Ok(received);
                }
                let due = self.broker.lock().queue(&self.partition.topic).next_due();
                // A paused or blocked message may be overdue: look again a little later, not at once.
                let look = due.filter(|due| *due > now).unwrap_or(now + Duration::from_millis(10));
                let _ = tokio::time::timeout(look.min(end).since(now), changed).await;
            }
        })
    }

    fn settle(&self, batch: Vec<Settlement>) -> SourceFuture<'_, Vec<Settled>> {
        Box::pin(async move { batch.iter().map(|settlement| self.settle_one(settlement)).collect() })
    }

    fn extend(&self, receipts: Vec<Receipt>, until: Moment) -> SourceFuture<'_, Vec<Settled>> {
        Box::pin(async move {
            let mut state = self.broker.lock();
            let queue = state.queue(&self.partition.topic);
            let extend = |receipt: Receipt| {
                let lease =
                    queue.messages.get_mut(&receipt.position).and_then(|stored| stored.lease.as_mut());
                match lease.filter(|lease| lease.delivery == receipt.delivery) {
                    Some(lease) => {
                        lease.until = lease.until.max(until);
                        Settled::Settled
                    }
                    None => Settled::Lost,
                }
            };
            receipts.into_iter().map(extend).collect()
        })
    }

    fn pause(&self, partition: &Partition) {
        self.member().paused.insert(partition.clone());
    }

    fn resume(&self, partition: &Partition) {
        self.member().paused.remove(partition);
        self.broker.0.changed.notify_waiters();
    }

    fn assignments(&self) -> Vec<AssignmentEvent> {
        std::mem::take(&mut self.member().events)
    }

    fn lag(&self) -> SourceFuture<'_, Result<Vec<Lag>, SourceError>> {
        Box::pin(async move {
            let messages = self.broker.lock().queue(&self.partition.topic).messages.len() as u64;
            Ok(vec![Lag { partition: self.partition.clone(), messages }])
        })
    }

    fn close(&self, _: Duration) -> SourceFuture<'_, Result<(), SourceError>> {
        Box::pin(async move {
            self.kill();
            Ok(())
        })
    }
}
