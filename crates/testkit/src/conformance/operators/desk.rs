//! An operator at the desk: helpers that keep promises short.

use std::sync::{Arc, Mutex};

use redrive_core::event::{DeadReason, Fingerprint, State};
use redrive_core::queue_entry::ParkFollowers;
use redrive_core::triage::{Operator, RedriveOptions, Rule};
use redrive_core::{Event, Moment};
use redrive_store::Arrivals;
use redrive_store::operate::{
    CommandResult, EditedEvent, EventAction, EventRef, OperatorAction, OperatorCommand, Refusal,
};

use crate::conformance::Subject;
use crate::conformance::owner::{ORDERS, Owner, at, dead, order};

pub(in crate::conformance) fn ann() -> Operator {
    Operator::new("ann", "test")
}

pub(in crate::conformance) fn target(event: &Event) -> EventRef {
    EventRef::new(&event.tenant, &event.queue, &event.id)
}

pub(in crate::conformance) fn redrive() -> EventAction {
    EventAction::Redrive(RedriveOptions::default())
}

/// A redrive of a dead letter although later events of its key may have run before it.
pub(in crate::conformance) fn out_of_order() -> EventAction {
    EventAction::Redrive(RedriveOptions { out_of_order: true, ..RedriveOptions::default() })
}

pub(in crate::conformance) fn state(is: State) -> Refusal {
    Refusal::State { is }
}

pub(in crate::conformance) fn quarantine_key(key: &str) -> Rule {
    Rule::QuarantineKey { queue: ORDERS.to_owned(), tenant: String::new(), key: key.to_owned() }
}

pub(in crate::conformance) fn park_key(key: &str) -> Rule {
    Rule::ParkKey { queue: ORDERS.to_owned(), tenant: String::new(), key: key.to_owned() }
}

pub(in crate::conformance) fn set(rule: Rule) -> OperatorAction {
    OperatorAction::Set { rule, until: None, why: "it is tried out".to_owned() }
}

pub(in crate::conformance) fn skip_head(key: &str) -> OperatorAction {
    OperatorAction::SkipHead { queue: ORDERS.to_owned(), tenant: String::new(), key: key.to_owned() }
}

pub(in crate::conformance) fn unpark(key: &str) -> OperatorAction {
    OperatorAction::Unpark { queue: ORDERS.to_owned(), tenant: String::new(), key: key.to_owned() }
}

/// What an edit makes of a dead letter.
pub(in crate::conformance) fn edited(event: Event) -> EditedEvent {
    EditedEvent { fingerprint: Fingerprint::of(&event), event: Arc::new(event), out_of_order: false }
}

/// Whether these arrivals make an owner look for an event; empties them.
pub(in crate::conformance) fn told(arrivals: &Arc<Mutex<Vec<Arrivals>>>, wanted: &str) -> bool {
    let arrivals = std::mem::take(&mut *arrivals.lock().unwrap());
    arrivals.iter().any(|told| told.missed || told.entries.iter().any(|entry| entry.event.id == wanted))
}

/// Whether these arrivals make an owner look at the rules and at its memory again; empties them.
pub(in crate::conformance) fn recalled(arrivals: &Arc<Mutex<Vec<Arrivals>>>) -> bool {
    let arrivals = std::mem::take(&mut *arrivals.lock().unwrap());
    arrivals.iter().any(|told| told.missed || told.recall)
}

impl<S: Subject> Owner<S> {
    pub(in crate::conformance) async fn operate(&self, what: OperatorAction, when: Moment) -> CommandResult {
        self.store.operate(OperatorCommand { by: ann(), at: when, what }).await.unwrap()
    }

    /// Gives a command that succeeds.
    pub(in crate::conformance) async fn done(&self, what: OperatorAction, when: Moment) -> u64 {
        let done = self.operate(what, when).await;
        assert_eq!(done.refused, [], "it is refused");
        done.changed
    }

    /// Gives a command that is refused as a whole.
    pub(in crate::conformance) async fn refused(&self, what: OperatorAction, when: Moment) -> Refusal {
        let mut done = self.operate(what, when).await;
        assert_eq!((done.changed, done.refused.len()), (0, 1), "{done:?}");
        let (place, refusal) = done.refused.remove(0);
        assert_eq!(place, 0);
        refusal
    }

    /// Changes one event.
    pub(in crate::conformance) async fn act(&self, event: &Event, act: EventAction, when: Moment) {
        assert_eq!(self.done(OperatorAction::Events(vec![target(event)], act), when).await, 1);
    }

    pub(in crate::conformance) async fn act_refused(
        &self,
        event: &Event,
        act: EventAction,
        when: Moment,
    ) -> Refusal {
        self.refused(OperatorAction::Events(vec![target(event)], act), when).await
    }

    /// Publishes an event, which dies immediately.
    pub(in crate::conformance) async fn die(&self, event: &Event, when: Moment, park: ParkFollowers) {
        self.publish(event.clone(), when).await;
        self.dies(event, when, dead(park)).await;
    }

    /// A due event dies.
    pub(in crate::conformance) async fn dies(
        &self,
        event: &Event,
        when: Moment,
        change: redrive_core::queue_entry::EventChange,
    ) {
        let entry = self.entry(&event.id, when).await;
        self.settle_next(&entry, when, change).await;
        assert_eq!(self.state(event).await, State::Dead);
    }

    /// Three events of a key, of which the first is dead and the others are not parked.
    pub(in crate::conformance) async fn passed(subject: S) -> Self {
        let owner = Self::of(subject).await;
        owner.die(&order("1", "k"), at(0), ParkFollowers::No).await;
        owner.publish(order("2", "k"), at(1)).await;
        owner.publish(order("3", "k"), at(1)).await;
        owner
    }

    /// Three events of a key, of which the first is dead and parks the others.
    pub(in crate::conformance) async fn parked(subject: S) -> Self {
        let owner = Self::of(subject).await;
        owner.die(&order("1", "k"), at(0), ParkFollowers::UntilResolved).await;
        owner.publish(order("2", "k"), at(1)).await;
        owner.publish(order("3", "k"), at(1)).await;
        owner
    }

    /// The version of the rules.
    pub(in crate::conformance) async fn version(&self) -> u64 {
        self.store.controls().await.unwrap().version
    }
}

/// The reason of every dead letter here.
pub(in crate::conformance) const REASON: DeadReason = DeadReason::AttemptsSpent;
