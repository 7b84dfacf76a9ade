//! How long dead letters are kept.

use redrive_core::entry::Park;
use redrive_core::event::State;
use redrive_core::triage::Operator;
use redrive_store::operate::{Act, GroupQuery};
use redrive_store::{By, Keep, Query, QueueSpec};

use super::Subject;
use super::desk::{redrive, state};
use super::owner::{HORIZON, MAILS, ORDERS, Owner, WINDOW, at, mail, order, secs};

impl<S: Subject> Owner<S> {
    async fn keeps(&self, name: &str, keep: Keep) {
        let (name, ordered, window, horizon) = (name.to_owned(), name == ORDERS, secs(WINDOW), secs(HORIZON));
        let queue = QueueSpec { name, ordered, window, horizon, pull: false, keep };
        self.store.declare(queue, By::Runner).await.unwrap();
    }
}

/// Letters that are older than their queue keeps them are given up; their identity is remembered for a window.
pub async fn old_letters_are_given_up<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.keeps(MAILS, Keep { time: Some(secs(5000)), count: None }).await;
    owner.die(&mail("old"), at(0), Park::GoOn).await;
    owner.die(&mail("young"), at(1000), Park::GoOn).await;
    owner.die(&order("other", "k"), at(0), Park::GoOn).await;
    owner.store.forget(at(4999)).await.unwrap();
    assert_eq!(owner.state(&mail("old")).await, State::Dead);
    assert!(owner.store.forget(at(5500)).await.unwrap() > 0);
    let line = owner.store.audit(None, 1).await.unwrap().remove(0);
    assert_eq!((line.verb.as_str(), line.count, line.by), ("purge", 1, Operator::engine()));
    let found = owner.publish_again(mail("old"), at(5500 + WINDOW - 1)).await;
    assert_eq!((found.state, found.ended, found.attempts), (State::Discarded, Some(at(5500)), 1));
    assert_eq!(owner.act_refused(&mail("old"), Act::Restore, at(5501)).await, state(State::Discarded));
    assert_eq!(owner.act_refused(&mail("old"), redrive(), at(5501)).await, state(State::Discarded));
    assert_eq!(owner.state(&mail("young")).await, State::Dead);
    assert_eq!(owner.state(&order("other", "k")).await, State::Dead, "its queue keeps everything");
    let letters: u64 =
        owner.store.groups(GroupQuery::default()).await.unwrap().iter().map(|group| group.letters).sum();
    assert_eq!(letters, 2);
    owner.store.forget(at(5500 + WINDOW + 1)).await.unwrap();
    assert!(owner.store.find("", MAILS, "old").await.unwrap().is_none());
}

/// Of more letters than a queue keeps, those that died first are given up.
pub async fn the_oldest_letters_are_given_up_first<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.keeps(MAILS, Keep { time: None, count: Some(2) }).await;
    for id in ["1", "2", "3", "4"] {
        owner.publish(mail(id), at(0)).await;
    }
    for (secs, id) in [(1, "3"), (2, "1"), (3, "4"), (4, "2")] {
        owner.dies(&mail(id), at(secs), super::owner::dead(Park::GoOn)).await;
    }
    owner.store.forget(at(5)).await.unwrap();
    let dead = Query { state: Some(State::Dead), ..Query::default() };
    let listed = owner.store.list(dead).await.unwrap();
    assert_eq!(listed.events.iter().map(|(event, _)| event.id.as_str()).collect::<Vec<_>>(), ["2", "4"]);
    assert_eq!(owner.store.audit(None, 9).await.unwrap().len(), 1, "one line for all of them");
    owner.store.forget(at(6)).await.unwrap();
    assert_eq!(owner.store.audit(None, 9).await.unwrap().len(), 1, "and none for nothing");
}

/// A letter that holds up its key is never given up: the next one would run as if it had been dealt with.
pub async fn a_letter_that_parks_is_never_given_up<S: Subject>(subject: S) {
    let owner = Owner::parked(subject).await;
    owner.keeps(ORDERS, Keep { time: Some(secs(1)), count: Some(0) }).await;
    owner.store.forget(at(HORIZON * 9)).await.unwrap();
    assert_eq!(owner.state(&order("1", "k")).await, State::Dead);
    assert_eq!(owner.due_ids(at(HORIZON * 9)).await, [""; 0]);
    owner.done(super::desk::skip_head("k"), at(HORIZON * 9)).await;
    owner.store.forget(at(HORIZON * 9)).await.unwrap();
    assert_eq!(owner.state(&order("1", "k")).await, State::Discarded);
}

/// What can be restored is listed and counted, apart from what lives.
pub async fn what_can_be_restored_is_listed<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.publish(mail("1"), at(0)).await;
    owner.publish(mail("2"), at(0)).await;
    owner.act(&mail("1"), Act::Discard, at(1)).await;
    let ids = async |state| {
        let listed = owner.store.list(Query { state, ..Query::default() }).await.unwrap();
        listed.events.iter().map(|(event, _)| event.id.clone()).collect::<Vec<_>>()
    };
    assert_eq!(ids(None).await, ["2"]);
    assert_eq!(ids(Some(State::Discarded)).await, ["1"]);
    assert_eq!(ids(Some(State::Done)).await, [""; 0]);
    let listed = owner.store.list(Query { state: Some(State::Discarded), ..Query::default() }).await.unwrap();
    assert_eq!(listed.events[0].0.payload, mail("1").payload);
    assert_eq!(listed.events[0].1, owner.found(&mail("1")).await);
    let counts = owner.store.count(at(2)).await.unwrap();
    let discarded = counts.iter().find(|count| count.state == State::Discarded).map(|count| count.events);
    assert_eq!(discarded, Some(1));
}
