//! Looking at events: by identity, by page, by count.

use redrive_core::event::State;
use redrive_core::queue_entry::{EventChange, ParkFollowers};
use redrive_core::triage::Filter;
use redrive_store::{EventQuery, PAGE_BYTES, StoreError};

use super::Subject;
use super::owner::{MAILS, ORDERS, Owner, at, dead, mail, order, retry, secs};

/// An event that was never published is not found.
pub async fn nothing_is_known_of_what_was_never_published<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.publish(mail("1"), at(0)).await;
    for (tenant, queue, id) in [("", MAILS, "2"), ("", ORDERS, "1"), ("t", MAILS, "1"), ("", "nowhere", "1")]
    {
        assert!(owner.store.find(tenant, queue, id).await.unwrap().is_none());
    }
}

/// A list is read in pages, each event once, by sequence number.
pub async fn lists_are_paged<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    let mut published = Vec::new();
    for n in 0..7 {
        published.push(owner.publish(mail(&n.to_string()), at(0)).await);
    }
    let mut query = EventQuery { filter: Filter::queue(MAILS), limit: 3, ..EventQuery::default() };
    let mut listed = Vec::new();
    let mut pages = Vec::new();
    loop {
        let page = owner.store.list(query.clone()).await.unwrap();
        pages.push(page.events.len());
        listed.extend(page.events.iter().map(|(_, found)| found.seq));
        assert!(page.events.iter().all(|(event, _)| event.queue == MAILS));
        let Some(next) = page.next else { break };
        query.after = Some(next);
    }
    assert_eq!((listed, pages), (published, vec![3, 3, 1]));
    let whole = owner.store.list(EventQuery::default()).await.unwrap();
    assert_eq!((whole.events.len(), whole.next), (7, None));
}

/// A page ends with the event that makes it large enough, wherever events are stored; the next page continues
/// there.
pub async fn a_page_has_a_bound_in_bytes<S: Subject>(subject: S) {
    const LARGE: usize = 900_000;
    let owner = Owner::of(subject).await;
    let mut published = Vec::new();
    for n in 0..12 {
        published.push(owner.publish(mail(&n.to_string()).payload(vec![7; LARGE]), at(0)).await);
    }
    // Some of them have run: a store may keep those elsewhere.
    for n in [1, 2, 5, 6, 7, 8, 9, 10] {
        let entry = owner.entry(&n.to_string(), at(0)).await;
        owner.settle_next(&entry, at(1), EventChange::Retry(retry(at(50)))).await;
    }
    // An event of another stream, after all of them.
    published.push(owner.publish(mail("other").tenant("t").payload(vec![7; LARGE]), at(0)).await);
    published.sort();
    let mut query = EventQuery { limit: 1000, ..EventQuery::default() };
    let (mut listed, mut pages) = (Vec::new(), 0);
    loop {
        let page = owner.store.list(query.clone()).await.unwrap();
        pages += 1;
        assert!(page.events.len() * LARGE < PAGE_BYTES + LARGE, "{} are on a page", page.events.len());
        assert!(!page.events.is_empty() || page.next.is_none());
        listed.extend(page.events.iter().map(|(_, found)| found.seq));
        let Some(next) = page.next else { break };
        query.after = Some(next);
    }
    assert_eq!(listed, published);
    // Twelve megabytes: the limit must be reached.
    assert!(pages >= 3, "there are {pages} pages");
}

/// A list is filtered by queue, tenant and state. It does not include ended events.
pub async fn lists_show_what_was_asked_for<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.publish(order("done", "d"), at(0)).await;
    owner.publish(order("dead", "k"), at(0)).await;
    owner.publish(order("parked", "k"), at(0)).await;
    owner.publish(mail("ready").tenant("t"), at(0)).await;
    owner.publish(mail("waiting").delay(secs(9999)), at(0)).await;
    let entry = owner.entry("done", at(0)).await;
    owner.settle_next(&entry, at(1), EventChange::Done).await;
    let entry = owner.entry("dead", at(0)).await;
    owner.settle_next(&entry, at(1), dead(ParkFollowers::UntilResolved)).await;
    let ids = async |query: EventQuery| {
        let listed = owner.store.list(query).await.unwrap();
        let mut ids: Vec<_> = listed.events.iter().map(|(event, _)| event.id.clone()).collect();
        ids.sort();
        ids
    };
    let all = EventQuery::default;
    assert_eq!(ids(all()).await, ["dead", "parked", "ready", "waiting"]);
    assert_eq!(ids(EventQuery { filter: Filter::queue(ORDERS), ..all() }).await, ["dead", "parked"]);
    assert_eq!(
        ids(EventQuery { filter: Filter { tenant: Some("t".to_owned()), ..Filter::default() }, ..all() })
            .await,
        ["ready"]
    );
    assert_eq!(
        ids(EventQuery { filter: Filter { tenant: Some(String::new()), ..Filter::default() }, ..all() })
            .await,
        ["dead", "parked", "waiting"]
    );
    for (state, id) in [
        (State::Dead, "dead"),
        (State::Parked, "parked"),
        (State::Ready, "ready"),
        (State::Waiting, "waiting"),
    ] {
        assert_eq!(ids(EventQuery { state: Some(state), ..all() }).await, [id]);
    }
    let dead = owner.store.list(EventQuery { state: Some(State::Dead), ..all() }).await.unwrap();
    let (event, found) = &dead.events[0];
    assert_eq!(*found, owner.found(event).await);
}

/// Events are counted by queue and state, as of a moment.
pub async fn events_are_counted<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    for n in 0..3 {
        owner.publish(mail(&n.to_string()), at(0)).await;
    }
    owner.publish(order("a", "k"), at(0)).await;
    owner.publish(order("b", "k"), at(0)).await;
    let entry = owner.entry("0", at(0)).await;
    owner.settle_next(&entry, at(1), EventChange::Retry(retry(at(50)))).await;
    let counted = async |now, queue: &str, state| {
        let counts = owner.store.count(now).await.unwrap();
        let mut of = counts.iter().filter(|count| count.queue == queue && count.state == state);
        let events = of.next().map_or(0, |count| count.events);
        assert!(of.next().is_none(), "counted twice: {counts:?}");
        events
    };
    assert_eq!(counted(at(10), MAILS, State::Ready).await, 2);
    assert_eq!(counted(at(10), MAILS, State::Waiting).await, 1);
    assert_eq!(counted(at(50), MAILS, State::Ready).await, 3);
    assert_eq!(counted(at(10), ORDERS, State::Ready).await, 1);
    assert_eq!(counted(at(10), ORDERS, State::Waiting).await, 1);
    let entry = owner.entry("a", at(0)).await;
    owner.settle_next(&entry, at(2), dead(ParkFollowers::UntilResolved)).await;
    assert_eq!(counted(at(10), ORDERS, State::Dead).await, 1);
    assert_eq!(counted(at(10), ORDERS, State::Parked).await, 1);
    assert_eq!(counted(at(10), ORDERS, State::Ready).await, 0);
}

/// A closed store answers with an error; its data is there when it is opened again.
pub async fn a_closed_store_says_so<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.publish(mail("1"), at(0)).await;
    owner.release().await;
    owner.store.close().await.unwrap();
    assert!(matches!(owner.store.find("", MAILS, "1").await, Err(StoreError::Closed)));
    assert!(matches!(owner.store.publish(Vec::new()).await, Err(StoreError::Closed)));
    assert!(matches!(owner.store.take(0, at(0)).await, Err(StoreError::Closed)));
    let owner = owner.crash().await;
    assert_eq!(owner.due_ids(at(0)).await, ["1"]);
    assert!(owner.taken.iter().all(|taken| !taken.unclean));
}

/// An id is enough to find its events, in all tenants and queues, also ended ones.
pub async fn an_id_is_found_in_every_queue_and_tenant<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.die(&order("1", "k"), at(0), ParkFollowers::No).await;
    owner.publish(mail("1"), at(0)).await;
    let entry = owner.entry("1", at(0)).await;
    owner.settle(&entry, at(0), EventChange::Done).await;
    owner.publish(mail("1").tenant("acme"), at(0)).await;
    owner.publish(mail("2"), at(0)).await;
    let found = owner.store.find_by_id("1").await.unwrap();
    let mut seen: Vec<_> =
        found.iter().map(|named| (named.tenant.as_str(), named.queue.as_str(), named.found.state)).collect();
    seen.sort_by_key(|(tenant, queue, _)| (*tenant, *queue));
    let all = [("", MAILS, State::Done), ("", ORDERS, State::Dead), ("acme", MAILS, State::Ready)];
    assert_eq!(seen, all);
    assert_eq!(owner.store.find_by_id("3").await.unwrap(), []);
    let names = owner.store.queue_names().await.unwrap();
    assert!(names.iter().any(|name| name == MAILS) && names.iter().any(|name| name == ORDERS), "{names:?}");
}
