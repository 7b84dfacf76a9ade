//! Leases: attempts that are made by somebody outside, told apart by their attempt and token.

use std::sync::Arc;

use redrive_core::Event;
use redrive_core::entry::{Change, Entry, Park, Progress};
use redrive_core::event::{DeadReason, Mode, Record, State, Story};
use redrive_core::triage::Rule;
use redrive_store::lease::{Decide, Held, Lease, LeaseSettle, LeaseSettled, Leased};
use redrive_store::operate::{Act, What};
use redrive_store::{By, Found, Query, QueueSpec, StoreError};

use super::Subject;
use super::desk::{redrive, set, state};
use super::owner::{HORIZON, MAILS, Owner, WINDOW, at, id, secs};

/// A queue that is pulled from, and keeps the order of keys.
const PULLED: &str = "pulled";

fn work(id: &str) -> Event {
    Event::new(PULLED, id).payload(id.as_bytes())
}

/// The lease of an attempt, with the token that it was given.
fn held(event: &Event, attempt: u32, token: u8) -> Held {
    let (tenant, queue, id) = (event.tenant.clone(), event.queue.clone(), event.id.clone());
    Held { tenant, queue, id, attempt, token: [token; 16] }
}

/// One more attempt, of which this is known.
fn after(entry: &Entry, disposition: &str, due: u64) -> Progress {
    let attempt = entry.progress.attempts + 1;
    let story = entry.progress.story.as_deref().cloned().unwrap_or_default();
    let story = story.with(Record {
        attempt,
        mode: "live".to_owned(),
        at_ms: 1,
        took_ms: 1,
        disposition: disposition.to_owned(),
        executed: None,
        cause: None,
        delay_ms: None,
    });
    Progress {
        due: at(due),
        attempts: attempt,
        mode: Mode::Retry,
        story: Some(Arc::new(story)),
        ..entry.progress.clone()
    }
}

fn again(disposition: &'static str, due: u64) -> Decide {
    Box::new(move |entry| Change::Again(after(entry, disposition, due)))
}

fn dies(park: Park) -> Decide {
    Box::new(move |entry| Change::Dead {
        reason: DeadReason::AttemptsSpent,
        progress: after(entry, "retry", 0),
        park,
    })
}

fn done() -> Decide {
    Box::new(|_| Change::Done)
}

fn dispositions(story: Option<&Arc<Story>>) -> Vec<String> {
    story.map(|story| story.records().map(|record| record.disposition.clone()).collect()).unwrap_or_default()
}

impl<S: Subject> Owner<S> {
    async fn pulled(subject: S) -> Self {
        let owner = Self::of(subject).await;
        let (name, window, horizon) = (PULLED.to_owned(), secs(WINDOW), secs(HORIZON));
        let queue = QueueSpec { name, ordered: true, window, horizon, pull: true, ..QueueSpec::default() };
        owner.store.declare(queue, By::Runner).await.unwrap();
        owner
    }

    /// Leases for ten seconds; what has lapsed is due again a second later.
    async fn lease(&self, tokens: &[u8], when: u64) -> Leased {
        self.lease_or(tokens, when, again("lapsed", when + 1)).await
    }

    async fn lease_or(&self, tokens: &[u8], when: u64, lapsed: Decide) -> Leased {
        let tokens = tokens.iter().map(|token| [*token; 16]).collect();
        let (queue, bytes_max) = (PULLED.to_owned(), usize::MAX);
        let call = Lease { queue, at: at(when), until: at(when + 10), tokens, bytes_max, lapsed };
        self.store.lease(call).await.unwrap()
    }

    async fn lease_ids(&self, tokens: &[u8], when: u64) -> Vec<String> {
        self.lease(tokens, when).await.entries.iter().map(id).collect()
    }

    async fn settle_lease(&self, lease: Held, when: u64, decide: Decide) -> LeaseSettled {
        let settle = LeaseSettle { lease, at: at(when), decide };
        self.store.settle_leased(vec![settle]).await.unwrap().remove(0)
    }

    async fn extend(&self, lease: Held, when: u64, until: u64) -> LeaseSettled {
        self.store.extend(vec![lease], at(when), at(until)).await.unwrap().remove(0)
    }
}

fn conflict(settled: LeaseSettled) -> Found {
    match settled {
        LeaseSettled::Conflict(found) => *found,
        other => panic!("it is no conflict: {other:?}"),
    }
}

/// Only a queue that was declared so is pulled from.
pub async fn only_a_pulled_queue_is_leased<S: Subject>(subject: S) {
    let owner = Owner::pulled(subject).await;
    for queue in [MAILS, "nowhere"] {
        let (queue, tokens) = (queue.to_owned(), vec![[1; 16]]);
        let call = Lease { queue, at: at(0), until: at(9), tokens, bytes_max: 9, lapsed: done() };
        assert!(matches!(owner.store.lease(call).await, Err(StoreError::Broken { .. })));
    }
}

/// What is pulled is not for an owner: neither loaded nor told.
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

/// A lease is an attempt that nobody else has, and that outlives the process.
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
    assert_eq!(entry.progress, Progress { started: Some(at(5)), ..Progress::fresh(at(0)) });
    let owner = owner.crash().await;
    assert_eq!(owner.lease_ids(&[4], 6).await, [""; 0]);
    let found = owner.found(&work("1")).await;
    assert_eq!((found.state, found.until, found.seq), (State::Running, Some(at(15)), before.seq));
    assert_eq!((found.rev, found.rev > before.rev), (entry.rev, true));
    let running = owner.store.list(Query { state: Some(State::Running), ..Query::default() }).await.unwrap();
    assert_eq!(running.events.len(), 2);
    let counts = owner.store.count(at(6)).await.unwrap();
    let running = counts.iter().find(|count| count.state == State::Running).map(|count| count.events);
    assert_eq!(running, Some(2));
}

/// A lease is settled after a crash of whoever handed it out, and remembered with its attempt.
pub async fn a_lease_is_settled_by_its_attempt<S: Subject>(subject: S) {
    let owner = Owner::pulled(subject).await;
    owner.publish(work("1"), at(0)).await;
    owner.lease(&[1], 1).await;
    let owner = owner.crash().await;
    assert_eq!(owner.settle_lease(held(&work("1"), 1, 1), 2, done()).await, LeaseSettled::Applied);
    let found = owner.publish_again(work("1"), at(3)).await;
    assert_eq!((found.state, found.attempts, found.ended), (State::Done, 1, Some(at(2))));
    assert_eq!(owner.settle_lease(held(&work("1"), 1, 1), 3, done()).await, LeaseSettled::Already);
    let other = conflict(owner.settle_lease(held(&work("1"), 2, 1), 3, done()).await);
    assert_eq!(other.state, State::Done);
    assert_eq!(owner.settle_lease(held(&work("9"), 1, 1), 3, done()).await, LeaseSettled::Unknown);
}

/// What failed is leased again when it is due, as its next attempt.
pub async fn a_failed_lease_is_leased_again_when_it_is_due<S: Subject>(subject: S) {
    let owner = Owner::pulled(subject).await;
    owner.publish(work("1"), at(0)).await;
    owner.lease(&[1], 1).await;
    let settled = owner.settle_lease(held(&work("1"), 1, 1), 2, again("retry", 20)).await;
    assert_eq!(settled, LeaseSettled::Applied);
    let leased = owner.lease(&[2], 19).await;
    assert_eq!((leased.entries.len(), leased.lapsed, leased.next_due), (0, 0, Some(at(20))));
    let leased = owner.lease(&[2], 20).await;
    assert_eq!((leased.entries[0].progress.attempts, leased.entries[0].progress.mode), (1, Mode::Retry));
    assert_eq!(leased.entries[0].progress.started, Some(at(1)));
    assert_eq!(owner.settle_lease(held(&work("1"), 2, 2), 21, done()).await, LeaseSettled::Applied);
    assert_eq!(owner.found(&work("1")).await.attempts, 2);
}

/// A lease that was not settled in time is an attempt, of unknown outcome.
pub async fn a_lapsed_lease_is_an_attempt<S: Subject>(subject: S) {
    let owner = Owner::pulled(subject).await;
    owner.publish(work("1"), at(0)).await;
    owner.publish(work("2"), at(0)).await;
    owner.lease(&[1, 2], 0).await;
    assert_eq!(owner.settle_lease(held(&work("2"), 1, 2), 1, done()).await, LeaseSettled::Applied);
    let early = owner.lease(&[3], 9).await;
    assert_eq!((early.lapsed, early.entries.len()), (0, 0));
    let late = owner.lease(&[3], 10).await;
    assert_eq!((late.lapsed, late.entries.len(), late.next_due), (1, 0, Some(at(11))));
    let found = owner.found(&work("1")).await;
    assert_eq!((found.state, found.attempts, found.until), (State::Waiting, 1, None));
    assert_eq!(dispositions(found.story.as_ref()), ["lapsed"]);
    assert_eq!(owner.lease_ids(&[4], 11).await, ["1"]);
}

/// A late answer counts while nobody has leased the event again: it takes the place of the lapse.
pub async fn a_late_answer_counts_until_it_is_leased_again<S: Subject>(subject: S) {
    let owner = Owner::pulled(subject).await;
    for id in ["ok", "retry"] {
        owner.publish(work(id), at(0)).await;
    }
    owner.lease(&[1, 2], 0).await;
    assert_eq!(owner.lease_or(&[], 20, again("lapsed", 100)).await.lapsed, 2);
    let owner = owner.crash().await;
    assert_eq!(owner.settle_lease(held(&work("ok"), 1, 1), 21, done()).await, LeaseSettled::Applied);
    let found = owner.found(&work("ok")).await;
    assert_eq!(
        (found.state, found.attempts, dispositions(found.story.as_ref())),
        (State::Done, 1, Vec::new())
    );
    let settled = owner.settle_lease(held(&work("retry"), 1, 2), 21, again("retry", 50)).await;
    assert_eq!(settled, LeaseSettled::Applied);
    let found = owner.found(&work("retry")).await;
    assert_eq!((found.attempts, found.due), (1, Some(at(50))));
    assert_eq!(dispositions(found.story.as_ref()), ["retry"], "it is one attempt");
}

/// The answer of an attempt that was given to somebody else changes nothing, and hears how it is.
pub async fn an_answer_after_it_was_leased_again_is_a_conflict<S: Subject>(subject: S) {
    let owner = Owner::pulled(subject).await;
    owner.publish(work("1"), at(0)).await;
    owner.lease(&[1], 0).await;
    owner.lease(&[2], 10).await;
    assert_eq!(owner.lease_ids(&[3], 11).await, ["1"]);
    let before = owner.found(&work("1")).await;
    for late in [held(&work("1"), 1, 1), held(&work("1"), 2, 1), held(&work("1"), 1, 3)] {
        assert_eq!(conflict(owner.settle_lease(late.clone(), 12, done()).await), before, "{late:?}");
        assert_eq!(conflict(owner.extend(late, 12, 99).await), before);
    }
    assert_eq!(owner.settle_lease(held(&work("1"), 2, 3), 13, done()).await, LeaseSettled::Applied);
    let late = conflict(owner.settle_lease(held(&work("1"), 1, 1), 14, done()).await);
    assert_eq!((late.state, late.attempts), (State::Done, 2));
}

/// What somebody else has settled meanwhile stays so: dead by its lapse, or by an operator.
pub async fn an_answer_to_what_is_settled_otherwise_is_a_conflict<S: Subject>(subject: S) {
    let owner = Owner::pulled(subject).await;
    for id in ["lapsed", "killed", "discarded"] {
        owner.publish(work(id), at(0)).await;
    }
    assert_eq!(owner.lease(&[1, 2, 3], 0).await.entries.len(), 3);
    owner.act(&work("killed"), Act::Kill, at(1)).await;
    owner.act(&work("discarded"), Act::Discard, at(1)).await;
    assert_eq!(owner.lease_or(&[9], 10, dies(Park::GoOn)).await.lapsed, 1);
    let cases = [("lapsed", 1, State::Dead), ("killed", 2, State::Dead), ("discarded", 3, State::Discarded)];
    for (id, token, is) in cases {
        let lease = held(&work(id), 1, token);
        assert_eq!(conflict(owner.settle_lease(lease.clone(), 12, done()).await).state, is);
        assert_eq!(conflict(owner.extend(lease, 12, 99).await).state, is);
    }
    // A conflict is final, whatever an operator does then.
    owner.act(&work("lapsed"), redrive(), at(13)).await;
    conflict(owner.settle_lease(held(&work("lapsed"), 1, 1), 14, done()).await);
    assert_eq!(owner.lease_ids(&[4], 15).await, ["lapsed"]);
}

/// A token that nobody was given settles nothing.
pub async fn a_made_up_token_settles_nothing<S: Subject>(subject: S) {
    let owner = Owner::pulled(subject).await;
    owner.publish(work("1"), at(0)).await;
    for attempt in [0, 1] {
        let found = conflict(owner.settle_lease(held(&work("1"), attempt, 0), 1, done()).await);
        assert_eq!(found.state, State::Ready);
    }
    assert_eq!(owner.lease_ids(&[1], 2).await, ["1"]);
}

/// A lease is good for longer where that is asked in time.
pub async fn a_lease_can_be_made_longer<S: Subject>(subject: S) {
    let owner = Owner::pulled(subject).await;
    owner.publish(work("1"), at(0)).await;
    owner.lease(&[1], 0).await;
    assert_eq!(owner.extend(held(&work("1"), 1, 1), 5, 50).await, LeaseSettled::Applied);
    let owner = owner.crash().await;
    assert_eq!(owner.found(&work("1")).await.until, Some(at(50)));
    assert_eq!(owner.lease(&[2], 49).await.lapsed, 0);
    assert_eq!(owner.lease(&[2], 50).await.lapsed, 1);
    let late = conflict(owner.extend(held(&work("1"), 1, 1), 50, 99).await);
    assert_eq!(late.state, State::Waiting);
    assert_eq!(owner.extend(held(&work("9"), 1, 1), 50, 99).await, LeaseSettled::Unknown);
}

/// The next of a key is leased when the one before is settled, and not while it is out or waits.
pub async fn leases_keep_the_order_of_keys<S: Subject>(subject: S) {
    let owner = Owner::pulled(subject).await;
    for id in ["1", "2", "3"] {
        owner.publish(work(id).key("k"), at(0)).await;
    }
    assert_eq!(owner.lease_ids(&[1, 2, 3], 0).await, ["1"]);
    owner.settle_lease(held(&work("1"), 1, 1), 1, again("retry", 50)).await;
    assert_eq!(owner.lease_ids(&[2], 2).await, [""; 0]);
    owner.act(&work("1"), Act::RetryNow, at(3)).await;
    assert_eq!(owner.lease_ids(&[2], 3).await, ["1"]);
    owner.settle_lease(held(&work("1"), 2, 2), 4, done()).await;
    assert_eq!(owner.lease_ids(&[3], 4).await, ["2"]);
    owner.settle_lease(held(&work("2"), 1, 3), 5, dies(Park::Stay)).await;
    assert_eq!(owner.lease_ids(&[4], 6).await, [""; 0]);
    owner.act(&work("2"), Act::Discard, at(7)).await;
    assert_eq!(owner.lease_ids(&[4], 8).await, ["3"]);
}

/// A dead letter holds up the key of a queue that is pulled from for its time, and no longer.
pub async fn parking_ends_at_its_time_where_it_is_pulled<S: Subject>(subject: S) {
    let owner = Owner::pulled(subject).await;
    for id in ["1", "2"] {
        owner.publish(work(id).key("k"), at(0)).await;
    }
    owner.lease(&[1], 0).await;
    owner
        .settle_lease(held(&work("1"), 1, 1), 1, dies(Park::UpTo { until: Some(at(60)), count: None }))
        .await;
    let leased = owner.lease(&[2], 59).await;
    assert_eq!((leased.entries.len(), leased.next_due), (0, Some(at(60))));
    assert_eq!(owner.lease_ids(&[2], 60).await, ["2"]);
}

/// Rules hold back what is leased as they hold back what is run.
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
    owner.done(What::Lift(pause()), at(3)).await;
    owner.done(set(Rule::QuarantineTenant { queue: None, tenant: "a".to_owned() }), at(3)).await;
    assert_eq!(owner.lease_ids(&[1, 2, 3], 4).await, ["b"]);
    let retries = || Rule::PauseRetries { queue: PULLED.to_owned() };
    owner.done(set(retries()), at(5)).await;
    owner.settle_lease(held(&work("b").tenant("b"), 1, 1), 5, again("retry", 5)).await;
    owner.publish(work("new"), at(5)).await;
    assert_eq!(owner.lease_ids(&[1, 2, 3], 6).await, ["new"]);
    owner.done(What::Lift(retries()), at(7)).await;
    owner.done(What::Lift(key()), at(7)).await;
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

/// A call gives as many bytes as it asks for, and at least one event.
pub async fn a_lease_has_a_bound_in_bytes<S: Subject>(subject: S) {
    let owner = Owner::pulled(subject).await;
    for id in ["1", "2", "3", "4"] {
        owner.publish(work(id).payload([0; 10]), at(0)).await;
    }
    let ids = async |bytes_max| {
        let (queue, tokens) = (PULLED.to_owned(), vec![[1; 16], [2; 16], [3; 16]]);
        let call = Lease { queue, at: at(1), until: at(9), tokens, bytes_max, lapsed: done() };
        owner.store.lease(call).await.unwrap().entries.iter().map(id).collect::<Vec<_>>()
    };
    assert_eq!(ids(0).await, ["1"]);
    assert_eq!(ids(15).await, ["2", "3"]);
}

/// What has expired is not handed out, and ends.
pub async fn an_expired_event_is_not_leased<S: Subject>(subject: S) {
    let owner = Owner::pulled(subject).await;
    owner.publish(work("1").expires_after(secs(5)), at(0)).await;
    owner.publish(work("2"), at(0)).await;
    assert_eq!(owner.lease_ids(&[1], 5).await, ["2"]);
    assert_eq!(owner.state(&work("1")).await, State::Expired);
}

/// Orders see what is leased as running.
pub async fn what_is_leased_runs<S: Subject>(subject: S) {
    let owner = Owner::pulled(subject).await;
    owner.publish(work("1"), at(0)).await;
    owner.lease(&[1], 0).await;
    for act in [Act::RetryNow, redrive(), Act::Restore] {
        assert_eq!(owner.act_refused(&work("1"), act, at(1)).await, state(State::Running));
    }
    owner.act(&work("1"), Act::Kill, at(1)).await;
    assert_eq!(owner.found(&work("1")).await.reason, Some(DeadReason::Killed));
    owner.act(&work("1"), redrive(), at(2)).await;
    let leased = owner.lease(&[2], 3).await;
    assert_eq!(leased.entries[0].progress.mode, Mode::Redrive);
    assert_eq!(
        owner.settle_lease(held(&work("1"), 1, 1), 4, done()).await,
        LeaseSettled::Conflict(Box::new(owner.found(&work("1")).await))
    );
    assert_eq!(owner.settle_lease(held(&work("1"), 1, 2), 4, done()).await, LeaseSettled::Applied);
}
