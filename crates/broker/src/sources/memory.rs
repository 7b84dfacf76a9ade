//! A broker in memory, with faults: the reference of the contract, and for tests of consumers.
//!
//! It is a queue with leases, unlike Kafka on purpose: each message is settled by itself, waits for its exact due time
//! inside the broker, and a consumer that dies gives its messages back. Its faults are chosen by the test: lost answers,
//! lost requests, refusals, a missing place for dead letters, reassignments.
//!
//! Nothing of it survives the process.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redrive_core::Moment;
use tokio::sync::Notify;

use crate::clock::WallClock;
use crate::message::{Message, Outgoing};

mod dead;
mod queue;
mod source;

pub use dead::MemoryDeadLetters;
use queue::Queue;
pub use source::MemorySource;

/// A broker in memory. Clones are the same broker.
#[derive(Debug, Clone)]
pub struct MemoryBroker(Arc<Shared>);

/// How a queue in memory behaves.
#[derive(Debug, Clone, Copy)]
pub struct MemoryOptions {
    /// Whether messages of a key are delivered in order, one at a time.
    pub ordered: bool,
    /// The lease of a received message.
    pub lease: Duration,
    /// The longest delay.
    pub delay_max: Duration,
    /// The largest message.
    pub message_bytes_max: usize,
}

impl Default for MemoryOptions {
    fn default() -> Self {
        Self {
            ordered: false,
            lease: Duration::from_secs(30),
            delay_max: Duration::from_hours(12),
            message_bytes_max: 1 << 20,
        }
    }
}

/// What goes wrong with the next settled item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryFault {
    /// It happens, and the answer is lost.
    AnswerLost,
    /// It does not happen, and there is no answer.
    RequestLost,
    /// It is refused.
    Refused,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Notify,
    clock: WallClock,
    options: MemoryOptions,
}

#[derive(Debug, Default)]
struct State {
    queues: BTreeMap<Arc<str>, Queue>,
    faults: VecDeque<MemoryFault>,
    consumers: u64,
    deliveries: u64,
    has_no_dead_place: bool,
}

impl MemoryBroker {
    /// A broker without queues. Must be called inside a tokio runtime, whose clock it uses.
    #[must_use]
    pub fn new(options: MemoryOptions) -> Self {
        let shared =
            Shared { state: Mutex::default(), changed: Notify::new(), clock: WallClock::start(), options };
        Self(Arc::new(shared))
    }

    /// The present, by its clock.
    #[must_use]
    pub fn now(&self) -> Moment {
        self.0.clock.now()
    }

    /// Adds a message to a queue, which is made if need be.
    pub fn add(&self, queue: &str, message: Message) {
        let now = self.now();
        self.lock().queue(queue).add(message, now);
        self.0.changed.notify_waiters();
    }

    /// Joins a queue as a new consumer.
    #[must_use]
    pub fn source(&self, queue: &str) -> MemorySource {
        let mut state = self.lock();
        state.consumers += 1;
        let consumer = state.consumers;
        state.queue(queue);
        drop(state);
        MemorySource::new(self.clone(), queue, consumer)
    }

    /// The dead letters of a queue, oldest first.
    #[must_use]
    pub fn dead(&self, queue: &str) -> Vec<Message> {
        self.lock().queue(queue).dead.values().cloned().collect()
    }

    /// The dead letters of a queue, for operators.
    #[must_use]
    pub fn dead_letters(&self, queue: &str) -> MemoryDeadLetters {
        MemoryDeadLetters::new(self.clone(), queue)
    }

    /// The messages in a queue that are not done, oldest first.
    #[must_use]
    pub fn messages(&self, queue: &str) -> Vec<Arc<Message>> {
        self.lock().queue(queue).messages.values().map(|stored| Arc::clone(&stored.message)).collect()
    }

    /// Something goes wrong with the next settled item that has no fault yet.
    pub fn fault(&self, fault: MemoryFault) {
        self.lock().faults.push_back(fault);
    }

    /// Whether there is a place for dead letters. Default: yes.
    pub fn has_dead_place(&self, has: bool) {
        self.lock().has_no_dead_place = !has;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn queue(&mut self, name: &str) -> &mut Queue {
        self.queues.entry(Arc::from(name)).or_default()
    }

    fn publish_all(&mut self, outputs: &[Outgoing], now: Moment) {
        for output in outputs {
            self.queue(&output.topic).add(output.message.clone(), now);
        }
    }
}
