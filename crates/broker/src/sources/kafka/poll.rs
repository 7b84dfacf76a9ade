//! The thread that polls: it delivers, follows rebalances, and keeps the member alive while handlers are slow.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext, Rebalance};
use rdkafka::error::KafkaError;
use rdkafka::message::Message as _;
use rdkafka::{ClientContext, Offset, TopicPartitionList};

use super::convert;
use super::flow::Shared;
use crate::log;
use crate::message::Partition;
use crate::offsets::DoneSet;
use crate::offsets::done_set::DoneSetRead;
use crate::source::SourceError;

/// How long one poll waits; also how soon a pause is lifted.
const POLL: Duration = Duration::from_millis(20);
/// How long to wait for committed offsets before trying again.
const ANSWER: Duration = Duration::from_secs(5);

/// How long to wait for the committer before the group is left without it.
const LEAVE: Duration = Duration::from_secs(10);

/// The member of the group.
pub(super) type Member = BaseConsumer<Context>;

/// Told about rebalances by the client, inside a poll.
pub(super) struct Context {
    shared: Arc<Shared>,
}

impl ClientContext for Context {}

impl ConsumerContext for Context {
    fn pre_rebalance(&self, _: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        match rebalance {
            Rebalance::Assign(list) => {
                let mut state = self.shared.state();
                partitions(list).into_iter().for_each(|partition| state.assign(partition));
            }
            Rebalance::Revoke(list) => {
                // Waits for the commit that is under way: after this, none is sent for these partitions.
                let _ownership = self.shared.ownership();
                let mut state = self.shared.state();
                partitions(list).iter().for_each(|partition| state.revoke(partition));
            }
            Rebalance::Error(error) => log::warn(&format!("rebalance of {}: {error}", self.shared.group)),
        }
        self.shared.arrived.notify_waiters();
    }

    fn post_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        // Nothing is delivered before the done-set is loaded.
        if let Rebalance::Assign(list) = rebalance
            && let Err(error) = consumer.pause(list)
        {
            self.shared.fail(SourceError::Failed(format!("partitions cannot be paused: {error}")));
        }
    }
}

/// Creates the member and subscribes it.
pub(super) fn join(shared: &Arc<Shared>) -> Result<Member, SourceError> {
    let config = shared.settings.consumer(&shared.group);
    let failed =
        |error: KafkaError| SourceError::Misconfigured(format!("the client refuses its settings: {error}"));
    let consumer: Member =
        config.create_with_context(Context { shared: Arc::clone(shared) }).map_err(failed)?;
    subscribe(shared, &consumer).map_err(failed)?;
    Ok(consumer)
}

fn subscribe(shared: &Shared, consumer: &Member) -> Result<(), KafkaError> {
    let topics: Vec<&str> = shared.topics.iter().map(String::as_str).collect();
    consumer.subscribe(&topics)
}

/// Polls until the flow stops.
pub(super) fn run(shared: &Arc<Shared>, consumer: Arc<Member>) {
    let mut looked = Instant::now();
    while !shared.is_stopping() {
        if looked.elapsed() >= POLL {
            looked = Instant::now();
            load(shared, &consumer);
            follow_pauses(shared, &consumer);
            rejoin(shared, &consumer);
        }
        match consumer.poll(POLL) {
            None => {}
            Some(Ok(borrowed)) => {
                let partition = Partition::new(borrowed.topic(), borrowed.partition());
                let (offset, message) = (borrowed.offset(), convert::message(&borrowed));
                shared.state().add(&partition, offset, message, shared.clock.now());
                shared.arrived.notify_waiters();
            }
            Some(Err(KafkaError::MessageConsumptionFatal(code))) => {
                shared.fail(SourceError::Failed(code.to_string()));
                break;
            }
            Some(Err(error)) => {
                log::warn(&format!("{}: {error}; the client goes on by itself", shared.group));
            }
        }
    }
    {
        let _ownership = shared.ownership();
        shared.state().revoke_all();
    }
    consumer.unsubscribe();
    // The group is left inside polls; the committer lets go of the member soon.
    let end = Instant::now() + LEAVE;
    while Arc::strong_count(&consumer) > 1 && Instant::now() < end {
        let _ = consumer.poll(POLL);
    }
    drop(consumer);
    shared.left.notify_waiters();
    shared.arrived.notify_waiters();
}

/// Reads the committed offsets of new partitions, with their done-sets. The client waits for transactions that are still
/// open (`read_committed` asks for stable offsets).
fn load(shared: &Shared, consumer: &Member) {
    let open = shared.state().unloaded();
    if open.is_empty() {
        return;
    }
    let mut list = TopicPartitionList::new();
    for partition in &open {
        list.add_partition(&partition.topic, partition.number);
    }
    let committed = match consumer.committed_offsets(list, ANSWER) {
        Ok(committed) => committed,
        Err(error) => {
            log::warn(&format!(
                "committed offsets of {} cannot be read: {error}; trying again",
                shared.group
            ));
            return;
        }
    };
    for element in committed.elements() {
        let partition = Partition::new(element.topic(), element.partition());
        if element.error().is_err() {
            continue;
        }
        let low = match element.offset() {
            Offset::Offset(low) => low,
            _ => 0,
        };
        let done = match DoneSet::decode(low, element.metadata()) {
            DoneSetRead::Absent => DoneSet::default(),
            DoneSetRead::Found(done) => done,
            DoneSetRead::Unreadable => {
                log::warn(&format!(
                    "the metadata of the committed offset {low} of {partition} is damaged or another program's; \
                     messages above it may run again"
                ));
                DoneSet::default()
            }
        };
        shared.state().load(&partition, low, done);
    }
}

/// Pauses and resumes fetching as the state wants it.
fn follow_pauses(shared: &Shared, consumer: &Member) {
    let (pause, resume) = shared.state().pauses(shared.settings.read_ahead);
    for (partitions, paused) in [(pause, true), (resume, false)] {
        if partitions.is_empty() {
            continue;
        }
        let mut list = TopicPartitionList::new();
        for partition in &partitions {
            list.add_partition(&partition.topic, partition.number);
        }
        let done = if paused { consumer.pause(&list) } else { consumer.resume(&list) };
        if let Err(error) = done {
            shared.fail(SourceError::Failed(format!("fetching cannot be paused or resumed: {error}")));
        }
    }
}

/// Leaves the group and joins it again: the new generation fences a commit whose outcome is unknown.
fn rejoin(shared: &Shared, consumer: &Member) {
    if !shared.rejoin.swap(false, Ordering::SeqCst) {
        return;
    }
    {
        let _ownership = shared.ownership();
        shared.state().revoke_all();
    }
    consumer.unsubscribe();
    if let Err(error) = subscribe(shared, consumer) {
        shared.fail(SourceError::Failed(format!("the group cannot be joined again: {error}")));
    }
}

fn partitions(list: &TopicPartitionList) -> Vec<Partition> {
    list.elements().iter().map(|element| Partition::new(element.topic(), element.partition())).collect()
}
