//! The loop of a consumer.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use redrive_core::observe::Outcome;
use redrive_core::scheduler::{AttemptEnd, AttemptPermits, EndedAttempt};
use redrive_core::{Moment, RandomSource};
use tokio::task::{Id, JoinSet};
use tokio::time::Instant;

use super::{
    ConsumeError, Consumer, ConsumerReport, DeadRatioWindow, Decision, Handled, IncomingMessage, KeyLanes,
    LaneKey, decide, wait_until,
};
use crate::capabilities::{DelaySupport, MessageOrder};
use crate::due::DueQueue;
use crate::log;
use crate::message::{Headers, Message};
use crate::metadata::Metadata;
use crate::planted::{BrokerBug, has};
use crate::source::{AssignmentChange, MessageOutcome, Receipt, Received, Settled, Settlement, SourceError};

/// The most items of one settle.
const SETTLE_MAX: usize = 1_000;
/// How long to wait before a refused settle is tried again: an operator has to act first.
const REFUSED_AGAIN: Duration = Duration::from_secs(5);
/// How long to wait after the broker did not answer.
const RECEIVE_AGAIN: Duration = Duration::from_millis(200);

/// A message in memory.
#[derive(Debug, Clone)]
struct Item {
    receipt: Receipt,
    message: Arc<Message>,
    metadata: Metadata,
}

/// A running attempt.
#[derive(Debug)]
struct Running {
    lane: LaneKey,
    item: Item,
    permits: AttemptPermits,
    began: Moment,
}

type Waited<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type Pending<T> = Option<Waited<T>>;

pub(super) struct Session {
    consumer: Consumer,
    lanes: KeyLanes<Item>,
    /// Retries that wait in place; their lanes are busy.
    held: DueQueue<(LaneKey, Item)>,
    running: HashMap<Id, Running>,
    tasks: JoinSet<Handled>,
    to_settle: VecDeque<Settlement>,
    /// Settles that were refused.
    refused: DueQueue<Settlement>,
    dead: Option<DeadRatioWindow>,
    /// Nothing starts before.
    closed_until: Option<Moment>,
    report: ConsumerReport,
    random: ThreadRandom,
    failed: Option<ConsumeError>,
    extended: Instant,
}

impl Session {
    pub(super) fn new(consumer: Consumer) -> Self {
        Self {
            lanes: KeyLanes::new(consumer.order == MessageOrder::Key),
            held: DueQueue::default(),
            running: HashMap::new(),
            tasks: JoinSet::new(),
            to_settle: VecDeque::new(),
            refused: DueQueue::default(),
            dead: consumer.dead_ratio.map(DeadRatioWindow::new),
            closed_until: None,
            report: ConsumerReport::default(),
            random: ThreadRandom::new(),
            failed: None,
            extended: Instant::now(),
            consumer,
        }
    }

    pub(super) async fn run(
        mut self,
        stop: impl Future<Output = ()>,
    ) -> Result<ConsumerReport, ConsumeError> {
        let mut stop = std::pin::pin!(stop);
        let mut receiving: Pending<Result<Vec<Received>, SourceError>> = None;
        let mut settling: Pending<(Vec<Settlement>, Vec<Settled>)> = None;
        let mut deadline: Option<Instant> = None;
        loop {
            let now = self.consumer.source.now();
            self.follow_assignments();
            self.fire(now);
            if deadline.is_none() {
                self.dispatch(now);
                let room = self.room();
                if receiving.is_none() && room > 0 {
                    receiving = Some(self.receive(room));
                }
            }
            self.extend_leases(now).await;
            if settling.is_none() && !self.to_settle.is_empty() {
                settling = Some(self.settle());
            }
            let is_drained = self.running.is_empty() && settling.is_none() && self.to_settle.is_empty();
            if deadline.is_some_and(|end| is_drained || Instant::now() >= end) {
                break;
            }
            let next = [self.held.next_due(), self.refused.next_due(), self.closed_until]
                .into_iter()
                .flatten()
                .min();
            let wait = wait_until(now, next);
            tokio::select! {
                () = &mut stop, if deadline.is_none() => deadline = Some(Instant::now() + self.consumer.drain),
                Some(ended) = self.tasks.join_next_with_id() => {
                    self.ended(ended);
                    // Whatever ended meanwhile is settled together.
                    while let Some(ended) = self.tasks.try_join_next_with_id() {
                        self.ended(ended);
                    }
                }
                received = poll(&mut receiving) => {
                    receiving = None;
                    self.received(received).await;
                }
                (batch, answers) = poll(&mut settling) => {
                    settling = None;
                    self.settled(batch, answers);
                    self.consumer.report.send_replace(self.report);
                }
                () = tokio::time::sleep(wait) => {}
            }
            if self.failed.is_some() && deadline.is_none() {
                deadline = Some(Instant::now() + self.consumer.drain);
            }
        }
        self.tasks.abort_all();
        let closed = self.consumer.source.close(self.consumer.drain).await;
        match self.failed {
            Some(error) => Err(error),
            None => closed.map(|()| self.report).map_err(ConsumeError::from),
        }
    }

    /// How many more messages may be in memory.
    fn room(&self) -> usize {
        let held = self.lanes.waiting() + self.running.len() + self.held.len();
        self.consumer.plan.window_max.saturating_sub(held)
    }

    fn receive(&self, room: usize) -> Waited<Result<Vec<Received>, SourceError>> {
        let source = Arc::clone(&self.consumer.source);
        Box::pin(async move { source.receive(room, Duration::from_secs(1)).await })
    }

    async fn received(&mut self, received: Result<Vec<Received>, SourceError>) {
        let messages = match received {
            Ok(messages) => messages,
            Err(error) if error.is_transient() => {
                log::warn(&format!("{}: {error}", self.consumer.plan.name));
                tokio::time::sleep(RECEIVE_AGAIN).await;
                return;
            }
            Err(error) => {
                self.failed.get_or_insert(error.into());
                return;
            }
        };
        // Messages of an assignment may come with the news of it.
        self.follow_assignments();
        let now = self.consumer.source.now();
        for Received { receipt, message, deliveries } in messages {
            self.report.received += 1;
            let mut metadata = Metadata::read(&message, &receipt.partition, receipt.position, now);
            metadata.group = self.consumer.group.as_deref().map(str::to_owned);
            if has(BrokerBug::RedeliveryCharged) {
                metadata.attempts = deliveries.unwrap_or(1) - 1;
            }
            let item = Item { receipt, message, metadata };
            if item.metadata.due.is_some_and(|due| due > now) && !has(BrokerBug::RetryEarly) {
                self.wait_again(item);
                continue;
            }
            let (partition, key) = (item.receipt.partition.clone(), item.message.key.clone());
            self.lanes.push(&partition, key.as_deref(), item);
        }
    }

    /// A message came before it is due, because the broker's longest delay is shorter: it goes back, and no attempt is
    /// charged.
    fn wait_again(&mut self, item: Item) {
        let Some(at) = item.metadata.due else { return };
        let headers = item.message.headers.clone();
        self.push_settlement(&item, MessageOutcome::Retry { at, headers }, Vec::new());
    }

    /// Starts retries that waited in place, and tries refused settles again.
    fn fire(&mut self, now: Moment) {
        while let Some((_, (lane, item))) = self.held.pop(now) {
            self.lanes.put_back(&lane, item);
        }
        while let Some((_, settlement)) = self.refused.pop(now) {
            self.to_settle.push_back(settlement);
        }
    }

    fn dispatch(&mut self, now: Moment) {
        if self.closed_until.is_some_and(|until| until > now) {
            return;
        }
        self.closed_until = None;
        let places = self.consumer.plan.concurrency as usize;
        loop {
            if self.running.len() >= places {
                return;
            }
            let Some((lane, item)) = self.lanes.start_next() else { return };
            match AttemptPermits::acquire(&self.consumer.plan, item.metadata.mode, now) {
                Ok(permits) => self.start(lane, item, permits, now),
                Err(until) => {
                    self.lanes.put_back(&lane, item);
                    self.closed_until = Some(until);
                    return;
                }
            }
        }
    }

    fn start(&mut self, lane: LaneKey, item: Item, permits: AttemptPermits, now: Moment) {
        let incoming = IncomingMessage {
            message: Arc::clone(&item.message),
            metadata: item.metadata.clone(),
            partition: item.receipt.partition.clone(),
            position: item.receipt.position,
        };
        let limit = self.consumer.plan.policy.settings().attempt_time;
        let handler = Arc::clone(&self.consumer.handler);
        let attempt = async move {
            let attempt = handler(incoming);
            match limit {
                None => attempt.await,
                Some(limit) => tokio::time::timeout(limit, attempt)
                    .await
                    .unwrap_or_else(|_| EndedAttempt::new(AttemptEnd::Outcome(Outcome::TimedOut)).into()),
            }
        };
        let id = self.tasks.spawn(attempt).id();
        self.running.insert(id, Running { lane, item, permits, began: now });
    }

    fn ended(&mut self, ended: Result<(Id, Handled), tokio::task::JoinError>) {
        let (id, handled) = match ended {
            Ok((id, handled)) => (id, handled),
            Err(error) => {
                let end = if error.is_panic() { AttemptEnd::Panicked } else { AttemptEnd::Released };
                (error.id(), EndedAttempt::new(end).into())
            }
        };
        let Some(Running { lane, item, permits, began }) = self.running.remove(&id) else { return };
        let Handled { mut ended, outputs } = handled;
        let now = self.consumer.source.now();
        ended.took = now.since(began);
        permits.report(&ended, now);
        self.report.attempts += 1;
        let decision = decide(&self.consumer.plan, &item.metadata, began, &ended, now, &mut self.random);
        self.apply(lane, item, &ended, decision, outputs);
    }

    fn apply(
        &mut self,
        lane: LaneKey,
        mut item: Item,
        ended: &EndedAttempt,
        decision: Decision,
        outputs: Vec<crate::Outgoing>,
    ) {
        let is_dead = matches!(decision, Decision::Dead { .. } | Decision::Expired { .. });
        let is_end = is_dead || decision == Decision::Done;
        if is_end && !self.dead.as_mut().is_none_or(|window| window.allows(is_dead)) {
            self.trip();
            if !has(BrokerBug::RatioSettlesTripper) {
                return;
            }
        }
        let outcome = match decision {
            Decision::Nothing => {
                self.lanes.free(&lane);
                return;
            }
            Decision::Done => MessageOutcome::Done,
            Decision::Retry { at, delay, attempts } => {
                self.report.retried += 1;
                if self.consumer.source.capabilities().delay == DelaySupport::InPlace {
                    let mode = redrive_core::event::Mode::Retry;
                    item.metadata = Metadata { attempts, delay, mode, due: Some(at), ..item.metadata };
                    self.held.push(at, (lane, item));
                    return;
                }
                let headers = item.metadata.retry_headers(&item.message.headers, attempts, delay, at);
                MessageOutcome::Retry { at, headers }
            }
            Decision::Dead { reason, attempts } => self.dead_outcome(&item, attempts, reason.as_str(), ended),
            Decision::Expired { attempts } => self.dead_outcome(&item, attempts, "expired", ended),
        };
        let outputs = if outcome == MessageOutcome::Done { outputs } else { Vec::new() };
        self.push_settlement(&item, outcome, outputs);
        self.lanes.free(&lane);
    }

    fn dead_outcome(&self, item: &Item, attempts: u32, reason: &str, ended: &EndedAttempt) -> MessageOutcome {
        let headers: Headers =
            item.metadata.dead_headers(&item.message.headers, attempts, reason, ended.cause.as_ref());
        MessageOutcome::Dead { headers }
    }

    fn trip(&mut self) {
        let (dead, total) = self.dead.as_ref().map_or((0, 0), DeadRatioWindow::counts);
        self.failed.get_or_insert(ConsumeError::TooManyDead { dead: dead + 1, total: total + 1 });
    }

    fn push_settlement(&mut self, item: &Item, outcome: MessageOutcome, outputs: Vec<crate::Outgoing>) {
        let (receipt, message) = (item.receipt.clone(), Arc::clone(&item.message));
        self.to_settle.push_back(Settlement { receipt, message, outcome, outputs });
    }

    fn settle(&mut self) -> Waited<(Vec<Settlement>, Vec<Settled>)> {
        let count = self.to_settle.len().min(SETTLE_MAX);
        let batch: Vec<Settlement> = self.to_settle.drain(..count).collect();
        let source = Arc::clone(&self.consumer.source);
        Box::pin(async move {
            let answers = source.settle(batch.clone()).await;
            (batch, answers)
        })
    }

    fn settled(&mut self, batch: Vec<Settlement>, answers: Vec<Settled>) {
        let now = self.consumer.source.now();
        for (settlement, answer) in batch.into_iter().zip(answers) {
            let report = &mut self.report;
            match answer {
                Settled::Settled => match settlement.outcome {
                    MessageOutcome::Done | MessageOutcome::Park => report.done += 1,
                    MessageOutcome::Dead { .. } => report.dead += 1,
                    MessageOutcome::Retry { .. } => {}
                },
                Settled::Lost => report.lost += 1,
                // It may come again, and then the identity is the same.
                Settled::Unknown => report.unknown += 1,
                Settled::Refused(why) => {
                    let (name, receipt) = (&self.consumer.plan.name, &settlement.receipt);
                    log::warn(&format!(
                        "{name}: the broker refused to settle {}/{}: {why}; the message is kept and the settle is \
                         tried again in {REFUSED_AGAIN:?}",
                        receipt.partition, receipt.position
                    ));
                    report.refused += 1;
                    self.refused.push(now + REFUSED_AGAIN, settlement);
                }
            }
        }
    }

    /// Forgets what belongs to revoked partitions.
    fn follow_assignments(&mut self) {
        for event in self.consumer.source.assignments() {
            if event.change != AssignmentChange::Revoked {
                continue;
            }
            self.lanes.forget(&event.partition);
            let mut freed = Vec::new();
            self.held.retain(|(lane, _)| {
                let is_kept = *lane.partition() != event.partition;
                if !is_kept {
                    freed.push(lane.clone());
                }
                is_kept
            });
            freed.iter().for_each(|lane| self.lanes.free(lane));
        }
    }

    /// Keeps the leases of messages in memory, where the broker has leases.
    async fn extend_leases(&mut self, now: Moment) {
        let Some(lease) = self.consumer.source.capabilities().lease else { return };
        if self.extended.elapsed() < lease / 3 {
            return;
        }
        self.extended = Instant::now();
        let receipts = self.running.values().map(|running| running.item.receipt.clone()).collect();
        let _ = self.consumer.source.extend(receipts, now + lease).await;
    }
}

/// Waits for a future that may not be there.
async fn poll<T>(pending: &mut Pending<T>) -> T {
    match pending {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

/// The process's own randomness, for jitter.
#[derive(Debug)]
struct ThreadRandom(redrive_core::SeededRandom);

impl ThreadRandom {
    fn new() -> Self {
        use std::hash::{BuildHasher, Hasher};
        let seed = std::collections::hash_map::RandomState::new().build_hasher().finish();
        Self(redrive_core::SeededRandom::new(seed))
    }
}

impl RandomSource for ThreadRandom {
    fn roll(&mut self) -> u64 {
        self.0.roll()
    }
}
