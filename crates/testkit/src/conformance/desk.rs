//! An operator at the desk, as short to write as a promise wants it.

use std::sync::{Arc, Mutex};

use redrive_core::entry::Park;
use redrive_core::event::{DeadReason, Fingerprint, State};
use redrive_core::triage::{Operator, Redrive, Rule};
use redrive_core::{Event, Moment};
use redrive_store::Arrivals;
use redrive_store::operate::{Act, Edited, Operated, Order, Refusal, Target, What};

use super::Subject;
use super::owner::{ORDERS, Owner, at, dead, order};

pub(super) fn ann() -> Operator {
    Operator::new("ann", "test")
}

pub(super) fn target(event: &Event) -> Target {
    Target::new(&event.tenant, &event.queue, &event.id)
}

pub(super) fn redrive() -> Act {
    Act::Redrive(Redrive::default())
}

/// A redrive of what later ones of its key may have run before.
pub(super) fn out_of_order() -> Act {
    Act::Redrive(Redrive { out_of_order: true, ..Redrive::default() })
}

pub(super) fn state(is: State) -> Refusal {
    Refusal::State { is }
}

pub(super) fn quarantine_key(key: &str) -> Rule {
    Rule::QuarantineKey { queue: ORDERS.to_owned(), tenant: String::new(), key: key.to_owned() }
}

pub(super) fn park_key(key: &str) -> Rule {
    Rule::ParkKey { queue: ORDERS.to_owned(), tenant: String::new(), key: key.to_owned() }
}

pub(super) fn set(rule: Rule) -> What {
    What::Set { rule, until: None, why: "it is tried out".to_owned() }
}

pub(super) fn skip_head(key: &str) -> What {
    What::SkipHead { queue: ORDERS.to_owned(), tenant: String::new(), key: key.to_owned() }
}

pub(super) fn unpark(key: &str) -> What {
    What::Unpark { queue: ORDERS.to_owned(), tenant: String::new(), key: key.to_owned() }
}

/// What an edit makes of a letter.
pub(super) fn edited(event: Event) -> Edited {
    Edited { fingerprint: Fingerprint::of(&event), event: Arc::new(event), out_of_order: false }
}

/// Whether somebody who was told this looks for an event; what was told is taken.
pub(super) fn told(arrivals: &Arc<Mutex<Vec<Arrivals>>>, wanted: &str) -> bool {
    let arrivals = std::mem::take(&mut *arrivals.lock().unwrap());
    arrivals.iter().any(|told| told.missed || told.entries.iter().any(|entry| entry.event.id == wanted))
}

/// Whether somebody who was told this looks at the rules and at memory again; what was told is taken.
pub(super) fn recalled(arrivals: &Arc<Mutex<Vec<Arrivals>>>) -> bool {
    let arrivals = std::mem::take(&mut *arrivals.lock().unwrap());
    arrivals.iter().any(|told| told.missed || told.recall)
}

impl<S: Subject> Owner<S> {
    pub(super) async fn operate(&self, what: What, when: Moment) -> Operated {
        self.store.operate(Order { by: ann(), at: when, what }).await.unwrap()
    }

    /// Orders something that is done.
    pub(super) async fn done(&self, what: What, when: Moment) -> u64 {
        let done = self.operate(what, when).await;
        assert_eq!(done.refused, [], "it is refused");
        done.changed
    }

    /// Orders something that is refused as a whole.
    pub(super) async fn refused(&self, what: What, when: Moment) -> Refusal {
        let mut done = self.operate(what, when).await;
        assert_eq!((done.changed, done.refused.len()), (0, 1), "{done:?}");
        let (place, refusal) = done.refused.remove(0);
        assert_eq!(place, 0);
        refusal
    }

    /// Does something to one event.
    pub(super) async fn act(&self, event: &Event, act: Act, when: Moment) {
        assert_eq!(self.done(What::Events(vec![target(event)], act), when).await, 1);
    }

    pub(super) async fn act_refused(&self, event: &Event, act: Act, when: Moment) -> Refusal {
        self.refused(What::Events(vec![target(event)], act), when).await
    }

    /// Publishes an event, which dies at once.
    pub(super) async fn die(&self, event: &Event, when: Moment, park: Park) {
        self.publish(event.clone(), when).await;
        self.dies(event, when, dead(park)).await;
    }

    /// An event that is due dies.
    pub(super) async fn dies(&self, event: &Event, when: Moment, change: redrive_core::entry::Change) {
        let entry = self.entry(&event.id, when).await;
        self.settle_next(&entry, when, change).await;
        assert_eq!(self.state(event).await, State::Dead);
    }

    /// Three of a key, of which the first is dead and lets the others go on.
    pub(super) async fn passed(subject: S) -> Self {
        let owner = Self::of(subject).await;
        owner.die(&order("1", "k"), at(0), Park::GoOn).await;
        owner.publish(order("2", "k"), at(1)).await;
        owner.publish(order("3", "k"), at(1)).await;
        owner
    }

    /// Three of a key, of which the first is dead and holds up the others.
    pub(super) async fn parked(subject: S) -> Self {
        let owner = Self::of(subject).await;
        owner.die(&order("1", "k"), at(0), Park::Stay).await;
        owner.publish(order("2", "k"), at(1)).await;
        owner.publish(order("3", "k"), at(1)).await;
        owner
    }

    /// The version of the rules.
    pub(super) async fn version(&self) -> u64 {
        self.store.controls().await.unwrap().version
    }
}

/// The reason of every letter here.
pub(super) const REASON: DeadReason = DeadReason::AttemptsSpent;
