//! Loads of due events, and announcements of arrivals.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use redrive_core::Moment;
use redrive_core::queue_entry::{EventChange, LoadRequest, LoadedEvents, QueueEntry, Seq};
use redrive_store::{Arrivals, NewEvent};

use super::Subject;
use super::owner::{Owner, at, id, mail, order, retry, secs};

/// Loads the stream and shard of an entry.
async fn load<S: Subject>(
    owner: &Owner<S>,
    of: &QueueEntry,
    until: Moment,
    max: (usize, usize),
    except: &[Seq],
) -> LoadedEvents {
    let (token, stream) = (owner.token(of), of.stream);
    let load = LoadRequest {
        token,
        stream,
        until,
        live_max: max.0,
        retry_max: max.1,
        bytes_max: usize::MAX,
        except: except.to_vec(),
    };
    owner.store.load(load).await.unwrap()
}

fn ids(loaded: &LoadedEvents) -> Vec<String> {
    loaded.entries.iter().map(id).collect()
}

/// A load skips the events that the owner has, and does not count them.
pub async fn loads_skip_what_the_owner_has<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    // One key, hence one shard; no order, hence all may run.
    for n in 0..6 {
        owner.publish(mail(&n.to_string()).key("k"), at(n)).await;
    }
    let due = owner.due(at(10)).await;
    let has: Vec<_> = [0, 1, 3].map(|n| due[n].seq).into();
    let loaded = load(&owner, &due[0], at(10), (2, 0), &has).await;
    assert_eq!(ids(&loaded), ["2", "4"]);
    assert!(loaded.more_live);
    let loaded = load(&owner, &due[0], at(10), (3, 0), &has).await;
    assert_eq!((ids(&loaded).len(), loaded.more_live), (3, false));
    let all: Vec<_> = due.iter().map(|entry| entry.seq).collect();
    let loaded = load(&owner, &due[0], at(10), (0, 0), &all).await;
    assert!(loaded.entries.is_empty() && !loaded.more_live && !loaded.more_retry, "{loaded:?}");
}

/// An event with a small sequence number is found after one with a large one.
pub async fn loads_find_everything_whatever_its_seq<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.publish(mail("1").key("k").delay(secs(50)), at(0)).await;
    owner.publish(mail("2").key("k"), at(0)).await;
    owner.publish(mail("3").key("k"), at(0)).await;
    assert_eq!(owner.due_ids(at(10)).await, ["2", "3"]);
    let entry = owner.entry("2", at(10)).await;
    owner.settle_next(&entry, at(1), EventChange::Retry(retry(at(20)))).await;
    assert_eq!(owner.due_ids(at(10)).await, ["3"]);
    assert_eq!(owner.due_ids(at(50)).await, ["1", "2", "3"]);
}

/// First attempts and retries are loaded separately, each by due time and with its own limit.
pub async fn flows_are_loaded_apart<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    for (n, delay) in [5, 3, 4, 0, 0, 0].into_iter().enumerate() {
        owner.publish(mail(&n.to_string()).key("k").delay(secs(delay)), at(0)).await;
    }
    for (id, due) in [("3", 9), ("4", 7), ("5", 8)] {
        let entry = owner.entry(id, at(0)).await;
        owner.settle_next(&entry, at(0), EventChange::Retry(retry(at(due)))).await;
    }
    let any = owner.due(at(100)).await.remove(0);
    let loaded = load(&owner, &any, at(100), (9, 9), &[]).await;
    let (live, retries): (Vec<_>, Vec<_>) =
        loaded.entries.iter().partition(|entry| entry.progress.attempts == 0);
    assert_eq!(live.into_iter().map(id).collect::<Vec<_>>(), ["1", "2", "0"]);
    assert_eq!(retries.into_iter().map(id).collect::<Vec<_>>(), ["4", "5", "3"]);
    assert_eq!((loaded.more_live, loaded.more_retry), (false, false));

    let loaded = load(&owner, &any, at(100), (1, 0), &[]).await;
    assert_eq!((ids(&loaded), loaded.more_live, loaded.more_retry), (vec!["1".to_owned()], true, true));
    let loaded = load(&owner, &any, at(100), (0, 2), &[]).await;
    assert_eq!(
        (ids(&loaded), loaded.more_live, loaded.more_retry),
        (vec!["4".to_owned(), "5".to_owned()], true, true)
    );
    let loaded = load(&owner, &any, at(5), (3, 9), &[]).await;
    assert_eq!((loaded.more_live, loaded.more_retry), (false, false), "what is not due is not more");
}

/// A load returns when the next load is worthwhile. Parked and waiting events do not count.
pub async fn a_load_says_when_the_next_is_due<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.publish(order("1", "k").delay(secs(30)), at(0)).await;
    owner.publish(order("2", "k").delay(secs(10)), at(0)).await;
    let next_due =
        async |until| owner.load(until, &[]).await.iter().filter_map(|loaded| loaded.next_due).min();
    assert_eq!(next_due(at(0)).await, Some(at(30)));
    assert_eq!(next_due(at(29)).await, Some(at(30)));
    assert_eq!(next_due(at(30)).await, None);
    let entry = owner.entry("1", at(30)).await;
    owner.settle_next(&entry, at(30), EventChange::Retry(retry(at(90)))).await;
    assert_eq!(next_due(at(30)).await, Some(at(90)));
}

/// The owner of a shard gets the events of that shard.
pub async fn loads_keep_to_their_shard<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    for n in 0..50 {
        owner.publish(mail(&n.to_string()), at(0)).await;
    }
    let shards = owner.store.shards();
    let due = owner.due(at(0)).await;
    assert_eq!(due.len(), 50, "each is found once");
    assert!(
        due.iter().all(|entry| entry.shard == redrive_core::event::identity::shard(&entry.event, shards))
    );
    for entry in &due {
        let loaded = load(&owner, entry, at(0), (99, 0), &[]).await;
        assert!(loaded.entries.iter().all(|other| other.shard == entry.shard), "{loaded:?}");
    }
}

/// Whether these arrivals make an owner look for an event: they name it, or some were missed.
fn told(arrivals: &Arc<Mutex<Vec<Arrivals>>>, wanted: &str) -> bool {
    let arrivals = std::mem::take(&mut *arrivals.lock().unwrap());
    arrivals.iter().any(|told| told.missed || told.entries.iter().any(|entry| entry.event.id == wanted))
}

fn named(arrivals: &Arc<Mutex<Vec<Arrivals>>>) -> Vec<String> {
    arrivals.lock().unwrap().iter().flat_map(|told| told.entries.iter().map(id)).collect()
}

/// A watcher is notified of events that may run, and not of others.
pub async fn arrivals_are_told_after_the_commit<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    let arrivals = owner.watch();
    owner.publish(order("1", "k"), at(0)).await;
    assert!(told(&arrivals, "1"));
    owner.publish(mail("2").delay(secs(10)), at(0)).await;
    assert!(told(&arrivals, "2"), "what is due later is told as well");
    owner.publish(order("3", "k"), at(0)).await;
    owner.publish_again(mail("2").delay(secs(10)), at(0)).await;
    let heard = named(&arrivals);
    assert!(!heard.iter().any(|id| id == "3"), "3 is held up, but {heard:?} was told");
}

/// An announced event is the same as a load returns.
pub async fn an_arrival_is_as_a_load_would_give_it<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    let arrivals = owner.watch();
    owner.publish(order("1", "k").tenant("t").expires_after(secs(9)), at(0)).await;
    let entry = owner.entry("1", at(0)).await;
    let arrivals = arrivals.lock().unwrap();
    for told in arrivals.iter().flat_map(|told| &told.entries) {
        assert_eq!(*told, entry);
    }
}

/// A publish that ends the parking of its key announces the event that may run.
pub async fn the_end_of_parking_is_told<S: Subject>(subject: S) {
    use redrive_core::queue_entry::ParkFollowers;
    let owner = Owner::of(subject).await;
    owner.publish(order("1", "k"), at(0)).await;
    let entry = owner.entry("1", at(0)).await;
    owner
        .settle_next(&entry, at(1), super::owner::dead(ParkFollowers::UpTo { until: None, count: Some(1) }))
        .await;
    let arrivals = owner.watch();
    owner.publish(order("2", "k"), at(2)).await;
    assert!(named(&arrivals).is_empty());
    owner.publish(order("3", "k"), at(2)).await;
    assert!(told(&arrivals, "2"));
}

/// However publishers and the owner run concurrently, no event is announced after its end.
pub async fn no_arrival_is_told_after_its_end<S: Subject>(subject: S) {
    const EVENTS: usize = 200;
    let owner = Owner::of(subject).await;
    owner.publish(mail("first"), at(0)).await;
    let ended = Arc::new(Mutex::new(HashSet::new()));
    let late = Arc::new(Mutex::new(Vec::new()));
    let (has_ended, too_late) = (Arc::clone(&ended), Arc::clone(&late));
    owner.store.watch(Arc::new(move |arrivals| {
        let has_ended = has_ended.lock().unwrap();
        let told = arrivals.entries.iter().map(|entry| entry.seq);
        too_late.lock().unwrap().extend(told.filter(|seq| has_ended.contains(seq)));
    }));
    let store = Arc::clone(&owner.store);
    let publisher = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for n in 1..EVENTS {
            let new = NewEvent::at(mail(&n.to_string()), at(0));
            runtime.block_on(store.publish(vec![new])).unwrap().remove(0).unwrap();
        }
    });
    while ended.lock().unwrap().len() < EVENTS {
        for entry in owner.due(at(0)).await {
            owner.settle_next(&entry, at(1), EventChange::Done).await;
            ended.lock().unwrap().insert(entry.seq);
        }
        if publisher.is_finished() && owner.due(at(0)).await.is_empty() {
            break;
        }
    }
    publisher.join().unwrap();
    assert_eq!(ended.lock().unwrap().len(), EVENTS);
    assert_eq!(*late.lock().unwrap(), []);
}
