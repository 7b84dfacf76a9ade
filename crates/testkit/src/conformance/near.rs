//! The shard that a publisher wishes for.

use redrive_core::Event;
use redrive_core::entry::{Change, Entry, Park};
use redrive_core::event::{State, identity};
use redrive_store::{New, Published};

use super::Subject;
use super::owner::{Owner, at, dead, id, mail, order, retry, secs};

fn near(event: Event, shard: u32) -> New {
    New { near: Some(shard), ..New::at(event, at(0)) }
}

async fn publish<S: Subject>(owner: &Owner<S>, news: Vec<New>) {
    for published in owner.publish_all(news).await {
        assert!(matches!(published, Ok(Published::Accepted(_))), "{published:?}");
    }
}

/// Where each of these is, by id.
fn shards(entries: &[Entry]) -> Vec<(String, u32)> {
    let mut shards: Vec<_> = entries.iter().map(|entry| (id(entry), entry.shard)).collect();
    shards.sort();
    shards
}

/// An event without a key is kept in the shard that its publisher wishes for, and is one event like any other: told as
/// it is, found by the owner of that shard, also by the next one, and known by its identity whatever is wished later.
pub async fn an_event_without_a_key_is_where_its_publisher_wishes<S: Subject>(subject: S) {
    let mut owner = Owner::of(subject).await;
    let count = owner.store.shards();
    let arrivals = owner.watch();
    // Some at once, some alone, some that wait for their time, and in either kind of queue.
    let wished: Vec<(String, u32)> = (0..count * 4).map(|n| (format!("{n:02}"), n % count)).collect();
    let new = |(name, shard): &(String, u32)| match shard % 2 {
        0 => near(mail(name), *shard),
        _ => near(Event::new(super::owner::ORDERS, name.as_str()).payload(name.as_bytes()), *shard),
    };
    let (first, rest) = wished.split_at(wished.len() / 2);
    publish(&owner, first.iter().map(new).collect()).await;
    for one in rest {
        publish(&owner, vec![new(one)]).await;
    }
    publish(&owner, vec![near(mail("late").delay(secs(10)), count - 1)]).await;
    assert_eq!(shards(&owner.due(at(0)).await), wished);
    let told = std::mem::take(&mut *arrivals.lock().unwrap());
    for entry in told.iter().flat_map(|told| &told.entries).filter(|entry| entry.event.id != "late") {
        assert!(wished.contains(&(id(entry), entry.shard)), "{entry:?} was told");
    }

    // Another wish makes no other event of it, and moves nothing.
    for (name, shard) in &wished {
        let again = new(&(name.clone(), *shard));
        let again = New { near: Some((shard + 1) % count), ..again };
        let again = owner.publish_all(vec![again]).await.remove(0);
        assert!(matches!(again, Ok(Published::Duplicate(_))), "{again:?}");
    }
    assert_eq!(shards(&owner.due(at(0)).await), wished);

    // Whoever takes the shard has it, and settles it there, however often.
    owner = owner.crash().await;
    assert_eq!(shards(&owner.due(at(0)).await), wished);
    let late = owner.entry("late", at(10)).await;
    assert_eq!(late.shard, count - 1);
    let entry = owner.entry("00", at(0)).await;
    owner.settle_next(&entry, at(1), Change::Again(retry(at(2)))).await;
    let entry = owner.entry("00", at(2)).await;
    assert_eq!(entry.shard, 0);
    owner.settle_next(&entry, at(3), dead(Park::GoOn)).await;
    for entry in owner.due(at(10)).await {
        owner.settle_next(&entry, at(11), Change::Done).await;
    }
    assert!(owner.due(at(10)).await.is_empty());
    assert_eq!(owner.state(&mail("00")).await, State::Dead);
    assert_eq!(owner.state(&mail("late")).await, State::Done);
}

/// The events of a key are in one shard, whatever is wished: one owner sees all of it. So is what wishes for a shard
/// that is not there.
pub async fn a_key_stays_together_whatever_is_wished<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    let count = owner.store.shards();
    let home = |event: &Event| identity::shard(event, count);
    let ids: Vec<String> = (0..2 * count).map(|n| n.to_string()).collect();
    publish(&owner, ids.iter().zip(0..).map(|(id, n)| near(order(id, "k"), n % count)).collect()).await;
    publish(&owner, vec![near(mail("loose").key("k"), (home(&mail("loose").key("k")) + 1) % count)]).await;
    publish(&owner, vec![near(mail("nowhere"), count), near(mail("far"), u32::MAX)]).await;
    for id in &ids {
        let entry = owner.entry(id, at(0)).await;
        assert_eq!(entry.shard, home(&entry.event));
        owner.settle_next(&entry, at(1), Change::Done).await;
    }
    let rest = owner.due(at(1)).await;
    assert_eq!(rest.len(), 3);
    for entry in rest {
        assert_eq!(entry.shard, home(&entry.event), "{entry:?}");
    }
}
