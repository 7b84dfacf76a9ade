//! The shard that a publisher asks for.

use redrive_core::Event;
use redrive_core::event::{State, identity};
use redrive_core::queue_entry::{EventChange, ParkFollowers, QueueEntry};
use redrive_store::{NewEvent, Published};

use super::Subject;
use super::owner::{Owner, at, dead, id, mail, order, retry, secs};

fn local_shard(event: Event, shard: u32) -> NewEvent {
    NewEvent { local_shard: Some(shard), ..NewEvent::at(event, at(0)) }
}

async fn publish<S: Subject>(owner: &Owner<S>, news: Vec<NewEvent>) {
    for published in owner.publish_all(news).await {
        assert!(matches!(published, Ok(Published::Accepted(_))), "{published:?}");
    }
}

/// The shard of each event, by id.
fn shards(entries: &[QueueEntry]) -> Vec<(String, u32)> {
    let mut shards: Vec<_> = entries.iter().map(|entry| (id(entry), entry.shard)).collect();
    shards.sort();
    shards
}

/// An event without a key is stored in the shard that its publisher asks for, and behaves like any other
/// event: it is announced unchanged, the owners of that shard find it, and its identity holds whatever shard
/// is asked for later.
pub async fn an_event_without_a_key_is_where_its_publisher_wishes<S: Subject>(subject: S) {
    let mut owner = Owner::of(subject).await;
    let count = owner.store.shards();
    let arrivals = owner.watch();
    // Some in one batch, some alone, some with a delay, and in either kind of queue.
    let wished: Vec<(String, u32)> = (0..count * 4).map(|n| (format!("{n:02}"), n % count)).collect();
    let new = |(name, shard): &(String, u32)| match shard % 2 {
        0 => local_shard(mail(name), *shard),
        _ => local_shard(Event::new(super::owner::ORDERS, name.as_str()).payload(name.as_bytes()), *shard),
    };
    let (first, rest) = wished.split_at(wished.len() / 2);
    publish(&owner, first.iter().map(new).collect()).await;
    for one in rest {
        publish(&owner, vec![new(one)]).await;
    }
    publish(&owner, vec![local_shard(mail("late").delay(secs(10)), count - 1)]).await;
    assert_eq!(shards(&owner.due(at(0)).await), wished);
    let told = std::mem::take(&mut *arrivals.lock().unwrap());
    for entry in told.iter().flat_map(|told| &told.entries).filter(|entry| entry.event.id != "late") {
        assert!(wished.contains(&(id(entry), entry.shard)), "{entry:?} was told");
    }

    // A repeat that asks for another shard makes no second event and moves nothing.
    for (name, shard) in &wished {
        let again = new(&(name.clone(), *shard));
        let again = NewEvent { local_shard: Some((shard + 1) % count), ..again };
        let again = owner.publish_all(vec![again]).await.remove(0);
        assert!(matches!(again, Ok(Published::Duplicate(_))), "{again:?}");
    }
    assert_eq!(shards(&owner.due(at(0)).await), wished);

    // Every owner of the shard has it, and settles it there.
    owner = owner.crash().await;
    assert_eq!(shards(&owner.due(at(0)).await), wished);
    let late = owner.entry("late", at(10)).await;
    assert_eq!(late.shard, count - 1);
    let entry = owner.entry("00", at(0)).await;
    owner.settle_next(&entry, at(1), EventChange::Retry(retry(at(2)))).await;
    let entry = owner.entry("00", at(2)).await;
    assert_eq!(entry.shard, 0);
    owner.settle_next(&entry, at(3), dead(ParkFollowers::No)).await;
    for entry in owner.due(at(10)).await {
        owner.settle_next(&entry, at(11), EventChange::Done).await;
    }
    assert!(owner.due(at(10)).await.is_empty());
    assert_eq!(owner.state(&mail("00")).await, State::Dead);
    assert_eq!(owner.state(&mail("late")).await, State::Done);
}

/// The events of a key are in one shard, whatever shard is asked for: one owner sees all of them. An event
/// that asks for a shard that does not exist goes by the hash, too.
pub async fn a_key_stays_together_whatever_is_wished<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    let count = owner.store.shards();
    let home = |event: &Event| identity::shard(event, count);
    let ids: Vec<String> = (0..2 * count).map(|n| n.to_string()).collect();
    publish(&owner, ids.iter().zip(0..).map(|(id, n)| local_shard(order(id, "k"), n % count)).collect())
        .await;
    publish(&owner, vec![local_shard(mail("loose").key("k"), (home(&mail("loose").key("k")) + 1) % count)])
        .await;
    publish(&owner, vec![local_shard(mail("nowhere"), count), local_shard(mail("far"), u32::MAX)]).await;
    for id in &ids {
        let entry = owner.entry(id, at(0)).await;
        assert_eq!(entry.shard, home(&entry.event));
        owner.settle_next(&entry, at(1), EventChange::Done).await;
    }
    let rest = owner.due(at(1)).await;
    assert_eq!(rest.len(), 3);
    for entry in rest {
        assert_eq!(entry.shard, home(&entry.event), "{entry:?}");
    }
}
