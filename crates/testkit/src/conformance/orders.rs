//! Orders for events: what becomes of dead letters, and of what is taken away.

use redrive_core::entry::{Change, Park, Settled};
use redrive_core::event::{DeadReason, State};
use redrive_store::operate::{Act, Refusal, Target, What};

use super::Subject;
use super::desk::{REASON, recalled, redrive, skip_head, state, target, told};
use super::owner::{HORIZON, MAILS, Owner, WINDOW, at, mail, order, retry, secs, story};

/// An order that names a rev changes nothing of what was changed since.
pub async fn an_order_for_an_older_rev_is_refused<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.publish(mail("1"), at(0)).await;
    let alive = owner.found(&mail("1")).await.rev;
    owner.dies(&mail("1"), at(1), super::owner::dead(Park::GoOn)).await;
    let is = owner.found(&mail("1")).await.rev;
    assert!(is > alive);
    let order = |rev| What::Events(vec![Target { rev: Some(rev), ..target(&mail("1")) }], redrive());
    assert_eq!(owner.refused(order(alive), at(2)).await, Refusal::Changed { is });
    assert_eq!(owner.state(&mail("1")).await, State::Dead);
    assert_eq!(owner.done(order(is), at(2)).await, 1);
}

/// Each event of an order is changed, or is refused by its place in the list.
pub async fn a_refusal_leaves_the_others_done<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    for id in ["1", "3"] {
        owner.die(&mail(id), at(0), Park::GoOn).await;
    }
    let targets = ["1", "2", "3", "1"].map(|id| target(&mail(id))).to_vec();
    let done = owner.operate(What::Events(targets, redrive()), at(1)).await;
    assert_eq!(done.changed, 2);
    assert_eq!(done.refused, [(1, Refusal::Unknown), (3, state(State::Ready))]);
    assert_eq!(owner.due_ids(at(1)).await, ["1", "3"]);
}

/// An order has a bound; what is larger is a job.
pub async fn too_many_targets_are_refused_as_one<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.die(&mail("1"), at(0), Park::GoOn).await;
    let targets = vec![target(&mail("1")); 10_001];
    let refusal = owner.refused(What::Events(targets, redrive()), at(1)).await;
    assert!(matches!(refusal, Refusal::Senseless(_)), "{refusal:?}");
    assert_eq!(owner.state(&mail("1")).await, State::Dead);
}

/// What is discarded is out of its key's order, and out of its owner's hands.
pub async fn what_is_discarded_lets_its_key_go_on<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    for id in ["1", "2"] {
        owner.publish(order(id, "k"), at(0)).await;
    }
    let entry = owner.entry("1", at(0)).await;
    let (arrivals, version) = (owner.watch(), owner.version().await);
    owner.act(&order("1", "k"), Act::Discard, at(1)).await;
    assert!(owner.version().await > version);
    assert!(arrivals.lock().unwrap().iter().any(|told| told.recall || told.missed));
    assert!(told(&arrivals, "2"));
    assert_eq!(owner.due_ids(at(1)).await, ["2"]);
    assert_eq!(owner.settle(&entry, at(2), Change::Done).await, Settled::Stale);
    assert_eq!(owner.state(&order("1", "k")).await, State::Discarded);
    assert_eq!(owner.act_refused(&order("1", "k"), Act::Discard, at(2)).await, state(State::Discarded));
}

/// Whatever has not ended can be discarded: what waits, what is held up, a letter that parks its key.
pub async fn whatever_has_not_ended_can_be_discarded<S: Subject>(subject: S) {
    let owner = Owner::parked(subject).await;
    owner.publish(mail("waiting").delay(secs(50)), at(0)).await;
    owner.act(&mail("waiting"), Act::Discard, at(2)).await;
    owner.act(&order("2", "k"), Act::Discard, at(2)).await;
    assert_eq!(owner.due_ids(at(99)).await, [""; 0]);
    let arrivals = owner.watch();
    owner.act(&order("1", "k"), Act::Discard, at(2)).await;
    assert!(told(&arrivals, "3"));
    assert_eq!(owner.due_ids(at(99)).await, ["3"]);
    let entry = owner.entry("3", at(99)).await;
    owner.settle_next(&entry, at(3), Change::Done).await;
    assert_eq!(owner.act_refused(&order("3", "k"), Act::Discard, at(4)).await, state(State::Done));
}

/// A discarded identity is remembered, for a window at least and as long as any other.
pub async fn a_discarded_identity_is_remembered<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.die(&mail("1"), at(0), Park::GoOn).await;
    let late = HORIZON + WINDOW;
    owner.act(&mail("1"), Act::Discard, at(late)).await;
    let found = owner.publish_again(mail("1"), at(late + WINDOW - 1)).await;
    assert_eq!((found.state, found.ended, found.attempts), (State::Discarded, Some(at(late)), 1));
    assert_eq!(found.until, Some(at(late + WINDOW)));
    assert_eq!(found.story, Some(story("refused")));
}

/// What was discarded is a dead letter again, as it was, and holds up nobody.
pub async fn what_was_discarded_can_be_restored<S: Subject>(subject: S) {
    let owner = Owner::parked(subject).await;
    let before = owner.found(&order("1", "k")).await;
    assert!(before.holds);
    owner.act(&order("1", "k"), Act::Discard, at(5)).await;
    let owner = owner.crash().await;
    let rev = owner.found(&order("1", "k")).await.rev;
    let restore = What::Events(vec![Target { rev: Some(rev), ..target(&order("1", "k")) }], Act::Restore);
    assert_eq!(owner.done(restore, at(6)).await, 1);
    let found = owner.found(&order("1", "k")).await;
    assert_eq!((found.state, found.reason, found.holds), (State::Dead, Some(REASON), false));
    assert_eq!((found.seq, found.story, found.cause), (before.seq, before.story, before.cause));
    assert_eq!((found.attempts, found.until), (1, None));
    assert!(found.rev > rev);
    assert_eq!(owner.due_ids(at(6)).await, ["2"]);
    assert_eq!(owner.act_refused(&order("1", "k"), Act::Restore, at(6)).await, state(State::Dead));
    owner.store.forget(at(HORIZON + WINDOW * 9)).await.unwrap();
    assert_eq!(owner.state(&order("1", "k")).await, State::Dead, "it is kept like any letter");
    assert_eq!(owner.act_refused(&order("1", "k"), redrive(), at(7)).await, Refusal::OutOfOrder);
}

/// What was discarded without dying is restored as killed: nobody runs it unasked.
pub async fn what_never_died_is_restored_as_killed<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.publish(mail("1"), at(0)).await;
    owner.act(&mail("1"), Act::Discard, at(1)).await;
    owner.act(&mail("1"), Act::Restore, at(2)).await;
    let found = owner.found(&mail("1")).await;
    assert_eq!((found.state, found.reason), (State::Dead, Some(DeadReason::Killed)));
    assert_eq!(owner.due_ids(at(9)).await, [""; 0]);
}

/// When its identity is forgotten there is nothing to restore: it would be a second event beside a new one.
pub async fn nothing_restorable_outlives_its_receipt<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    for id in ["1", "2"] {
        owner.die(&mail(id), at(0), Park::GoOn).await;
        owner.act(&mail(id), Act::Discard, at(1)).await;
    }
    let over = HORIZON + WINDOW + 1;
    owner.act_refused(&mail("1"), Act::Restore, at(over)).await;
    owner.publish(mail("2"), at(over)).await;
    assert_eq!(owner.act_refused(&mail("2"), Act::Restore, at(over)).await, state(State::Ready));
    assert!(owner.store.forget(at(over)).await.unwrap() > 0);
    assert_eq!(owner.act_refused(&mail("1"), Act::Restore, at(2)).await, Refusal::Unknown);
    assert!(owner.store.find("", MAILS, "1").await.unwrap().is_none());
    owner.publish(mail("1"), at(over)).await;
    assert_eq!(owner.due_ids(at(over)).await.len(), 2);
}

/// What is killed is a dead letter at once: out of its owner's hands, and out of its key's way.
pub async fn what_is_killed_is_a_dead_letter<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    for id in ["1", "2", "3"] {
        owner.publish(order(id, "k"), at(0)).await;
    }
    let entry = owner.entry("1", at(0)).await;
    owner.act(&order("2", "k"), Act::Kill, at(1)).await;
    let (arrivals, version) = (owner.watch(), owner.version().await);
    owner.act(&order("1", "k"), Act::Kill, at(1)).await;
    assert!(owner.version().await > version);
    assert!(recalled(&arrivals));
    let found = owner.found(&order("1", "k")).await;
    assert_eq!((found.state, found.reason), (State::Dead, Some(DeadReason::Killed)));
    assert_eq!((found.ended, found.holds), (Some(at(1)), false));
    assert_eq!(owner.settle(&entry, at(2), Change::Done).await, Settled::Stale);
    assert_eq!(owner.due_ids(at(2)).await, ["3"]);
    assert_eq!(owner.act_refused(&order("1", "k"), Act::Kill, at(2)).await, state(State::Dead));
}

/// What waits for its time is due at once, and that is told.
pub async fn what_waits_can_be_due_now<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.publish(mail("1"), at(0)).await;
    let entry = owner.entry("1", at(0)).await;
    owner.settle_next(&entry, at(1), Change::Again(retry(at(900)))).await;
    assert_eq!(owner.due_ids(at(5)).await, [""; 0]);
    let arrivals = owner.watch();
    owner.act(&mail("1"), Act::RetryNow, at(5)).await;
    assert!(told(&arrivals, "1"));
    let entry = owner.entry("1", at(5)).await;
    assert_eq!(entry.progress, retry(at(5)));
    owner.act(&mail("1"), Act::RetryNow, at(6)).await;
    assert_eq!(owner.entry("1", at(6)).await, entry, "what is due already is as it was");
    owner.dies(&mail("1"), at(6), super::owner::dead(Park::GoOn)).await;
    assert_eq!(owner.act_refused(&mail("1"), Act::RetryNow, at(7)).await, state(State::Dead));
}

/// What waits behind others of its key is due when its turn comes, and not before.
pub async fn what_is_due_now_still_waits_for_its_turn<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.publish(order("1", "k"), at(0)).await;
    owner.publish(order("2", "k").delay(secs(900)), at(0)).await;
    owner.act(&order("2", "k"), Act::RetryNow, at(5)).await;
    assert_eq!(owner.due_ids(at(5)).await, ["1"]);
    let entry = owner.entry("1", at(5)).await;
    owner.settle_next(&entry, at(5), Change::Done).await;
    assert_eq!(owner.due_ids(at(5)).await, ["2"]);
}

/// A parked key goes on without its head, which stays a dead letter.
pub async fn a_parked_key_goes_on_without_its_head<S: Subject>(subject: S) {
    let owner = Owner::parked(subject).await;
    let arrivals = owner.watch();
    assert_eq!(owner.done(skip_head("k"), at(5)).await, 1);
    assert!(told(&arrivals, "2"));
    assert_eq!(owner.due_ids(at(5)).await, ["2"]);
    let found = owner.found(&order("1", "k")).await;
    assert_eq!((found.state, found.holds), (State::Dead, false));
    for key in ["k", "other"] {
        assert_eq!(owner.refused(skip_head(key), at(6)).await, Refusal::NotParked);
    }
}
