//! The retention of dead letters.

use redrive_core::event::State;
use redrive_core::queue_entry::ParkFollowers;
use redrive_core::triage::Operator;
use redrive_store::operate::{EventAction, GroupQuery};
use redrive_store::{DeadLetterRetention, DeclaredBy, EventQuery, QueueSpec};

use crate::conformance::Subject;
use crate::conformance::desk::{redrive, state};
use crate::conformance::owner::{HORIZON, MAILS, ORDERS, Owner, WINDOW, at, mail, order, secs};

impl<S: Subject> Owner<S> {
    async fn keeps(&self, name: &str, keep: DeadLetterRetention) {
        let (name, ordered, window, horizon) = (name.to_owned(), name == ORDERS, secs(WINDOW), secs(HORIZON));
        let queue = QueueSpec { name, ordered, window, horizon, pull: false, keep };
        self.store.declare(queue, DeclaredBy::Runner).await.unwrap();
    }
}

/// Dead letters beyond their queue's retention are removed; their identity is remembered for a window.
pub async fn old_letters_are_given_up<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.keeps(MAILS, DeadLetterRetention { time: Some(secs(5000)), count: None }).await;
    owner.die(&mail("old"), at(0), ParkFollowers::No).await;
    owner.die(&mail("young"), at(1000), ParkFollowers::No).await;
    owner.die(&order("other", "k"), at(0), ParkFollowers::No).await;
    owner.store.forget(at(4999)).await.unwrap();
    assert_eq!(owner.state(&mail("old")).await, State::Dead);
    assert!(owner.store.forget(at(5500)).await.unwrap() > 0);
    let line = owner.store.audit(None, 1).await.unwrap().remove(0);
    assert_eq!((line.verb.as_str(), line.count, line.by), ("purge", 1, Operator::engine()));
    let found = owner.publish_again(mail("old"), at(5500 + WINDOW - 1)).await;
    assert_eq!((found.state, found.ended, found.attempts), (State::Discarded, Some(at(5500)), 1));
    assert_eq!(
        owner.act_refused(&mail("old"), EventAction::Restore, at(5501)).await,
        state(State::Discarded)
    );
    assert_eq!(owner.act_refused(&mail("old"), redrive(), at(5501)).await, state(State::Discarded));
    assert_eq!(owner.state(&mail("young")).await, State::Dead);
    assert_eq!(owner.state(&order("other", "k")).await, State::Dead, "its queue keeps everything");
    let letters: u64 =
        owner.store.groups(GroupQuery::default()).await.unwrap().iter().map(|group| group.letters).sum();
    assert_eq!(letters, 2);
    owner.store.forget(at(5500 + WINDOW + 1)).await.unwrap();
    assert!(owner.store.find("", MAILS, "old").await.unwrap().is_none());
}

/// If a queue has more dead letters than it keeps, the ones that died first are removed.
pub async fn the_oldest_letters_are_given_up_first<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.keeps(MAILS, DeadLetterRetention { time: None, count: Some(2) }).await;
    for id in ["1", "2", "3", "4"] {
        owner.publish(mail(id), at(0)).await;
    }
    for (secs, id) in [(1, "3"), (2, "1"), (3, "4"), (4, "2")] {
        owner.dies(&mail(id), at(secs), crate::conformance::owner::dead(ParkFollowers::No)).await;
    }
    owner.store.forget(at(5)).await.unwrap();
    let dead = EventQuery { state: Some(State::Dead), ..EventQuery::default() };
    let listed = owner.store.list(dead).await.unwrap();
    assert_eq!(listed.events.iter().map(|(event, _)| event.id.as_str()).collect::<Vec<_>>(), ["2", "4"]);
    assert_eq!(owner.store.audit(None, 9).await.unwrap().len(), 1, "one line for all of them");
    owner.store.forget(at(6)).await.unwrap();
    assert_eq!(owner.store.audit(None, 9).await.unwrap().len(), 1, "and none for nothing");
}

/// A dead letter that parks its key is never removed: the next event would run as if an operator had dealt
/// with it.
pub async fn a_letter_that_parks_is_never_given_up<S: Subject>(subject: S) {
    let owner = Owner::parked(subject).await;
    owner.keeps(ORDERS, DeadLetterRetention { time: Some(secs(1)), count: Some(0) }).await;
    owner.store.forget(at(HORIZON * 9)).await.unwrap();
    assert_eq!(owner.state(&order("1", "k")).await, State::Dead);
    assert_eq!(owner.due_ids(at(HORIZON * 9)).await, [""; 0]);
    owner.done(crate::conformance::desk::skip_head("k"), at(HORIZON * 9)).await;
    owner.store.forget(at(HORIZON * 9)).await.unwrap();
    assert_eq!(owner.state(&order("1", "k")).await, State::Discarded);
}

/// Discarded events that can be restored are listed and counted separately.
pub async fn what_can_be_restored_is_listed<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.publish(mail("1"), at(0)).await;
    owner.publish(mail("2"), at(0)).await;
    owner.act(&mail("1"), EventAction::Discard, at(1)).await;
    let ids = async |state| {
        let listed = owner.store.list(EventQuery { state, ..EventQuery::default() }).await.unwrap();
        listed.events.iter().map(|(event, _)| event.id.clone()).collect::<Vec<_>>()
    };
    assert_eq!(ids(None).await, ["2"]);
    assert_eq!(ids(Some(State::Discarded)).await, ["1"]);
    assert_eq!(ids(Some(State::Done)).await, [""; 0]);
    let listed = owner
        .store
        .list(EventQuery { state: Some(State::Discarded), ..EventQuery::default() })
        .await
        .unwrap();
    assert_eq!(listed.events[0].0.payload, mail("1").payload);
    assert_eq!(listed.events[0].1, owner.found(&mail("1")).await);
    let counts = owner.store.count(at(2)).await.unwrap();
    let discarded = counts.iter().find(|count| count.state == State::Discarded).map(|count| count.events);
    assert_eq!(discarded, Some(1));
}
