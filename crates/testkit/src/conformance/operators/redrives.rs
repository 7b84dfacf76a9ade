//! Redrives: dead letters that run again, as the same events with the same sequence numbers.

use redrive_core::event::{Mode, State};
use redrive_core::queue_entry::{EventChange, EventProgress, ParkFollowers, SettleResult};
use redrive_core::triage::RedriveOptions;
use redrive_store::operate::{EventAction, Refusal};

use crate::conformance::Subject;
use crate::conformance::desk::{REASON, out_of_order, recalled, redrive, state, told};
use crate::conformance::owner::{MAILS, Owner, at, dead, history, mail, order, secs};

/// A redriven dead letter is the same event with the same sequence number and its attempt history, as if it
/// had not run yet.
pub async fn a_redrive_keeps_identity_and_place<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.die(&mail("1"), at(0), ParkFollowers::No).await;
    let before = owner.found(&mail("1")).await;
    owner.act(&mail("1"), redrive(), at(5)).await;
    let owner = owner.crash().await;
    let entry = owner.entry("1", at(5)).await;
    assert_eq!((entry.seq, entry.rev > before.rev), (before.seq, true));
    let expected = EventProgress {
        mode: Mode::Redrive,
        history: Some(history("refused")),
        ..EventProgress::fresh(at(5))
    };
    assert_eq!(entry.progress, expected);
    let found = owner.publish_again(mail("1"), at(6)).await;
    assert_eq!((found.seq, found.state, found.reason, found.ended), (before.seq, State::Ready, None, None));
    assert_eq!((found.cause, found.cause.is_some()), (before.cause, true));
    owner.settle_next(&entry, at(7), EventChange::Done).await;
    assert_eq!(owner.publish_again(mail("1"), at(8)).await.state, State::Done);
}

/// A redrive can keep the attempt count.
pub async fn a_redrive_may_keep_its_attempts<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.die(&mail("1"), at(0), ParkFollowers::No).await;
    owner
        .act(
            &mail("1"),
            EventAction::Redrive(RedriveOptions { keep_attempts: true, ..RedriveOptions::default() }),
            at(5),
        )
        .await;
    let progress = owner.entry("1", at(5)).await.progress;
    assert_eq!((progress.attempts, progress.mode, progress.started), (1, Mode::Redrive, None));
}

/// Only a dead letter can be redriven.
pub async fn only_a_dead_letter_is_redriven<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    for id in ["done", "ready", "discarded"] {
        owner.publish(mail(id), at(0)).await;
    }
    owner.publish(mail("waiting").delay(secs(50)), at(0)).await;
    let entry = owner.entry("done", at(0)).await;
    owner.settle_next(&entry, at(1), EventChange::Done).await;
    owner.act(&mail("discarded"), EventAction::Discard, at(1)).await;
    for is in [State::Done, State::Ready, State::Discarded, State::Waiting] {
        assert_eq!(owner.act_refused(&mail(is.as_str()), redrive(), at(2)).await, state(is));
    }
    assert_eq!(owner.act_refused(&mail("nobody"), redrive(), at(2)).await, Refusal::Unknown);
}

/// A dead letter that parks its key runs before the events parked behind it.
pub async fn a_redriven_head_goes_before_those_that_wait<S: Subject>(subject: S) {
    let owner = Owner::parked(subject).await;
    let arrivals = owner.watch();
    owner.act(&order("1", "k"), redrive(), at(5)).await;
    assert!(told(&arrivals, "1"));
    assert_eq!(owner.due_ids(at(5)).await, ["1"]);
    assert_eq!(owner.state(&order("2", "k")).await, State::Waiting);
    let entry = owner.entry("1", at(5)).await;
    assert!(!entry.progress.out_of_order);
    assert_eq!(owner.settle_next(&entry, at(6), EventChange::Done).await.as_deref(), Some("2"));
}

/// If later events may have run already, the redrive must allow it, and the attempt is marked.
pub async fn what_was_passed_is_redriven_out_of_order_alone<S: Subject>(subject: S) {
    let owner = Owner::passed(subject).await;
    let late = order("1", "k");
    assert_eq!(owner.act_refused(&late, redrive(), at(5)).await, Refusal::OutOfOrder);
    assert_eq!(owner.due_ids(at(5)).await, ["2"]);
    let running = owner.entry("2", at(5)).await;
    let (arrivals, version) = (owner.watch(), owner.version().await);
    owner.act(&late, out_of_order(), at(5)).await;
    assert!(recalled(&arrivals), "the head until then is to wait, if it has not started");
    assert!(owner.version().await > version);
    assert_eq!(owner.due_ids(at(5)).await, ["1"], "it is the head of its key again");
    let entry = owner.entry("1", at(5)).await;
    assert!(entry.progress.out_of_order);
    // The former first event of the key may be running, and its settle counts.
    assert_eq!(owner.settle_next(&running, at(6), EventChange::Done).await, None);
    assert_eq!(owner.settle_next(&entry, at(7), EventChange::Done).await.as_deref(), Some("3"));
}

/// Redriven dead letters of one key run in their old order.
pub async fn redriven_letters_keep_the_order_of_their_key<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    for id in ["1", "2"] {
        owner.die(&order(id, "k"), at(0), ParkFollowers::No).await;
    }
    owner.act(&order("2", "k"), out_of_order(), at(1)).await;
    owner.act(&order("1", "k"), out_of_order(), at(2)).await;
    assert_eq!(owner.due_ids(at(5)).await, ["1"]);
    let entry = owner.entry("1", at(5)).await;
    assert_eq!(owner.settle_next(&entry, at(6), EventChange::Done).await.as_deref(), Some("2"));
}

/// A dead letter without an ordering key is never out of order.
pub async fn what_has_no_order_is_never_out_of_it<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.die(&mail("1").key("k"), at(0), ParkFollowers::UntilResolved).await;
    owner.act(&mail("1"), redrive(), at(1)).await;
    assert!(!owner.entry("1", at(1)).await.progress.out_of_order);
}

/// A reroute names another handler, and leaves queue, order and identity unchanged.
pub async fn a_reroute_keeps_queue_order_and_identity<S: Subject>(subject: S) {
    let owner = Owner::parked(subject).await;
    let seq = owner.found(&order("1", "k")).await.seq;
    let to = |queue: &str| {
        EventAction::Redrive(RedriveOptions { to: Some(queue.to_owned()), ..RedriveOptions::default() })
    };
    let refusal = owner.act_refused(&order("1", "k"), to("nowhere"), at(4)).await;
    assert_eq!(refusal, Refusal::NoQueue { queue: "nowhere".to_owned() });
    owner.act(&order("1", "k"), to(MAILS), at(5)).await;
    let owner = owner.crash().await;
    let found = owner.found(&order("1", "k")).await;
    assert_eq!((found.seq, found.route.as_deref()), (seq, Some(MAILS)));
    assert_eq!(owner.due_ids(at(5)).await, ["1"]);
    let entry = owner.entry("1", at(5)).await;
    assert_eq!((entry.seq, entry.event.queue.as_str()), (seq, crate::conformance::owner::ORDERS));
    assert_eq!(entry.progress.route.as_deref(), Some(MAILS));
    let dead = EventChange::Dead {
        reason: REASON,
        progress: entry.progress.clone(),
        park: ParkFollowers::UntilResolved,
    };
    owner.settle_next(&entry, at(6), dead).await;
    owner.act(&order("1", "k"), redrive(), at(7)).await;
    assert_eq!(owner.entry("1", at(7)).await.progress.route, None, "a redrive without a queue goes home");
}

/// A dead letter that becomes the first of its key, when a redriven one before it has ended, parks no more
/// events than it may.
pub async fn a_letter_that_becomes_the_head_holds_up_no_more_than_it_may<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    for id in ["1", "2", "3"] {
        owner.publish(order(id, "k"), at(0)).await;
    }
    let first = owner.entry("1", at(0)).await;
    owner.settle_next(&first, at(1), dead(ParkFollowers::No)).await;
    let second = owner.entry("2", at(1)).await;
    owner.settle_next(&second, at(2), dead(ParkFollowers::UpTo { until: None, count: Some(1) })).await;
    assert!(owner.due_ids(at(2)).await.is_empty(), "the third waits");
    owner.act(&order("1", "k"), out_of_order(), at(3)).await;
    owner.publish(order("4", "k"), at(4)).await;
    let first = owner.entry("1", at(4)).await;
    assert_eq!(owner.settle_next(&first, at(5), EventChange::Done).await.as_deref(), Some("3"));
}

/// A settle changes no dead letter, whatever revision it names.
pub async fn a_settle_brings_no_dead_letter_back<S: Subject>(subject: S) {
    let owner = Owner::of(subject).await;
    owner.publish(mail("1"), at(0)).await;
    let mut entry = owner.entry("1", at(0)).await;
    owner.act(&mail("1"), EventAction::Kill, at(1)).await;
    entry.rev = owner.found(&mail("1")).await.rev;
    for change in [EventChange::Done, EventChange::Retry(EventProgress::fresh(at(2)))] {
        assert_eq!(owner.settle(&entry, at(2), change).await, SettleResult::Stale);
    }
    assert_eq!(owner.state(&mail("1")).await, State::Dead);
}

/// Once later events of its key may have run before a dead letter, its redrives are marked so, also if it
/// parks the key since.
pub async fn what_ran_out_of_order_stays_marked<S: Subject>(subject: S) {
    let owner = Owner::passed(subject).await;
    owner.act(&order("1", "k"), out_of_order(), at(5)).await;
    let entry = owner.entry("1", at(5)).await;
    let EventChange::Dead { reason, park, .. } = dead(ParkFollowers::UntilResolved) else {
        panic!("a death")
    };
    let progress = entry.progress.clone();
    owner.settle_next(&entry, at(6), EventChange::Dead { reason, progress, park }).await;
    owner.act(&order("1", "k"), redrive(), at(7)).await;
    assert!(owner.entry("1", at(7)).await.progress.out_of_order);
}
