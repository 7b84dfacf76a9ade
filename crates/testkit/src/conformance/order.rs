//! The order of a key.

use redrive_core::event::State;
use redrive_core::queue_entry::EventChange;
use redrive_store::{NewEvent, Published};

use super::Subject;
use super::owner::{Owner, at, id, mail, order, retry, secs};

/// Sequence numbers grow in the order of the batch, and of the calls.
pub async fn seqs_grow_in_the_order_of_publishing<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    let batch = (0..20).map(|n| NewEvent::at(order(&n.to_string(), "k"), at(0))).collect();
    let answers = owner.publish_all(batch).await;
    let place = |answer: &Result<Published, _>| match answer {
        Ok(Published::Accepted(seq)) => *seq,
        _ => panic!("{answers:?}"),
    };
    let mut seqs: Vec<_> = answers.iter().map(place).collect();
    seqs.push(owner.publish(order("last", "k"), at(0)).await);
    assert!(seqs.is_sorted_by(|a, b| a < b), "{seqs:?}");
}

/// Only the first event of a key is loaded.
pub async fn only_the_head_of_a_key_is_handed_out<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    for (id, key) in [("1", "a"), ("2", "a"), ("3", "b"), ("4", "a"), ("5", "b")] {
        owner.publish(order(id, key), at(0)).await;
    }
    owner.publish(order("6", "a").tenant("other"), at(0)).await;
    assert_eq!(owner.due_ids(at(10)).await, ["1", "3", "6"]);
    assert_eq!(owner.state(&order("1", "a")).await, State::Ready);
    assert_eq!(owner.state(&order("2", "a")).await, State::Waiting);
}

/// The first event of a key is the one that was published first, whenever it is due.
pub async fn a_delayed_head_holds_up_its_key<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.publish(order("1", "k").delay(secs(300)), at(0)).await;
    owner.publish(order("2", "k"), at(0)).await;
    assert!(owner.due(at(299)).await.is_empty());
    let owner = owner.crash().await;
    assert!(owner.due(at(299)).await.is_empty());
    assert_eq!(owner.due_ids(at(300)).await, ["1"]);
}

/// While an event waits for its retry, later events of its key wait, too, also after a crash.
pub async fn a_retry_holds_up_its_key<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.publish(order("1", "k"), at(0)).await;
    owner.publish(order("2", "k"), at(0)).await;
    let entry = owner.entry("1", at(0)).await;
    assert_eq!(owner.settle_next(&entry, at(1), EventChange::Retry(retry(at(300)))).await, None);
    assert!(owner.due(at(299)).await.is_empty());
    let owner = owner.crash().await;
    assert!(owner.due(at(299)).await.is_empty());
    assert_eq!(owner.due_ids(at(300)).await, ["1"]);
}

/// Every settle that ends an event returns the next event of its key.
pub async fn next_of_a_key_comes_with_the_settle_of_the_one_before<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    let endings = [
        EventChange::Done,
        EventChange::DoneWith { result: None, attempts: 1, history: None },
        EventChange::Dropped { attempts: 1, history: None },
        EventChange::Expired { attempts: 0, history: None },
    ];
    for n in 0..=endings.len() {
        owner.publish(order(&n.to_string(), "k"), at(0)).await;
    }
    for (n, ending) in endings.into_iter().enumerate() {
        let due = owner.due(at(1)).await;
        assert_eq!(due.iter().map(id).collect::<Vec<_>>(), [n.to_string()]);
        assert_eq!(owner.settle_next(&due[0], at(1), ending).await, Some((n + 1).to_string()));
    }
    let last = owner.entry("4", at(1)).await;
    assert_eq!(owner.settle_next(&last, at(1), EventChange::Done).await, None);
}

/// The next event can be settled as the settle returned it.
pub async fn next_of_a_key_can_be_settled_as_it_was_given<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    for id in ["1", "2", "3"] {
        owner.publish(order(id, "k").payload(*b"what"), at(0)).await;
    }
    let mut entry = owner.entry("1", at(0)).await;
    for expected in ["2", "3"] {
        let settled = owner.settle(&entry, at(1), EventChange::Done).await;
        let redrive_core::queue_entry::SettleResult::Applied { next: Some(next), .. } = settled else {
            panic!("{settled:?}")
        };
        assert_eq!((next.event.id.as_str(), &*next.event.payload), (expected, &b"what"[..]));
        entry = next;
    }
    owner.settle_next(&entry, at(1), EventChange::Done).await;
    assert!(owner.due(at(10)).await.is_empty());
}

/// In a queue without order, keys have no effect.
pub async fn unordered_queues_ignore_keys<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    for id in ["1", "2", "3"] {
        owner.publish(mail(id).key("k"), at(0)).await;
    }
    assert_eq!(owner.due_ids(at(0)).await, ["1", "2", "3"]);
    let entry = owner.entry("2", at(0)).await;
    assert_eq!(entry.event.key.as_deref(), Some("k"));
    assert_eq!(owner.settle_next(&entry, at(1), EventChange::Done).await, None);
    assert_eq!(owner.due_ids(at(2)).await, ["1", "3"]);
}

/// Events without a key have no order, also in an ordered queue.
pub async fn events_without_a_key_wait_for_nobody<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    for id in ["1", "2"] {
        owner.publish(redrive_core::Event::new(super::owner::ORDERS, id), at(0)).await;
    }
    assert_eq!(owner.due_ids(at(0)).await, ["1", "2"]);
}
