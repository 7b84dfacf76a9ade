//! One identity, one event: as long as it is remembered, for every publisher, however often.

use std::sync::{Arc, Barrier};

use redrive_core::Event;
use redrive_core::event::State;
use redrive_core::queue_entry::EventChange;
use redrive_store::{DeclaredBy, NewEvent, PublishError, Published, QueueSpec};

use super::Subject;
use super::owner::{HORIZON, MAILS, ORDERS, Owner, WINDOW, at, mail, order, retry, secs};

/// Publishing again returns the first event and makes no second one.
pub async fn second_publish_is_answered_with_the_first<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    let seq = owner.publish(mail("1"), at(0)).await;
    let found = owner.publish_again(mail("1").header("traceparent", "00-2"), at(5)).await;
    assert_eq!((found.seq, found.published, found.attempts), (seq, at(0), 0));
    assert_eq!(found.state, State::Ready);
    assert_eq!(owner.due_ids(at(10)).await, ["1"]);
}

/// An id is one intent: a different payload is refused, while its event lives and after.
pub async fn another_payload_under_one_id_is_refused<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    let refused = async |when| {
        let again = owner.try_publish(mail("1").payload(*b"other"), when).await;
        assert!(
            matches!(&again, Err(PublishError::IdReused { queue, id }) if queue == MAILS && id == "1"),
            "{again:?}"
        );
    };
    owner.publish(mail("1"), at(0)).await;
    refused(at(1)).await;
    let entry = owner.entry("1", at(1)).await;
    assert_eq!(entry.event.payload, b"1");
    owner.settle_next(&entry, at(2), EventChange::Done).await;
    refused(at(3)).await;
}

/// The same id of two tenants is two events.
pub async fn tenants_have_ids_of_their_own<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.publish(mail("1").tenant("a"), at(0)).await;
    owner.publish(mail("1").tenant("b").payload(*b"other"), at(0)).await;
    assert_eq!(owner.due_ids(at(1)).await, ["1", "1"]);
    assert!(owner.store.find("", MAILS, "1").await.unwrap().is_none());
}

/// The same id in two queues is two events.
pub async fn queues_have_ids_of_their_own<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.publish(mail("1"), at(0)).await;
    owner.publish(Event::new(ORDERS, "1"), at(0)).await;
    assert_eq!(owner.due_ids(at(1)).await, ["1", "1"]);
}

/// However many publishers use one id at the same time, one is accepted.
pub async fn concurrent_publishes_of_one_id_accept_one<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    for round in 0..20 {
        let start = Arc::new(Barrier::new(4));
        let publishers: Vec<_> = (0..4)
            .map(|_| {
                let (store, start) = (Arc::clone(&owner.store), Arc::clone(&start));
                std::thread::spawn(move || {
                    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                    start.wait();
                    let new = NewEvent::at(mail(&round.to_string()), at(0));
                    runtime.block_on(store.publish(vec![new])).unwrap().remove(0).unwrap()
                })
            })
            .collect();
        let answers = tokio::task::spawn_blocking(|| {
            publishers.into_iter().map(|publisher| publisher.join().unwrap()).collect::<Vec<_>>()
        });
        let answers = answers.await.unwrap();
        let accepted: Vec<_> = answers.iter().filter_map(accepted).collect();
        assert_eq!(accepted.len(), 1, "{answers:?}");
        let duplicates = answers.iter().filter_map(duplicate);
        assert!(duplicates.into_iter().all(|seq| seq == accepted[0]), "{answers:?}");
    }
}

/// One id twice in a batch is one event.
pub async fn one_id_twice_in_a_batch_is_one_event<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    let news = [mail("1"), mail("1"), mail("2"), mail("1").payload(*b"other")];
    let answers = owner.publish_all(news.map(|event| NewEvent::at(event, at(0))).into()).await;
    let first = answers[0].as_ref().ok().and_then(accepted);
    assert!(first.is_some(), "{answers:?}");
    assert_eq!(answers[1].as_ref().ok().and_then(duplicate), first);
    assert!(matches!(answers[2], Ok(Published::Accepted(_))), "{answers:?}");
    assert!(matches!(answers[3], Err(PublishError::IdReused { .. })), "{answers:?}");
    assert_eq!(owner.due_ids(at(1)).await, ["1", "2"]);
}

/// A done event is remembered, over a crash.
pub async fn identity_outlives_its_event<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    let seq = owner.publish(mail("1"), at(0)).await;
    let entry = owner.entry("1", at(0)).await;
    owner.settle_next(&entry, at(1), EventChange::Done).await;
    assert!(owner.due(at(5)).await.is_empty());
    let owner = owner.crash().await;
    owner.store.forget(at(HORIZON + WINDOW - 2)).await.unwrap();
    let found = owner.publish_again(mail("1"), at(HORIZON + WINDOW - 1)).await;
    assert_eq!((found.seq, found.state, found.attempts), (seq, State::Done, 1));
    assert!(owner.due(at(10)).await.is_empty());
}

/// After published + horizon + window an id is free again, and gets a new sequence number.
pub async fn a_receipt_is_forgotten_in_time<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    let mut first = Vec::new();
    for id in ["1", "2"] {
        first.push(owner.publish(mail(id), at(0)).await);
        let entry = owner.entry(id, at(0)).await;
        owner.settle_next(&entry, at(1), EventChange::Done).await;
    }
    let later = at(HORIZON + WINDOW + 1);
    let anew = owner.publish(mail("1").payload(*b"other"), later).await;
    assert!(anew > first[1], "{anew:?} is not after {first:?}");
    assert!(owner.store.forget(later).await.unwrap() >= 1);
    assert!(owner.store.find("", MAILS, "2").await.unwrap().is_none());
    assert_eq!(owner.found(&mail("1")).await.seq, anew);
    owner.publish(mail("2"), later).await;
    assert_eq!(owner.due_ids(later).await.len(), 2);
}

/// The identity of an event lives at least as long as the event.
pub async fn a_living_event_is_never_forgotten<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    let seq = owner.publish(mail("1"), at(0)).await;
    let later = at(10 * (HORIZON + WINDOW));
    owner.store.forget(later).await.unwrap();
    assert_eq!(owner.publish_again(mail("1"), later).await.seq, seq);
    assert_eq!(owner.due_ids(later).await, ["1"]);
}

/// The dedupe record of an event that ends after published + horizon is kept for a whole window.
pub async fn late_settle_stamps_the_receipt_anew<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    for id in ["1", "2"] {
        owner.publish(mail(id), at(0)).await;
    }
    let late = HORIZON + 10 * WINDOW;
    let entry = owner.entry("1", at(0)).await;
    owner.settle_next(&entry, at(late), EventChange::Done).await;
    let entry = owner.entry("2", at(0)).await;
    owner.settle_next(&entry, at(1), EventChange::Retry(retry(at(2)))).await;
    let entry = owner.entry("2", at(2)).await;
    let done = EventChange::DoneWith { result: None, attempts: 2, history: None };
    owner.settle_next(&entry, at(late), done).await;
    for id in ["1", "2"] {
        owner.store.forget(at(late + WINDOW - 2)).await.unwrap();
        assert_eq!(owner.publish_again(mail(id), at(late + WINDOW - 1)).await.state, State::Done);
        owner.publish(mail(id), at(late + WINDOW + 1)).await;
    }
}

/// A delay comes before the horizon: an event that runs late is remembered for longer.
pub async fn a_delay_counts_before_the_horizon<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.publish(mail("1").delay(secs(5000)), at(0)).await;
    let entry = owner.entry("1", at(5000)).await;
    owner.settle_next(&entry, at(5000), EventChange::Done).await;
    owner.publish_again(mail("1").delay(secs(5000)), at(5000 + HORIZON + WINDOW - 1)).await;
    owner.publish(mail("1"), at(5000 + HORIZON + WINDOW + 1)).await;
}

/// An event with a horizon of its own is remembered by that one.
pub async fn an_event_has_a_horizon_of_its_own<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    let new = NewEvent { horizon: Some(secs(5000)), ..NewEvent::at(mail("1"), at(0)) };
    assert!(matches!(owner.publish_all(vec![new]).await[0], Ok(Published::Accepted(_))));
    let entry = owner.entry("1", at(0)).await;
    owner.settle_next(&entry, at(1), EventChange::Done).await;
    owner.publish_again(mail("1"), at(5000 + WINDOW - 1)).await;
    owner.publish(mail("1"), at(5000 + WINDOW + 1)).await;
}

/// Publishing to an undeclared queue is refused.
pub async fn an_undeclared_queue_is_refused<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    let answer = owner.try_publish(Event::new("odrers", "1"), at(0)).await;
    let Err(PublishError::NoQueue { queue, known }) = &answer else { panic!("{answer:?}") };
    assert_eq!(queue, "odrers");
    assert!(known.iter().any(|name| name == ORDERS) && known.iter().any(|name| name == MAILS), "{known:?}");
}

/// After a crash a queue is still known to processes that only publish.
pub async fn a_declared_queue_survives_a_crash<S: Subject>(subject: S) {
    let Owner { subject, store, .. } = Owner::of(subject).await;
    drop(store);
    let store = subject.crash_and_reopen().await.store();
    let answers = store.publish(vec![NewEvent::at(mail("1"), at(0))]).await.unwrap();
    assert!(matches!(answers[..], [Ok(Published::Accepted(_))]), "{answers:?}");
}

/// A queue that is declared again has its latest settings.
pub async fn a_queue_may_be_declared_again<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.publish(mail("1"), at(0)).await;
    let spec = QueueSpec {
        name: MAILS.to_owned(),
        ordered: false,
        window: secs(5000),
        horizon: secs(HORIZON),
        ..QueueSpec::default()
    };
    owner.store.declare(spec, DeclaredBy::Runner).await.unwrap();
    owner.publish(mail("2"), at(0)).await;
    let entry = owner.entry("2", at(0)).await;
    owner.settle_next(&entry, at(1), EventChange::Done).await;
    owner.publish_again(mail("2"), at(HORIZON + 4999)).await;
    owner.publish(mail("2"), at(HORIZON + 5001)).await;
    assert_eq!(owner.due_ids(at(9999)).await, ["1", "2"]);
}

/// An invalid event is refused, and the rest of its batch is accepted.
pub async fn what_cannot_be_kept_is_refused_alone<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    let news = [mail("1"), mail(""), Event::new("nowhere", "1"), mail("2")];
    let answers = owner.publish_all(news.map(|event| NewEvent::at(event, at(0))).into()).await;
    assert!(matches!(answers[1], Err(PublishError::Event(_))), "{answers:?}");
    assert!(matches!(answers[2], Err(PublishError::NoQueue { .. })), "{answers:?}");
    assert_eq!(owner.due_ids(at(1)).await, ["1", "2"]);
}

/// Accepted events are there after a crash, unchanged.
pub async fn what_was_accepted_survives_a_crash<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    let event =
        order("1", "k").tenant("t").header("a", "b").content_type("text/plain").expires_after(secs(500));
    let seq = owner.publish(event.clone(), at(0)).await;
    let before = owner.entry("1", at(0)).await;
    let owner = owner.crash().await;
    let after = owner.entry("1", at(0)).await;
    assert_eq!(after, before);
    assert_eq!(
        (after.seq, &*after.event, after.published, after.expires),
        (seq, &event, at(0), Some(at(500)))
    );
    assert_eq!(owner.publish_again(event, at(1)).await.seq, seq);
}

fn accepted(published: &Published) -> Option<redrive_core::queue_entry::Seq> {
    match published {
        Published::Accepted(seq) => Some(*seq),
        Published::Duplicate(_) => None,
    }
}

fn duplicate(published: &Published) -> Option<redrive_core::queue_entry::Seq> {
    match published {
        Published::Accepted(_) => None,
        Published::Duplicate(found) => Some(found.seq),
    }
}
