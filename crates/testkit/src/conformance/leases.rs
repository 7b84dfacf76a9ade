//! Leases: which worker gets which event, and when.

use redrive_core::event::State;
use redrive_core::queue_entry::{EventProgress, ParkFollowers};
use redrive_core::triage::Rule;
use redrive_store::lease::{LeaseRequest, LeaseSettleResult};
use redrive_store::operate::Refusal;
use redrive_store::operate::{EventAction, OperatorAction};
use redrive_store::{DeclaredBy, EventQuery, QueueSpec, StoreError};

use super::Subject;
use super::desk::{out_of_order, set, told};
use super::owner::{HORIZON, MAILS, Owner, WINDOW, at, id, secs};
use super::worker::{PULLED, again, conflict, dies, done, held, lapse, work};

/// Only a queue that was declared as pulled can be leased from.
pub async fn only_a_pulled_queue_is_leased<S: Subject>(subject: S) {
    let owner = Owner::pulled(subject).await;
    for queue in [MAILS, "nowhere"] {
        let (queue, tokens) = (queue.to_owned(), vec![[1; 16]]);
        let (tenant, lapsed) = (None, lapse(done()));
        let call = LeaseRequest { queue, tenant, at: at(0), until: at(9), tokens, bytes_max: 9, lapsed };
        assert!(matches!(owner.store.lease(call).await, Err(StoreError::Broken { .. })));
    }
}

/// Events of a pulled queue have no handler, and cannot be rerouted to or from one.
pub async fn what_is_pulled_takes_no_other_way<S: Subject>(subject: S) {
    let owner = Owner::pulled(subject).await;
    for (queue, to) in [(PULLED, MAILS), (MAILS, PULLED)] {
        let rule = Rule::Reroute { queue: queue.to_owned(), to: to.to_owned() };
        let refused = owner.refused(set(rule), at(0)).await;
        assert!(matches!(refused, Refusal::Senseless(_)), "{refused:?}");
    }
}

/// Events of a pulled queue are not for an owner: neither loaded nor announced.
pub async fn what_is_pulled_is_not_for_an_owner<S: Subject>(subject: S) {
    let owner = Owner::pulled(subject).await;
    let arrivals = owner.watch();
    owner.publish(work("1"), at(0)).await;
    owner.publish(work("2").key("k"), at(0)).await;
    assert_eq!(owner.due_ids(at(9)).await, [""; 0]);
    owner.lease(&[1], 1).await;
    owner.settle_lease(held(&work("1"), 1, 1), 2, again("retry", 3)).await;
    assert_eq!(owner.due_ids(at(9)).await, [""; 0]);
    let owner = owner.crash().await;
    assert_eq!(owner.due_ids(at(9)).await, [""; 0]);
    let heard = arrivals.lock().unwrap();
    assert!(heard.iter().all(|told| told.entries.is_empty()), "{heard:?}");
}

/// A lease is one attempt of one worker, and survives the process.
pub async fn a_lease_is_one_attempt<S: Subject>(subject: S) {
    let owner = Owner::pulled(subject).await;
    for id in ["1", "2"] {
        owner.publish(work(id), at(0)).await;
    }
    owner.publish(work("later").delay(secs(50)), at(0)).await;
    let before = owner.found(&work("1")).await;
    let leased = owner.lease(&[1, 2, 3], 5).await;
    assert_eq!(leased.entries.iter().map(id).collect::<Vec<_>>(), ["1", "2"]);
    assert_eq!((leased.lapsed, leased.next_due), (0, Some(at(15))));
    let entry = &leased.entries[0];
    assert_eq!(entry.progress, EventProgress { started: Some(at(5)), ..EventProgress::fresh(at(0)) });
    let owner = owner.crash().await;
    assert_eq!(owner.lease_ids(&[4], 6).await, [""; 0]);
    let found = owner.found(&work("1")).await;
    assert_eq!((found.state, found.until, found.seq), (State::Running, Some(at(15)), before.seq));
    assert_eq!((found.rev, found.rev > before.rev), (entry.rev, true));
    let running =
        owner.store.list(EventQuery { state: Some(State::Running), ..EventQuery::default() }).await.unwrap();
    assert_eq!(running.events.len(), 2);
    let counts = owner.store.count(at(6)).await.unwrap();
    let running = counts.iter().find(|count| count.state == State::Running).map(|count| count.events);
    assert_eq!(running, Some(2));
}

/// The next event of a key is leased when the one before is settled, and not while it is leased or waits.
pub async fn leases_keep_the_order_of_keys<S: Subject>(subject: S) {
    let owner = Owner::pulled(subject).await;
    for id in ["1", "2", "3"] {
        owner.publish(work(id).key("k"), at(0)).await;
    }
    assert_eq!(owner.lease_ids(&[1, 2, 3], 0).await, ["1"]);
    owner.settle_lease(held(&work("1"), 1, 1), 1, again("retry", 50)).await;
    assert_eq!(owner.lease_ids(&[2], 2).await, [""; 0]);
    owner.act(&work("1"), EventAction::RetryNow, at(3)).await;
    assert_eq!(owner.lease_ids(&[2], 3).await, ["1"]);
    owner.settle_lease(held(&work("1"), 2, 2), 4, done()).await;
    assert_eq!(owner.lease_ids(&[3], 4).await, ["2"]);
    owner.settle_lease(held(&work("2"), 1, 3), 5, dies(ParkFollowers::UntilResolved)).await;
    assert_eq!(owner.lease_ids(&[4], 6).await, [""; 0]);
    owner.act(&work("2"), EventAction::Discard, at(7)).await;
    assert_eq!(owner.lease_ids(&[4], 8).await, ["3"]);
}

/// A dead letter parks the key of a pulled queue for its parking time, and no longer.
pub async fn parking_ends_at_its_time_where_it_is_pulled<S: Subject>(subject: S) {
    let owner = Owner::pulled(subject).await;
    for id in ["1", "2"] {
        owner.publish(work(id).key("k"), at(0)).await;
    }
    owner.lease(&[1], 0).await;
    owner
        .settle_lease(
            held(&work("1"), 1, 1),
            1,
            dies(ParkFollowers::UpTo { until: Some(at(60)), count: None }),
        )
        .await;
    let leased = owner.lease(&[2], 59).await;
    assert_eq!((leased.entries.len(), leased.next_due), (0, Some(at(60))));
    assert_eq!(owner.lease_ids(&[2], 60).await, ["2"]);
}

/// Rules hold back leases as they hold back runs.
pub async fn rules_hold_back_leases<S: Subject>(subject: S) {
    let owner = Owner::pulled(subject).await;
    owner.publish(work("a").tenant("a"), at(0)).await;
    owner.publish(work("b").tenant("b"), at(0)).await;
    let key = || Rule::ParkKey { queue: PULLED.to_owned(), tenant: String::new(), key: "k".to_owned() };
    owner.done(set(key()), at(0)).await;
    owner.publish(work("k").key("k"), at(0)).await;
    let pause = || Rule::Pause { queue: PULLED.to_owned() };
    owner.done(set(pause()), at(1)).await;
    assert_eq!(owner.lease_ids(&[1, 2, 3], 2).await, [""; 0]);
    owner.done(OperatorAction::Lift(pause()), at(3)).await;
    owner.done(set(Rule::QuarantineTenant { queue: None, tenant: "a".to_owned() }), at(3)).await;
    assert_eq!(owner.lease_ids(&[1, 2, 3], 4).await, ["b"]);
    let retries = || Rule::PauseRetries { queue: PULLED.to_owned() };
    owner.done(set(retries()), at(5)).await;
    owner.settle_lease(held(&work("b").tenant("b"), 1, 1), 5, again("retry", 5)).await;
    owner.publish(work("new"), at(5)).await;
    assert_eq!(owner.lease_ids(&[1, 2, 3], 6).await, ["new"]);
    owner.done(OperatorAction::Lift(retries()), at(7)).await;
    owner.done(OperatorAction::Lift(key()), at(7)).await;
    let mut rest = owner.lease_ids(&[1, 2, 3], 8).await;
    rest.sort();
    assert_eq!(rest, ["b", "k"]);
}

/// Tenants share a queue fairly, within one call and over several.
pub async fn leases_are_fair_to_tenants<S: Subject>(subject: S) {
    let owner = Owner::pulled(subject).await;
    for n in 0..9 {
        owner.publish(work(&format!("loud {n}")).tenant("loud"), at(0)).await;
    }
    for n in 0..3 {
        owner.publish(work(&format!("still {n}")).tenant("still"), at(1)).await;
    }
    let tenants = async |tokens: &[u8], when| {
        let leased = owner.lease(tokens, when).await;
        let mut tenants: Vec<_> = leased.entries.iter().map(|entry| entry.event.tenant.clone()).collect();
        tenants.sort();
        tenants
    };
    assert_eq!(tenants(&[1, 2], 2).await, ["loud", "still"]);
    let mut singly = tenants(&[3], 3).await;
    singly.extend(tenants(&[4], 4).await);
    singly.sort();
    assert_eq!(singly, ["loud", "still"]);
    assert_eq!(tenants(&[5, 6, 7], 5).await, ["loud", "loud", "still"]);
}

/// A lease request for one tenant neither returns nor changes events of another, and uses up no tenant's
/// turn.
pub async fn a_lease_for_a_tenant_sees_no_other<S: Subject>(subject: S) {
    let owner = Owner::pulled(subject).await;
    for tenant in ["a", "b", "c"] {
        for id in ["1", "2", "3"] {
            owner.publish(work(id).tenant(tenant), at(0)).await;
        }
    }
    let of = async |tenant, tokens: &[u8], when| {
        let leased = owner.lease_of(tenant, tokens, when, again("lapsed", when + 1)).await;
        let entries = leased.entries.iter();
        let names: Vec<_> = entries.map(|entry| format!("{}{}", entry.event.tenant, id(entry))).collect();
        (names, leased.lapsed, leased.next_due)
    };
    // Requests for tenant `a` in between do not change the turns of the others.
    let mut first = of(None, &[1], 0).await.0;
    first.extend(of(Some("a"), &[2], 0).await.0);
    first.extend(of(None, &[3], 0).await.0);
    first.extend(of(Some("a"), &[4], 0).await.0);
    first.extend(of(None, &[5], 0).await.0);
    assert_eq!(first, ["a1", "a2", "b1", "a3", "c1"]);
    assert_eq!(of(Some("a"), &[6], 1).await, (vec![], 0, Some(at(10))), "it has no more");
    assert_eq!(of(Some("nobody"), &[6], 1).await, (vec![], 0, None));
    assert_eq!(of(Some(""), &[6], 1).await, (vec![], 0, None), "no tenant is one of its own");
    // A request for one tenant does not count the lapsed leases of others.
    let (names, lapsed, _) = of(Some("b"), &[6, 7, 8], 20).await;
    assert_eq!((names, lapsed), (vec!["b2".to_owned(), "b3".to_owned()], 1));
    assert_eq!(
        owner.state(&work("1").tenant("a")).await,
        State::Running,
        "no request has counted its lapse yet"
    );
    assert_eq!(of(None, &[], 20).await.1, 4);
}

/// A lease request returns as many bytes as it asks for, and at least one event.
pub async fn a_lease_has_a_bound_in_bytes<S: Subject>(subject: S) {
    let owner = Owner::pulled(subject).await;
    for id in ["1", "2", "3", "4"] {
        owner.publish(work(id).payload([0; 10]), at(0)).await;
    }
    let ids = async |bytes_max| {
        let (queue, tokens) = (PULLED.to_owned(), vec![[1; 16], [2; 16], [3; 16]]);
        let (tenant, lapsed) = (None, lapse(done()));
        let call = LeaseRequest { queue, tenant, at: at(1), until: at(9), tokens, bytes_max, lapsed };
        owner.store.lease(call).await.unwrap().entries.iter().map(id).collect::<Vec<_>>()
    };
    assert_eq!(ids(0).await, ["1"]);
    assert_eq!(ids(15).await, ["2", "3"]);
}

/// An expired event is not leased, and ends.
pub async fn an_expired_event_is_not_leased<S: Subject>(subject: S) {
    let owner = Owner::pulled(subject).await;
    owner.publish(work("1").expires_after(secs(5)), at(0)).await;
    owner.publish(work("2"), at(0)).await;
    assert_eq!(owner.lease_ids(&[1], 5).await, ["2"]);
    assert_eq!(owner.state(&work("1")).await, State::Expired);
}

/// An event that was redriven out of order is leased when no worker has another event of its key.
pub async fn what_is_out_of_order_is_leased_alone_in_its_key<S: Subject>(subject: S) {
    let owner = Owner::pulled(subject).await;
    for id in ["1", "2", "3"] {
        owner.publish(work(id).key("k"), at(0)).await;
    }
    owner.lease(&[1], 0).await;
    owner.settle_lease(held(&work("1"), 1, 1), 1, dies(ParkFollowers::No)).await;
    assert_eq!(owner.lease_ids(&[2], 2).await, ["2"]);
    owner.act(&work("1"), out_of_order(), at(3)).await;
    assert_eq!(owner.lease_ids(&[3, 4], 4).await, [""; 0], "a worker has another event of its key");
    owner.settle_lease(held(&work("2"), 1, 2), 5, again("retry", 5)).await;
    assert_eq!(owner.lease_ids(&[3, 4], 6).await, ["1"]);
    owner.settle_lease(held(&work("1"), 1, 3), 7, done()).await;
    assert_eq!(owner.lease_ids(&[4, 5], 8).await, ["2"]);
}

/// Leases of a queue that is no longer pulled stay with their workers: they lapse, and the events run.
pub async fn leases_of_a_queue_that_is_no_longer_pulled_lapse<S: Subject>(subject: S) {
    let owner = Owner::pulled(subject).await;
    owner.publish(work("1"), at(0)).await;
    owner.lease(&[1], 0).await;
    let owner = owner.crash().await;
    let (name, window, horizon) = (PULLED.to_owned(), secs(WINDOW), secs(HORIZON));
    let queue = QueueSpec { name, ordered: true, window, horizon, ..QueueSpec::default() };
    owner.store.declare(queue, DeclaredBy::Runner).await.unwrap();
    assert_eq!(owner.due_ids(at(5)).await, [""; 0], "a worker has it");
    let arrivals = owner.watch();
    assert_eq!(owner.lease_or(&[], 20, again("lapsed", 20)).await.lapsed, 1);
    assert!(told(&arrivals, "1"));
    assert_eq!(owner.due_ids(at(20)).await, ["1"]);
}

/// If a handler has made an attempt since the lease lapsed, that attempt counts.
pub async fn a_late_answer_is_judged_by_attempts_that_a_handler_made_since<S: Subject>(subject: S) {
    let owner = Owner::pulled(subject).await;
    for (id, token) in [("1", 1), ("2", 2), ("3", 3)] {
        owner.publish(work(id), at(0)).await;
        owner.lease(&[token], 0).await;
    }
    let owner = owner.crash().await;
    let (name, window, horizon) = (PULLED.to_owned(), secs(WINDOW), secs(HORIZON));
    let queue = QueueSpec { name, ordered: true, window, horizon, ..QueueSpec::default() };
    owner.store.declare(queue, DeclaredBy::Runner).await.unwrap();
    owner.lease_or(&[], 20, again("lapsed", 20)).await;
    for (id, change) in [("2", again("retry", 30)), ("3", dies(ParkFollowers::No))] {
        let (entry, mut change) = (owner.entry(id, at(20)).await, change);
        let change = change(&entry, None);
        owner.settle_next(&entry, at(21), change).await;
    }
    let late = async |id: &str, token| owner.settle_lease(held(&work(id), 1, token), 22, done()).await;
    assert_eq!(late("1", 1).await, LeaseSettleResult::Applied, "there was no attempt since");
    assert_eq!(conflict(late("2", 2).await).attempts, 2);
    assert_eq!(conflict(late("3", 3).await).attempts, 2);
}

/// A retry gets its turn, however much new work there is.
pub async fn a_retry_is_leased_before_what_came_later<S: Subject>(subject: S) {
    let owner = Owner::pulled(subject).await;
    owner.publish(work("old"), at(0)).await;
    owner.lease(&[1], 0).await;
    owner.settle_lease(held(&work("old"), 1, 1), 1, again("retry", 2)).await;
    for when in 1..=3 {
        owner.publish(work(&format!("new {when}")), at(when)).await;
    }
    assert_eq!(owner.lease_ids(&[2, 3, 4], 4).await, ["new 1", "old", "new 2"]);
}
