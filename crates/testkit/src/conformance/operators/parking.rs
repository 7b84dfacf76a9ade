//! Dead letters and the later events of their key.

use redrive_core::event::State;
use redrive_core::queue_entry::{EventChange, ParkFollowers};

use crate::conformance::Subject;
use crate::conformance::owner::{Owner, at, dead, mail, order};

/// Three events of a key, the first of them dead.
async fn parked<S: Subject>(subject: S, park: ParkFollowers) -> (Owner<S>, Option<String>) {
    let owner = Owner::of(subject).await;
    for id in ["1", "2", "3"] {
        owner.publish(order(id, "k"), at(0)).await;
    }
    let entry = owner.entry("1", at(0)).await;
    let next = owner.settle_next(&entry, at(1), dead(park)).await;
    (owner, next)
}

/// Later events stay parked until an operator has dealt with the dead letter, also new ones, and over a
/// crash.
pub async fn a_dead_letter_parks_its_key<S: Subject>(subject: S) {
    let (owner, next) = parked(subject, ParkFollowers::UntilResolved).await;
    assert_eq!(next, None);
    owner.publish(order("4", "k"), at(2)).await;
    owner.publish(order("5", "other"), at(2)).await;
    assert_eq!(owner.due_ids(at(10_000)).await, ["5"]);
    assert_eq!(owner.state(&order("1", "k")).await, State::Dead);
    assert_eq!(owner.state(&order("2", "k")).await, State::Parked);
    assert_eq!(owner.state(&order("4", "k")).await, State::Parked);
    let owner = owner.crash().await;
    assert_eq!(owner.due_ids(at(10_000)).await, ["5"]);
}

/// If the queue does not park, the death returns the next event.
pub async fn a_dead_letter_lets_its_key_go_on_where_that_is_asked<S: Subject>(subject: S) {
    let (owner, next) = parked(subject, ParkFollowers::No).await;
    assert_eq!(next.as_deref(), Some("2"));
    assert_eq!(owner.due_ids(at(10)).await, ["2"]);
}

/// Parking ends when one more event waits than is allowed: at the death, and at a publish.
pub async fn parking_ends_at_its_count<S: Subject>(subject: S) {
    let (owner, next) = parked(subject, ParkFollowers::UpTo { until: None, count: Some(2) }).await;
    assert_eq!(next, None);
    assert!(owner.due(at(10)).await.is_empty());
    owner.publish(order("4", "k"), at(2)).await;
    assert_eq!(owner.due_ids(at(10)).await, ["2"]);
    let entry = owner.entry("2", at(10)).await;
    let park = ParkFollowers::UpTo { until: None, count: Some(1) };
    assert_eq!(owner.settle_next(&entry, at(3), dead(park)).await.as_deref(), Some("3"));
    assert_eq!(owner.due_ids(at(10)).await, ["3"]);
    assert_eq!(owner.state(&order("1", "k")).await, State::Dead);
}

/// Parking ends at its time: a load returns when that is and that it is over; the owner unparks the key.
pub async fn parking_ends_at_its_time<S: Subject>(subject: S) {
    let (owner, next) = parked(subject, ParkFollowers::UpTo { until: Some(at(60)), count: None }).await;
    assert_eq!(next, None);
    let owner = owner.crash().await;
    let early = owner.load(at(59), &[]).await;
    assert!(early.iter().all(|loaded| loaded.overdue.is_empty() && loaded.entries.is_empty()), "{early:?}");
    assert_eq!(early.iter().filter_map(|loaded| loaded.next_due).min(), Some(at(60)));
    let loaded = owner.load(at(60), &[]).await;
    assert!(loaded.iter().all(|loaded| loaded.entries.is_empty()), "{loaded:?}");
    let overdue: Vec<_> = loaded.iter().flat_map(|loaded| &loaded.overdue).collect();
    assert_eq!(overdue.len(), 1);
    let found = owner.found(&order("1", "k")).await;
    assert_eq!(overdue[0].seq, found.seq);
    let go_on = redrive_core::queue_entry::SettleRequest {
        token: owner.taken[shard_of_k(&owner)].token,
        seq: overdue[0].seq,
        rev: overdue[0].rev,
        at: at(60),
        change: EventChange::Unpark,
    };
    let settled = owner.store.settle(vec![go_on.clone()]).await.unwrap().remove(0);
    let redrive_core::queue_entry::SettleResult::Applied { next: Some(next), rev } = settled else {
        panic!("{settled:?}")
    };
    assert_eq!((next.event.id.as_str(), rev > go_on.rev), ("2", true));
    assert_eq!(owner.due_ids(at(60)).await, ["2"]);
    let loaded = owner.load(at(60), &[]).await;
    assert!(loaded.iter().all(|loaded| loaded.overdue.is_empty()), "{loaded:?}");
    let again = owner.store.settle(vec![go_on]).await.unwrap().remove(0);
    assert_eq!(again, redrive_core::queue_entry::SettleResult::Stale);
}

/// A dead letter without an ordering key parks no events.
pub async fn a_dead_letter_without_order_parks_nobody<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    for id in ["1", "2"] {
        owner.publish(mail(id).key("k"), at(0)).await;
    }
    let entry = owner.entry("1", at(0)).await;
    owner.settle_next(&entry, at(1), dead(ParkFollowers::UpTo { until: Some(at(5)), count: Some(0) })).await;
    owner.publish(mail("3").key("k"), at(2)).await;
    let loaded = owner.load(at(10), &[]).await;
    assert!(loaded.iter().all(|loaded| loaded.overdue.is_empty()), "{loaded:?}");
    assert_eq!(owner.due_ids(at(10)).await, ["2", "3"]);
    assert_eq!(owner.state(&mail("2")).await, State::Ready);
}

/// An event that is not dead holds its key, whatever an unpark says.
pub async fn only_a_dead_letter_can_go_on<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.publish(order("1", "k"), at(0)).await;
    owner.publish(order("2", "k"), at(0)).await;
    let entry = owner.entry("1", at(0)).await;
    owner.settle(&entry, at(1), EventChange::Unpark).await;
    assert_eq!(owner.due_ids(at(10)).await, ["1"]);
}

fn shard_of_k<S: Subject>(owner: &Owner<S>) -> usize {
    let shard = redrive_core::event::identity::shard(&order("1", "k"), owner.store.shards());
    usize::try_from(shard).unwrap()
}
