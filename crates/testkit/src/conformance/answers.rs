//! Settles of leased events: the store judges them by attempt and token, not by time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use redrive_core::event::{DeadReason, Mode, State};
use redrive_core::queue_entry::ParkFollowers;
use redrive_store::lease::{DecideExpiry, LeasePeriod, LeaseRequest, LeaseSettleResult};
use redrive_store::operate::EventAction;

use super::Subject;
use super::desk::{redrive, state};
use super::owner::{Owner, at, id};
use super::worker::{PULLED, again, conflict, dies, dispositions, done, held, lapsed, work};

/// A lease is settled after the process that granted it crashed, and the dedupe record has its attempt.
pub async fn a_lease_is_settled_by_its_attempt<S: Subject>(subject: S) {
    let owner = Owner::pulled(subject).await;
    owner.publish(work("1"), at(0)).await;
    owner.lease(&[1], 1).await;
    let owner = owner.crash().await;
    assert_eq!(owner.settle_lease(held(&work("1"), 1, 1), 2, done()).await, LeaseSettleResult::Applied);
    let found = owner.publish_again(work("1"), at(3)).await;
    assert_eq!((found.state, found.attempts, found.ended), (State::Done, 1, Some(at(2))));
    assert_eq!(owner.settle_lease(held(&work("1"), 1, 1), 3, done()).await, LeaseSettleResult::Already);
    let other = conflict(owner.settle_lease(held(&work("1"), 2, 1), 3, done()).await);
    assert_eq!(other.state, State::Done);
    assert_eq!(owner.settle_lease(held(&work("9"), 1, 1), 3, done()).await, LeaseSettleResult::Unknown);
}

/// A failed event is leased again when it is due, as its next attempt.
pub async fn a_failed_lease_is_leased_again_when_it_is_due<S: Subject>(subject: S) {
    let owner = Owner::pulled(subject).await;
    owner.publish(work("1"), at(0)).await;
    owner.lease(&[1], 1).await;
    let settled = owner.settle_lease(held(&work("1"), 1, 1), 2, again("retry", 20)).await;
    assert_eq!(settled, LeaseSettleResult::Applied);
    let leased = owner.lease(&[2], 19).await;
    assert_eq!((leased.entries.len(), leased.lapsed, leased.next_due), (0, 0, Some(at(20))));
    let leased = owner.lease(&[2], 20).await;
    assert_eq!((leased.entries[0].progress.attempts, leased.entries[0].progress.mode), (1, Mode::Retry));
    assert_eq!(leased.entries[0].progress.started, Some(at(1)));
    assert_eq!(owner.settle_lease(held(&work("1"), 2, 2), 21, done()).await, LeaseSettleResult::Applied);
    assert_eq!(owner.found(&work("1")).await.attempts, 2);
}

/// A lease that was not settled in time is an attempt with an unknown outcome.
pub async fn a_lapsed_lease_is_an_attempt<S: Subject>(subject: S) {
    let owner = Owner::pulled(subject).await;
    owner.publish(work("1"), at(0)).await;
    owner.publish(work("2"), at(0)).await;
    owner.lease(&[1, 2], 0).await;
    assert_eq!(owner.settle_lease(held(&work("2"), 1, 2), 1, done()).await, LeaseSettleResult::Applied);
    let early = owner.lease(&[3], 9).await;
    assert_eq!((early.lapsed, early.entries.len()), (0, 0));
    let late = owner.lease(&[3], 10).await;
    assert_eq!((late.lapsed, late.entries.len(), late.next_due), (1, 0, Some(at(11))));
    let found = owner.found(&work("1")).await;
    assert_eq!((found.state, found.attempts, found.until), (State::Waiting, 1, None));
    assert_eq!(dispositions(found.history.as_ref()), ["lapsed"]);
    assert_eq!(owner.lease_ids(&[4], 11).await, ["1"]);
}

/// However late the lapse of a lease is noticed, it counts from the end of the lease: also after a restart,
/// and after an extension.
pub async fn a_lapse_is_as_of_its_lease<S: Subject>(subject: S) {
    let owner = Owner::pulled(subject).await;
    owner.publish(work("1"), at(0)).await;
    owner.publish(work("2"), at(0)).await;
    owner.lease(&[1, 2], 3).await;
    assert_eq!(owner.extend(held(&work("2"), 1, 2), 5, 30).await, LeaseSettleResult::Applied);
    let owner = owner.crash().await;
    let terms = Arc::new(Mutex::new(BTreeMap::new()));
    let (seen, mut decide) = (Arc::clone(&terms), again("lapsed", 100));
    let lapsed: DecideExpiry = Box::new(move |entry, term| {
        seen.lock().unwrap().insert(id(entry), term);
        decide(entry, None)
    });
    let call = LeaseRequest {
        queue: PULLED.to_owned(),
        tenant: None,
        at: at(99),
        until: at(99),
        tokens: Vec::new(),
        bytes_max: 0,
        lapsed,
    };
    assert_eq!(owner.store.lease(call).await.unwrap().lapsed, 2);
    let term = |from, until| LeasePeriod { from: at(from), until: at(until) };
    let expected = [("1".to_owned(), term(3, 13)), ("2".to_owned(), term(3, 30))];
    assert_eq!(*terms.lock().unwrap(), BTreeMap::from(expected));
}

/// A late settle counts while no worker has leased the event again: it replaces the lapse.
pub async fn a_late_answer_counts_until_it_is_leased_again<S: Subject>(subject: S) {
    let owner = Owner::pulled(subject).await;
    for id in ["ok", "retry"] {
        owner.publish(work(id), at(0)).await;
    }
    owner.lease(&[1, 2], 0).await;
    assert_eq!(owner.lease_or(&[], 20, again("lapsed", 100)).await.lapsed, 2);
    let owner = owner.crash().await;
    assert_eq!(owner.settle_lease(held(&work("ok"), 1, 1), 21, done()).await, LeaseSettleResult::Applied);
    let found = owner.found(&work("ok")).await;
    assert_eq!(
        (found.state, found.attempts, dispositions(found.history.as_ref())),
        (State::Done, 1, Vec::new())
    );
    let settled = owner.settle_lease(held(&work("retry"), 1, 2), 21, again("retry", 50)).await;
    assert_eq!(settled, LeaseSettleResult::Applied);
    let found = owner.found(&work("retry")).await;
    assert_eq!((found.attempts, found.due), (1, Some(at(50))));
    assert_eq!(dispositions(found.history.as_ref()), ["retry"], "it is one attempt");
}

/// A settle for an attempt that was leased again changes nothing, and returns the current state.
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
    assert_eq!(owner.settle_lease(held(&work("1"), 2, 3), 13, done()).await, LeaseSettleResult::Applied);
    let late = conflict(owner.settle_lease(held(&work("1"), 1, 1), 14, done()).await);
    assert_eq!((late.state, late.attempts), (State::Done, 2));
}

/// An event that was settled meanwhile stays so: dead by another settle, or by an operator.
pub async fn an_answer_to_what_is_settled_otherwise_is_a_conflict<S: Subject>(subject: S) {
    let owner = Owner::pulled(subject).await;
    for id in ["failed", "killed", "discarded"] {
        owner.publish(work(id), at(0)).await;
    }
    assert_eq!(owner.lease(&[1, 2, 3], 0).await.entries.len(), 3);
    owner.act(&work("killed"), EventAction::Kill, at(1)).await;
    owner.act(&work("discarded"), EventAction::Discard, at(1)).await;
    let failed = held(&work("failed"), 1, 1);
    assert_eq!(owner.settle_lease(failed, 10, dies(ParkFollowers::No)).await, LeaseSettleResult::Applied);
    let cases = [("failed", 1, State::Dead), ("killed", 2, State::Dead), ("discarded", 3, State::Discarded)];
    for (id, token, is) in cases {
        let lease = held(&work(id), 1, token);
        assert_eq!(conflict(owner.settle_lease(lease.clone(), 12, done()).await).state, is);
        assert_eq!(conflict(owner.extend(lease, 12, 99).await).state, is);
    }
    // A conflict is final, whatever an operator does then.
    owner.act(&work("failed"), redrive(), at(13)).await;
    conflict(owner.settle_lease(held(&work("failed"), 1, 1), 14, done()).await);
    assert_eq!(owner.lease_ids(&[4], 15).await, ["failed"]);
}

/// A token that the store never issued settles nothing.
pub async fn a_made_up_token_settles_nothing<S: Subject>(subject: S) {
    let owner = Owner::pulled(subject).await;
    owner.publish(work("1"), at(0)).await;
    for attempt in [0, 1] {
        let found = conflict(owner.settle_lease(held(&work("1"), attempt, 0), 1, done()).await);
        assert_eq!(found.state, State::Ready);
    }
    assert_eq!(owner.lease_ids(&[1], 2).await, ["1"]);
}

/// A repeated settle is confirmed only to the worker that made it: not with a token that was never issued,
/// and not for an attempt of the same number before the event was redriven.
pub async fn only_who_did_it_is_told_so<S: Subject>(subject: S) {
    let owner = Owner::pulled(subject).await;
    for id in ["1", "2"] {
        owner.publish(work(id), at(0)).await;
    }
    owner.lease(&[1], 0).await;
    assert_eq!(owner.settle_lease(held(&work("1"), 1, 1), 1, done()).await, LeaseSettleResult::Applied);
    owner.lease(&[2], 2).await;
    assert_eq!(
        owner.settle_lease(held(&work("2"), 1, 2), 3, dies(ParkFollowers::No)).await,
        LeaseSettleResult::Applied
    );
    owner.act(&work("2"), redrive(), at(4)).await;
    assert_eq!(owner.lease_ids(&[3], 5).await, ["2"]);
    assert_eq!(owner.settle_lease(held(&work("2"), 1, 3), 6, done()).await, LeaseSettleResult::Applied);
    let owner = owner.crash().await;
    for (id, did_it, others) in [("1", 1, [0, 2]), ("2", 3, [0, 2])] {
        for token in others {
            let said = conflict(owner.settle_lease(held(&work(id), 1, token), 7, done()).await);
            assert_eq!((said.state, said.attempts), (State::Done, 1), "{id} {token}");
            conflict(owner.extend(held(&work(id), 1, token), 7, 99).await);
        }
        assert_eq!(
            owner.settle_lease(held(&work(id), 1, did_it), 7, done()).await,
            LeaseSettleResult::Already
        );
    }
}

/// A lease is extended if the request comes in time.
pub async fn a_lease_can_be_made_longer<S: Subject>(subject: S) {
    let owner = Owner::pulled(subject).await;
    owner.publish(work("1"), at(0)).await;
    owner.lease(&[1], 0).await;
    assert_eq!(owner.extend(held(&work("1"), 1, 1), 5, 50).await, LeaseSettleResult::Applied);
    let owner = owner.crash().await;
    assert_eq!(owner.found(&work("1")).await.until, Some(at(50)));
    assert_eq!(owner.lease(&[2], 49).await.lapsed, 0);
    assert_eq!(owner.lease(&[2], 50).await.lapsed, 1);
    assert_eq!(owner.extend(held(&work("9"), 1, 1), 50, 99).await, LeaseSettleResult::Unknown);
}

/// A lapsed lease is not extended once the lapse was counted as an attempt, and the reply says that a settle
/// still counts. The lapse is final only when another worker has leased the event, or it ended.
pub async fn a_lease_that_is_over_is_not_made_longer<S: Subject>(subject: S) {
    let owner = Owner::pulled(subject).await;
    for id in ["1", "2"] {
        owner.publish(work(id), at(0)).await;
    }
    owner.lease(&[1, 2], 0).await;
    // The lapse is not counted yet.
    assert_eq!(owner.extend(held(&work("1"), 1, 1), 11, 15).await, LeaseSettleResult::Applied);
    assert_eq!(owner.lease_or(&[], 20, again("lapsed", 30)).await.lapsed, 2);
    let owner = owner.crash().await;
    let before = owner.found(&work("1")).await;
    assert_eq!(lapsed(owner.extend(held(&work("1"), 1, 1), 21, 99).await), before);
    assert_eq!((before.state, before.attempts), (State::Waiting, 1));
    conflict(owner.extend(held(&work("1"), 1, 2), 21, 99).await);
    assert_eq!(owner.found(&work("1")).await, before, "it is as it was");
    assert_eq!(owner.settle_lease(held(&work("1"), 1, 1), 22, done()).await, LeaseSettleResult::Applied);
    assert_eq!(owner.extend(held(&work("1"), 1, 1), 23, 99).await, LeaseSettleResult::Already);
    lapsed(owner.extend(held(&work("2"), 1, 2), 29, 99).await);
    assert_eq!(owner.lease_ids(&[3], 30).await, ["2"]);
    conflict(owner.extend(held(&work("2"), 1, 2), 31, 99).await);
}

/// Operators' commands see leased events as running.
pub async fn what_is_leased_runs<S: Subject>(subject: S) {
    let owner = Owner::pulled(subject).await;
    owner.publish(work("1"), at(0)).await;
    owner.lease(&[1], 0).await;
    for act in [EventAction::RetryNow, redrive(), EventAction::Restore] {
        assert_eq!(owner.act_refused(&work("1"), act, at(1)).await, state(State::Running));
    }
    owner.act(&work("1"), EventAction::Kill, at(1)).await;
    let found = owner.found(&work("1")).await;
    assert_eq!((found.reason, found.attempts), (Some(DeadReason::Killed), 1));
    assert!(found.history.unwrap().is_unsure(), "a worker had it, and the outcome is unknown");
    owner.act(&work("1"), redrive(), at(2)).await;
    let leased = owner.lease(&[2], 3).await;
    assert_eq!(leased.entries[0].progress.mode, Mode::Redrive);
    assert_eq!(
        owner.settle_lease(held(&work("1"), 1, 1), 4, done()).await,
        LeaseSettleResult::Conflict(Box::new(owner.found(&work("1")).await))
    );
    assert_eq!(owner.settle_lease(held(&work("1"), 1, 2), 4, done()).await, LeaseSettleResult::Applied);
}
