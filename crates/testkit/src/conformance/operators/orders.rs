//! Operators' commands on events: dead letters, discards and restores.

use redrive_core::event::{DeadReason, State};
use redrive_core::queue_entry::{EventChange, ParkFollowers, SettleResult};
use redrive_store::operate::{EventAction, EventRef, OperatorAction, Refusal};

use crate::conformance::Subject;
use crate::conformance::desk::{REASON, recalled, redrive, skip_head, state, target, told};
use crate::conformance::owner::{HORIZON, MAILS, Owner, WINDOW, at, history, mail, order, retry, secs};

/// A command that names a revision does not change an event that was changed since.
pub async fn an_order_for_an_older_rev_is_refused<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.publish(mail("1"), at(0)).await;
    let alive = owner.found(&mail("1")).await.rev;
    owner.dies(&mail("1"), at(1), crate::conformance::owner::dead(ParkFollowers::No)).await;
    let is = owner.found(&mail("1")).await.rev;
    assert!(is > alive);
    let order =
        |rev| OperatorAction::Events(vec![EventRef { rev: Some(rev), ..target(&mail("1")) }], redrive());
    assert_eq!(owner.refused(order(alive), at(2)).await, Refusal::Changed { is });
    assert_eq!(owner.state(&mail("1")).await, State::Dead);
    assert_eq!(owner.done(order(is), at(2)).await, 1);
}

/// Each event of a command is changed, or is refused by its position in the list.
pub async fn a_refusal_leaves_the_others_done<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    for id in ["1", "3"] {
        owner.die(&mail(id), at(0), ParkFollowers::No).await;
    }
    let targets = ["1", "2", "3", "1"].map(|id| target(&mail(id))).to_vec();
    let done = owner.operate(OperatorAction::Events(targets, redrive()), at(1)).await;
    assert_eq!(done.changed, 2);
    assert_eq!(done.refused, [(1, Refusal::Unknown), (3, state(State::Ready))]);
    assert_eq!(owner.due_ids(at(1)).await, ["1", "3"]);
}

/// A command has a size limit; larger changes are jobs.
pub async fn too_many_targets_are_refused_as_one<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.die(&mail("1"), at(0), ParkFollowers::No).await;
    let targets = vec![target(&mail("1")); 10_001];
    let refusal = owner.refused(OperatorAction::Events(targets, redrive()), at(1)).await;
    assert!(matches!(refusal, Refusal::Senseless(_)), "{refusal:?}");
    assert_eq!(owner.state(&mail("1")).await, State::Dead);
}

/// A discarded event leaves the order of its key, and its owner's memory.
pub async fn what_is_discarded_lets_its_key_go_on<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    for id in ["1", "2"] {
        owner.publish(order(id, "k"), at(0)).await;
    }
    let entry = owner.entry("1", at(0)).await;
    let (arrivals, version) = (owner.watch(), owner.version().await);
    owner.act(&order("1", "k"), EventAction::Discard, at(1)).await;
    assert!(owner.version().await > version);
    assert!(arrivals.lock().unwrap().iter().any(|told| told.recall || told.missed));
    assert!(told(&arrivals, "2"));
    assert_eq!(owner.due_ids(at(1)).await, ["2"]);
    assert_eq!(owner.settle(&entry, at(2), EventChange::Done).await, SettleResult::Stale);
    assert_eq!(owner.state(&order("1", "k")).await, State::Discarded);
    assert_eq!(
        owner.act_refused(&order("1", "k"), EventAction::Discard, at(2)).await,
        state(State::Discarded)
    );
}

/// Every event that has not ended can be discarded: waiting, parked, or a dead letter that parks its key.
pub async fn whatever_has_not_ended_can_be_discarded<S: Subject>(subject: S) {
    let owner = Owner::parked(subject).await;
    owner.publish(mail("waiting").delay(secs(50)), at(0)).await;
    owner.act(&mail("waiting"), EventAction::Discard, at(2)).await;
    owner.act(&order("2", "k"), EventAction::Discard, at(2)).await;
    assert_eq!(owner.due_ids(at(99)).await, [""; 0]);
    let arrivals = owner.watch();
    owner.act(&order("1", "k"), EventAction::Discard, at(2)).await;
    assert!(told(&arrivals, "3"));
    assert_eq!(owner.due_ids(at(99)).await, ["3"]);
    let entry = owner.entry("3", at(99)).await;
    owner.settle_next(&entry, at(3), EventChange::Done).await;
    assert_eq!(owner.act_refused(&order("3", "k"), EventAction::Discard, at(4)).await, state(State::Done));
}

/// A discarded identity is remembered, for at least a window and as long as any other.
pub async fn a_discarded_identity_is_remembered<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.die(&mail("1"), at(0), ParkFollowers::No).await;
    let late = HORIZON + WINDOW;
    owner.act(&mail("1"), EventAction::Discard, at(late)).await;
    let found = owner.publish_again(mail("1"), at(late + WINDOW - 1)).await;
    assert_eq!((found.state, found.ended, found.attempts), (State::Discarded, Some(at(late)), 1));
    assert_eq!(found.until, Some(at(late + WINDOW)));
    assert_eq!(found.history, Some(history("refused")));
}

/// A restored event is a dead letter again, as before, and parks no key.
pub async fn what_was_discarded_can_be_restored<S: Subject>(subject: S) {
    let owner = Owner::parked(subject).await;
    let before = owner.found(&order("1", "k")).await;
    assert!(before.holds);
    owner.act(&order("1", "k"), EventAction::Discard, at(5)).await;
    let owner = owner.crash().await;
    let rev = owner.found(&order("1", "k")).await.rev;
    let restore = OperatorAction::Events(
        vec![EventRef { rev: Some(rev), ..target(&order("1", "k")) }],
        EventAction::Restore,
    );
    assert_eq!(owner.done(restore, at(6)).await, 1);
    let found = owner.found(&order("1", "k")).await;
    assert_eq!((found.state, found.reason, found.holds), (State::Dead, Some(REASON), false));
    assert_eq!((found.seq, found.history, found.cause), (before.seq, before.history, before.cause));
    assert_eq!((found.attempts, found.until), (1, None));
    assert!(found.rev > rev);
    assert_eq!(owner.due_ids(at(6)).await, ["2"]);
    assert_eq!(owner.act_refused(&order("1", "k"), EventAction::Restore, at(6)).await, state(State::Dead));
    owner.store.forget(at(HORIZON + WINDOW * 9)).await.unwrap();
    assert_eq!(owner.state(&order("1", "k")).await, State::Dead, "it is kept like any letter");
    assert_eq!(owner.act_refused(&order("1", "k"), redrive(), at(7)).await, Refusal::OutOfOrder);
}

/// An event that was discarded before it died is restored as killed: it does not run unasked.
pub async fn what_never_died_is_restored_as_killed<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.publish(mail("1"), at(0)).await;
    owner.act(&mail("1"), EventAction::Discard, at(1)).await;
    owner.act(&mail("1"), EventAction::Restore, at(2)).await;
    let found = owner.found(&mail("1")).await;
    assert_eq!((found.state, found.reason), (State::Dead, Some(DeadReason::Killed)));
    assert_eq!(owner.due_ids(at(9)).await, [""; 0]);
}

/// When its dedupe record has expired it cannot be restored: it would be a second event beside a new one.
pub async fn nothing_restorable_outlives_its_receipt<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    for id in ["1", "2"] {
        owner.die(&mail(id), at(0), ParkFollowers::No).await;
        owner.act(&mail(id), EventAction::Discard, at(1)).await;
    }
    let over = HORIZON + WINDOW + 1;
    owner.act_refused(&mail("1"), EventAction::Restore, at(over)).await;
    owner.publish(mail("2"), at(over)).await;
    assert_eq!(owner.act_refused(&mail("2"), EventAction::Restore, at(over)).await, state(State::Ready));
    assert!(owner.store.forget(at(over)).await.unwrap() > 0);
    assert_eq!(owner.act_refused(&mail("1"), EventAction::Restore, at(2)).await, Refusal::Unknown);
    assert!(owner.store.find("", MAILS, "1").await.unwrap().is_none());
    owner.publish(mail("1"), at(over)).await;
    assert_eq!(owner.due_ids(at(over)).await.len(), 2);
}

/// A killed event is a dead letter immediately: it leaves its owner's memory and the order of its key.
pub async fn what_is_killed_is_a_dead_letter<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    for id in ["1", "2", "3"] {
        owner.publish(order(id, "k"), at(0)).await;
    }
    let entry = owner.entry("1", at(0)).await;
    owner.act(&order("2", "k"), EventAction::Kill, at(1)).await;
    let (arrivals, version) = (owner.watch(), owner.version().await);
    owner.act(&order("1", "k"), EventAction::Kill, at(1)).await;
    assert!(owner.version().await > version);
    assert!(recalled(&arrivals));
    let found = owner.found(&order("1", "k")).await;
    assert_eq!((found.state, found.reason), (State::Dead, Some(DeadReason::Killed)));
    assert_eq!((found.ended, found.holds), (Some(at(1)), false));
    assert_eq!(owner.settle(&entry, at(2), EventChange::Done).await, SettleResult::Stale);
    assert_eq!(owner.due_ids(at(2)).await, ["3"]);
    assert_eq!(owner.act_refused(&order("1", "k"), EventAction::Kill, at(2)).await, state(State::Dead));
}

/// A waiting event can be made due immediately, and that is announced.
pub async fn what_waits_can_be_due_now<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.publish(mail("1"), at(0)).await;
    let entry = owner.entry("1", at(0)).await;
    owner.settle_next(&entry, at(1), EventChange::Retry(retry(at(900)))).await;
    assert_eq!(owner.due_ids(at(5)).await, [""; 0]);
    let arrivals = owner.watch();
    owner.act(&mail("1"), EventAction::RetryNow, at(5)).await;
    assert!(told(&arrivals, "1"));
    let entry = owner.entry("1", at(5)).await;
    assert_eq!(entry.progress, retry(at(5)));
    owner.act(&mail("1"), EventAction::RetryNow, at(6)).await;
    assert_eq!(owner.entry("1", at(6)).await, entry, "what is due already is as it was");
    owner.dies(&mail("1"), at(6), crate::conformance::owner::dead(ParkFollowers::No)).await;
    assert_eq!(owner.act_refused(&mail("1"), EventAction::RetryNow, at(7)).await, state(State::Dead));
}

/// An event that waits behind others of its key is due when its turn comes, and not before.
pub async fn what_is_due_now_still_waits_for_its_turn<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.publish(order("1", "k"), at(0)).await;
    owner.publish(order("2", "k").delay(secs(900)), at(0)).await;
    owner.act(&order("2", "k"), EventAction::RetryNow, at(5)).await;
    assert_eq!(owner.due_ids(at(5)).await, ["1"]);
    let entry = owner.entry("1", at(5)).await;
    owner.settle_next(&entry, at(5), EventChange::Done).await;
    assert_eq!(owner.due_ids(at(5)).await, ["2"]);
}

/// A skipped key continues without its first event, which stays a dead letter.
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
